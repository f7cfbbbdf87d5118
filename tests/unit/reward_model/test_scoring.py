"""Scores: from logits and from an API's answer, with cached features and with the library's own forward."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paco_core.io.files import DataError
from paco_core.reward_model.golden import choose_golden, read_golden, write_golden
from paco_core.reward_model.instructions import chat, render
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.shapes import READ_STEP
from paco_core.reward_model.vision import FeatureCache, Visual
from paco_core.reward_model.yes_probability import (
    PairQuery,
    Score,
    Unscorable,
    from_logits,
    from_top_logits,
    from_top_logprobs,
)
from paco_core.serving.engines.answers import Answerer, Ask, ModelAnswer
from tests.support import reward_tiny, tiny_vlm


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    return Scorer(tiny_vlm.build(tmp_path_factory.mktemp("scoring") / "tiny"), max_batch=3)


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
        PairQuery(pictures[a], pictures[b], render("theme", theme="red " * (1 + a + 2 * b)))
        for a in range(3)
        for b in range(3)
    ]


def test_scores_equal_the_librarys_own_forward(scorer: Scorer) -> None:
    asked = queries()
    scores = scorer.score(asked)
    for query, score in zip(asked, scores, strict=True):
        expected = from_logits(library_logits(scorer, query), scorer.yes_id, scorer.no_id)
        assert score.value == pytest.approx(float(expected), abs=1e-6)
        assert score.cause is None


def test_each_distinct_picture_is_encoded_once_and_last_positions_only_reach_the_head(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Scorer.from_network(type(scorer.network)(scorer.network.model, scorer.network.processor, "tiny"), 4)
    encoded: list[int] = []
    heads: list[tuple[int, ...]] = []
    original = fresh.network._encode
    fresh.warm_up()  # its own questions are asked before any is counted
    monkeypatch.setattr(fresh.network, "_encode", lambda images: (encoded.append(len(images)), original(images))[1])
    hook = fresh.network.model.lm_head.register_forward_hook(lambda _m, args, _o: heads.append(tuple(args[0].shape)))
    asked = queries()
    copies = [PairQuery(q.first.copy(), q.second.copy(), q.instruction) for q in asked]
    fresh.score([*asked, *copies])
    hook.remove()
    assert sum(encoded) == 3
    # A few other places fill up the last step of each pass.
    assert all(len(shape) == 2 and shape[0] == READ_STEP for shape in heads) and READ_STEP * len(heads) >= 18


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


def test_the_feature_cache_stays_within_its_bytes() -> None:
    def visual(number: int) -> Visual:
        return Visual(torch.full((2, 4), float(number)), (1, 2, 4))  # 32 bytes

    recent = FeatureCache(64)
    for number in range(3):
        recent.put(str(number), visual(number))
    assert recent.get("0") is None and recent.get("2") is not None and recent.bytes == 64
    first = FeatureCache(64, evict=False)
    for number in range(3):
        first.put(str(number), visual(number))
    assert first.get("0") is not None and first.get("2") is None and first.bytes == 64
    first.clear()
    assert first.get("0") is None and first.bytes == 0


def test_logits_and_top_logprobs_give_the_same_score(scorer: Scorer) -> None:
    logits = scorer.first_logits(queries()[:1])[0]
    log_p = torch.log_softmax(logits.double(), -1)
    tokens = scorer.network.processor.tokenizer.convert_ids_to_tokens(list(range(len(log_p))))
    entries = [{"token": t, "logprob": float(v)} for t, v in zip(tokens, log_p, strict=True)]
    expected = float(from_logits(logits, scorer.yes_id, scorer.no_id))
    assert from_top_logprobs(entries) == pytest.approx(expected, abs=1e-12)


def test_top_logprobs_without_the_words_are_unscorable() -> None:
    for entries in ([{"token": "yes", "logprob": -0.1}], []):
        with pytest.raises(Unscorable, match="neither Yes nor No"):
            from_top_logprobs(entries)
    assert from_top_logprobs([{"token": "Yes", "logprob": -0.1}]) == 1.0
    assert from_top_logprobs([{"token": "No", "logprob": -0.1}]) == 0.0


def test_variants_count_only_when_asked() -> None:
    entries = [
        {"token": "Yes", "logprob": math.log(0.2)},
        {"token": " yes", "logprob": math.log(0.4)},
        {"token": "No", "logprob": math.log(0.2)},
    ]
    assert from_top_logprobs(entries) == pytest.approx(0.5)
    assert from_top_logprobs(entries, variants=True) == pytest.approx(0.75)


def test_greedy_answers_equal_the_librarys_generate(scorer: Scorer) -> None:
    asked = queries()[:4]
    network = scorer.network
    for query, answer in zip(asked, scorer.generate_reasons(asked, max_new_tokens=6), strict=True):
        text = chat(network.processor, query.instruction)
        inputs = network.processor(text=[text], images=[query.first, query.second], return_tensors="pt")
        ids = network.model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert answer == network.processor.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_an_answer_that_is_cut_says_so(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Ask(queries()[0], max_tokens=3)
    (cut,) = Answerer(scorer)([ask])
    assert isinstance(cut, ModelAnswer) and (cut.finish_reason, cut.num_tokens) == ("length", 3)
    first = int(library_logits(scorer, ask.query).argmax())
    monkeypatch.setattr(scorer.network.model.config.text_config, "eos_token_id", first)
    (closed,) = Answerer(scorer)([ask])
    assert isinstance(closed, ModelAnswer) and (closed.finish_reason, closed.num_tokens) == ("stop", 1)


def test_logits_that_are_not_finite_give_nan_and_a_cause(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = torch.full((1, scorer.network.model.lm_head.out_features), torch.nan)
    monkeypatch.setattr(scorer.network, "first_logits", lambda _rows: broken)
    score = scorer.score(queries()[:1])[0]
    assert score.failed
    assert score.cause == "the model's logits are not finite"


def test_a_tokenizer_that_splits_yes_is_no_reward_base(tmp_path: Path) -> None:
    folder = tiny_vlm.build(tmp_path / "model", sentences=["No. The style differs."])
    with pytest.raises(DataError, match=r"model: its tokenizer splits 'Yes' into \d tokens"):
        Scorer(folder)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model there"):
        Scorer(tmp_path)


def test_golden_pairs_come_back_as_they_were_written(scorer: Scorer, tmp_path: Path) -> None:
    asked = queries()[:2]
    write_golden(tmp_path, asked, scorer.score(asked), "float32")
    for golden, query in zip(read_golden(tmp_path), asked, strict=True):
        again: Any = scorer.score([golden.query])[0]
        assert golden.query.first.tobytes() == query.first.tobytes()
        assert abs(again.value - golden.score) < 1e-6 and golden.dtype == "float32"


def test_a_golden_picture_that_is_missing_is_named(tmp_path: Path) -> None:
    write_golden(tmp_path, queries()[:1], [Score(0.5)], "float32")
    (tmp_path / "golden" / "0-second.png").unlink()
    with pytest.raises(DataError, match=r"pair 0 names golden/0-second\.png"):
        read_golden(tmp_path)


def test_only_the_position_that_is_read_passes_the_last_mlp(scorer: Scorer) -> None:
    seen: list[tuple[int, ...]] = []
    layers = scorer.network.model.model.language_model.layers
    hooks = [
        layer.mlp.down_proj.register_forward_hook(lambda _m, _i, output: seen.append(tuple(output.shape)))
        for layer in layers
    ]
    scorer.warm_up()
    seen.clear()
    scorer.score(queries()[:2])
    for hook in hooks:
        hook.remove()
    hidden = scorer.network.model.config.text_config.hidden_size
    assert all(len(shape) == 3 and shape[0] == 2 and shape[1] > 1 for shape in seen[:-1])
    assert len(seen) == len(layers) and seen[-1] == (READ_STEP, hidden)  # the two, and what fills up a step


def test_passes_side_by_side_give_what_one_after_the_other_gives(scorer: Scorer) -> None:
    threads = torch.get_num_threads()
    both = Scorer.from_network(type(scorer.network)(scorer.network.model, scorer.network.processor, "tiny"), 3)
    both.passes = Passes(2)
    asked = queries()
    assert torch.allclose(both.first_logits(asked), scorer.first_logits(asked), atol=1e-6)
    assert both.network.encoded == 3
    assert torch.get_num_threads() == threads


def test_passes_run_at_the_same_time_and_raise_what_one_of_them_raises() -> None:
    meeting = threading.Barrier(2, timeout=60)
    assert list(Passes(2).run(lambda _: meeting.wait() >= 0, [0, 1])) == [True, True]

    def refuse(batch: int) -> int:
        if batch:
            raise DataError("the second")
        return batch

    with pytest.raises(DataError, match="the second"):
        list(Passes(2).run(refuse, [0, 1]))


def test_passes_are_shared_out_evenly() -> None:
    assert Passes(2).share(48, limit=14) == 12  # 12, 12 | 12, 12 and not 14, 14 | 14, 6
    assert Passes(2).share(30, limit=14) == 8 and Passes(2).share(20, limit=14) == 10
    assert Passes(1).share(48, limit=14) == 12 and Passes(1).share(10, limit=14) == 10
    assert Passes(2).share(0, limit=14) == Passes(2).share(1, limit=14) == 1
    for items in range(1, 100):
        size = Passes(3).share(items, limit=7)
        assert size <= 7 and -(-items // size) <= 3 * -(-items // 21)


def test_patches_are_embedded_as_the_convolution_embeds_them(scorer: Scorer) -> None:
    embed = scorer.network.model.model.visual.patch_embed
    patches = torch.randn(5, embed.proj.weight[0].numel())
    with torch.no_grad():
        assert torch.allclose(embed(patches), type(embed).forward(embed, patches), atol=1e-5)
        assert embed.forward is not type(embed).forward


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
    torch.load(model / "pytorch_model.bin", weights_only=False)
    assert trace.exists(), "the trap works where somebody loads it"


def test_any_case_sums_the_words_among_the_top_20() -> None:
    logits = torch.linspace(0, 4, 40)  # token 39 is the likeliest, 20 the last of the top 20
    p = torch.softmax(logits.double(), -1)
    yes, no = [39, 25, 3], [30, 7]
    expected = (p[39] + p[25]) / (p[39] + p[25] + p[30])
    assert float(from_top_logits(logits, yes, no)) == pytest.approx(float(expected))
    assert float(from_top_logits(logits, [39], [3])) == 1.0
    assert math.isnan(float(from_top_logits(logits, [1, 2], [3])))
    last = float(p[20] / (p[20] + p[39]))  # the last of the top 20 counts, and the next one does not
    assert float(from_top_logits(logits, [20, 19], [39])) == pytest.approx(last)
    assert float(from_top_logits(logits, [19], [39])) == 0.0
    both = from_top_logits(torch.stack([logits, logits.flip(0)]), yes, no)
    assert both.shape == (2,) and float(both[0]) == pytest.approx(float(expected))
    reference = from_top_logprobs(
        [{"token": word, "logprob": float(p[token].log())} for word, token in (("Yes", 39), ("yes", 25), ("No", 30))],
        variants=True,
    )
    assert float(from_top_logits(logits, yes, no)) == pytest.approx(reference)


def test_golden_pairs_are_a_clear_match_a_clear_mismatch_and_so_on() -> None:
    scores = [Score(value) for value in (0.5, 0.99999, 0.93, 0.4, 0.06, 0.0)] + [Score(math.nan, "not finite")]
    labels: list[bool | None] = [True, True, True, False, False, True, True]
    asked = [query for _ in range(7) for query in queries()[:1]]
    assert choose_golden(asked, scores, labels, 4) == [2, 4, 1, 3]
    assert choose_golden(asked, scores, [None] * 7, 3) == [2, 4, 1], "without labels a score says on which side it is"
    assert choose_golden(asked[:2], scores[:2], [True, True], 4) == [1, 0]
