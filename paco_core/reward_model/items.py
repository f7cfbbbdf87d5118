"""Examples as tokens, and the loss of a batch of them in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paco_core.io.files import DataError
from paco_core.models.tokens import validate_tokens
from paco_core.reward_model.examples import Example
from paco_core.reward_model.loss import BatchAnswers, LossKind, answer_loss
from paco_core.reward_model.network import Network, Prompt, TokenRow

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Item:
    """An example as tokens; its pictures are encoded, or found in the cache, when its turn comes."""

    images: tuple[Image.Image, Image.Image]
    prompt: Prompt
    answer: torch.Tensor  # int64 (n,), the closing token included
    swapped_prompt: Prompt | None = None  # for the pictures in the other order; None where the order has a meaning

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + len(self.answer)

    def swapped(self) -> Item:
        """The same question about the pictures in the other order, where that is the same question."""
        if self.swapped_prompt is None:
            return self
        first, second = self.images
        return Item((second, first), self.swapped_prompt, self.answer, self.prompt)


def tokenise(network: Network, examples: Sequence[Example], *, swap: bool = False, newline: bool = False) -> list[Item]:
    """Items in the order of the examples; pictures are not encoded here, only measured.

    With ``swap``, items whose pictures may stand in either order know both. With ``newline``, the newline that the
    chat form puts behind the closing token is learnt, too.

    Raises:
        DataError: naming the pair that the model cannot read.
    """
    items = []
    for example in examples:
        try:
            answer = answer_ids(network, example.answer, newline=newline)
            prompt = network.question(example.query, len(answer))
            turned = network.question(example.swapped, len(answer)) if swap and not example.ordered else None
        except DataError as error:
            raise DataError(f"pair {example.id}: {error}") from None
        items.append(Item(example.images, prompt, answer, turned))
    return items


def answer_ids(network: Network, answer: str, *, newline: bool = False) -> torch.Tensor:
    """Tokens of an answer with the closing token, and the newline behind it on request; int64 (n,).

    Raises:
        DataError: when the answer contains a mark of the chat template.
    """
    tokenizer = network.processor.tokenizer
    validate_tokens(tokenizer, answer)
    ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return torch.tensor([*ids, *(tokenizer("\n", add_special_tokens=False)["input_ids"] if newline else [])])


def rows_of(network: Network, items: Sequence[Item], *, trained_vision: bool = False) -> list[TokenRow]:
    """Items with the features of their pictures: cached ones, or with gradients where the tower is trained."""
    images = [image for item in items for image in item.images]
    visuals = network.differentiable_features(images) if trained_vision else network.cached_features(images)
    return [
        TokenRow(item.prompt, (visuals[2 * number], visuals[2 * number + 1]), item.answer)
        for number, item in enumerate(items)
    ]


def answers_of(rows: Sequence[TokenRow], device: torch.device) -> BatchAnswers:
    """Where the answer tokens of right-padded rows are predicted."""
    tokens = [row.answer for row in rows]
    counts = torch.tensor([0 if answer is None else len(answer) for answer in tokens])
    starts = torch.tensor([len(row.prompt.ids) for row in rows])
    row = torch.repeat_interleave(torch.arange(len(rows)), counts)
    within = torch.cat([torch.arange(int(count)) for count in counts])
    target = torch.cat([answer for answer in tokens if answer is not None])
    answers = (row, starts[row] + within - 1, target, within == 0, counts[row])
    return BatchAnswers(*(part.to(device) for part in answers))


def answer_module(network: Network, wrapped: Any, kind: LossKind, alpha: float, *, trained_vision: bool = False) -> Any:
    """A module from items to the loss of each, float32 (items,); ``wrapped`` is the model with its adapter.

    Only answer positions go through the language-model head: logits are (answer tokens, vocabulary), never
    (rows, length, vocabulary).
    """

    class AnswerLoss(nn.Module):
        """One forward, so that distributed wrappers see every use of the weights."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapped = wrapped

        def forward(self, items: Sequence[Item]) -> torch.Tensor:
            rows = rows_of(network, items, trained_vision=trained_vision)
            answers = answers_of(rows, network.device)
            logits = network.model.lm_head(network.states(rows, answers.row, answers.position))
            return answer_loss(logits, answers, kind, alpha)

    return AnswerLoss()
