"""EditReward-Bench: figures by hand, the public layout, the embedded world's cases."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import edit_reward as bench
from paco_core.benchmarks.edit_cases import drawn_cases, read_public
from paco_core.benchmarks.published import EDIT_REWARD
from paco_core.benchmarks.statistics import macro_compare, macro_estimate
from paco_core.benchmarks.tables import write_tables
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.storybook.edit_comparisons import TASKS, edit_comparisons
from paco_core.storybook.world import VOCABULARY

DIMENSIONS = ("prompt_following", "consistency", "overall")


def grey(shade: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (shade,) * 3)


def case(number: int, task: str, dimension: str, better: int, worse: int) -> bench.Case:
    pictures = (grey(0), grey(better), grey(worse))
    return bench.Case(str(number), task, dimension, f"do {number}", f"g{number}", lambda: pictures)


class Shades:
    """P(Yes) = shade / 100 when asked for following, 1 - shade / 100 for consistency; shade 77 fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        found = []
        for query in queries:
            self.asked.append(query.instruction)
            shade = query.second.getpixel((0, 0))[0] / 100  # type: ignore[index]
            value = shade if "accurately follow" in query.instruction else 1 - shade
            found.append(Score(math.nan, "no answer") if shade == 0.77 else Score(value))
        return found


def test_each_dimension_asks_its_own_questions_and_overall_their_product() -> None:
    cases = [case(n, "t", dimension, 64, 36) for n, dimension in enumerate(DIMENSIONS)]
    scorer = Shades()
    judged = bench.judge_pairs("x", scorer, cases)
    assert judged.scores[0] == pytest.approx((0.64, 0.36))
    assert judged.scores[1] == pytest.approx((0.36, 0.64))
    assert judged.scores[2] == pytest.approx((math.sqrt(0.64 * 0.36),) * 2)  # the product is the same
    assert len(scorer.asked) == 8 == bench.count_questions(cases)
    result = bench.evaluate(cases, {"x": judged}, [], resamples=20)
    strict = {d: result.estimates["x"][d]["strict"].mean for d in DIMENSIONS}
    loose = {d: result.estimates["x"][d]["geq"].mean for d in DIMENSIONS}
    assert strict == {"prompt_following": 1.0, "consistency": 0.0, "overall": 0.0}
    assert loose == {"prompt_following": 1.0, "consistency": 0.0, "overall": 1.0}


def test_equal_questions_of_a_batch_are_asked_once() -> None:
    scorer = Shades()
    bench.judge_pairs("x", scorer, [case(1, "t", "prompt_following", 60, 40)] * 3)
    assert len(scorer.asked) == 2


def test_the_mean_is_over_task_types_and_failures_are_counted() -> None:
    right, wrong, failing = (60, 40), (40, 60), (77, 40)
    rows = [("a", right), ("a", right), ("a", wrong), ("b", wrong), ("b", failing)]
    cases = [case(n, task, "prompt_following", *shades) for n, (task, shades) in enumerate(rows)]
    judged = bench.judge_pairs("x", Shades(), cases)
    result = bench.evaluate(cases, {"x": judged, "y": bench.chance("y", cases)}, [("x", "y")], resamples=50)
    found = result.estimates["x"]["prompt_following"]["strict"]
    assert found.mean == pytest.approx((2 / 3 + 0) / 2) and found.missing == 1
    assert result.unscorable("x") == 1 and judged.causes == {"no answer": 1}
    assert result.by_task("x")["a"]["prompt_following"] == pytest.approx(2 / 3)
    assert math.isnan(result.estimates["x"]["overall"]["strict"].mean)
    assert result.metrics()["x.prompt_following_geq"] == found.mean
    assert result.as_dict()["methods"]["x"]["accuracy"]["overall"]["strict"]["mean"] is None
    assert len(result.table()) == 10


def test_macro_means_and_their_intervals() -> None:
    values = [1.0, 1.0, 1.0, 0.0]
    classes = ["a", "a", "a", "b"]
    assert macro_estimate(values, classes).mean == 0.5
    rng = np.random.default_rng(0)
    many = rng.random(400) < np.where(np.arange(400) % 4 == 0, 0.9, 0.5)
    names = ["rare" if n % 4 == 0 else "common" for n in range(400)]
    found = macro_estimate(many, names, resamples=4000)
    share = {name: many[[n == name for n in names]].mean() for name in set(names)}
    assert found.mean == pytest.approx((share["rare"] + share["common"]) / 2)
    error = math.sqrt(share["rare"] * (1 - share["rare"]) / 100 + share["common"] * (1 - share["common"]) / 300) / 2
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.12)
    same = macro_compare(many, many, names, resamples=50)
    assert same.mean == 0.0 and same.low < 0 < same.high
    assert macro_compare(np.ones(400), np.zeros(400), names, resamples=500).low > 0.9


