"""A score is a function of the question and the model alone, bit for bit; what the model cannot read has no score."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image

from paco_core.io.files import DataError
from paco_core.reward_model.examples import Example
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.items import tokenize_examples
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from tests.support import tiny_qwen3_vl, tiny_vlm

SIDES = (28, 56, 84, 120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("bits") / "tiny")


def questions(count: int, longest: int) -> list[PairQuery]:
    """Questions of up to ``longest`` words, over pictures of several sizes."""
    random = Random(0)

    def picture() -> Image.Image:
        size = random.choice(SIDES), random.choice(SIDES)
        return Image.frombytes("RGB", (8, 8), random.randbytes(192)).resize(size)

    return [
        PairQuery(picture(), picture(), render_instruction("theme", theme="red " * random.randint(1, longest)))
        for _ in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_score_does_not_depend_on_its_neighbours(
    repository: Path, folder: Path, tmp_path: Path, dtype: str, threads: int
) -> None:
    """The models of random weights with questions of up to 300 tokens, and the embedded world's own base."""
    threads_before = torch.get_num_threads()
    try:
        qwen3_vl = tiny_qwen3_vl.build(tmp_path / "qwen3_vl")
        for model, longest in ((folder, 200), (qwen3_vl, 200), (repository / "data/zoo/qwen2_5_vl", 14)):
            scorer = Scorer(model, dtype=dtype, threads=threads, min_pixels=784, max_pixels=20_000)
            queries, order = questions(24, longest), Random(1)
            single_logits = []
            for query in queries:
                scorer.network.features.clear()
                single_logits.append(scorer.first_logits([query])[0])
            for size in (2, 3, 7, 24):
                numbers = order.sample(range(len(queries)), len(queries))
                scorer.network.features.clear()
                for start in range(0, len(numbers), size):
                    part = numbers[start : start + size]
                    batch_logits = scorer.first_logits([queries[number] for number in part])
                    assert all(
                        torch.equal(row_logits, single_logits[number])
                        for row_logits, number in zip(batch_logits, part, strict=True)
                    )
    finally:
        torch.set_num_threads(threads_before)


def test_where_batches_leave_a_trace_each_question_is_computed_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a processor whose libraries round otherwise in products of more than one question."""
    scorer = Scorer(folder)
    network, whole_logits, whole_encode = scorer.network, scorer.network.first_logits, scorer.network._encode
    rows: list[int] = []
    pictures: list[int] = []

    def noting(images: list) -> torch.Tensor:  # type: ignore[type-arg]
        rows.append(len(images))
        return whole_logits(images) + 1e-6 * (len(images) > 1)

    monkeypatch.setattr(network, "first_logits", noting)
    monkeypatch.setattr(network, "_encode", lambda images: (pictures.append(len(images)), whole_encode(images))[1])
    with caplog.at_level(logging.WARNING, "paco.reward"):
        assert not scorer._can_batch
    rows.clear()
    pictures.clear()
    queries = questions(6, 3)
    assert [score.value for score in scorer.score(queries)] == [scorer.score([query])[0].value for query in queries]
    assert set(rows) == set(pictures) == {1}
    assert caplog.text.count("computed one by one") == 1


def test_what_the_model_cannot_read_is_nan_with_a_cause(folder: Path) -> None:
    scorer = Scorer(folder)
    good, *_ = queries = questions(3, 5)
    long = PairQuery(good.first, good.second, render_instruction("theme", theme="red " * 2100))
    narrow = PairQuery(Image.new("RGB", (1, 300)), good.second, good.instruction)
    mark = PairQuery(good.first, good.second, "Same <|image_pad|>?")
    batch_sizes: list[int] = []
    scores = scorer.score([queries[0], long, queries[1], narrow, mark, queries[2]], on_batch=batch_sizes.append)
    assert [score.failed for score in scores] == [False, True, False, True, True, False] and sum(batch_sizes) == 6
    assert "2048" in str(scores[1].cause) and "200" in str(scores[3].cause) and "<|image_pad|>" in str(scores[4].cause)
    assert [scores[n].value for n in (0, 2, 5)] == [score.value for score in scorer.score(queries)]
    with pytest.raises(DataError, match="2048"):
        scorer.first_logits([good, long])
    network, answer = scorer.network, "Yes. " + "The style is the same. " * 400
    with pytest.raises(DataError, match="pair p7.*2048"):
        tokenize_examples(network, [Example("p7", (good.first, good.second), good.instruction, answer)])


@pytest.mark.slow
def test_the_window_ends_where_question_and_answer_fill_it(folder: Path) -> None:
    query = questions(1, 30)[0]
    length = len(Scorer(folder).network.question(query).ids)
    assert Scorer(folder, window=length + 1).validation_error(query) is None
    assert Scorer(folder, window=length).validation_error(query) is not None
    assert Scorer(folder, window=length + 1).validation_error(query, answer=2) is not None
    assert Scorer(folder, window=10**6).network.window == 2048
