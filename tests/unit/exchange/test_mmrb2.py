"""MMRB2 in its layout: its edits become comparisons that the stage edit_reward reads, and other pairs are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paco_core.benchmarks import edit_rankings
from paco_core.benchmarks.public_files import edit_benchmark_name, read_edit_bench
from paco_core.benchmarks.published import EDIT_BENCHMARKS
from paco_core.benchmarks.rankings import CandidateScores, random_order
from paco_core.cli.exchange import import_dataset
from paco_core.io.files import DataError, read_jsonl
from tests.support.mmrb2_data import BAD, GOOD, SOURCE, mmrb2_pair, write_mmrb2


def test_its_edits_are_read_as_a_benchmark_of_edits(tmp_path: Path) -> None:
    source = write_mmrb2(tmp_path / "mmrb2", [mmrb2_pair(n, "AB"[n % 2]) for n in range(9)])
    counts = import_dataset("mmrb2", source, tmp_path / "out").figures
    assert counts["comparisons"] == 9 and not any(name.startswith("rejected.") for name in counts)
    cases, rejected = read_edit_bench(tmp_path / "out")
    assert not rejected and {(case.dimension, case.instruction) for case in cases} == {("overall", "Make it green.")}
    for case in cases:
        assert [image.getpixel((0, 0)) for image in case.images()] == [SOURCE, GOOD, BAD]
    assert cases[0].id.startswith("dreambench__0_gemini-2.5-flash_0 A (gemini-2.5-flash) > ")
    assert cases[1].id.startswith("dreambench__1_gemini-2.5-flash_1 B (gpt-image-1) > ")
    assert pd.read_parquet(tmp_path / "out/comparisons.parquet")["task_type"].unique().tolist() == ["edit"]


def test_its_accuracy_is_next_to_the_published_one(tmp_path: Path) -> None:
    """The mean over pairs, in one dimension; rows of EditReward-Bench are of another benchmark."""
    source = write_mmrb2(tmp_path / "mmrb2", [mmrb2_pair(n) for n in range(8)])
    import_dataset("mmrb2", source, tmp_path / "out")
    benchmark = edit_benchmark_name(tmp_path / "out")
    assert benchmark == "MMRB2"
    cases, _ = read_edit_bench(tmp_path / "out")
    mine: list[tuple[float, ...]] = [(0.9, 0.1) if number < 6 else (0.1, 0.9) for number in range(8)]
    scores = {
        "reward": CandidateScores("mine", mine),
        "random": random_order("Chance", cases),
    }
    result = edit_rankings.evaluate_edits(cases, scores, [("reward", "random")], benchmark=benchmark)
    assert result.metrics()["reward.overall"] == 0.75 and "reward.consistency" not in result.metrics()
    assert result.as_dict()["benchmark"] == "MMRB2" and result.as_dict()["cases"] == {"overall": 8}
    for wording in ("rl", "published"):
        measured, published = result.tables(EDIT_BENCHMARKS[benchmark], wording)[:2]  # type: ignore[arg-type]
        assert (measured.title, published.title) == ("MMRB2", "MMRB2, published") and len(measured.rows) == 2
        assert all(len(row) == 2 for row in published.rows) and "0.673" in {row[1] for row in published.rows}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"chosen": "C"}, "record"),
        ({"id": None}, "record"),
        ({"prompt_content": [["image", "input_images/1_prompt_0.png"]]}, "record"),
        ({"prompt_content": [["text", "Draw a cat."]]}, "images"),
        ({"prompt_content": [["text", "Join"], *[["image", "input_images/1_prompt_0.png"]] * 2]}, "images"),
        ({"response_b": {"model_name": "b", "response_content": [["text", "I cannot."]]}}, "images"),
        ({"response_b": {"model_name": "b", "response_content": [["image", "images/gone.png"]]}}, "picture"),
        ({"response_b": {"model_name": "b", "response_content": [["image", "../mmrb2/images/0_a_0.png"]]}}, "picture"),
        ({"id": "dreambench__0_gemini-2.5-flash_0"}, "duplicate"),
    ],
)
def test_pairs_that_cannot_be_used_are_counted(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    source = write_mmrb2(tmp_path / "mmrb2", [mmrb2_pair(0), mmrb2_pair(1, **changes)])
    counts = import_dataset("mmrb2", source / "edit.json", tmp_path / "out").figures
    assert counts["comparisons"] == 1 and counts[f"rejected.{kind}"] == 1
    ((_, line),) = read_jsonl(tmp_path / "out/rejected.jsonl")
    assert "pairs[1]" in json.dumps(line)


def test_another_layout_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "edit.json").write_text(json.dumps([mmrb2_pair(0)]))
    with pytest.raises(DataError, match="pairs"):
        import_dataset("mmrb2", tmp_path, tmp_path / "out")
    (tmp_path / "edit.json").write_text(json.dumps({"pairs": [mmrb2_pair(0)]}))
    with pytest.raises(DataError, match="none of its 1 pairs"):
        import_dataset("mmrb2", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
