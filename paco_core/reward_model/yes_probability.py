"""The score of a pair: the probability of "Yes" against "No" at the first answer token.

score = P(Yes) / (P(Yes) + P(No)) = sigmoid(logit_Yes - logit_No)   (PaCo-RL, arXiv 2512.04784, section 3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError

if TYPE_CHECKING:
    import torch
    from PIL import Image

YES, NO = "Yes", "No"
YES_VARIANTS = frozenset({"Yes", " Yes", "yes", " yes"})
NO_VARIANTS = frozenset({"No", " No", "no", " no"})


@dataclass(frozen=True)
class PairQuery:
    """Two pictures and the rendered instruction that is asked about them."""

    first: Image.Image
    second: Image.Image
    instruction: str


@dataclass(frozen=True)
class Score:
    """A score in [0, 1]; NaN, with its cause, where the pair could not be scored."""

    value: float
    cause: str | None = None

    @property
    def failed(self) -> bool:
        return math.isnan(self.value)


def in_both_orders(score: Callable[[Sequence[PairQuery]], list[Score]], queries: Sequence[PairQuery]) -> list[Score]:
    """Scores of pairs, each the mean over both orders of its pictures; NaN where either order failed."""
    turned = [PairQuery(query.second, query.first, query.instruction) for query in queries]
    scores = score([*queries, *turned])
    means = []
    for ahead, back in zip(scores[: len(queries)], scores[len(queries) :], strict=True):
        means.append(Score((ahead.value + back.value) / 2, ahead.cause or back.cause))
    return means


def answer_tokens(tokenizer: Any, model: str) -> tuple[int, int]:
    """Token ids of "Yes" and "No".

    Raises:
        DataError: when either is more than one token, or both are the same one; names ``model``.
    """
    ids = []
    for word in (YES, NO):
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1:
            raise DataError(
                f"{model}: its tokenizer cuts {word!r} into {len(tokens)} tokens "
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


def _log_sum(values: Sequence[float]) -> float:
    """log(sum(exp(values))); -inf for none."""
    top = max(values, default=-math.inf)
    return top if math.isinf(top) else top + math.log(sum(math.exp(value - top) for value in values))


def from_top_logprobs(entries: Iterable[Mapping[str, Any]], *, variants: bool = False) -> float:
    """Score from the ``top_logprobs`` of an OpenAI-style answer's first token.

    Args:
        entries: mappings with ``token`` and ``logprob``.
        variants: also count " Yes", "yes", " yes" (and for No alike), summing their probabilities.

    Returns:
        The score; where only one of the two words is listed the other counts as improbable: 1 or 0.
        NaN where neither is listed: the pair is unscorable, not inconsistent.
    """
    listed = [(str(entry["token"]), float(entry["logprob"])) for entry in entries]
    yes_words, no_words = (YES_VARIANTS, NO_VARIANTS) if variants else (frozenset({YES}), frozenset({NO}))
    yes = _log_sum([value for token, value in listed if token in yes_words])
    no = _log_sum([value for token, value in listed if token in no_words])
    if yes == no == -math.inf:
        return math.nan
    return 1.0 / (1.0 + math.exp(no - yes)) if no - yes < 700 else 0.0
