"""T2IS-Bench: queries and means by hand, public files, sets, endpoints, predictors in a separate environment."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks.t2is_bench.evaluators import (
    Aesthetics,
    AlignmentWithTexts,
    BenchmarkPart,
    ConsistencyByCriteria,
    evaluate_sets,
)
from paco_core.benchmarks.t2is_bench.questions import Questions, read_criteria, read_panels
from paco_core.benchmarks.t2is_bench.scorers import EndpointScorer, Predictor
from paco_core.benchmarks.t2is_bench.sets import PaintedSet, painted_sets, read_records, sets_elsewhere, write_painted
from paco_core.benchmarks.t2is_bench.tables import estimate_layouts, estimate_sets, t2is_bench_tables
from paco_core.benchmarks.t2is_bench.workers import aesthetics, vqascore
from paco_core.config.params_benchmarks import PredictorParams
from paco_core.data.llm.chat_protocol import ChatError
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.policies.flux import FluxPolicy
from paco_core.reward_model.yes_probability import PairQuery, PictureQuery, Query, Score
from paco_core.rewards.base import RewardBatch
from paco_core.sampling.generated_image import AFTER, BEFORE, SEPARATELY, GeneratedImage
from paco_core.sampling.separate_panels import generate_separate_panels, panel_records
from paco_core.storybook.prompts import storybook_prompts
from tests.support.chat_server import ChatServer, Raw
from tests.support.fixture_project import records_of
from tests.support.tiny import TEXT_LENGTH, tiny_flux

RECORDS = records_of(storybook_prompts(3, 0))


CRITERIA = {"Identity": ["same animal", "same colour"], "Style": ["same style"]}


def greys(*shades: int) -> list[Image.Image]:
    return [Image.new("RGB", (8, 8), (shade,) * 3) for shade in shades]


def shade(image: Image.Image) -> int:
    return int(image.getpixel((0, 0))[0])  # type: ignore[index, arg-type]


SET = RewardBatch(RECORDS[:1], [greys(0, 10, 30, 60)])


class Judge:
    """Scores by a function of the pictures' shades and the question; remembers what it was asked."""

    def __init__(self, answer: Callable[[list[int], str], float]) -> None:
        self.answer = answer
        self.calls: list[Query] = []

    def score(self, queries: Sequence[Query]) -> list[Score]:
        self.calls += queries
        values = [self.answer([shade(picture) for picture in q.pictures], q.instruction) for q in queries]
        return [Score(v, "no answer") if math.isnan(v) else Score(v) for v in values]


def test_consistency_is_the_mean_over_pairs_then_criteria() -> None:
    weights = {"same animal": 1.0, "same colour": 0.5, "same style": 0.25}

    def answer(shades: list[int], text: str) -> float:
        return next(w for name, w in weights.items() if name in text) * abs(shades[0] - shades[1]) / 100

    judge = Judge(answer)
    measure = ConsistencyByCriteria(judge, Questions({RECORDS[0].idx: CRITERIA}), "published")
    scores = measure.measure(SET)
    distance = np.mean([abs(a - b) / 100 for a, b in combinations((0, 10, 30, 60), 2)])
    assert scores["identity"] == pytest.approx([0.75 * distance])
    assert scores["style"] == pytest.approx([0.25 * distance])
    assert np.isnan(scores["logic"]).all() and measure.count(RECORDS[0]) == len(judge.calls) == 18
    first = judge.calls[0]
    assert isinstance(first, PairQuery) and (shade(first.first), shade(first.second)) == (0, 10)
    assert first.instruction == "Do images meet the following criteria? same animal Please answer Yes or No."
    assert first.first.size == (504, 504)  # 512, as Qwen's preprocessing rounds it


def test_a_failed_question_makes_its_dimension_unknown_and_not_zero() -> None:
    judge = Judge(lambda shades, text: math.nan if "colour" in text and shades == [30, 60] else 0.5)
    measure = ConsistencyByCriteria(judge, Questions({RECORDS[0].idx: CRITERIA}), "rl")
    scores = measure.measure(SET)
    assert np.isnan(scores["identity"]).all() and scores["style"] == pytest.approx([0.5])
    assert measure.causes == {"no answer": 1}
    assert judge.calls[0].instruction.endswith("Please answer Yes or No first, then provide detailed reasons.")
    assert judge.calls[0].pictures[0].size == (8, 8), "in the words of the RL panels stay as they are"


def test_a_part_of_which_too_many_questions_failed_ends_the_benchmark() -> None:
    """3 of 18 questions: those about one of six pairs."""
    sets = [PaintedSet("m", "m", RECORDS[0], 0, lambda: SET.panels[0])]

    def evaluate(share: float) -> pd.DataFrame:
        judge = Judge(lambda shades, _text: math.nan if shades == [30, 60] else 0.5)
        part = BenchmarkPart(ConsistencyByCriteria(judge, Questions({RECORDS[0].idx: CRITERIA}), "rl"), "judge", "rl")
        return evaluate_sets(sets, {"consistency": part}, share, lambda _count: None)[0]

    assert len(evaluate(0.2)) == 1
    with pytest.raises(DataError, match="consistency.*no answer"):
        evaluate(0.1)


