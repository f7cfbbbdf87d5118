"""VIEScore: what is asked, the smaller of two scores, means over task types, and what a judge may not answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import viescore, viescore_prompts
from paco_core.data.llm.chat_protocol import ChatError
from paco_core.data.records.edit_records import EditRecord
from paco_core.io.files import DataError
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from tests.support.chat_server import ChatServer, Raw, completion, text_of

REFERENCE = Image.new("RGB", (8, 8), "white")


def edits(count: int = 3) -> list[GeneratedImage]:
    images = []
    for number in range(count):
        record = EditRecord(
            idx=f"e{number}", prompt=f"Make it {number}.", height=8, width=8, theme="t", task_name="color_alter",
            reference="r", part="unseen",
        )  # fmt: skip
        images += [
            GeneratedImage("p", 64, phase, record, 0, Image.new("RGB", (8, 8), (number, shade, 0)))
            for shade, phase in enumerate((BEFORE, AFTER))
        ]
    return images


def is_quality(body: dict[str, Any]) -> bool:
    return "image editor. Rate" in text_of(body)


def judge(root: Path, server: ChatServer, **changes: Any) -> viescore.EditRatings:
    return viescore.rate_edits(
        edits(), lambda _record: [REFERENCE], server.params(**changes), viescore_prompts.OURS, root
    )


def rated(scores: Callable[[dict[str, Any]], list[float]]) -> Callable[[dict[str, Any], int], Raw]:
    return lambda body, _number: completion({"reasoning": "so", "score": scores(body)})


def test_the_smaller_score_counts_and_the_answers_are_kept(tmp_path: Path) -> None:
    with ChatServer(rated(lambda body: [4, 9] if is_quality(body) else [9, 8])) as server:
        result = judge(tmp_path, server)
        contents = {is_quality(body): body["messages"][-1]["content"] for body in server.bodies}
    pictures = {kind: sum(part["type"] == "image_url" for part in parts) for kind, parts in contents.items()}
    assert result.columns["sc"].tolist() == [8.0] * 6 and result.columns["pq"].tolist() == [4.0] * 6
    assert result.columns["overall"] == pytest.approx([math.sqrt(32)] * 6)
    assert pictures == {True: 1, False: 2} and len(result.answers) == 12
    assert result.answers[0] | {"kind": "sc", "score": [9, 8], "reasoning": "so"} == result.answers[0]


def test_an_answer_of_the_wrong_form_is_asked_again_and_then_has_no_score(tmp_path: Path) -> None:
    def scores(body: dict[str, Any]) -> list[float]:
        return [11, 3] if not is_quality(body) and "Make it 1." in text_of(body) else [6, 7]

    with ChatServer(rated(scores)) as server:
        result = judge(tmp_path, server)
    assert np.isnan(result.columns["sc"][2:4]).all() and np.isnan(result.columns["overall"][2:4]).all()
    assert result.columns["sc"][0] == 6 and result.counts["rejected.out_of_range"] == 4  # two edits, two tries


@pytest.mark.slow
def test_a_run_that_was_stopped_asks_nothing_twice(tmp_path: Path) -> None:
    def half(body: dict[str, Any], number: int) -> Raw:
        return completion({"reasoning": "so", "score": [5, 5]}) if number < 6 else Raw(status=500)

    with ChatServer(half) as server, pytest.raises(ChatError):
        judge(tmp_path, server, retries=0, in_flight=1)
    with ChatServer(rated(lambda _body: [5, 5])) as server:
        result = judge(tmp_path, server, in_flight=1)
        assert len(server.bodies) == 6
    assert result.columns["overall"].tolist() == [5.0] * 6 and result.counts["remembered_answers"] == 6


def table(**columns: list[Any]) -> pd.DataFrame:
    count = len(columns["task_type"])
    common = {"policy": ["p"] * count, "size": [64] * count, "when": [AFTER] * count}
    common |= {"prompt_id": [f"e{n}" for n in range(count)], "picture": [f"r{n}" for n in range(count)]}
    scores = {"sc": columns["overall"], "pq": columns["overall"]}
    return pd.DataFrame({**common, "language": ["en"] * count, **scores, **columns})


def test_task_types_weigh_alike_and_the_intersection_is_apart() -> None:
    rows = viescore.macro_means(
        table(task_type=["a", "a", "a", "b"], overall=[9.0, 9.0, 9.0, 1.0]), {"e0", "e3"}, resamples=50, seed=0
    )
    assert [(row["subset"], row["edits"]) for row in rows] == [("full", 4), ("intersection", 2)]
    assert rows[0]["figures"]["overall"].mean == 5.0 and rows[1]["figures"]["overall"].mean == 5.0
    languages = table(task_type=["a", "b"], overall=[4.0, 2.0], language=["en", "cn"])
    means = viescore.macro_means(languages, set(), resamples=9, seed=0)
    assert [(row["language"], row["figures"]["overall"].mean) for row in means] == [("en", 4.0), ("cn", 2.0)]


def published(folder: Path, **changes: str | None) -> Path:
    folder.mkdir(exist_ok=True)
    texts: dict[str, str | None] = {
        "_context_no_delimit": "Context.",
        "_prompts_0shot_two_image_edit_rule": "Rules.",
        "_prompts_0shot_tie_rule_SC": "Rate <instruction>.",
        "_prompts_0shot_rule_PQ": "Quality.",
    } | changes
    lines = [f"{name} = {text!r}" for name, text in texts.items() if text is not None]
    (folder / "vie_prompts.py").write_text("\n".join(["import nothing_of_this_is_run", *lines]))
    return folder


def test_published_words_are_read_from_where_the_user_has_them(tmp_path: Path) -> None:
    published(tmp_path / "words")
    words = viescore_prompts.wording("words", tmp_path)
    assert words.about_edit("Make it red") == "Context.\nRules.\nRate Make it red."
    assert words.quality == "Context.\nQuality."
    assert words.name.startswith("published words of words (")
    assert viescore_prompts.wording(None, tmp_path) is viescore_prompts.OURS


def test_what_lacks_a_text_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "silent", _prompts_0shot_rule_PQ=None)
    published(tmp_path / "generic", _prompts_0shot_tie_rule_SC="Rate it.")
    for name in ("silent", "generic", "nowhere_at_all", "json"):
        with pytest.raises(DataError, match=name):
            viescore_prompts.wording(name, tmp_path)
