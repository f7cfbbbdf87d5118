"""Answers of the embedded engine: batches of requests, log-probabilities of a first token, texts, numbers of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from paco_core.reward_model.yes_probability import NO, YES, PairQuery
from paco_core.serving.protocol import RequestError

if TYPE_CHECKING:
    import torch

    from paco_core.reward_model.network import Network
    from paco_core.reward_model.scorer import Scorer

Item = TypeVar("Item")
Answer = TypeVar("Answer")
LINGER_S = 0.003  # how long a batch that is not full waits for one more request


@dataclass(frozen=True)
class Ask:
    """What one request wants to know."""

    query: PairQuery
    max_tokens: int = 1
    logprobs: bool = True
    top: int = 0
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TokenLogprob:
    token: str
    logprob: float

    def as_dict(self) -> dict[str, Any]:
        return {"token": self.token, "logprob": self.logprob, "bytes": list(self.token.encode())}


@dataclass(frozen=True)
class ModelAnswer:
    """The text, and for one-token answers its log-probability and those of its rivals.

    Attributes:
        finish_reason: ``stop`` after the closing token, ``length`` for an answer that was cut at ``max_tokens``.
        num_tokens: of the answer, with its closing token.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    chosen: TokenLogprob | None = None
    rivals: tuple[TokenLogprob, ...] = ()
    num_tokens: int = 1


class Answerer:
    """Answers batches of requests with one scorer; runs in one thread."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        tokenizer = scorer.network.processor.tokenizer
        self._text = lru_cache(maxsize=4096)(lambda token: str(tokenizer.decode([token])))

    @property
    def answer_tokens(self) -> dict[str, int]:
        """Token ids of the two words that a score is made of."""
        return {YES: self.scorer.yes_id, NO: self.scorer.no_id}

    def __call__(self, asks: Sequence[Ask]) -> list[ModelAnswer | Exception]:
        """Answers in order; a request that cannot be answered has its refusal in its place."""
        faults = {number: self.scorer.fault(ask.query, ask.max_tokens) for number, ask in enumerate(asks)}
        answers: dict[int, ModelAnswer | Exception] = {
            n: RequestError(400, fault) for n, fault in faults.items() if fault
        }
        whole = [number for number in faults if number not in answers]
        short = [number for number in whole if asks[number].max_tokens == 1]
        answers.update(zip(short, self._first_tokens([asks[number] for number in short]), strict=True))
        for length in sorted({asks[number].max_tokens for number in whole} - {1}):
            long = [number for number in whole if asks[number].max_tokens == length]
            answers.update(zip(long, self._texts([asks[number] for number in long], length), strict=True))
        return [answers[number] for number in range(len(asks))]

    def _texts(self, asks: Sequence[Ask], length: int) -> list[ModelAnswer]:
        return [
            ModelAnswer(answer.text, "stop" if answer.is_complete else "length", num_tokens=answer.num_tokens)
            for answer in self.scorer.generate([ask.query for ask in asks], length)
        ]

    def _first_tokens(self, asks: Sequence[Ask]) -> list[ModelAnswer | Exception]:
        """Only what is listed leaves the model's device, in three copies for all asks together."""
        import torch

        if not asks:
            return []
        logits = self.scorer.first_logits([ask.query for ask in asks])
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        finite = torch.isfinite(logits).all(dim=-1).tolist()
        deepest = max(1, *(ask.top for ask in asks))
        values, tokens = logprobs.topk(min(deepest, logprobs.shape[-1]), dim=-1)
        named = self._of_named(logprobs, asks)
        found: list[ModelAnswer | Exception] = []
        for row, (ask, tops, ids) in enumerate(zip(asks, values.tolist(), tokens.tolist(), strict=True)):
            if not finite[row]:
                found.append(RequestError(422, "the model's logits for this pair are not finite", "not_finite"))
                continue
            if ask.token_ids is not None:
                wanted = list(ask.token_ids)
                if any(not 0 <= token < logprobs.shape[-1] for token in wanted):
                    message = f"logprob_token_ids lie outside the vocabulary of {logprobs.shape[-1]}"
                    found.append(RequestError(400, message))
                    continue
                rivals = self._named(wanted, named[row])
            else:
                rivals = self._named(ids[: ask.top], tops[: ask.top])
            chosen = self._named(ids[:1], tops[:1])[0]
            found.append(ModelAnswer(chosen.token, "length", chosen, rivals))
        return found

    @staticmethod
    def _of_named(logprobs: torch.Tensor, asks: Sequence[Ask]) -> list[list[float]]:
        """Log-probabilities of the tokens that each ask names; of one outside the vocabulary, of the nearest inside."""
        import torch

        last = logprobs.shape[-1] - 1
        names = [[min(max(token, 0), last) for token in ask.token_ids or ()] for ask in asks]
        flat = torch.tensor([row * (last + 1) + token for row, ids in enumerate(names) for token in ids]).long()
        values = iter(logprobs.flatten()[flat.to(logprobs.device)].tolist())
        return [[next(values) for _ in ids] for ids in names]

    def _named(self, ids: Sequence[int], values: Sequence[float]) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(self._text(token), value) for token, value in zip(ids, values, strict=True))


class Batcher(Generic[Item, Answer]):
    """Feeds one worker thread with batches of at most ``max_batch`` requests.

    While a batch runs, the next one fills: under load batches are large, a lone request waits for nobody
    longer than :data:`LINGER_S`. A batch that fails is asked again one by one, so that one bad request
    never fails its neighbours.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Item]], Sequence[Answer | Exception]],
        max_batch: int,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._answer, self._max_batch, self._on_batch = answer, max_batch, on_batch
        self._queue: asyncio.Queue[tuple[Item, asyncio.Future[Answer]]] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def ask(self, item: Item) -> Answer:
        """The answer to one request; raises what the model raised for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._serve(await self._collect())  # nothing here holds a batch while the next one is awaited
        finally:
            self._worker.shutdown(wait=False)

    async def _serve(self, asked: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        batch = [(item, future) for item, future in asked if not future.done()]
        if not batch:
            return
        if self._on_batch is not None:
            self._on_batch(len(batch))
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self._worker, self._results, [item for item, _ in batch])
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # its caller has gone
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _collect(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch = [await self._queue.get()]
        grown = True
        while grown and len(batch) < self._max_batch:
            grown = False
            while not self._queue.empty() and len(batch) < self._max_batch:
                batch.append(self._queue.get_nowait())
                grown = True
            if len(batch) < self._max_batch:
                await asyncio.sleep(LINGER_S)
                grown = not self._queue.empty()
        return batch

    def _results(self, items: Sequence[Item]) -> list[Answer | Exception]:
        try:
            return list(self._answer(items))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._results([item])]


@dataclass(frozen=True)
class Usage:
    """Tokens of the question, pictures included, and of the answer."""

    prompt: int
    completion: int

    def as_dict(self) -> dict[str, int]:
        """In OpenAI's shape."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


Count = Callable[[Ask, ModelAnswer], Usage]


def counter(network: Network) -> Count:
    """Counts by the model's own tokenizer; a question was tokenised to be answered, and is looked up."""

    def count(ask: Ask, answer: ModelAnswer) -> Usage:
        pictures = (network.grid(ask.query.first), network.grid(ask.query.second))
        return Usage(len(network.prompt(ask.query.instruction, pictures).ids), answer.num_tokens)

    return count