def test_alignment_is_the_mean_over_texts_then_panels() -> None:
    texts = [{"Entity": ["a", "b"], "Attribute": ["c"]}, {"Entity": ["d"]}, {"Entity": ["e"]}, {"Entity": ["f"]}]
    values = {"a": 0.2, "b": 0.4, "c": 0.9, "d": 0.5, "e": 0.6, "f": 0.7}
    judge = Judge(lambda _shades, text: values[text])
    measure = AlignmentWithTexts(judge, Questions(panels={RECORDS[0].idx: texts}), "text")
    scores = measure.measure(SET)
    assert scores["entity"] == pytest.approx([(0.3 + 0.5 + 0.6 + 0.7) / 4])
    assert scores["attribute"] == pytest.approx([0.9])
    assert np.isnan(scores["relation"]).all() and measure.count(RECORDS[0]) == 6
    judge = Judge(lambda _shades, _text: 1.0)
    AlignmentWithTexts(judge, Questions(panels={RECORDS[0].idx: texts}), "published").measure(SET)
    assert judge.calls[0].instruction == 'Does this figure show "a"? Please answer yes or no.'


def sets(**columns: Sequence[float]) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    return pd.DataFrame({"prompt_id": [f"p{n}" for n in range(count)], "panels": [4] * count} | columns)


def test_the_average_weighs_the_three_parts() -> None:
    table = sets(
        aesthetics=[0.5] * 8, entity=[0.8] * 8, attribute=[0.6] * 8, relation=[0.7] * 8,
        identity=[0.4, 0.6] * 4, style=[0.9] * 8, logic=[math.nan, 0.3] * 4,
    )  # fmt: skip
    estimates = estimate_sets(table, resamples=200)
    assert estimates["alignment"].mean == pytest.approx(0.7)
    # A set without this dimension is left out.
    assert estimates["logic"].mean == pytest.approx(0.3) and estimates["logic"].missing == 4
    assert estimates["consistency"].mean == pytest.approx((0.5 + 0.9 + 0.3) / 3)
    assert estimates["average"].mean == pytest.approx(0.2 * 0.5 + 0.3 * 0.7 + 0.5 * (0.5 + 0.9 + 0.3) / 3)
    assert estimates["identity"].low < 0.5 < estimates["identity"].high and estimates["identity"].groups == 8
    assert estimates["logic"].groups == estimates["average"].groups == 4, "prompts that have a value"
    assert math.isnan(estimates["logic"].low) and math.isnan(estimates["average"].low), "too few for an interval"


def test_panels_weigh_alike_in_alignment_and_sets_in_consistency() -> None:
    table = sets(entity=[1.0, 0.0], identity=[1.0, 0.0]).assign(panels=[6, 2], prompt_id="p")
    estimates = estimate_sets(table, resamples=50)
    assert estimates["entity"].mean == pytest.approx(0.75) and estimates["identity"].mean == pytest.approx(0.5)
    assert estimates["identity"].groups == 1, "intervals are over prompts"
    assert "average" not in estimates and "aesthetics" not in estimates


def test_sets_of_several_layouts_have_rows_of_each() -> None:
    table = sets(identity=[0.2, 0.4, 0.9, 1.0]).assign(method=["before", "after"] * 2, prompt_id=["a", "a", "b", "b"])
    by_layout = estimate_layouts(table, {"a": "2x2", "b": "1x3"}, resamples=50)
    means = {(layout, m): row["identity"].mean for layout, rows in by_layout.items() for m, row in rows.items()}
    assert means == pytest.approx(
        {("2x2", "before"): 0.2, ("2x2", "after"): 0.4, ("1x3", "before"): 0.9, ("1x3", "after"): 1.0}
    )
    assert estimate_layouts(table, {"a": "2x2", "b": "2x2"}) == {}
    last = t2is_bench_tables({m: estimate_sets(rows) for m, rows in table.groupby("method")}, {}, [], by_layout)[-1]
    assert [row[:2] for row in last.rows] == [["before", "2x2"], ["after", "2x2"], ["before", "1x3"], ["after", "1x3"]]


