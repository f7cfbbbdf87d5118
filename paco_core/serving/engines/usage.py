"""How many tokens a question and its answer have, as the embedded engine counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.serving.engines.answering import Ask, ModelAnswer

if TYPE_CHECKING:
    from paco_core.reward_model.network import Network


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
