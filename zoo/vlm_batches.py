"""Fast batches of the zoo's vision-language model: inputs and outputs.

The processor and the forward pass of the library give equal numbers (tests compare them). Here, all images are tensors
of one size, and all rows of a batch have equal positions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from paco_core.reward_model.architectures import ARCHITECTURES
from paco_core.storybook.recogniser import normalize_pixels
from paco_core.storybook.world import VOCABULARY, Panel
from zoo import vlm
from zoo.dialogues import Dialogue, Turn, second_panel
from zoo.views import Views, move, spoil

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

    from zoo.vlm import VisionLanguageModel

#: Number of random panels among which an incomplete bank searches for a similar one.
PARTNERS = 300
MOST_MOVED = 3  # px of 56


class PanelBank:
    """Images of panels as inputs of the model."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.rows = views.index_of()
        self.panels = list(self.rows)
        self._mean = torch.tensor(OPENAI_CLIP_MEAN).view(1, 3, 1, 1)
        self._std = torch.tensor(OPENAI_CLIP_STD).view(1, 3, 1, 1)

    def patches(self, rows: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """(n, 16, 1176) patches of these rows, augmented and moved if a generator is passed."""
        pixels = self.views.pixels[rows]
        spoilt = (
            normalize_pixels(pixels) if generator is None else move(spoil(pixels, generator), MOST_MOVED, generator)
        )
        return vlm.patchify(((spoilt + 1) / 2 - self._mean) / self._std)

    @property
    def complete(self) -> bool:
        """Whether the bank contains every panel of the embedded world."""
        return len(self.panels) == prod(len(words) for words in VOCABULARY.values())

    def partner(self, first: Panel, rng: random.Random) -> Panel:
        """A panel to compare with ``first``: each trait is equal with probability 0.5 or 0.8, if the bank allows."""
        target = second_panel(first, rng, rng.choice((0.5, 0.5, 0.8)))
        if target in self.rows:
            return target
        offered = rng.choices(self.panels, k=PARTNERS)
        return max(offered, key=lambda panel: sum(getattr(panel, t) == getattr(target, t) for t in VOCABULARY))

    def rows_of(self, panels: Sequence[Panel], rng: random.Random) -> torch.Tensor:
        """A row that shows each panel, one of several at random; int64 (panels,)."""
        return torch.tensor([rng.choice(self.rows[panel]) for panel in panels])


def language_states(model: VisionLanguageModel, ids: torch.Tensor, visual: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Hidden states (batch, length, hidden) after each layer, of right-padded ids; the last are normalized.

    ``visual`` is (batch, pictures, 4, features). All rows begin with the same turn and images, so one row's positions
    serve the batch. Padding is at the right, which causal attention ignores.
    """
    core: Any = model.model
    is_image = ids == model.config.image_token_id
    embedded = core.get_input_embeddings()(ids)
    architecture = ARCHITECTURES[model.config.model_type]
    inputs = architecture.language_inputs(visual.flatten(0, 2).to(embedded.dtype), embedded, is_image)
    grid = ids.new_tensor([[1, 4, 4]] * visual.shape[1])
    positions, _ = core.get_rope_index(ids[:1], is_image[:1].int(), image_grid_thw=grid)
    output = core.language_model(
        **inputs, position_ids=positions.expand(-1, len(ids), -1), use_cache=False, output_hidden_states=True
    )
    states: tuple[torch.Tensor, ...] = output.hidden_states
    return states


class Renderer:
    """Turns dialogues into padded token ids and loss weights, in the chat template's form."""

    def __init__(self, tokenizer: Qwen2Tokenizer, first_token_weight: float) -> None:
        self._tokenizer = tokenizer
        self.first_token_weight = first_token_weight
        self._token_ids: dict[str, list[int]] = {}

    def batch(self, dialogues: Sequence[Dialogue]) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int64 and weights float, both (batch, longest); tokens with weight 0 have no loss."""
        rows = [self._row(dialogue) for dialogue in dialogues]
        longest = max(len(ids) for ids, _ in rows)
        padding = self._tokenizer.pad_token_id
        ids = [ids + [padding] * (longest - len(ids)) for ids, _ in rows]
        weights = [weights + [0.0] * (longest - len(weights)) for _, weights in rows]
        return torch.tensor(ids), torch.tensor(weights)

    def prefix(self, pictures: int) -> list[int]:
        """Token ids of a user's turn up to the end of its images."""
        return self._encode(_opening(pictures))

    def question(self, pictures: int, text: str) -> list[int]:
        """Token ids of one question about this number of images, up to the beginning of the answer."""
        ids, _ = self._row(Dialogue((), (Turn(text, ""),)), pictures)
        return ids[:-1]

    def _row(self, dialogue: Dialogue, pictures: int | None = None) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        before = _opening(len(dialogue.panels) if pictures is None else pictures)
        for turn in dialogue.turns:
            question_ids = self._encode(before) + self._encode(turn.question)
            question_ids = question_ids + self._encode("<|im_end|>\n<|im_start|>assistant\n")
            answer = self._encode(turn.answer) + self._encode("<|im_end|>")
            ids += question_ids + answer
            weights += [0.0] * len(question_ids) + [self.first_token_weight] + [1.0] * (len(answer) - 1)
            before = "\n<|im_start|>user\n"
        return ids, weights

    def _encode(self, text: str) -> list[int]:
        if text not in self._token_ids:
            self._token_ids[text] = self._tokenizer(text)["input_ids"]
        return self._token_ids[text]


def _opening(pictures: int) -> str:
    picture = "<|vision_start|>" + "<|image_pad|>" * vlm.TOKENS_PER_PANEL + "<|vision_end|>"
    return "<|im_start|>user\n" + picture * pictures
