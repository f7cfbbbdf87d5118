"""Pretraining of the zoo's vision-language model: first the vision tower, then dialogues about one trait at a time.

First, the vision tower learns to represent every trait. Then the complete model learns to name the traits, then to find
the traits that two images share, and last to answer questions about one trait. At the end, the images are decoded by
the VAE, because a reward model scores decoded latents.

Only Yes and No do not teach a small model to compare within an hour: one bit per answer about one of six traits leaves
it at chance, although it names both images without errors. Temporary linear heads on its hidden states, which predict
all six traits at once, reduce this to minutes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from paco_core.io.atomic import atomic
from paco_core.storybook.prompts import answer, storybook_prompts, true_reasons
from paco_core.storybook.recogniser import TRAITS, split_by_trait
from paco_core.storybook.world import VOCABULARY, Panel
from zoo import vlm
from zoo.dialogues import (
    INSTRUCTIONS,
    Dialogue,
    about_an_edit,
    edited_panel,
    one_picture,
    second_panel,
    two_pictures,
)
from zoo.fitting import Log, Muon, Schedule, fit, halve
from zoo.views import drawn_views, paint_training_panels, read_views
from zoo.vlm_batches import PanelBank, Renderer, language_states

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

    from zoo.vlm import VisionLanguageModel

#: From a tokenizer and a seed: the network before the training.
NewModel = Callable[["Qwen2Tokenizer", int], "VisionLanguageModel"]


@dataclass(frozen=True)
class Lesson:
    """A stretch of training on one mixture of dialogues; shares are of batches."""

    name: str
    steps: int
    learning_rate: float
    traits: tuple[str, ...] = TRAITS
    one_picture: float = 0.2
    shaped: float = 0.25
    bare: float = 0.3
    edits: float = 0.15  # share of the batches from complete banks
    same_picture: float = 0.1  # of the rows that compare two pictures
    frozen_eyes: bool = False

    def dialogues(self, bank: PanelBank, themes: Sequence[str], count: int, rng: random.Random) -> list[Dialogue]:
        """A batch of dialogues of similar form, so there is little padding."""
        firsts = [rng.choice(bank.panels) for _ in range(count)]
        if rng.random() < self.one_picture:
            return [one_picture(first, rng) for first in firsts]
        shaped, bare = rng.random() < self.shaped, rng.random() < self.bare
        if bank.complete and rng.random() < self.edits:
            return [about_an_edit(edited_panel(first, rng), rng, bare=bare) for first in firsts]
        pairs = [(first, first if rng.random() < self.same_picture else bank.partner(first, rng)) for first in firsts]
        return [
            two_pictures(*pair, rng.choice(themes), rng, traits=self.traits, shaped=shaped, bare=bare) for pair in pairs
        ]


NAMING = Lesson("naming", 600, 4e-3)
DIALOGUES = Lesson("dialogues", 500, 6e-3, one_picture=0.1, shaped=0.2, bare=0.6, frozen_eyes=True)
RECONSTRUCTIONS = Lesson("reconstructions", 250, 4e-3, one_picture=0.15, bare=0.5)
PAINTINGS = Lesson("paintings", 1400, 3e-3, one_picture=0.1, bare=0.5)
#: The temporary heads read after this language layer, so one layer is left for the answer.
COMPARING_LAYERS = 3


@dataclass(frozen=True)
class VlmSettings:
    """Numbers of the pretraining."""

    eyes_steps: int = 550
    eyes_batch: int = 128
    eyes_learning_rate: float = 2e-3
    painted_eyes_steps: int = 2000
    comparing_steps: int = 750
    comparing_batch: int = 192
    comparing_learning_rate: float = 1e-2
    batch: int = 40
    first_token_weight: float = 3.0
    bfloat16: bool = True
    seed: int = 0


def build(
    work_dir: Path,
    out_dir: Path,
    flux: Path,
    recogniser: Path,
    new_model: NewModel,
    recipe: VlmSettings | None = None,
    log: Log | None = print,
) -> None:
    """Train (or resume) in ``work_dir`` and write the member's folder, with weights in float16.

    ``flux`` and ``recogniser`` are the folders of those members, because a reward model reads FLUX's images. The
    tokenizer is trained once and stored in ``work_dir``, so a resumed run has the same token ids.
    """
    recipe = recipe or VlmSettings()
    if not (work_dir / "tokenizer").is_dir():
        with atomic(work_dir / "tokenizer") as part:
            vlm.build_tokenizer(corpus()).save_pretrained(part)
    tokenizer = AutoTokenizer.from_pretrained(work_dir / "tokenizer")
    model = new_model(tokenizer, recipe.seed)

    heads = nn.ModuleList(nn.Linear(model.config.text_config.hidden_size, len(TRAITS)) for _ in range(2))
    drawings = bank_of_everything(2, recipe.seed)
    train_eyes(model, (drawings,), recipe.eyes_steps, recipe=recipe, folder=work_dir / "eyes", log=log)

    def lesson(taught: Lesson, *banks: PanelBank) -> None:
        train_dialogues(model, tokenizer, banks, heads, taught, recipe=recipe, work_dir=work_dir, log=log)

    lesson(NAMING, drawings)
    train_comparing(model, tokenizer, drawings, heads, recipe=recipe, folder=work_dir / "comparing", log=log)
    lesson(DIALOGUES, drawings)
    decoded = PanelBank(drawings.views + bank_of_everything(1, recipe.seed + 1, flux / "vae").views)
    lesson(RECONSTRUCTIONS, decoded)
    painted_bank = PanelBank(read_views(paint_training_panels(flux, recipe.seed), vlm.PANEL_SIDE, recogniser))
    eyes = work_dir / "eyes_painted"
    train_eyes(
        model, (decoded, painted_bank, painted_bank), recipe.painted_eyes_steps, recipe=recipe, folder=eyes, log=log
    )
    lesson(PAINTINGS, decoded, painted_bank, painted_bank)  # two batches of three show paintings
    vlm.export(model, tokenizer, out_dir)
    halve(out_dir / "model.safetensors")


def every_panel() -> list[Panel]:
    """All panels of the world."""
    return [Panel(*words) for words in product(*VOCABULARY.values())]  # type: ignore[arg-type]


def train_eyes(
    model: VisionLanguageModel,
    banks: Sequence[PanelBank],
    steps: int,
    *,
    recipe: VlmSettings,
    folder: Path,
    log: Log | None,
) -> None:
    """Classify all traits from the mean of a panel's visual tokens; each step draws from one of ``banks``."""
    tower = model.model.visual
    head = nn.Linear(tower.config.out_hidden_size, sum(len(words) for words in VOCABULARY.values()))
    modules = nn.ModuleDict({"tower": tower, "head": head})

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        bank = banks[int(torch.randint(len(banks), (), generator=generator))]
        rows = torch.randint(len(bank.views), (recipe.eyes_batch,), generator=generator)
        tokens = vlm.encode_panels(tower, bank.patches(rows, generator))
        heads = split_by_trait(head(tokens.mean(dim=1)[:, : head.in_features]))
        labels = bank.views.labels[rows]
        return torch.stack([functional.cross_entropy(heads[t], labels[:, k]) for k, t in enumerate(TRAITS)]).mean()

    fit(modules, loss_at, Schedule(steps, recipe.eyes_learning_rate), folder, "vlm (eyes)", log)


