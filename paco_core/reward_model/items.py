"""Tokenized examples, and the loss of a batch of them in one forward pass."""

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
class TokenizedExample:
    """A tokenized example. Its images are encoded, or read from the cache, in the forward pass."""

    images: tuple[Image.Image, Image.Image]
    prompt: Prompt
    answer: torch.Tensor  # int64 (n,), including the closing token
    swapped_prompt: Prompt | None = None  # for the swapped images; None if their order has a meaning

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + len(self.answer)

    def swapped(self) -> TokenizedExample:
        """The example with swapped images, or the same example if their order has a meaning."""
        if self.swapped_prompt is None:
            return self
        first, second = self.images
        return TokenizedExample((second, first), self.swapped_prompt, self.answer, self.prompt)


def tokenize_examples(
    network: Network, examples: Sequence[Example], *, swap: bool = False, newline: bool = False
) -> list[TokenizedExample]:
    """Tokenize examples, in their order. Images are not encoded.

    Args:
        swap: whether to tokenize both orders of the images, if their order has no meaning.
        newline: whether to train the newline that the chat template adds after the closing token.

    Raises:
        DataError: with the pair that the model cannot read.
    """
    items = []
    for example in examples:
        try:
            answer = answer_ids(network, example.answer, newline=newline)
            prompt = network.question(example.query, len(answer))
            swapped = network.question(example.swapped, len(answer)) if swap and not example.ordered else None
        except DataError as error:
            raise DataError(f"pair {example.id}: {error}") from None
        items.append(TokenizedExample(example.images, prompt, answer, swapped))
    return items


def answer_ids(network: Network, answer: str, *, newline: bool = False) -> torch.Tensor:
    """Tokens of an answer with the closing token and, with ``newline``, the newline after it; int64 (n,).

    Raises:
        DataError: if the answer contains a special token.
    """
    tokenizer = network.processor.tokenizer
    validate_tokens(tokenizer, answer)
    ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return torch.tensor([*ids, *(tokenizer("\n", add_special_tokens=False)["input_ids"] if newline else [])])


def rows_of(network: Network, items: Sequence[TokenizedExample], *, trained_vision: bool = False) -> list[TokenRow]:
    """Examples with the features of their images: cached, or with gradients if the vision tower is trained."""
    images = [image for item in items for image in item.images]
    visuals = network.differentiable_features(images) if trained_vision else network.cached_features(images)
    return [
        TokenRow(item.prompt, (visuals[2 * number], visuals[2 * number + 1]), item.answer)
        for number, item in enumerate(items)
    ]


def answers_of(rows: Sequence[TokenRow], device: torch.device) -> BatchAnswers:
    """Positions and targets of the answer tokens of right-padded rows."""
    tokens = [row.answer for row in rows]
    counts = torch.tensor([0 if answer is None else len(answer) for answer in tokens])
    starts = torch.tensor([len(row.prompt.ids) for row in rows])
    row = torch.repeat_interleave(torch.arange(len(rows)), counts)
    within = torch.cat([torch.arange(int(count)) for count in counts])
    target = torch.cat([answer for answer in tokens if answer is not None])
    answers = (row, starts[row] + within - 1, target, within == 0, counts[row])
    return BatchAnswers(*(part.to(device) for part in answers))


def answer_module(network: Network, wrapped: Any, kind: LossKind, alpha: float, *, trained_vision: bool = False) -> Any:
    """Build a module that maps examples to their losses, float32 (examples,).

    Args:
        wrapped: the model with its adapter.
        alpha: share of the decision token in the loss.
        trained_vision: whether the vision tower is trained.

    Only answer positions go through the language-model head: logits are (answer tokens, vocabulary), never
    (rows, length, vocabulary).
    """

    class AnswerLoss(nn.Module):
        """One forward pass, because distributed wrappers must see every use of the weights."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapped = wrapped

        def forward(self, items: Sequence[TokenizedExample]) -> torch.Tensor:
            rows = rows_of(network, items, trained_vision=trained_vision)
            answers = answers_of(rows, network.device)
            logits = network.model.lm_head(network.states(rows, answers.row, answers.position))
            return answer_loss(logits, answers, kind, alpha)

    return AnswerLoss()
