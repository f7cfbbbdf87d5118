"""The score of a pair: the probability of "Yes" against "No" at the first answer token.

score = P(Yes) / (P(Yes) + P(No)) = sigmoid(logit_Yes - logit_No)   (PaCo-RL, arXiv 2512.04784, section 3)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paco_core.io.files import DataError
from paco_core.io.pictures import normalize_image

if TYPE_CHECKING:
    import torch
    from PIL import Image

YES, NO = "Yes", "No"
YES_VARIANTS = frozenset({"Yes", " Yes", "yes", " yes"})
#: The words whose probabilities the published EditReward-Bench evaluation sums.
YES_CASES, NO_CASES = ("yes", "Yes", "YES", "y", "Y"), ("no", "No", "NO", "n", "N")
TOP = 20  # log-probabilities that an OpenAI-style answer lists
#: What listed probabilities may sum to. A log-probability in bf16 is off by 2^-9 of itself, which moves the sum over 20
#: tokens by log(20) 2^-9, 0.6%, at most; the rest is for a server that sums its own in half precision.
MOST = 1.02
NO_VARIANTS = frozenset({"No", " No", "no", " no"})


@dataclass(frozen=True)
class PairQuery:
    """Two images and the rendered instruction.

    Images are converted to upright RGB, as files are.

    Raises:
        DataError: if an image cannot be read; see :func:`paco_core.io.pictures.normalize_image`.
    """

    first: Image.Image
    second: Image.Image
    instruction: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", normalize_image(self.first))
        object.__setattr__(self, "second", normalize_image(self.second))

    @property
    def pictures(self) -> tuple[Image.Image, ...]:
        return self.first, self.second


@dataclass(frozen=True)
class PictureQuery:
    """One image and the rendered instruction; see :class:`PairQuery`."""

    picture: Image.Image
    instruction: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "picture", normalize_image(self.picture))

    @property
    def pictures(self) -> tuple[Image.Image, ...]:
        return (self.picture,)


Query = PairQuery | PictureQuery


@dataclass(frozen=True)
class Score:
    """A score in [0, 1], or NaN with a cause if the pair could not be scored.

    Raises:
        ValueError: for any other value.
    """

    value: float
    cause: str | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.value <= 1.0 if self.cause is None else math.isnan(self.value)):
            raise ValueError(f"a score is in [0, 1], or NaN with a cause; this is {self.value} ({self.cause})")

    @property
    def failed(self) -> bool:
        return math.isnan(self.value)


class PairScorer(Protocol):
    """Scores queries about pairs, in order: the scorer in this process, or the HTTP client."""

    def score(self, queries: Sequence[PairQuery]) -> list[Score]: ...


class QueryScorer(Protocol):
    """Scores queries about pairs and single images, in order."""

    def score(self, queries: Sequence[Query]) -> list[Score]: ...


def in_both_orders(score: Callable[[Sequence[PairQuery]], list[Score]], queries: Sequence[PairQuery]) -> list[Score]:
    """Scores of pairs, averaged over both orders of the images. NaN if either order failed."""
    swapped = [PairQuery(query.second, query.first, query.instruction) for query in queries]
    scores = score([*queries, *swapped])
    means = []
    for forward, backward in zip(scores[: len(queries)], scores[len(queries) :], strict=True):
        means.append(Score((forward.value + backward.value) / 2, forward.cause or backward.cause))
    return means


def answer_tokens(tokenizer: Any, model: str) -> tuple[int, int]:
    """Token ids of "Yes" and "No".

    Raises:
        DataError: if either word is more than one token, or both are the same token.
    """
    ids = []
    for word in (YES, NO):
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1:
            raise DataError(
                f"{model}: its tokenizer splits {word!r} into {len(tokens)} tokens "
                f"({tokenizer.convert_ids_to_tokens(tokens)}); a pairwise reward reads one token"
            )
        ids.append(int(tokens[0]))
    if ids[0] == ids[1]:
        raise DataError(f"{model}: its tokenizer gives {YES!r} and {NO!r} the same token {ids[0]}")
    return ids[0], ids[1]


def from_logits(logits: torch.Tensor, yes_id: int, no_id: int) -> torch.Tensor:
    """Scores, float64 [...], from logits or log-probabilities [..., vocabulary] of the first answer token."""
    import torch

    pair = logits[..., [yes_id, no_id]].double()
    return torch.sigmoid(pair[..., 0] - pair[..., 1])


def cased_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of :data:`YES_CASES` and :data:`NO_CASES`, of those that are one token each."""
    yes, no = ([tokenizer(w, add_special_tokens=False)["input_ids"] for w in words] for words in (YES_CASES, NO_CASES))
    return [int(ids[0]) for ids in yes if len(ids) == 1], [int(ids[0]) for ids in no if len(ids) == 1]


