"""Scores pairs in this process: the engine behind the embedded server, the benchmarks and `paco score`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.reward_model.network import Network, Row, by_length
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.yes_probability import PairQuery, Score, from_logits

if TYPE_CHECKING:
    import torch

    from paco_core.params import RewardParams

MAX_BATCH = 64
CPU_TOKENS = 1024  # in one pass on a processor: more no longer fit a core's caches, and take longer each


class Scorer:
    """A reward model that is ready to score.

    Args:
        folder: complete Qwen2.5-VL folder, or a hub id.
        min_pixels: least pixels of a picture after resizing; with ``max_pixels``, the most. The folder's own
            bounds where either is None.
        threads: processor threads of this process; unchanged when None.

    Raises:
        DataError: see :meth:`Network.load`.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        threads: int | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        pixels = None if min_pixels is None or max_pixels is None else (min_pixels, max_pixels)
        self.network = Network.load(folder, device=device, dtype=dtype, pixels=pixels)
        self.max_batch, self.passes = max_batch, Passes.on(self.network.device)

    @classmethod
    def of(cls, network: Network, max_batch: int = MAX_BATCH) -> Scorer:
        """A scorer around a network that is already loaded (in training, say)."""
        scorer = cls.__new__(cls)
        scorer.network, scorer.max_batch, scorer.passes = network, max_batch, Passes.on(network.device)
        return scorer

    @classmethod
    def configured(cls, folder: str | Path, reward: RewardParams) -> Scorer:
        """A scorer as ``params.yaml`` configures the reward: its device, number format and pixel bounds.

        Raises:
            DataError: see :meth:`Network.load`.
        """
        pixels = {"min_pixels": reward.min_pixels, "max_pixels": reward.max_pixels}
        return cls(folder, reward.device, reward.dtype, **pixels)

    @property
    def yes_id(self) -> int:
        return self.network.yes_id

    @property
    def no_id(self) -> int:
        return self.network.no_id

    def _rows(self, queries: Sequence[PairQuery]) -> list[Row]:
        images = [image for query in queries for image in (query.first, query.second)]
        visuals = self.network.look(images, self.passes)
        return [
            self.network.row(visuals[2 * number], visuals[2 * number + 1], query.instruction)
            for number, query in enumerate(queries)
        ]

    def _batches(self, queries: Sequence[PairQuery]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """(numbers of queries, their logits (n, vocabulary) of the first answer token), batch by batch."""
        rows = self._rows(queries)
        batches = by_length(rows, self._rows_at_once(rows))
        yield from zip(
            batches,
            self.passes.run(self.network.first_logits, [[rows[number] for number in batch] for batch in batches]),
            strict=True,
        )

    def first_logits(self, queries: Sequence[PairQuery]) -> torch.Tensor:
        """Logits (queries, vocabulary), float32 on the CPU, of the first answer token."""
        import torch

        logits = torch.empty(len(queries), self.network.model.lm_head.out_features)
        for batch, found in self._batches(queries):
            logits[batch] = found.cpu()
        return logits

    def _rows_at_once(self, rows: Sequence[Row]) -> int:
        if self.network.device.type != "cpu":
            return self.max_batch
        longest = max((row.length for row in rows), default=1)
        return self.passes.share(len(rows), min(self.max_batch, max(1, CPU_TOKENS // longest)))

    def score(self, queries: Sequence[PairQuery], on_batch: Callable[[int], None] | None = None) -> list[Score]:
        """P(Yes) of each query, in order; each distinct picture is encoded once.

        ``on_batch`` is called with the number of pairs just done. A pair whose logits are not finite gets
        NaN and the cause.
        """
        values = [math.nan] * len(queries)
        for batch, logits in self._batches(queries) if queries else ():
            for number, value in zip(batch, from_logits(logits, self.yes_id, self.no_id).tolist(), strict=True):
                values[number] = value
            if on_batch is not None:
                on_batch(len(batch))
        return [Score(value, "the model's logits are not finite" if math.isnan(value) else None) for value in values]

    def generate_reasons(self, queries: Sequence[PairQuery], max_new_tokens: int = 128) -> list[str]:
        """The whole answers, decoded greedily: "Yes." or "No." and the reasons."""
        import torch

        tokenizer = self.network.processor.tokenizer
        rows = self._rows(queries)
        answers = [""] * len(rows)
        with torch.inference_mode():
            for batch in by_length(rows, self.max_batch):
                tokens = _greedy(self.network, [rows[number] for number in batch], max_new_tokens)
                for number, ids in zip(batch, tokens, strict=True):
                    answers[number] = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
        return answers


def _greedy(network: Network, rows: Sequence[Row], limit: int) -> list[list[int]]:
    """Greedy continuations of rows, without the closing token; rows of one length share a key-value cache."""
    answers: list[list[int]] = [[] for _ in rows]
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.length, []).append(number)
    for members in groups.values():
        for number, ids in zip(members, _continue(network, [rows[n] for n in members], limit), strict=True):
            answers[number] = ids
    return answers


def _continue(network: Network, rows: Sequence[Row], limit: int) -> list[list[int]]:
    """Greedy continuations of rows of equal length."""
    import torch

    ends = {network.processor.tokenizer.eos_token_id, network.model.config.text_config.eos_token_id}
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
    return answers
