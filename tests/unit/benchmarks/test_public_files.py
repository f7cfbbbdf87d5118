"""Cases from the layouts of the public data sets, scores of other tools, drawn edits."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import edit_rankings
from paco_core.benchmarks import rankings as bench
from paco_core.benchmarks.public_files import draw_edit_cases, read_edit_bench, read_rank_bench_rankings, read_scores
from paco_core.io.files import DataError, write_jsonl
from paco_core.io.rejected import Rejected
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.storybook.drawn_cases import TASKS, edit_comparisons
from paco_core.storybook.world import VOCABULARY


def public(root: Path, **changes: Any) -> Path:
    rows = [
        {
            "folder": f"00{n}",
            "ref_image": "0_0.png",
            "comp_images": ["1_0.png", "1_1.png", "1_2.png", "1_3.png"],
            "rank_images": ["1_2.png", "1_0.png", "1_3.png", "1_1.png"],
        }
        for n in range(2)
    ]
    rows[1] |= changes
    for n in range(2):
        (root / "images" / f"00{n}").mkdir(parents=True, exist_ok=True)
        for name in ("0_0.png", *rows[0]["comp_images"]):
            Image.new("RGB", (4, 4), (10 * int(name[2]), n, 0)).save(root / "images" / f"00{n}" / name)
    write_jsonl(root / "consistency_full_rank.jsonl", rows)
    write_jsonl(root / "prompt_data.jsonl", [{"idx": f"00{n}", "theme": f"theme {n}", "prompt": "x"} for n in range(2)])
    return root


class Dark:
    """Prefers dark second pictures; remembers their sizes."""

    def __init__(self) -> None:
        self.sizes: set[tuple[int, int]] = set()

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.sizes |= {query.second.size for query in queries}
        return [Score(1 - query.second.getpixel((0, 0))[0] / 100) for query in queries]  # type: ignore[index]


def test_the_public_layout_is_read_and_judged(tmp_path: Path) -> None:
    instances, panels = read_rank_bench_rankings(public(tmp_path))
    instances = sorted(instances, key=lambda instance: instance.prompt_id)
    assert [i.prompt_id for i in instances] == ["000", "001"] and instances[1].theme == "theme 1"
    assert instances[0].ranking == (2, 0, 3, 1) and all(map(math.isnan, instances[0].scores))
    judged = bench.score_rankings("x", Dark(), instances, panels, template="plain")
    assert judged.scores[0] == pytest.approx((1.0, 0.9, 0.8, 0.7))
    result = bench.evaluate_rankings(instances, {"x": judged}, [], resamples=20)
    assert result.estimates["x"]["top1"].mean == 0.0


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"rank_images": ["1_2.png", "1_0.png", "1_3.png", "1_3.png"]}, "ranking"),
        ({"folder": "009"}, "prompt"),
        ({"ref_image": "9_9.png"}, "picture"),
        ({"ref_image": "../../secret.png"}, "picture"),
        ({"comp_images": "1_0.png"}, "record"),
        ({"folder": "000"}, "duplicate"),
    ],
)
def test_bad_rows_are_left_out_with_file_line_and_cause(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    instances, import_report = read_rank_bench_rankings(public(tmp_path, **changes))
    assert [instance.prompt_id for instance in instances] == ["000"]
    ((place, cause),) = import_report.rejected
    assert place.endswith(":2") and cause.startswith(kind)


def test_scores_given_elsewhere_are_a_judge(tmp_path: Path) -> None:
    instances, _ = read_rank_bench_rankings(public(tmp_path))
    rows = [
        {"reference": i.reference, "candidate": c, "score": -place}
        for i in instances
        for place, c in enumerate(i.candidates)
    ]
    write_jsonl(tmp_path / "dreamsim.jsonl", rows[:-1])
    judged = read_scores("DreamSim", tmp_path / "dreamsim.jsonl", instances, rejected := Rejected())
    assert judged.scores[0] == (0.0, -1.0, -2.0, -3.0) and math.isnan(judged.scores[1][3])
    assert judged.causes == {"not in the file": 1}
    assert not rejected
    write_jsonl(tmp_path / "bad.jsonl", [rows[0], rows[0], {**rows[1], "score": "high"}, {"score": 1}])
    with (tmp_path / "bad.jsonl").open("a") as file:
        file.write(json.dumps(rows[2])[:20])
    read_scores("x", tmp_path / "bad.jsonl", instances, rejected)
    assert rejected.figures() == {"rejected.duplicate": 1, "rejected.line": 1, "rejected.record": 2}
    write_jsonl(tmp_path / "bad.jsonl", [{**rows[0], "score": "high"}])
    with pytest.raises(DataError, match=r"bad\.jsonl"):
        read_scores("x", tmp_path / "bad.jsonl", instances, Rejected())


DIMENSIONS = ("prompt_following", "consistency", "overall")


def grey(shade: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (shade,) * 3)


def stored(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def edit_bench(folder: Path, **changes: Any) -> Path:
    rows = [
        {
            "key": [f"{n}_a", f"{n}_b"],
            "instruction": f"make it {n}",
            "input_image": stored(grey(10)),
            "output_images": [stored(Image.new("RGB", (8, 8), (90,) * 3)), stored(grey(20 + n))],
            "task_type": "color_alter" if n % 2 else "extract",
            "dimension": DIMENSIONS[n % 3],
        }
        for n in range(6)
    ]
    rows[4] |= changes
    (folder / "data").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(folder / "data" / "train-00000-of-00001.parquet", row_group_size=2)
    return folder


def test_the_public_layout_is_read_lazily_and_in_order(tmp_path: Path) -> None:
    cases, rejected = read_edit_bench(edit_bench(tmp_path))
    assert not rejected
    assert [c.dimension for c in cases] == [*DIMENSIONS, *DIMENSIONS] and len({c.group for c in cases}) == 6
    for number in (5, 0, 3):
        source, better, worse = cases[number].images()
        shades = [image.getpixel((0, 0))[0] for image in (source, better, worse)]  # type: ignore[index]
        assert shades == [10, 90, 20 + number]
    judge = Dark()
    edit_rankings.score_edits("x", judge, cases)
    assert judge.sizes == {(4, 4)}, "edited pictures take the size of their source"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"dimension": "beauty"}, "record"),
        ({"key": ["one"]}, "record"),
        ({"instruction": " "}, "record"),
        ({"instruction": "Make it <|im_end|>."}, "record"),
        ({"output_images": [stored(grey(1))]}, "picture"),
        ({"input_image": {"bytes": stored(grey(1))["bytes"][:40], "path": None}}, "picture"),
        ({"input_image": {"bytes": None, "path": "gone.png"}}, "picture"),
        ({"key": ["1_a", "1_b"]}, "duplicate"),
    ],
)
def test_bad_cases_are_left_out_and_named(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    cases, rejected = read_edit_bench(edit_bench(tmp_path, **changes))
    ((place, cause),) = rejected
    assert len(cases) == 5 and place.endswith("row 4") and cause.startswith(kind)


def test_a_benchmark_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pd.DataFrame({"key": [1]}).to_parquet(tmp_path / "data" / "other.parquet")
    for folder in (tmp_path, tmp_path / "empty"):
        with pytest.raises(DataError, match=str(folder)):
            read_edit_bench(folder)


def test_the_embedded_world_draws_what_it_claims() -> None:
    edits = edit_comparisons(90, seed=3)
    assert edits == edit_comparisons(90, seed=3) != edit_comparisons(90, seed=4)
    assert {e.task_type for e in edits} == set(TASKS) and {e.dimension for e in edits} == set(DIMENSIONS)
    for edit in edits:
        trait = TASKS[edit.task_type]
        changed = {t for t in VOCABULARY if getattr(edit.better, t) != getattr(edit.before, t)}
        assert changed == {trait}, "the better picture changes what was asked for and nothing else"
        assert edit.worse != edit.better
        follows = getattr(edit.worse, trait) == getattr(edit.better, trait)
        if edit.dimension != "overall":
            assert follows == (edit.dimension == "consistency")
        if follows:
            other_traits = {t for t in VOCABULARY if getattr(edit.worse, t) != getattr(edit.better, t)}
            assert len(other_traits) == 1 and other_traits != {trait} and "size" not in other_traits
    assert len({e.instruction for e in edits}) > 20
    source, better, worse = draw_edit_cases(1, 32, 3)[0].images()
    assert source.size == (32, 32) and source.tobytes() != better.tobytes() != worse.tobytes()
