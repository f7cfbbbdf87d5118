"""Scores: from logits and from an API's answer, with cached features and with the library's own forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional

from paco_core.io.files import DataError
from paco_core.reward_model.golden import choose_golden, read_golden, write_golden
from paco_core.reward_model.instructions import chat, render_instruction
from paco_core.reward_model.network import Network
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.vision import attend_in_one_call
from paco_core.reward_model.yes_probability import PairQuery, Score, from_logits, from_top_logprobs
from paco_core.serving.engines.answers import Answerer, GenerationRequest, ModelAnswer
from paco_core.serving.protocol import RequestError
from tests.support import reward_tiny, tiny_qwen3_vl, tiny_vlm

BUILDS = [pytest.param(tiny_vlm.build, id="qwen2_5_vl"), pytest.param(tiny_qwen3_vl.build, id="qwen3_vl")]


@pytest.fixture(scope="module", params=BUILDS)
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    return Scorer(request.param(tmp_path_factory.mktemp("scoring") / "tiny"), max_batch=3)


def library_logits(scorer: Scorer, query: PairQuery) -> torch.Tensor:
    """First-token logits by processor and forward, one pair at a time."""
    network = scorer.network
    text = chat(network.processor, query.instruction)
    inputs = network.processor(text=[text], images=[query.first, query.second], return_tensors="pt")
    with torch.no_grad():
        return network.model(**inputs).logits[0, -1]


def queries() -> list[PairQuery]:
    """Questions of several lengths over pictures of several sizes."""
    pictures = [reward_tiny.picture(0), reward_tiny.picture(1, 64), reward_tiny.picture(2, 56)]
    return [
        PairQuery(pictures[a], pictures[b], render_instruction("theme", theme="red " * (1 + a + 2 * b)))
        for a in range(3)
        for b in range(3)
    ]


def test_scores_equal_the_librarys_own_forward(scorer: Scorer) -> None:
    pairs = queries()
    scores = scorer.score(pairs)
    for query, score in zip(pairs, scores, strict=True):
        expected = from_logits(library_logits(scorer, query), scorer.yes_id, scorer.no_id)
        assert score.value == pytest.approx(float(expected), abs=1e-6)
        assert score.cause is None


def test_patch_grids_are_known_before_a_picture_is_encoded(scorer: Scorer) -> None:
    network = scorer.network
    bounds = network.processor.image_processor.size
    try:
        network.processor.image_processor.size = type(bounds)(shortest_edge=3136, longest_edge=4 * 3136)
        for width, height in ((32, 32), (64, 30), (200, 200), (57, 113)):
            picture = Image.new("RGB", (width, height))
            assert network.grid(picture) == network._encode([picture])[0].grid
    finally:
        network.processor.image_processor.size = bounds


@pytest.mark.parametrize("pixels", [None, (3136, 3136)])
def test_an_image_has_the_pixels_of_the_limits_at_any_size(repository: Path, pixels: tuple[int, int] | None) -> None:
    """With equal limits, transformers shrinks 96 x 96 px to 28 x 28 px: the panels of sets of 192 px."""
    network = Network.load(repository / "data/zoo/qwen2_5_vl", pixels=pixels)
    for side in range(28, 300):
        assert network.grid(Image.new("RGB", (side, side))) == (1, 4, 4), side
    assert network._encode([Image.new("RGB", (96, 96))])[0].grid == (1, 4, 4)


def test_logits_and_top_logprobs_give_the_same_score(scorer: Scorer) -> None:
    logits = scorer.first_logits(queries()[:1])[0]
    log_p = torch.log_softmax(logits.double(), -1)
    tokens = scorer.network.processor.tokenizer.convert_ids_to_tokens(list(range(len(log_p))))
    entries = [{"token": t, "logprob": float(v)} for t, v in zip(tokens, log_p, strict=True)]
    expected = float(from_logits(logits, scorer.yes_id, scorer.no_id))
    assert from_top_logprobs(entries) == pytest.approx(expected, abs=1e-12)


def test_greedy_answers_equal_the_librarys_generate(scorer: Scorer) -> None:
    pairs = queries()[:4]
    network = scorer.network
    for query, answer in zip(pairs, scorer.generate_reasons(pairs, max_new_tokens=6), strict=True):
        text = chat(network.processor, query.instruction)
        inputs = network.processor(text=[text], images=[query.first, query.second], return_tensors="pt")
        ids = network.model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert answer == network.processor.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_an_answer_that_is_cut_says_so(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    request = GenerationRequest(queries()[0], max_tokens=3)
    (cut,) = Answerer(scorer)([request])
    assert isinstance(cut, ModelAnswer) and (cut.finish_reason, cut.num_tokens) == ("length", 3)
    first = int(library_logits(scorer, request.query).argmax())
    monkeypatch.setattr(scorer.network.model.config.text_config, "eos_token_id", first)
    (closed,) = Answerer(scorer)([request])
    assert isinstance(closed, ModelAnswer) and (closed.finish_reason, closed.num_tokens) == ("stop", 1)


def test_logits_that_are_not_finite_are_no_answer_and_spare_their_neighbours(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.zeros(2, scorer.network.model.lm_head.out_features)
    logits[1] = torch.nan
    monkeypatch.setattr(scorer.network, "first_logits", lambda rows: logits[1:].expand(len(rows), -1))
    assert "not finite" in str(scorer.score(queries()[:1])[0].cause)
    monkeypatch.setattr(scorer, "first_logits", lambda _queries: logits)
    good, bad = Answerer(scorer)([GenerationRequest(query) for query in queries()[:2]])
    assert isinstance(good, ModelAnswer) and isinstance(bad, RequestError) and bad.code == "not_finite"


def test_golden_pairs_come_back_as_they_were_written(scorer: Scorer, tmp_path: Path) -> None:
    pairs = queries()[:2]
    write_golden(tmp_path, pairs, scorer.score(pairs), "float32")
    for golden, query in zip(read_golden(tmp_path), pairs, strict=True):
        rescored: Any = scorer.score([golden.query])[0]
        assert golden.query.first.tobytes() == query.first.tobytes()
        assert abs(rescored.value - golden.score) < 1e-6 and golden.dtype == "float32"
    (tmp_path / "golden" / "0-second.png").unlink()
    with pytest.raises(DataError, match=r"golden/0-second\.png"):
        read_golden(tmp_path)


def test_passes_side_by_side_give_what_one_after_the_other_gives(scorer: Scorer) -> None:
    threads = torch.get_num_threads()
    scorer_of_three = Scorer.from_network(
        type(scorer.network)(scorer.network.model, scorer.network.processor, "tiny"), 3
    )
    scorer_of_three.passes = Passes(2)
    pairs = queries()
    assert torch.allclose(scorer_of_three.first_logits(pairs), scorer.first_logits(pairs), atol=1e-6)
    assert scorer_of_three.network.encoded == 3
    assert torch.get_num_threads() == threads


class Trap:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_weights_that_could_run_code_are_refused_unread(tmp_path: Path) -> None:
    model, trace = tiny_vlm.build(tmp_path / "tiny"), tmp_path / "trace"
    for file in model.glob("*.safetensors"):
        file.unlink()
    torch.save(Trap(trace), model / "pytorch_model.bin")
    with pytest.raises(DataError, match="not safetensors"):
        Scorer(model)
    assert not trace.exists()


def test_golden_pairs_are_a_clear_match_a_clear_mismatch_and_so_on() -> None:
    scores = [Score(value) for value in (0.5, 0.99999, 0.93, 0.4, 0.06, 0.0)] + [Score(math.nan, "not finite")]
    labels: list[bool | None] = [True, True, True, False, False, True, True]
    pairs = [query for _ in range(7) for query in queries()[:1]]
    assert choose_golden(pairs, scores, labels, 4) == [2, 4, 1, 3]
    assert choose_golden(pairs, scores, [None] * 7, 3) == [2, 4, 1], "without labels a score says on which side it is"
    assert choose_golden(pairs[:2], scores[:2], [True, True], 4) == [1, 0]


PICTURES = [Image.effect_noise((width, height), 90).convert("RGB") for width, height in ((140, 84), (56, 56))]


@pytest.mark.parametrize("build", BUILDS)
def test_the_features_are_those_of_the_library(
    build: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network.load(build(tmp_path / "model"))
    calls = []
    real = functional.scaled_dot_product_attention

    def counting(*args: torch.Tensor, **kwargs: object) -> torch.Tensor:
        calls.append(args[0].shape)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counting)
    with torch.no_grad():
        expected = [visual.tokens for visual in network._encode(PICTURES)]
        before = len(calls)
        attend_in_one_call(network.model.model.visual)
        actual = [visual.tokens for visual in network._encode(PICTURES)]
    layers = len(network.model.model.visual.blocks)
    assert len(calls) - before == layers < before, "one call a layer"
    assert {len(shape) for shape in calls[before:]} == {4} and max(shape[0] for shape in calls[before:]) > 2
    for expected_row, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(expected_row, other, rtol=1e-4, atol=1e-5)
