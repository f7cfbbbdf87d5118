"""Inference of the embedded engine: batches of requests, log-probabilities of the first token, texts, token counts."""

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
MAX_BATCH_WAIT_S = 0.003  # how long an incomplete batch waits for another request


@dataclass(frozen=True)
class GenerationRequest:
    """One request to the model.

    Attributes:
        top: number of most probable tokens whose log-probabilities are returned.
        token_ids: tokens whose log-probabilities are returned instead.
    """

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
    """A generated text, and for one-token answers the log-probabilities.

    Attributes:
        finish_reason: ``stop`` after the closing token, ``length`` for an answer that was truncated at ``max_tokens``.
        chosen: the generated token.
        rivals: the tokens whose log-probabilities were requested.
        num_tokens: of the answer, with its closing token.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    chosen: TokenLogprob | None = None
    rivals: tuple[TokenLogprob, ...] = ()
    num_tokens: int = 1


class Answerer:
    """Answers batches of requests with one scorer, in one thread."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        tokenizer = scorer.network.processor.tokenizer
        self._text = lru_cache(maxsize=4096)(lambda token: str(tokenizer.decode([token])))

    @property
    def answer_tokens(self) -> dict[str, int]:
        """Token ids of "Yes" and "No"."""
        return {YES: self.scorer.yes_id, NO: self.scorer.no_id}

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[ModelAnswer | Exception]:
        """The answer or the error of each request, in order."""
        errors = {
            number: self.scorer.validation_error(request.query, request.max_tokens)
            for number, request in enumerate(requests)
        }
        answers: dict[int, ModelAnswer | Exception] = {
            n: RequestError(400, error) for n, error in errors.items() if error
        }
        valid = [number for number in errors if number not in answers]
        short = [number for number in valid if requests[number].max_tokens == 1]
        answers.update(zip(short, self._first_tokens([requests[number] for number in short]), strict=True))
        for length in sorted({requests[number].max_tokens for number in valid} - {1}):
            long = [number for number in valid if requests[number].max_tokens == length]
            answers.update(zip(long, self._texts([requests[number] for number in long], length), strict=True))
        return [answers[number] for number in range(len(requests))]

    def _texts(self, requests: Sequence[GenerationRequest], length: int) -> list[ModelAnswer]:
        return [
            ModelAnswer(answer.text, "stop" if answer.is_complete else "length", num_tokens=answer.num_tokens)
            for answer in self.scorer.generate([request.query for request in requests], length)
        ]

    def _first_tokens(self, requests: Sequence[GenerationRequest]) -> list[ModelAnswer | Exception]:
        """Log-probabilities of the first tokens. Three copies from the device serve all requests."""
        import torch

        if not requests:
            return []
        logits = self.scorer.first_logits([request.query for request in requests])
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        finite = torch.isfinite(logits).all(dim=-1).tolist()
        max_top = max(1, *(request.top for request in requests))
        values, tokens = logprobs.topk(min(max_top, logprobs.shape[-1]), dim=-1)
        requested_values = self._gather_logprobs(logprobs, requests)
        answers: list[ModelAnswer | Exception] = []
        for row, (request, tops, ids) in enumerate(zip(requests, values.tolist(), tokens.tolist(), strict=True)):
            if not finite[row]:
                answers.append(RequestError(422, "the model's logits for this pair are not finite", "not_finite"))
                continue
            if request.token_ids is not None:
                token_ids = list(request.token_ids)
                if any(not 0 <= token < logprobs.shape[-1] for token in token_ids):
                    message = f"logprob_token_ids lie outside the vocabulary of {logprobs.shape[-1]}"
                    answers.append(RequestError(400, message))
                    continue
                rivals = self._token_logprobs(token_ids, requested_values[row])
            else:
                rivals = self._token_logprobs(ids[: request.top], tops[: request.top])
            chosen = self._token_logprobs(ids[:1], tops[:1])[0]
            answers.append(ModelAnswer(chosen.token, "length", chosen, rivals))
        return answers

    @staticmethod
    def _gather_logprobs(logprobs: torch.Tensor, requests: Sequence[GenerationRequest]) -> list[list[float]]:
        """Log-probabilities of the ``token_ids`` of each request. Ids outside the vocabulary are clipped."""
        import torch

        last = logprobs.shape[-1] - 1
        names = [[min(max(token, 0), last) for token in request.token_ids or ()] for request in requests]
        flat = torch.tensor([row * (last + 1) + token for row, ids in enumerate(names) for token in ids]).long()
        values = iter(logprobs.flatten()[flat.to(logprobs.device)].tolist())
        return [[next(values) for _ in ids] for ids in names]

    def _token_logprobs(self, ids: Sequence[int], values: Sequence[float]) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(self._text(token), value) for token, value in zip(ids, values, strict=True))


class Batcher(Generic[Item, Answer]):
    """Runs batches of at most ``max_batch`` requests in one worker thread.

    While a batch runs, the next one fills, so batches are large under load. A single request waits at most
    :data:`MAX_BATCH_WAIT_S`. If a batch fails, its requests run one by one, so an invalid request does not affect the
    other requests.
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

    async def submit(self, item: Item) -> Answer:
        """Wait for the answer to one request; raises the model's exception for it."""
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

    async def _serve(self, pending: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        batch = [(item, future) for item, future in pending if not future.done()]
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
                await asyncio.sleep(MAX_BATCH_WAIT_S)
                grown = not self._queue.empty()
        return batch

    def _results(self, items: Sequence[Item]) -> list[Answer | Exception]:
        try:
            return list(self._answer(items))
        except Exception as error:  # one bad item must not fail its batch  # noqa: BLE001
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._results([item])]


@dataclass(frozen=True)
class Usage:
    """Number of tokens of the prompt, images included, and of the answer."""

    prompt: int
    completion: int

    def as_dict(self) -> dict[str, int]:
        """In OpenAI's format."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


Count = Callable[[GenerationRequest, ModelAnswer], Usage]


def counter(network: Network) -> Count:
    """A function that counts tokens with the model's tokenizer. Prompts are cached, because the model used them."""

    def count(request: GenerationRequest, answer: ModelAnswer) -> Usage:
        pictures = (network.grid(request.query.first), network.grid(request.query.second))
        return Usage(len(network.prompt(request.query.instruction, pictures).ids), answer.num_tokens)

    return count