def test_the_embedded_world_draws_what_it_claims() -> None:
    drawn = edit_comparisons(90, seed=3)
    assert drawn == edit_comparisons(90, seed=3) != edit_comparisons(90, seed=4)
    assert {e.task_type for e in drawn} == set(TASKS) and {e.dimension for e in drawn} == set(DIMENSIONS)
    for edit in drawn:
        trait = TASKS[edit.task_type]
        changed = {t for t in VOCABULARY if getattr(edit.better, t) != getattr(edit.before, t)}
        assert changed == {trait}, "the better picture changes what was asked for and nothing else"
        assert edit.worse != edit.better
        follows = getattr(edit.worse, trait) == getattr(edit.better, trait)
        if edit.dimension != "overall":
            assert follows == (edit.dimension == "consistency")
        if follows:
            others = {t for t in VOCABULARY if getattr(edit.worse, t) != getattr(edit.better, t)}
            assert len(others) == 1 and others != {trait} and "size" not in others
    assert len({e.instruction for e in drawn}) > 20
    source, better, worse = drawn_cases(1, 32, 3)[0].pictures()
    assert source.size == (32, 32) and source.tobytes() != better.tobytes() != worse.tobytes()


def stored(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def public(folder: Path, **changes: Any) -> Path:
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
    cases, rejected = read_public(public(tmp_path))
    assert not rejected
    assert [c.dimension for c in cases] == [*DIMENSIONS, *DIMENSIONS] and len({c.group for c in cases}) == 6
    for number in (5, 0, 3):
        source, better, worse = cases[number].pictures()
        shades = [image.getpixel((0, 0))[0] for image in (source, better, worse)]  # type: ignore[index]
        assert shades == [10, 90, 20 + number]
    queries: list[PairQuery] = []

    class Noting(Shades):
        def score(self, asked: Sequence[PairQuery]) -> list[Score]:
            queries.extend(asked)
            return super().score(asked)

    bench.judge_pairs("x", Noting(), cases)
    assert {query.second.size for query in queries} == {(4, 4)}, "edited pictures take the size of their source"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": "beauty"}, r"row 4: record: dimension 'beauty' is not one of prompt_following"),
        ({"key": ["one"]}, r"row 4: record: key is \['one'\], expected two"),
        ({"instruction": " "}, r"row 4: record: instruction ' ' is blank, expected words"),
        ({"output_images": [stored(grey(1))]}, "row 4: picture: 1 edited pictures, expected two"),
        ({"input_image": {"bytes": b"none", "path": None}}, "row 4: picture: embedded: not a readable picture"),
        ({"input_image": {"bytes": stored(grey(1))["bytes"][:40], "path": None}}, "row 4: picture: embedded: not a"),
        ({"input_image": {"bytes": None, "path": "gone.png"}}, "row 4: picture: .*gone.png: no such picture"),
        ({"key": ["1_a", "1_b"]}, "row 4: duplicate: 1_a > 1_b was compared by consistency in an earlier row"),
    ],
)
def test_bad_cases_are_left_out_and_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    cases, rejected = read_public(public(tmp_path, **changes))
    ((place, cause),) = rejected
    assert len(cases) == 5 and re.search(message, f"{place}: {cause}")


def test_a_benchmark_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Parquet file"):
        read_public(tmp_path / "empty")
    (tmp_path / "data").mkdir()
    pd.DataFrame({"key": [1]}).to_parquet(tmp_path / "data" / "other.parquet")
    with pytest.raises(DataError, match="column instruction, input_image"):
        read_public(tmp_path)


def test_tables_mark_what_was_published(tmp_path: Path) -> None:
    cases = [case(n, "a" if n % 2 else "b", DIMENSIONS[n % 3], 60, 40) for n in range(12)]
    judged = {
        "reward": bench.judge_pairs("ours <1>", Shades(), cases),
        "random": bench.chance("Chance", cases),
    }
    result = bench.evaluate(cases, judged, [("reward", "random")], resamples=50)
    write_tables(tmp_path, "EditReward-Bench", result.tables(EDIT_REWARD))
    text, page = (tmp_path / "results.md").read_text(), (tmp_path / "results.html").read_text()
    assert "| GPT-5 (published) | 0.777 | 0.669 | 0.755 |" in text
    assert "| ours <1> | 1.000" in text and "ours &lt;1&gt;" in page and "<script" not in page
    assert "| reward - random | " in text
    ours, theirs = result.tables(EDIT_REWARD)[:2]
    assert not any("published" in row[0] for row in ours.rows) and all("published" in row[0] for row in theirs.rows)
    same = result.tables(EDIT_REWARD, "published")[0]
    assert len(same.rows) == len(ours.rows) + len(theirs.rows)


def test_the_published_wording_is_asked_to_the_letter() -> None:
    seen: set[str] = set()

    class Asked(Shades):
        def score(self, queries: Sequence[PairQuery]) -> list[Score]:
            seen.update(query.instruction for query in queries)
            return super().score(queries)

    one = case(0, "a", "overall", 60, 40)
    bench.judge_pairs("x", Asked(), [one], wording="published")
    head = f"<img1>: <image><img2>: <image>Given two images after an edit with instruction '{one.instruction}', "
    assert seen == {
        f"{head}do they maintain consistency in terms of style, logic and identity? Answer 'Yes' or 'No' only.",
        f"{head}is the edit following the instruction well? Answer 'Yes' or 'No' only.",
    }