def from_top_logits(logits: torch.Tensor, yes_ids: Sequence[int], no_ids: Sequence[int]) -> torch.Tensor:
    """Scores, float64 [...], by the summed probabilities of several tokens among the top 20 of [..., vocabulary].

    NaN if none of them is among the top 20.
    """
    import torch

    log_p = torch.log_softmax(logits.double(), -1)
    least = log_p.topk(min(TOP, log_p.shape[-1]), -1).values[..., -1:]
    yes, no = (
        torch.where(log_p[..., list(ids)] >= least, log_p[..., list(ids)], -math.inf).logsumexp(-1)
        for ids in (yes_ids, no_ids)
    )
    return torch.where(torch.isinf(yes) & torch.isinf(no), math.nan, torch.sigmoid(yes - no))


def _log_sum(values: Sequence[float]) -> float:
    """log(sum(exp(values))); -inf for none."""
    top = max(values, default=-math.inf)
    return top if math.isinf(top) else top + math.log(sum(math.exp(value - top) for value in values))


class Unscorable(Exception):
    """An answer without a score. The text is the cause, without numbers, so equal causes can be counted."""


def from_top_logprobs(entries: Any, *, variants: bool = False) -> float:
    """Score from the ``top_logprobs`` of an OpenAI-style answer's first token.

    Args:
        entries: a list of mappings with ``token`` and ``logprob``, as it was parsed from JSON.
        variants: also count " Yes", "yes", " yes" (and for No alike), summing their probabilities.

    Returns:
        The score; where only one of the two words is listed the other counts as improbable: 1 or 0.

    Raises:
        Unscorable: when neither word is listed, or none with a probability above 0 (the pair is unscorable, not
            inconsistent); a token is no text; the log-probability of one of the words is not a finite number of at
            most 0; or the listed probabilities sum to more than :data:`MOST`, which no distribution does.
    """
    yes_words, no_words = (YES_VARIANTS, NO_VARIANTS) if variants else (frozenset({YES}), frozenset({NO}))
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise Unscorable("the answer lists no log-probabilities")
    if not all(isinstance(entry.get("token"), str) for entry in entries):  # it may have been Yes, or No
        raise Unscorable("the answer lists a token that is not a string")
    logprobs = [(entry["token"], entry.get("logprob")) for entry in entries]
    yes = _log_sum([_logprob(token, value) for token, value in logprobs if token in yes_words])
    no = _log_sum([_logprob(token, value) for token, value in logprobs if token in no_words])
    if yes == no == -math.inf:
        raise Unscorable("neither Yes nor No among the log-probabilities")
    if math.exp(yes) + math.exp(no) == 0:  # a server's stand-ins for no probability, such as -9999
        raise Unscorable("the probabilities of Yes and No are both 0")
    if not sum(_probability(value) for _, value in logprobs) <= MOST:
        raise Unscorable("the listed probabilities sum to more than 1")
    return 1.0 / (1.0 + math.exp(no - yes)) if no - yes < 700 else 0.0


def _probability(value: Any) -> float:
    """Of a listed token; 0 where its log-probability is no number, which only Yes and No have to have."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return math.exp(max(value, -1000)) if value <= 0 else math.inf if value > 0 else math.nan  # an integer may be huge


def _logprob(token: str, value: Any) -> float:
    """A log-probability as JSON gave it.

    Raises:
        Unscorable: unless it is a finite number of at most 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unscorable(f"the log-probability of {token!r} is not a number")
    if not -sys.float_info.max <= value <= 0:  # an integer may be too large for a float; NaN is in no range
        raise Unscorable(f"the log-probability of {token!r} is not a finite number of at most 0")
    return float(value)