def train_comparing(
    model: VisionLanguageModel,
    tokenizer: Qwen2Tokenizer,
    bank: PanelBank,
    heads: torch.nn.ModuleList,
    *,
    recipe: VlmSettings,
    folder: Path,
    log: Log | None,
) -> None:
    """Teach the lower language layers which traits two images share, by temporary heads on the last visual token.

    From answers only, the model learns equality late, because a complete dialogue gives one bit about one trait. A
    short prefix gives six. The vision tower is frozen, so its tokens are computed once.
    """
    language = model.model.language_model
    parts = nn.ModuleDict({"language": language, "heads": heads})
    visual_tokens = _visual_tokens(model, bank, recipe.seed)
    prefix = torch.tensor([Renderer(tokenizer, 1.0).prefix(2)])
    panels = bank.panels

    def loss_at(step: int) -> torch.Tensor:
        rng = random.Random(recipe.seed * 1_000_003 + step)
        firsts = [rng.choice(panels) for _ in range(recipe.comparing_batch)]
        pairs = [(first, second_panel(first, rng, 0.5)) for first in firsts]
        rows = bank.rows_of([panel for pair in pairs for panel in pair], rng)
        visual = visual_tokens[rows].reshape(len(pairs), 2, vlm.TOKENS_PER_PANEL, -1)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            states = language_states(model, prefix.expand(len(pairs), -1), visual)
            return same_loss(heads, states, prefix.shape[1] - 1, bank.views.labels[rows])

    model.set_attn_implementation(_float_attention())
    schedule = Schedule(recipe.comparing_steps, recipe.comparing_learning_rate)
    fit(
        parts,
        loss_at,
        schedule,
        folder,
        "vlm (comparing)",
        log,
        optimizer=Muon(parts, schedule.learning_rate, is_hidden),
    )
    model.set_attn_implementation("sdpa")