def test_the_published_files_are_read_as_they_are(tmp_path: Path) -> None:
    criteria = {"Style": [{"Palette": "one palette"}], "Identity": [{"Face": "one face", "Hat": "one hat"}]}
    panel = {"Entity": ["a child"], "Attribute": ["it is small"], "Relation": ["it is on grass"]}
    consistency, alignment = tmp_path / "prompt_consistency.json", tmp_path / "prompt_alignment.json"
    consistency.write_text(json.dumps({"0001_0003": criteria}))
    alignment.write_text(json.dumps({"0001_0003": {f"sub_{n}": panel for n in range(4)}}))
    questions = Questions(read_criteria(consistency, rejected := Rejected()), read_panels(alignment, rejected))
    assert not rejected
    record = PromptRecord.model_validate({**RECORDS[0].model_dump(), "original_idx": "0001_0003"})
    parsed = questions.of(record)
    assert parsed.criteria == {"Style": ["one palette"], "Identity": ["one face", "one hat"]}
    assert parsed.panels == [{"Entity": ["a child"], "Attribute": ["it is small"], "Relation": ["it is on grass"]}] * 4
    with pytest.raises(DataError, match=f"'{RECORDS[1].idx}'"):
        questions.of(RECORDS[1])
    wide = PromptRecord.model_validate({**record.model_dump(), "layout": "1x3"})
    with pytest.raises(DataError, match="1x3"):
        questions.of(wide)


@pytest.mark.parametrize("content", ["[]", "{}", '{"1": {"Style": [{"Palette": 3}]}}', '{"1": {"Style": '])
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(DataError, match=r"c\.json"):
        read_criteria(tmp_path / "c.json", Rejected())


def test_cases_that_are_damaged_or_missing_are_left_out(tmp_path: Path) -> None:
    cases = {record.idx: {"Style": [{"Palette": "the same colours"}]} for record in RECORDS[:-1]}
    cases[RECORDS[0].idx] = {"Style": "the same colours"}  # type: ignore[assignment]
    (tmp_path / "c.json").write_text(json.dumps(cases))
    questions = Questions(read_criteria(tmp_path / "c.json", rejected := Rejected()))
    assert [r.idx for r in questions.usable_records(RECORDS, rejected)] == [r.idx for r in RECORDS[1:-1]]
    assert rejected.figures() == {"rejected.record": 1, "rejected.text": 2}
    with pytest.raises(DataError):
        questions.usable_records(RECORDS[:1], Rejected())


def test_any_endpoint_with_log_probabilities_judges() -> None:
    tokens = {"Yes": 0.6, "No": 0.2, "yes": 0.1}
    top_logprobs = [{"token": token, "logprob": math.log(value)} for token, value in tokens.items()]
    message = {"role": "assistant", "content": "Yes"}
    choice = {"index": 0, "message": message, "logprobs": {"content": [{"top_logprobs": top_logprobs}]}}
    body = json.dumps({"model": "judge-2026-11", "choices": [choice]}).encode()
    with ChatServer(lambda _body, _number: Raw(body=body)) as server:
        scores = EndpointScorer(server.params()).score([PairQuery(*greys(1, 2), "q"), PictureQuery(greys(3)[0], "r")])
        first, second = (body["messages"][0]["content"] for body in server.bodies[:2])
    assert [score.value for score in scores] == pytest.approx([7 / 9, 7 / 9])
    assert {len(first), len(second)} == {2, 3} and server.bodies[0]["top_logprobs"] == 20


def test_an_endpoint_without_log_probabilities_gives_no_score() -> None:
    with ChatServer(lambda _body, _number: Raw(body=b'{"choices": [{"message": {"content": "Yes"}}]}')) as server:
        score = EndpointScorer(server.params()).score([PictureQuery(greys(3)[0], "r")])[0]
    assert score.failed
    with ChatServer(lambda _body, _number: Raw(status=503)) as server, pytest.raises(ChatError):
        EndpointScorer(server.params(retries=0)).score([PictureQuery(greys(3)[0], str(n)) for n in range(20)])


def generated_images(phase: str, side: int = 8) -> list[GeneratedImage]:
    return [
        GeneratedImage("flux", side, phase, record, seed, Image.new("RGB", (side, side), (40 * number, seed, 0)))
        for number, record in enumerate(RECORDS)
        for seed in (0, 1)
    ]


def test_painted_sets_come_back_as_they_were(tmp_path: Path) -> None:
    write_painted(tmp_path, [*generated_images(AFTER), *generated_images(BEFORE), *generated_images(SEPARATELY, 16)])
    records = read_records(tmp_path, 2)
    sets = painted_sets(tmp_path, records)
    assert [record.idx for record in records] == [record.idx for record in RECORDS[:2]]
    assert list(dict.fromkeys(s.method for s in sets)) == ["flux.px16.separately", "flux.px8.before", "flux.px8.after"]
    assert len(sets) == 12 and sets[0].label == "flux at 16 px, before training, one picture at a time"
    assert {panel.size for s in sets for panel in s.panels()} == {(4, 4), (8, 8)}


