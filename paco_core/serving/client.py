"""Client of a served reward model.

The score of a failed query is NaN with its cause. Equal queries are sent once. Requests are in flight concurrently, so
the server can answer them in one forward pass.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.pictures import picture_digest
from paco_core.io.text import spell_surrogates
from paco_core.io.validation import first_validation_error
from paco_core.reward_model.yes_probability import PairQuery, Score, Unscorable, from_top_logprobs, in_both_orders
from paco_core.serving.cache import ScoreCache, query_key
from paco_core.serving.protocol import API_KEY, ServedModel, ServedModels, ServingError

if TYPE_CHECKING:
    from PIL import Image

PictureFormat = Literal["png", "jpeg"]
TOP_LOGPROBS = 20
#: Options of Pillow by the format of a file.
SAVED: dict[str, dict[str, int]] = {"png": {"compress_level": 1}, "jpeg": {"quality": 95}}
LISTING_TIMEOUT_S = 60.0
CHAT = "/v1/chat/completions"


@dataclass
class Counts:
    """Counters of a client."""

    queries: int = 0
    distinct: int = 0
    cached: int = 0
    requests: int = 0
    encoded: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass
class _Call:
    """One call of :meth:`RewardClient.score`. ``fatal`` is the error that ends it early."""

    fatal: Exception | None = None


class RewardClient:
    """A client of one model on one server. It is thread-safe and reusable.

    Args:
        url: ``http://host:port``.
        model: id that the server must serve, ``paco-reward@<fingerprint>``.
        in_flight: maximum number of concurrent requests.
        timeout_s: timeout of one request in seconds.
        cache: SQLite file of scores; None = no cache.
        token_ids: ids of "Yes" and "No". None = those that the server lists, or else the 20 most probable tokens.
        patience: retries, and how long to wait for a server that is down.
        both_orders: the score of a pair is the mean over both orders of its images; two queries per pair.
        picture_format: "png" is lossless, "jpeg" is smaller. The cache separates them.
        engine: engine and number format ("vllm bfloat16"). The cache separates them, because kernels and rounding
            change a score.
        locate: see :class:`HttpClient`.
    """

    def __init__(  # noqa: PLR0913 - options of the client
        self,
        url: str,
        model: str,
        *,
        in_flight: int = 100,
        timeout_s: float = 60.0,
        cache: Path | None = None,
        token_ids: tuple[int, int] | None = None,
        patience: Patience | None = None,
        both_orders: bool = False,
        picture_format: PictureFormat = "png",
        engine: str = "",
        locate: Callable[[], str | None] | None = None,
    ) -> None:
        self.model = model
        self.both_orders, self.picture_format = both_orders, picture_format
        self._scoring_fingerprint = f"{engine} {picture_format}"
        self._http = HttpClient(url, timeout_s, patience or Patience(), os.environ.get(API_KEY), locate)
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="reward")
        self._cache = ScoreCache(cache) if cache is not None else None
        self._token_ids, self._checked, self._lock = token_ids, False, threading.Lock()
        self.counts = Counts()

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def scoring_identity(self) -> str:
        """Everything that determines a score besides the query: model with fingerprint, engine, and orders."""
        return f"{self.model} {self._scoring_fingerprint}{' both orders' if self.both_orders else ''}"

    @property
    def retries(self) -> int:
        return self._http.retries

    def check(self) -> None:
        """Make sure that the server serves this client's model.

        Raises:
            ServingError: when no server answers, or it serves another model; names both ids.
        """
        served = _served(self._http)
        cards = {card.id: card for card in served}
        if self.model not in cards:
            raise ServingError(
                f"{self.url} serves {', '.join(map(repr, cards)) or 'no model'}, but {self.model!r} is requested; "
                "it was trained or merged from other data: stop it (`paco serve down`) or give the right address"
            )
        tokens = cards[self.model].answer_tokens
        if self._token_ids is None and tokens is not None:
            self._token_ids = (tokens.yes, tokens.no)
        self._checked = True

    def score(self, queries: Sequence[PairQuery], on_batch: Callable[[int], None] | None = None) -> list[Score]:
        """P(Yes) of each query, in order; NaN with a cause for a failed query. Callers decide how many may fail.

        Args:
            on_batch: called with the number of pairs when they are complete, as for a scorer in this process.

        Raises:
            ServingError: when nothing listens at the address, or the server serves another model or rejects the API
                key.
        """
        if not queries:
            return []
        if not self._checked:
            self.check()
        scores = in_both_orders(self._score, queries) if self.both_orders else self._score(queries)
        if on_batch is not None:
            on_batch(len(queries))
        return scores

    def generate_reasons(self, queries: Sequence[PairQuery], max_new_tokens: int = 128) -> list[str]:
        """The complete answers, decoded greedily: "Yes." or "No." and the reasons.

        Raises:
            ServingError: when the server does not answer, serves another model, or rejects a query.
        """
        if not self._checked:
            self.check()
        pictures = _Pictures(self.picture_format)
        answer_fields = f'"max_tokens": {max_new_tokens}'
        return list(self._pool.map(self._text, [self._body(query, pictures, answer_fields) for query in queries]))

    def _text(self, body: bytes) -> str:
        try:
            answer = self._http.call("POST", CHAT, body)
            return spell_surrogates(str(answer["choices"][0]["message"]["content"]).strip())
        except RequestFailed as error:
            raise ServingError(f"{self.url}: {error.cause}") from None
        except (KeyError, IndexError, TypeError):
            raise ServingError(f"{self.url}: the answer contains no text") from None

    def _score(self, queries: Sequence[PairQuery]) -> list[Score]:
        pictures = _Pictures(self.picture_format)
        keys = [self._key(query, pictures) for query in queries]
        distinct = dict(zip(keys, queries, strict=True))
        cached = self._cache.get(list(distinct)) if self._cache is not None else {}
        scores = {key: Score(value) for key, value in cached.items()}
        unknown = {key: query for key, query in distinct.items() if key not in cached}
        scores.update(self._query_all(unknown, pictures))
        with self._lock:
            self.counts.queries += len(queries)
            self.counts.distinct += len(distinct)
            self.counts.cached += len(cached)
            self.counts.encoded += pictures.encoded
        return [scores[key] for key in keys]

    def _key(self, query: PairQuery, pictures: _Pictures) -> bytes:
        keys = pictures.key(query.first), pictures.key(query.second)
        return query_key(self.model, self._scoring_fingerprint, query.instruction, *keys)

    async def score_async(self, queries: Sequence[PairQuery]) -> list[Score]:
        """:meth:`score` for callers that run an event loop."""
        return await asyncio.to_thread(self.score, queries)

    def _query_all(self, queries: Mapping[bytes, PairQuery], pictures: _Pictures) -> dict[bytes, Score]:
        if not queries:
            return {}
        call = _Call()
        ids = f', "logprob_token_ids": [{self._token_ids[0]}, {self._token_ids[1]}]' if self._token_ids else ""
        top = 0 if self._token_ids else TOP_LOGPROBS
        answer_fields = f'"max_tokens": 1, "logprobs": true, "top_logprobs": {top}{ids}'
        bodies = [self._body(query, pictures, answer_fields) for query in queries.values()]
        results = list(self._pool.map(lambda body: self._query(body, call), bodies))
        scores = {key: score for key, score in zip(queries, results, strict=True) if score is not None}
        good = {key: score.value for key, score in scores.items() if not score.failed}
        causes = Counter(str(score.cause) for score in scores.values() if score.failed)
        with self._lock:
            self.counts.requests += len(scores)
            self.counts.failures += causes
        if self._cache is not None and good:
            self._cache.put(good)
        if call.fatal is not None:
            raise call.fatal
        return scores

    def _body(self, query: PairQuery, pictures: _Pictures, answer_fields: str) -> bytes:
        """The body of a request. ``answer_fields`` are its JSON fields that select the answer."""
        parts = [pictures.part(query.first), pictures.part(query.second)]
        text = json.dumps({"type": "text", "text": query.instruction})
        return (
            f'{{"model": {json.dumps(self.model)}, "temperature": 0, {answer_fields}, "messages": [{{"role": "user", '
            f'"content": [{parts[0]}, {parts[1]}, {text}]}}]}}'
        ).encode()

    def _query(self, body: bytes, call: _Call) -> Score | None:
        """Send one query; None if the call has failed already."""
        if call.fatal is not None:
            return None
        try:
            answer = self._http.call("POST", CHAT, body)
            if answer.get("model") != self.model:
                raise ServingError(
                    f"{self.url} answers as {answer.get('model')!r}, but the request was for {self.model!r}"
                )
            score = _read(answer)
        except RequestFailed as error:
            score = Score(math.nan, error.cause)
            if error.status in (401, 403, 404) or error.kind == "refused":
                call.fatal = ServingError(f"{self.url}: {error.cause} (asked for {self.model!r})")
        except ServingError as error:
            call.fatal = error
            return None
        return score

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def served_models(url: str) -> list[str]:
    """Ids of the models that a server serves.

    Raises:
        ServingError: when no OpenAI-compatible server answers there.
    """
    http = HttpClient(url, LISTING_TIMEOUT_S, Patience(), os.environ.get(API_KEY))
    return [card.id for card in _served(http)]


def _served(http: HttpClient) -> list[ServedModel]:
    try:
        return ServedModels.model_validate(http.call("GET", "/v1/models")).data
    except RequestFailed as error:
        raise ServingError(f"{http.url}: no reward model answers there ({error.cause})") from None
    except ValidationError as error:
        raise ServingError(
            f"{http.url}: its list of models is not that of an OpenAI-compatible server "
            f"({first_validation_error(error)})"
        ) from None


def _read(answer: Mapping[str, Any]) -> Score:
    """The score in a chat completion; NaN with the cause if it contains none."""
    try:
        first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    except (KeyError, IndexError, TypeError) as error:
        return Score(math.nan, f"the answer lacks log-probabilities ({type(error).__name__})")
    try:
        return Score(from_top_logprobs(first))
    except Unscorable as error:
        return Score(math.nan, str(error))


class _Pictures:
    """The images of one call. Each object is digested once, and each distinct image is encoded once."""

    def __init__(self, picture_format: PictureFormat) -> None:
        self._format = picture_format
        self._keys: dict[int, tuple[Image.Image, str]] = {}
        self._parts: dict[str, str] = {}

    @property
    def encoded(self) -> int:
        return len(self._parts)

    def key(self, image: Image.Image) -> str:
        cached = self._keys.get(id(image))
        if cached is None:  # the picture is kept beside its key, so that its id is not used again
            cached = self._keys[id(image)] = (image, picture_digest(image))
        return cached[1]

    def part(self, image: Image.Image) -> str:
        """The image as a JSON part of a message: a data URL."""
        key = self.key(image)
        if key not in self._parts:
            buffer = io.BytesIO()
            image.save(buffer, format=self._format, **SAVED[self._format])
            data = base64.b64encode(buffer.getvalue()).decode()
            url = f"data:image/{self._format};base64,{data}"
            self._parts[key] = f'{{"type": "image_url", "image_url": {{"url": "{url}"}}}}'
        return self._parts[key]