def same_loss(
    heads: torch.nn.ModuleList, states: tuple[torch.Tensor, ...], place: int, labels: torch.Tensor
) -> torch.Tensor:
    """Binary cross-entropy, a scalar, of "this trait is the same", read at ``place``.

    Args:
        states: of each layer, (pairs, length, hidden).
        labels: word indices (2 pairs, traits), those of each pair in turn.
    """
    first, second = labels.reshape(-1, 2, len(TRAITS)).unbind(dim=1)
    flags = heads[0](states[COMPARING_LAYERS][:, place])
    return functional.binary_cross_entropy_with_logits(flags, (first == second).float())


def answer_flags_loss(
    heads: torch.nn.ModuleListList, last: torch.Tensor, opens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Loss of the same flags at the beginning of an answer (``opens``, (batch, length)), in the last layer.

    It moves the flags to the token that needs them. The answer's loss teaches which flag the question is about.
    """
    first, second = labels.reshape(-1, 2, len(TRAITS)).unbind(dim=1)
    is_equal = (first == second).float().unsqueeze(1).expand(-1, last.shape[1], -1)
    return functional.binary_cross_entropy_with_logits(heads[1](last[opens]), is_equal[opens])


def _visual_tokens(model: VisionLanguageModel, bank: PanelBank, seed: int) -> torch.Tensor:
    """Features of every row of the bank, spoilt once: (rows, 4, features)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        parts = [
            vlm.encode_panels(model.model.visual, bank.patches(rows, generator))
            for rows in torch.arange(len(bank.views)).split(256)
        ]
    return torch.cat(parts).clone()


def train_dialogues(
    model: VisionLanguageModel,
    tokenizer: Qwen2Tokenizer,
    banks: Sequence[PanelBank],
    heads: torch.nn.ModuleList,
    lesson: Lesson,
    *,
    recipe: VlmSettings,
    work_dir: Path,
    log: Log | None,
) -> None:
    """One lesson: next-token loss on the answers, while the throw-away heads keep reading the shared traits.

    Each step draws from one of ``banks``.
    """
    parts = nn.ModuleDict({"model": model, "heads": heads})
    render = Renderer(tokenizer, recipe.first_token_weight)
    all_themes = themes()

    def loss_at(step: int) -> torch.Tensor:
        seed = recipe.seed * 1_000_003 + step
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        bank = rng.choice(banks)
        dialogues = lesson.dialogues(bank, all_themes, recipe.batch, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            return answer_loss(model, bank, render, dialogues, rng=rng, generator=generator, heads=heads)

    model.set_attn_implementation(_float_attention())
    model.model.visual.requires_grad_(not lesson.frozen_eyes)
    schedule = Schedule(lesson.steps, lesson.learning_rate, warmup=30)
    optimizer = Muon(parts, schedule.learning_rate, is_hidden)
    folder, label = work_dir / lesson.name, f"vlm ({lesson.name})"
    fit(parts, loss_at, schedule, folder, label, log, optimizer=optimizer)
    model.set_attn_implementation("sdpa")
    model.model.visual.requires_grad_(True)


def is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Weights for Muon: the matrices (out, in) in the language layers and the vision blocks."""
    return weight.ndim == 2 and (".layers." in name or ".blocks." in name or "merger" in name)


def answer_loss(
    model: VisionLanguageModel,
    bank: PanelBank,
    render: Renderer,
    dialogues: Sequence[Dialogue],
    *,
    rng: random.Random,
    generator: torch.Generator | None,
    heads: torch.nn.ModuleList | None = None,
) -> torch.Tensor:
    """Weighted cross-entropy (scalar) of the answers of dialogues with equal numbers of images."""
    pictures = len(dialogues[0].panels)
    ids, weights = render.batch(dialogues)
    rows = bank.rows_of([panel for dialogue in dialogues for panel in dialogue.panels], rng)
    visual = vlm.encode_panels(model.model.visual, bank.patches(rows, generator))
    visual = visual.reshape(len(dialogues), pictures, vlm.TOKENS_PER_PANEL, -1)
    if pictures == 2:  # of panels that agree in everything, every other pair is one picture twice
        twice = [d.panels[0] == d.panels[1] and rng.random() < 0.5 for d in dialogues]
        visual = torch.where(torch.tensor(twice)[:, None, None, None], visual[:, :1], visual)
    states = language_states(model, ids, visual)
    is_target = weights[:, 1:] > 0
    logits = model.lm_head(states[-1][:, :-1][is_target])
    losses = functional.cross_entropy(logits, ids[:, 1:][is_target], reduction="none")
    share = weights[:, 1:][is_target]
    loss = (losses * share).sum() / share.sum()
    if heads is not None and pictures == 2:
        labels, opens = bank.views.labels[rows], weights[:, 1:] == render.first_token_weight
        loss = loss + same_loss(heads, states, len(render.prefix(2)) - 1, labels)
        loss = loss + answer_flags_loss(heads, states[-1][:, :-1], opens, labels)
    return torch.as_tensor(loss)


def _float_attention() -> str:
    """Register attention in float32, whose backward pass is three times faster on a CPU; returns its name."""

    def forward(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *args, **kwargs)

    AttentionInterface.register("sdpa_float32", forward)
    return "sdpa_float32"


def bank_of_everything(repeats: int, seed: int, vae: Path | None = None) -> PanelBank:
    """Every panel of the embedded world drawn ``repeats`` times, through the VAE if one is passed."""
    return PanelBank(drawn_views(every_panel() * repeats, vlm.PANEL_SIDE, seed, vae=vae))


def themes() -> list[str]:
    """Themes of storybook prompts for the reward instruction."""
    return sorted({prompt.theme for prompt in storybook_prompts(1_200, seed=1_000)})


def corpus() -> list[str]:
    """Sentences whose words get tokens: dialogues, instructions, prompts, reasons."""
    rng = random.Random(0)
    panels, all_themes = every_panel(), themes()
    dialogues = [one_picture(rng.choice(panels), rng) for _ in range(2_000)]
    dialogues += [about_an_edit(edited_panel(rng.choice(panels), rng), rng, bare=False) for _ in range(2_000)]
    for shaped in (False, True):
        for _ in range(2_000):
            first, second = rng.choices(panels, k=2)
            theme = rng.choice(all_themes)
            dialogues.append(two_pictures(first, second, theme, rng, traits=TRAITS, shaped=shaped, bare=False))
    sentences = [text for dialogue in dialogues for turn in dialogue.turns for text in (turn.question, turn.answer)]
    for prompt in storybook_prompts(600, seed=1_001):
        names = [f" {name}" for dimension in prompt.criteria.values() for name in dimension]
        criteria = [text for dimension in prompt.criteria.values() for text in dimension.values()]
        reasons = answer(*true_reasons(prompt.panels[0], rng.choice(panels)))
        sentences += [prompt.prompt, reasons, *criteria, *names]
    return [*sentences, *INSTRUCTIONS, *all_themes, "user", "assistant", "system", "Yes", "No", " Yes", " No"]
