"""Rewards: what they ask, what they make of answers and of failures, how they are found by name."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core.config.params import RewardSet, RewardTerm
from paco_core.data.records.records import PromptRecord, read_prompts
from paco_core.grpo.scoring import Scoring
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards import registry
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency, ConsistencyMeasure, opening_text
from paco_core.rewards.ocr import edit_distance, quoted
from paco_core.rewards.panel_pairs import select_panel_pairs
from paco_core.rewards.sources import Sources
from tests.support.reward_batches import COLOURS, image_batch, make_record, panels, picture


class Judge:
    """Answers by a rule; remembers what it was asked."""

    def __init__(self, rule: dict[tuple[str, str], Score] | None = None) -> None:
        self.queries: list[PairQuery] = []
        self.rule = rule or {}

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.queries += queries
        names = {Image.new("RGB", (1, 1), colour).getpixel((0, 0)): colour for colour in COLOURS}
        pairs = [(names[q.first.getpixel((0, 0))], names[q.second.getpixel((0, 0))]) for q in queries]
        return [self.rule.get(pair, Score(0.5)) for pair in pairs]


def test_consistency_is_of_unordered_pairs_and_a_failed_pair_fails_its_set_alone() -> None:
    rule = {("red", "green"): Score(1.0), ("blue", "white"): Score(0.2)}
    other = [Image.new("RGB", (16, 16), "blue")] * 4
    batch = RewardBatch([make_record(), make_record(idx="q")], [panels(), other])
    judge = Judge(rule)
    values = Consistency(judge)(batch)
    assert values.dtype == np.float64 and values.tolist() == pytest.approx([(1.0 + 0.2 + 4 * 0.5) / 6, 0.5])
    assert len(judge.queries) == 12 and all('theme: "animals"' in query.instruction for query in judge.queries)
    assert Consistency(Judge(rule), by="worst")(batch).tolist() == [0.2, 0.5]
    for by in ("mean", "worst"):
        reward = Consistency(Judge({("red", "green"): Score(math.nan, "timeout")}), by=by)  # type: ignore[arg-type]
        failed = reward(batch)
        assert np.isnan(failed[0]) and failed[1] == 0.5 and reward.causes == {"timeout": 1}


def test_pairs_of_panels() -> None:
    """Neighbours share an edge; a number of pairs is drawn by its key, and every pair has its turn."""
    assert select_panel_pairs(4, 4, "neighbours") == [(0, 1), (1, 2), (2, 3)]
    assert select_panel_pairs(6, 3, "neighbours") == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
    assert [len(select_panel_pairs(n, n, "all")) for n in (2, 4, 8)] == [1, 6, 28]
    samples = [select_panel_pairs(8, 4, 5, str(key)) for key in range(200)]
    assert all(len(set(pairs)) == 5 for pairs in samples) and len({tuple(pairs) for pairs in samples[:8]}) == 8
    assert {pair for pairs in samples for pair in pairs} == set(select_panel_pairs(8, 4, "all"))
    assert select_panel_pairs(8, 4, 5, "0") == samples[0] and select_panel_pairs(3, 3, 5, "a") == select_panel_pairs(
        3, 3, "all"
    )


def test_pictures_of_a_group_are_asked_about_the_same_pairs_and_epochs_about_others() -> None:
    def panels_of_queries(seed: int) -> list[list[tuple[int, ...]]]:
        judge = Judge()
        Consistency(judge, pairs=2)(RewardBatch([make_record()] * 3, [panels()] * 3, seed=seed))
        pixels = [tuple(query.first.getpixel((0, 0)) + query.second.getpixel((0, 0))) for query in judge.queries]
        return [pixels[start : start + 2] for start in range(0, 6, 2)]

    assert all(queries == panels_of_queries(1)[0] for queries in panels_of_queries(1))
    assert len({str(panels_of_queries(seed)[0]) for seed in range(12)}) > 3


def test_consistency_quotes_the_opening_of_the_prompt_on_request() -> None:
    judge = Judge()
    record = make_record()
    quoted = "FOUR-PANEL Images with a 2x2 grid layout of a cat. All images are drawn in ink."
    panel_texts = record.prompt[record.prompt.index("[") :]
    record = record.model_copy(update={"prompt": f"{quoted} {panel_texts}"})
    Consistency(judge, theme_from="opening")(RewardBatch([record], [panels()]))
    assert all(f'theme: "{quoted}", do' in query.instruction for query in judge.queries)
    signed = record.model_copy(update={"prompt": f'A sign "stop" {panel_texts}'})
    assert opening_text(signed) == 'A sign "stop.'


def as_released(prompt: str) -> str:
    """The part that the released scorer quotes: up to the first mark behind a full stop or quotation mark."""
    return re.split(r"[.\"]\s+[A-Z0-9\[\]-]+:", prompt, maxsplit=1)[0].removesuffix(".") + "."


def test_the_opening_of_public_prompts_is_the_released_one(public_prompts: Path) -> None:
    records = read_prompts(public_prompts)
    assert len(records) == 298
    assert [record.idx for record in records if opening_text(record) != as_released(record.prompt)] == []


def test_one_panel_has_no_consistency() -> None:
    with pytest.raises(DataError, match="1x1"):
        Consistency(Judge())(RewardBatch([make_record("1x1")], [panels(1)]))
    batch = RewardBatch([make_record("1x1"), make_record()], [panels(1), panels()])
    values = ConsistencyMeasure(Judge())(batch)
    assert np.isnan(values[0]) and values[1] == 0.5
    assert np.isnan(ConsistencyMeasure(Judge())(batch.take([0]))).all()


def test_jpeg_rewards_what_compresses() -> None:
    flat = Image.new("RGB", (64, 32), "teal")
    values = registry.build_reward("jpeg", RewardTerm(weight=1.0))(image_batch(flat, picture()))
    assert 1.0 > values[0] > 0.6 > 0.5 > values[1] > -1.0


def test_a_prompt_that_does_not_tell_what_it_quotes_is_not_read_in_part() -> None:
    for prompt, text in {
        'a sign "OPEN", “NOW”, «NO» and „Ja“': "OPEN NOW NO Ja", '招牌写着"开门"和「春」『夏』': "开门 春 夏",
        "don't forget the dogs' bowl": "", 'the dogs\' "Route 66"': "Route 66", "“don’t stop”": "don’t stop",
        **dict.fromkeys(['a 5" screen that shows "OPEN"', 'a 5" screen and a 7" screen', '"OPEN', '“A"', "「春"]),
        **dict.fromkeys(['“say "no" now”', "'OPEN' and \"NOW\"", "‘OPEN’", 'write ""']),
    }.items():  # fmt: skip
        assert quoted(prompt) == text, prompt


@pytest.mark.slow
def test_ocr_reads_what_the_prompt_quotes() -> None:
    pytest.importorskip("rapidocr")
    from PIL import ImageDraw, ImageFont

    sign = Image.new("RGB", (256, 96), "white")
    ImageDraw.Draw(sign).text((16, 24), "Open House", fill="black", font=ImageFont.load_default(36))
    reward = registry.build_reward("ocr", RewardTerm(weight=1.0))
    batch = image_batch(sign, Image.new("RGB", (64, 64), "white"), prompt='A sign that says "OPEN HOUSE" on a door.')
    assert reward(batch).tolist() == pytest.approx([1.0, 0.0])
    assert np.isnan(reward(image_batch(sign, prompt="A sign."))[0])
    assert reward.causes == {"prompt quotes no text": 1}


def test_edit_distance() -> None:
    for first, second, distance in (("", "", 0), ("kitten", "sitting", 3), ("ab", "", 2)):
        assert edit_distance(first, second) == edit_distance(second, first) == distance


def own_reward(batch: RewardBatch) -> list[float]:
    return [float(len(record.prompt)) for record in batch.records[:-1]] + [math.nan]


def own_group(batch: RewardBatch) -> list[float]:
    assert len({record.idx for record in batch.records}) == 1
    return list(range(len(batch)))


own_group.groupwise = True  # type: ignore[attr-defined]


def own_width(images: Sequence[Image.Image], records: Sequence[PromptRecord], scale: float = 2.0) -> list[float]:
    return [scale * image.width + len(record.idx) for image, record in zip(images, records, strict=True)]


def shrinks_all(batch: RewardBatch) -> list[float]:
    for image in (*batch.whole, *batch.originals, *batch.panels[0]):
        image.thumbnail((4, 4))
    batch.records[0].criteria.clear()
    batch.records.clear()  # type: ignore[attr-defined]
    return [0.5] * len(batch.panels)


def shrinks(images: list[Image.Image], records: list[PromptRecord]) -> list[float]:
    for image in images:
        image.thumbnail((4, 4))
    images.clear()
    return [records.pop() and 0.5 for _ in list(records)]


def test_a_function_of_the_user_is_a_reward() -> None:
    term = RewardTerm(weight=1.0, reward=f"{__name__}:own_reward")
    registry.validate_rewards(RewardSet(terms={"length": term}, aggregator="weighted_sum", advantage_std="group"))
    reward = registry.build_reward("length", term)
    values = reward(RewardBatch([make_record(), make_record()], [panels(), panels()]))
    assert values[0] == len(make_record().prompt) and np.isnan(values[1])
    assert reward.causes == {"function returned NaN": 1} and not reward.groupwise  # type: ignore[attr-defined]
    width = registry.build_reward("width", RewardTerm(weight=1.0, reward=f"{__name__}:own_width"))
    assert width(image_batch(picture(), Image.new("RGB", (5, 9)))).tolist() == [65.0, 11.0]
    with pytest.raises(ValueError, match="panels only"):
        width(RewardBatch([make_record()], [panels()]))


@pytest.mark.parametrize("name", ["shrinks_all", "shrinks"])
def test_a_function_that_changes_its_arguments_changes_nothing_else(name: str) -> None:
    record = make_record().model_copy(update={"criteria": {"Style": {"1": "red"}}})
    batch = RewardBatch([record], [panels()], [picture()], [[picture(1)]])
    before = deepcopy(batch)
    assert registry.build_reward("x", RewardTerm(weight=1.0, reward=f"{__name__}:{name}"))(batch).tolist() == [0.5]
    assert batch == before


FAILING = {
    "def f(images, records)\n    return 1\n": (1, "SyntaxError"),
    "import sys\nsys.exit()\n": (2, "SystemExit"),
}
FAILING_CALLS = {
    "import sys\ndef f(images, records):\n    sys.exit(0)\n": (3, "SystemExit"),
    "def f(images, records):\n    raise ValueError('one\\ntwo \\x1b[2J')\n": (2, "ValueError"),
}


@pytest.mark.parametrize("code", [*FAILING, *FAILING_CALLS])
def test_a_module_that_fails_is_a_sentence_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """sys.exit(0) included: it would end a stage, or `paco check`, as if all were well."""
    (tmp_path / "my_reward.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_reward", raising=False)
    line, kind = {**FAILING, **FAILING_CALLS}[code]
    terms = {"mine": RewardTerm(weight=1.0, reward="my_reward:f")}
    with pytest.raises(DataError) as raised:
        registry.validate_rewards(RewardSet(terms=terms, aggregator="weighted_sum", advantage_std="group"))
        assert code in FAILING_CALLS
        with pytest.raises(DataError, match=f"my_reward.py, line {line}: {kind}"):
            aggregate({"a": np.zeros((1, 2))}, {"a": 1.0}, "my_reward:f")
        registry.build_reward("mine", terms["mine"])(image_batch(picture()))
    text = str(raised.value)
    assert text.startswith(f"my_reward:f: my_reward.py, line {line}: {kind}") and text.isprintable()


def reward_set(name: str, **term: Any) -> RewardSet:
    terms = {"mine": RewardTerm(weight=1.0, reward=name, **term)}
    return RewardSet(terms=terms, aggregator="weighted_sum", advantage_std="group")


@pytest.mark.parametrize(
    ("name", "term", "pictures", "message"),
    [
        ("no_such_module_here:f", {}, "panels", "no_such_module_here"),
        (f"{__name__}:own_rewards", {}, "panels", "own_rewards"),
        (f"{__name__}:COLOURS", {}, "panels", "COLOURS"),
        ("consistancy", {}, "panels", "consistancy"),
        ("clip_i", {"model": "m", "pairs": 3}, "panels", "clip_i"),
        ("clip_t", {}, "panels", "model"),
        ("consistency", {}, "reference", "consistency"),
        ("editing", {}, "panels", "editing"),
    ],
)
def test_what_does_not_fit_is_found_before_any_model_is_loaded(
    name: str, term: dict[str, Any], pictures: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        registry.validate_rewards(reward_set(name, **term), pictures)


def test_what_fits_is_let_through_and_a_reward_needs_its_judge_and_its_model() -> None:
    for keys in ({"pairs": "neighbours"}, {"pairs": 3}, {"aggregate": "worst"}):
        registry.validate_rewards(reward_set("consistency", **keys))
    registry.validate_rewards(reward_set("editing"), "reference")
    for name, term in (("consistency", {}), ("editing", {}), ("clip_t", {"model": "nowhere"})):
        with pytest.raises(DataError, match=f"{name}|nowhere"):
            registry.build_reward(name, RewardTerm(weight=1.0, **term))


def test_a_groupwise_reward_sees_whole_groups_over_batches() -> None:
    records = [make_record(idx=name) for name in "aaabbbbc"]
    rewards = {"place": registry.build_reward("place", RewardTerm(weight=1.0, reward=f"{__name__}:own_group"))}
    with Scoring({**rewards, "jpeg": registry.build_reward("jpeg", RewardTerm(weight=1.0))}) as scoring:
        assert scoring.groupwise == ["place"]
        score_batch = scoring.round()
        for part in (slice(0, 2), slice(2, 5), slice(5, 8)):
            score_batch.add(records[part], [picture()] * len(records[part]))
        scores = score_batch.result()
    assert scores.rewards["place"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert len(scores.rewards["jpeg"]) == len(scores.diversity) == 8


def test_judges_are_named_by_their_models() -> None:
    def rewards(**terms: RewardTerm) -> RewardSet:
        return RewardSet(terms=terms, aggregator="weighted_sum", advantage_std="group")

    default, other = RewardTerm(weight=1.0), RewardTerm(weight=1.0, reward="consistency", model="data/judge")
    clip = RewardTerm(weight=1.0, model="data/zoo/clip")
    assert registry.judges_of(rewards(consistency=default, clip_t=clip), rewards(second=other)) == [None, "data/judge"]
    assert registry.judges_of(rewards(clip_t=clip), None) == []
    judges = {None: Judge(), "data/judge": Judge()}
    built = registry.build_set(rewards(consistency=default, second=other), Sources(judges))
    built["second"](RewardBatch([make_record()], [panels()]))
    assert (len(judges[None].queries), len(judges["data/judge"].queries)) == (0, 6)
    with pytest.raises(DataError, match="data/judge is not served"):
        registry.build_reward("second", other, Sources({None: Judge()}))
