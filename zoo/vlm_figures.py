"""Measures the zoo's vision language model: one trait at a time, the overall question, and what LoRA adds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from paco_core.storybook.editing import change_trait
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel, differing_traits, random_panel
from zoo import vlm
from zoo.dialogues import COMPARISONS, NOUNS, OVERALL, second_panel
from zoo.views import Views, drawn_views, generate_paintings, read_views
from zoo.vlm_batches import PanelBank, Renderer, language_states
from zoo.vlm_training import themes

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Qwen2Tokenizer

Pair = tuple[Panel, Panel]
Picture = Callable[[Sequence[Panel]], Views]


def measure_vlm(folder: Path, flux: Path, recogniser: Path, count: int = 200) -> dict[str, float]:
    """The card's figures: Yes/No accuracy on 32 px panels, drawn, reconstructed and painted by ``flux``.

    Paintings are measured by trait only, against what the recogniser reads in them.
    """
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    measured: dict[str, float] = {}
    for kind, decoder in (("drawings", None), ("reconstructions", flux / "vae")):
        picture = partial(drawn_views, side=vlm.PANEL_SIDE, seed=9_200, sizes=(32,), vae=decoder)
        traits = attribute_accuracy(model, tokenizer, picture, count, 9_201)
        measured |= {f"same_{trait}_{kind}": share for trait, share in traits.items()}
        measured[f"overall_{kind}"] = overall_accuracy(model, tokenizer, picture, 2 * count, 9_202)
    paintings = generate_paintings(storybook_prompts(96, seed=9_203), 9_204, 64, flux)
    painted_bank = PanelBank(read_views(paintings, vlm.PANEL_SIDE, recogniser))
    for trait in VOCABULARY:
        measured[f"same_{trait}_paintings"] = painted_accuracy(model, tokenizer, painted_bank, trait, count, 9_205)
    return measured


def pairs_by_trait(trait: str, count: int, rng: random.Random) -> list[Pair]:
    """Pairs of which half agree in ``trait``; every other trait agrees with probability 0.6."""
    pairs = []
    for row in range(count):
        first = random_panel(rng)
        second = second_panel(first, rng, 0.6).with_trait(trait, getattr(first, trait))
        pairs.append((first, change_trait(second, trait, rng) if row % 2 else second))
    return pairs


def overall_pairs(count: int, rng: random.Random) -> list[Pair]:
    """Pairs as sets yield them: scene and size free; half are consistent, half differ in 1 or 2 traits."""
    pairs = []
    for row in range(count):
        first = second = random_panel(rng)
        for trait in ("scene", "size"):
            second = second.with_trait(trait, rng.choice(VOCABULARY[trait]))
        for trait in rng.sample(list(SHARED_TRAITS), rng.choice((1, 1, 2)) if row % 2 else 0):
            second = change_trait(second, trait, rng)
        pairs.append((first, second))
    return pairs


def yes_probability(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    views: Views,
    question: str,
    batch: int = 64,
) -> torch.Tensor:
    """P(Yes) / (P(Yes) + P(No)) at the first answer token, (pairs,); ``views`` holds both pictures of each pair."""
    yes, no = (int(tokenizer.convert_tokens_to_ids(word)) for word in ("Yes", "No"))
    question_ids = Renderer(tokenizer, 1.0).question(2, question)
    bank = PanelBank(views)
    scores = []
    for rows in torch.arange(len(views)).split(2 * batch):
        pairs = len(rows) // 2
        with torch.inference_mode():
            visual = vlm.encode_panels(model.model.visual, bank.patches(rows, None))
            states = language_states(
                model, torch.tensor([question_ids] * pairs), visual.reshape(pairs, 2, vlm.TOKENS_PER_PANEL, -1)
            )
            logits = model.lm_head(states[-1][:, -1])
        scores.append(torch.sigmoid(logits[:, yes] - logits[:, no]))
    return torch.cat(scores)


def attribute_accuracy(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    picture: Picture,
    count: int,
    seed: int,
) -> dict[str, float]:
    """Share of right Yes/No answers to "is the <trait> the same?", a trait, over balanced pairs."""
    rng = random.Random(seed)
    shares = {}
    for trait in VOCABULARY:
        pairs = pairs_by_trait(trait, count, rng)
        question = COMPARISONS[0].replace("{noun}", NOUNS[trait])
        truth = [getattr(first, trait) == getattr(second, trait) for first, second in pairs]
        shares[trait] = _share_right(model, tokenizer, picture, pairs, question=question, truth=truth)
    return shares


def painted_accuracy(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    bank: PanelBank,
    trait: str,
    count: int,
    seed: int,
) -> float:
    """Share of right answers to "is the <trait> the same?" over pairs of the bank, half of which agree in it.

    The other traits agree as far as the bank allows.
    """
    rng = random.Random(seed)
    pairs = []
    for row in range(count):
        first = rng.choice(bank.panels)
        matching = [
            panel for panel in bank.panels if (getattr(panel, trait) == getattr(first, trait)) == (row % 2 == 0)
        ]
        pairs.append((first, max(rng.choices(matching, k=30), key=lambda panel: _agreement(panel, first))))
    truth = [getattr(first, trait) == getattr(second, trait) for first, second in pairs]
    question = COMPARISONS[0].replace("{noun}", NOUNS[trait])

    def picture(panels: Sequence[Panel]) -> Views:
        rows = bank.rows_of(panels, rng)
        return Views(list(panels), bank.views.pixels[rows], bank.views.labels[rows])

    return _share_right(model, tokenizer, picture, pairs, question=question, truth=truth)


def _agreement(first: Panel, second: Panel) -> int:
    return sum(getattr(first, trait) == getattr(second, trait) for trait in VOCABULARY)


def overall_accuracy(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    picture: Picture,
    count: int,
    seed: int,
) -> float:
    """Share of right answers to the overall consistency question, over balanced pairs."""
    pairs = overall_pairs(count, random.Random(seed))
    truth = [not differing_traits(*pair) for pair in pairs]
    question = OVERALL.replace("{theme}", themes()[0])
    return _share_right(model, tokenizer, picture, pairs, question=question, truth=truth)


def _share_right(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    picture: Picture,
    pairs: Sequence[Pair],
    *,
    question: str,
    truth: Sequence[bool],
) -> float:
    views = picture([panel for pair in pairs for panel in pair])
    predictions = (yes_probability(model, tokenizer, views, question) > 0.5).tolist()
    return sum(s == t for s, t in zip(predictions, truth, strict=True)) / len(truth)