def test_sets_painted_elsewhere_join_by_case_and_number(tmp_path: Path) -> None:
    for number, grey in enumerate(greys(4, 5, 6, 7), start=1):
        grey.save(tmp_path / f"{RECORDS[0].idx}_{number:04d}.png")
    greys(1)[0].save(tmp_path / f"{RECORDS[1].idx}_0001.jpg")
    (tmp_path / "notes.txt").write_text("x")
    sets = sets_elsewhere("AutoT2IS", tmp_path, RECORDS, rejected := Rejected())
    assert [shade(panel) for panel in sets[0].panels()] == [4, 5, 6, 7] and sets[0].method == "AutoT2IS"
    assert rejected.rows[0][0] == f"{tmp_path}: case {RECORDS[1].idx}" and len(rejected) == 2
    (tmp_path / f"{RECORDS[1].idx}_0001.jpg").unlink()
    for number, grey in enumerate(greys(4, 5, 6, 7), start=1):
        grey.resize((8 * number, 8)).save(tmp_path / f"{RECORDS[1].idx}_{number:04d}.png")
        grey.save(tmp_path / f"{RECORDS[2].idx}_{number:04d}.png")
    cut = tmp_path / f"{RECORDS[2].idx}_0004.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    with pytest.raises(DataError):
        sets_elsewhere("AutoT2IS", tmp_path, RECORDS[1:], rejected := Rejected())
    assert [place for place, _ in rejected.rows] == [f"{tmp_path}: case {record.idx}" for record in RECORDS[1:]]


def test_panels_are_painted_one_at_a_time_and_shown_as_a_grid(tmp_path: Path) -> None:
    assert len({panel.prompt for panel in panel_records(RECORDS[0])}) == 4
    policy = FluxPolicy.load(str(tiny_flux(tmp_path)), "cpu", "float32")
    recipe: Any = type("Recipe", (), {"eval_sizes": [16], "guidance": 3.5, "max_sequence_length": TEXT_LENGTH})
    images = generate_separate_panels(
        policy, "flux", recipe, RECORDS[:2], seeds=[0, 1], steps=1, advance=lambda _count: None
    )
    assert [(p.record.idx, p.seed) for p in images] == [(r.idx, s) for r in RECORDS[:2] for s in (0, 1)]
    assert {p.image.size for p in images} == {(32, 32)}
    assert images[0].panels[0].tobytes() != images[0].panels[1].tobytes()


PACKAGES = {
    "t2v_metrics": """
class VQAScore:
    def __init__(self, model, device):
        print("loading", model, device)
        self.model = model
    def __call__(self, images, texts):
        from PIL import Image
        shade = Image.open(images[0]).getpixel((0, 0))[0]
        return [[shade / 100 + len(text) / 1000 for text in texts]]
""",
    "aesthetic_predictor_v2_5": """
import torch
class Model:
    def to(self, device): return self
    def __call__(self, pixels):
        class Found: logits = pixels.mean() * 10
        return Found
class Batch:
    def __init__(self, pixels): self.pixel_values = pixels
def convert_v2_5_from_siglip(low_cpu_mem_usage, encoder_model_name=None):
    import numpy as np
    def prepare(images, return_tensors):
        return Batch(torch.tensor(np.asarray(images), dtype=torch.float32) / 255)
    return Model(), prepare
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> str:
    """An interpreter with stand-ins of both packages, as another environment has the real ones."""
    for name, code in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(code)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.slow
def test_predictors_run_in_an_environment_of_their_own(environment: str) -> None:
    params = PredictorParams(python=environment, device="cpu")
    predictor = Predictor(vqascore, params, "t2v-metrics")
    texts = [{"Entity": ["a", "bb"]}] * 4
    measure = AlignmentWithTexts(predictor, Questions(panels={RECORDS[0].idx: texts}), "text")
    scores = measure.measure(RewardBatch(RECORDS[:1], [greys(10, 20, 30, 40)]))
    assert scores["entity"] == pytest.approx([0.25 + 0.0015])
    assert predictor.score([PictureQuery(greys(200)[0], "x")])[0].failed, "no score is above 1"
    predictor.close()
    predictor = Predictor(aesthetics, params, "aesthetic-predictor-v2-5")
    scores = Aesthetics(predictor).measure(RewardBatch(RECORDS[:1], [greys(51, 51, 102, 102)]))
    assert scores["aesthetics"] == pytest.approx([0.3], abs=1e-3)
    predictor.close()


def test_a_missing_environment_says_what_it_needs(tmp_path: Path) -> None:
    for python, missing in ((str(tmp_path / "none"), "t2v-metrics"), (sys.executable, "t2v_metrics")):
        predictor = Predictor(vqascore, PredictorParams(python=python, device="cpu"), "t2v-metrics")
        with pytest.raises(DataError, match=missing):
            predictor.score([PictureQuery(greys(1)[0], "x")])
        predictor.close()
