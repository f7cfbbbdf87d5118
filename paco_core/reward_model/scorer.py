"""Scorer in this process: the engine of the embedded server, the benchmarks and `paco score`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image

from paco_core.io.files import DataError
from paco_core.models.weights import reading
from paco_core.reward_model.network import Network, TokenRow
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.shapes import by_length, chunks, of_one_length, round_up
from paco_core.reward_model.yes_probability import Query, Score, cased_tokens, from_logits, from_top_logits

if TYPE_CHECKING:
    from paco_core.config.params import RewardParams

log = logging.getLogger("paco.reward")
MAX_BATCH = 64
CPU_TOKENS = 1024  # per pass on a CPU: more would not fit into the caches of a core


@dataclass(frozen=True)
class GeneratedText:
    """A generated answer.

    Attributes:
        num_tokens: number of tokens, including the closing token.
        is_complete: whether the model generated the closing token within the limit of new tokens.
    """

    text: str
    num_tokens: int
    is_complete: bool


class Scorer:
    """A loaded reward model.

    On a CPU, a score is a function of query and model only, bit by bit. It does not depend on other queries or on
    ``threads``. On other devices, the last bits may depend on the other queries of a batch.

    Args:
        folder: complete folder of a Qwen2.5-VL or Qwen3-VL, or a hub id.
        min_pixels, max_pixels: minimum and maximum number of pixels of an image after resizing. If either is None, the
            bounds of the folder are used.
        threads: number of CPU threads of this process. None = unchanged.
        window: maximum number of tokens of a query, if it is smaller than the window of the model.
        quantization: see :meth:`Network.load`.

    Raises:
        DataError: see :meth:`Network.load`; or if a test query has no finite result.
    """

    any_case = False  # sum over yes, Yes, YES, y and Y (and no) instead of reading Yes and No

    def __init__(  # noqa: PLR0913 - options of the public class
        self,
        folder: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        threads: int | None = None,
        max_batch: int = MAX_BATCH,
        window: int | None = None,
        quantization: str | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        pixels = None if min_pixels is None or max_pixels is None else (min_pixels, max_pixels)
        self.network = Network.load(folder, device=device, dtype=dtype, pixels=pixels, quantization=quantization)
        self.network.window = min(self.network.window, window or self.network.window)
        self.max_batch, self.passes = max_batch, Passes.on(self.network.device)
        with reading(folder):
            if not has_finite_logits(self.network):
                raise DataError(f"{folder}: it returns NaN or infinity; does its configuration match its weights?")

    @classmethod
    def from_network(cls, network: Network, max_batch: int = MAX_BATCH) -> Scorer:
        """A scorer for a loaded network, for example in training."""
        scorer = cls.__new__(cls)
        scorer.network, scorer.max_batch, scorer.passes = network, max_batch, Passes.on(network.device)
        return scorer

    @classmethod
    def configured(cls, folder: str | Path, reward: RewardParams) -> Scorer:
        """A scorer with device, number format and pixel bounds of ``params.yaml``.

        Raises:
            DataError: see :meth:`Network.load`.
        """
        low, high = reward.min_pixels, reward.max_pixels
        return cls(folder, reward.device, reward.dtype, min_pixels=low, max_pixels=high)

    @property
    def yes_id(self) -> int:
        return self.network.yes_id

    @property
    def no_id(self) -> int:
        return self.network.no_id

    @cached_property
    def _can_batch(self) -> bool:
        """Whether queries are batched. On a CPU, only if batching does not change scores."""
        can_batch = self.network.device.type != "cpu" or batches_keep_bits(self.network, self.passes, CPU_TOKENS)
        if not can_batch:
            log.warning("this CPU rounds differently in batches: queries are computed one by one, which is slower")
        return can_batch

    def warm_up(self) -> None:
        """Compute test queries now, so the first caller does not wait for them."""
        log.info("queries are computed %s", "in batches" if self._can_batch else "one by one")

    def validation_error(self, query: Query, answer: int = 1) -> str | None:
        """The reason why the model cannot read a query, or None. ``answer``: number of tokens of the answer."""
        try:
            self.network.question(query, answer)
        except DataError as error:
            return str(error)
        return None

    def _rows(self, queries: Sequence[Query], answer: int = 1) -> list[TokenRow]:
        prompts = [self.network.question(query, answer) for query in queries]
        images = [image for query in queries for image in query.pictures]
        visuals = iter(self.network.cached_features(images, self.passes, None if self._can_batch else 1))
        return [
            TokenRow(prompt, tuple(next(visuals) for _ in query.pictures))
            for prompt, query in zip(prompts, queries, strict=True)
        ]

    def _batches(self, queries: Sequence[Query]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """(numbers of queries, their logits (n, vocabulary) of the first answer token), batch by batch."""
        rows = self._rows(queries)
        batches = self._split_batches(rows)
        yield from zip(
            batches,
            self.passes.run(self.network.first_logits, [[rows[number] for number in batch] for batch in batches]),
            strict=True,
        )

    def passes_of(self, queries: Sequence[Query]) -> int:
        """Number of passes of :meth:`score` for these queries."""
        prompts = [self.network.question(query) for query in queries if self.validation_error(query) is None]
        return len(self._split_batches([TokenRow(prompt, ()) for prompt in prompts]))

    def _split_batches(self, rows: Sequence[TokenRow]) -> list[list[int]]:
        """Split row numbers into batches. On a CPU, the rows of a batch have equal padded lengths."""
        if self.network.device.type != "cpu":
            return by_length(rows, self.max_batch)
        batches: list[list[int]] = []
        for length, numbers in of_one_length(rows).items():
            most = min(self.max_batch, max(1, CPU_TOKENS // length)) if self._can_batch else 1
            batches += chunks(numbers, self.passes.share(len(numbers), most))
        return batches

    def first_logits(self, queries: Sequence[Query]) -> torch.Tensor:
        """Logits (queries, vocabulary), float32 on the model's device, of the first answer token.

        Raises:
            DataError: if the model cannot read a query; see :meth:`validation_error`.
        """
        logits = torch.empty(len(queries), self.network.model.lm_head.out_features, device=self.network.device)
        for batch, batch_logits in self._batches(queries):
            logits[batch] = batch_logits
        return logits

    def score(self, queries: Sequence[Query], on_batch: Callable[[int], None] | None = None) -> list[Score]:
        """P(Yes) of each query, in order. Each distinct image is encoded once.

        ``on_batch`` is called with the number of queries of each finished batch. If the model cannot read a query, or
        its logits are not finite, the score is NaN with the cause.
        """
        scores = {
            n: Score(math.nan, cause) for n, query in enumerate(queries) if (cause := self.validation_error(query))
        }
        read = [number for number in range(len(queries)) if number not in scores]
        if on_batch is not None and scores:
            on_batch(len(scores))
        for batch, logits in self._batches([queries[number] for number in read]) if read else ():
            for place, value, row in zip(batch, self._values(logits).tolist(), logits, strict=True):
                cause = None
                if math.isnan(value):
                    finite = bool(torch.isfinite(row).all())
                    cause = "neither Yes nor No among the top 20" if finite else "the model's logits are not finite"
                scores[read[place]] = Score(value, cause)
            if on_batch is not None:
                on_batch(len(batch))
        return [scores[number] for number in range(len(queries))]

    @cached_property
    def _cased(self) -> tuple[list[int], list[int]]:
        return cased_tokens(self.network.processor.tokenizer)

    def _values(self, logits: torch.Tensor) -> torch.Tensor:
        if self.any_case:
            return from_top_logits(logits, *self._cased)
        return from_logits(logits, self.yes_id, self.no_id)

    def generate_reasons(self, queries: Sequence[Query], max_new_tokens: int = 128) -> list[str]:
        """The complete answers, decoded greedily: "Yes." or "No." and the reasons.

        Raises:
            DataError: if query and answer exceed the window of the model.
        """
        return [answer.text for answer in self.generate(queries, max_new_tokens)]

    def generate(self, queries: Sequence[Query], max_new_tokens: int) -> list[GeneratedText]:
        """:meth:`generate_reasons` with the length of each answer, and whether it is complete."""
        tokenizer = self.network.processor.tokenizer
        rows = self._rows(queries, max_new_tokens)
        answers: dict[int, GeneratedText] = {}
        with torch.no_grad():
            for batch in by_length(rows, self.max_batch):
                tokens = _greedy(self.network, [rows[number] for number in batch], max_new_tokens)
                for number, (ids, is_complete) in zip(batch, tokens, strict=True):
                    text = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
                    answers[number] = GeneratedText(text, len(ids) + is_complete, is_complete)
        return [answers[number] for number in range(len(rows))]


def _greedy(network: Network, rows: Sequence[TokenRow], limit: int) -> list[tuple[list[int], bool]]:
    """Greedy continuations of rows. Rows of equal length share a key-value cache.

    Returns the ids without the closing token, and whether the model generated this token within ``limit`` tokens.
    """
    answers: list[tuple[list[int], bool]] = [([], False)] * len(rows)
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.length, []).append(number)
    for members in groups.values():
        for number, ids in zip(members, _continue(network, [rows[n] for n in members], limit), strict=True):
            answers[number] = ids
    return answers


def _continue(network: Network, rows: Sequence[TokenRow], limit: int) -> list[tuple[list[int], bool]]:
    """:func:`_greedy` for rows of equal length."""
    ends = {network.processor.tokenizer.eos_token_id, getattr(network.model.config.text_config, "eos_token_id", None)}
    states, cache = network.prefill(rows)
    position = torch.tensor([int(row.prompt.positions.max()) + 1 for row in rows], device=states.device)
    answers: list[list[int]] = [[] for _ in rows]
    open_rows = set(range(len(rows)))
    for step in range(limit):
        chosen = network.model.lm_head(states[:, -1]).argmax(-1)
        for number, token in enumerate(chosen.tolist()):
            if number in open_rows and token in ends:
                open_rows.discard(number)
            elif number in open_rows:
                answers[number].append(token)
        if not open_rows or step == limit - 1:
            break
        states = network.step(chosen, position + step, cache)
    return [(ids, number not in open_rows) for number, ids in enumerate(answers)]


def batches_keep_bits(network: Network, passes: Passes, tokens: int) -> bool:
    """Whether queries get the same logits one by one, together, and together in another order on this machine.

    Args:
        tokens: maximum number of tokens per pass. The test batch has as many queries, with images of two sizes.
    """

    def rows_of(pairs: Sequence[Sequence[Image.Image]]) -> list[TokenRow]:
        visuals = chunks(network.differentiable_features([image for pair in pairs for image in pair]), 2)
        return [TokenRow(network.prompt("Same?", (a.grid, b.grid)), (a, b)) for a, b in visuals]

    def logits(pairs: Sequence[Sequence[Image.Image]]) -> torch.Tensor:
        return network.first_logits(rows_of(pairs))

    with torch.no_grad():
        (row,) = rows_of([_noise_images(network, 2)])
    pairs = chunks(_noise_images(network, 2 * max(2, tokens // round_up(row.length))), 2)
    *single, batched, reversed_ = passes.run(logits, [*([pair] for pair in pairs), pairs, pairs[::-1]])
    expected = torch.cat(single)
    return torch.equal(batched, expected) and torch.equal(reversed_, expected.flip(0))


def has_finite_logits(network: Network) -> bool:
    """Whether a query about a small image gets finite logits; raises whatever the model's files make of it."""
    with torch.no_grad():
        (visual,) = network.differentiable_features(_noise_images(network, 1))
        logits = network.first_logits([TokenRow(network.prompt("Same?", (visual.grid,)), (visual,))])
    return bool(logits.isfinite().all())


def _noise_images(network: Network, count: int) -> list[Image.Image]:
    """By turns the smallest image of noise that the model sees as it is, and two of it side by side."""
    processor = network.processor.image_processor
    unit = processor.patch_size * processor.merge_size
    side = unit * max(1, round(processor.size.shortest_edge**0.5 / unit))
    pixels = torch.randint(0, 256, (count, side, 2 * side, 3), generator=torch.Generator().manual_seed(0))
    images = [Image.fromarray(image.to(torch.uint8).numpy()) for image in pixels]
    return [image.crop((0, 0, (1 + number % 2) * side, side)) for number, image in enumerate(images)]
