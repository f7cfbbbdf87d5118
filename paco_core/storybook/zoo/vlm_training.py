"""Pretrains the zoo's vision language model: eyes first, then dialogues about one trait at a time.

First the vision tower learns to hold every trait in its output (throw-away linear heads read it). Then
the whole model takes lessons in :mod:`paco_core.storybook.zoo.dialogues`; the last shows it VAE
reconstructions too, since a reward model scores decoded latents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import atomic
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.reasons import answer, true_reasons
from paco_core.storybook.recogniser import TRAITS, split_by_trait
from paco_core.storybook.world import VOCABULARY, Panel
from paco_core.storybook.zoo import vlm
from paco_core.storybook.zoo.dialogues import INSTRUCTIONS, Dialogue, Turn, one_picture, two_pictures
from paco_core.storybook.zoo.fitting import Say, Schedule, fit
from paco_core.storybook.zoo.views import Views, drawn_views, spoil

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

Export = Callable[[str], None]


@dataclass(frozen=True)
class Lesson:
    """A stretch of training on one mixture of dialogues.

    Naming what two pictures show is learnt in a few hundred steps. Whether two names are equal comes
    late, and all at once, when six traits compete for the gradient. So a lesson may keep to few traits
    and to bare answers; with the circuit there, the other traits follow soon.
    """

    name: str
    steps: int
    learning_rate: float
    traits: tuple[str, ...] = TRAITS
    one_picture: float = 0.2
    shaped: float = 0.25
    bare: float = 0.3
    through_vae: bool = False

    def dialogues(
        self, panels: Sequence[Panel], known: Sequence[str], count: int, rng: random.Random
    ) -> list[Dialogue]:
        """A batch whose rows are alike in form, so that little of it is padding."""
        if rng.random() < self.one_picture:
            return [one_picture(rng.choice(panels), rng) for _ in range(count)]
        shaped, bare = rng.random() < self.shaped, rng.random() < self.bare
        return [
            two_pictures(
                rng.choice(panels), rng.choice(known), rng, traits=self.traits, shaped=shaped, bare=bare
            )
            for _ in range(count)
        ]


LESSONS = (
    Lesson("naming", 800, 1.5e-3),
    Lesson("comparing", 300, 1e-3, traits=("scene", "accessory"), one_picture=0.0, shaped=0.0, bare=0.9),
    Lesson("all_traits", 600, 1e-3, one_picture=0.1, bare=0.6),
    Lesson("reconstructions", 300, 5e-4, through_vae=True),
)


@dataclass(frozen=True)
class Recipe:
    """Numbers of the pretraining."""

    eyes_steps: int = 550
    eyes_batch: int = 128
    eyes_learning_rate: float = 2e-3
    lessons: tuple[Lesson, ...] = LESSONS
    batch: int = 40
    first_token_weight: float = 2.0
    bfloat16: bool = True
    seed: int = 0


def build(
    work_dir: Path, out_dir: Path, vae: Path | None, recipe: Recipe | None = None, say: Say | None = print
) -> None:
    """Train (or resume) in ``work_dir`` and write the member's folder, with every checkpoint a better one.

    The tokenizer is learnt once and kept in ``work_dir``, so that a resumed run has the same token ids.
    """
    from transformers import AutoTokenizer

    recipe = recipe or Recipe()
    if not (work_dir / "tokenizer").is_dir():
        with atomic(work_dir / "tokenizer") as part:
            vlm.build_tokenizer(corpus()).save_pretrained(part)
    tokenizer = AutoTokenizer.from_pretrained(work_dir / "tokenizer")
    model = vlm.build_model(tokenizer, recipe.seed)

    drawings = bank_of_everything(2, recipe.seed)
    train_eyes(model, drawings, recipe, work_dir / "eyes", say)
    for lesson in recipe.lessons:
        if lesson.through_vae and vae is None:
            continue
        bank = drawings
        if lesson.through_vae:
            bank = PanelBank(drawings.views + bank_of_everything(2, recipe.seed + 1, vae).views)
        train_dialogues(model, tokenizer, bank, lesson, recipe=recipe, work_dir=work_dir, say=say)
        vlm.export(model, tokenizer, out_dir)


class PanelBank:
    """A picture for every panel of the world, as what the processor would hand to the model."""

    def __init__(self, views: Views) -> None:
        import torch
        from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

        self.views = views
        self.rows = views.index_of()
        self._mean = torch.tensor(OPENAI_CLIP_MEAN).view(1, 3, 1, 1)
        self._std = torch.tensor(OPENAI_CLIP_STD).view(1, 3, 1, 1)

    def patches(self, rows: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """(n, 16, 1176) patches of these rows, spoilt when a generator is given."""
        from paco_core.storybook.recogniser import normalise

        pixels = self.views.pixels[rows]
        spoilt = normalise(pixels) if generator is None else spoil(pixels, generator)
        return vlm.patchify(((spoilt + 1) / 2 - self._mean) / self._std)

    def rows_of(self, panels: Sequence[Panel], rng: random.Random) -> torch.Tensor:
        """A row that shows each panel, one of several at random."""
        import torch

        return torch.tensor([rng.choice(self.rows[panel]) for panel in panels])


def every_panel() -> list[Panel]:
    """All panels of the world."""
    return [Panel(*words) for words in product(*VOCABULARY.values())]  # type: ignore[arg-type]


def train_eyes(
    model: Qwen2_5_VLForConditionalGeneration, bank: PanelBank, recipe: Recipe, folder: Path, say: Say | None
) -> None:
    """Classify all traits from the mean of a panel's visual tokens."""
    import torch
    from torch import nn
    from torch.nn import functional

    tower = model.model.visual
    head = nn.Linear(tower.config.out_hidden_size, sum(len(words) for words in VOCABULARY.values()))
    both = nn.ModuleDict({"tower": tower, "head": head})

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        rows = torch.randint(len(bank.views), (recipe.eyes_batch,), generator=generator)
        tokens = vlm.encode_panels(tower, bank.patches(rows, generator))
        heads = split_by_trait(head(tokens.mean(dim=1)))
        labels = bank.views.labels[rows]
        return torch.stack(
            [functional.cross_entropy(heads[t], labels[:, k]) for k, t in enumerate(TRAITS)]
        ).mean()

    fit(both, loss_at, Schedule(recipe.eyes_steps, recipe.eyes_learning_rate), folder, "vlm (eyes)", say)


def train_dialogues(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    bank: PanelBank,
    lesson: Lesson,
    *,
    recipe: Recipe,
    work_dir: Path,
    say: Say | None,
    after: Callable[[int], None] | None = None,
) -> None:
    """One lesson: next-token loss on the answers, the first token of each weighing more."""
    import torch

    render = Renderer(tokenizer, recipe.first_token_weight)
    panels, known = list(bank.rows), themes()

    def loss_at(step: int) -> torch.Tensor:
        seed = recipe.seed * 1_000_003 + step
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        dialogues = lesson.dialogues(panels, known, recipe.batch, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            return answer_loss(model, bank, render, dialogues, rng=rng, generator=generator)

    model.set_attn_implementation(_float_attention())
    schedule = Schedule(lesson.steps, lesson.learning_rate, warmup=30)
    fit(model, loss_at, schedule, work_dir / lesson.name, f"vlm ({lesson.name})", say, after)
    model.set_attn_implementation("sdpa")


def answer_loss(
    model: Qwen2_5_VLForConditionalGeneration,
    bank: PanelBank,
    render: Renderer,
    dialogues: Sequence[Dialogue],
    *,
    rng: random.Random,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Weighted cross-entropy of the answers of dialogues that all show the same number of pictures."""
    import torch
    from torch.nn import functional

    pictures = len(dialogues[0].panels)
    ids, weights = render.batch(dialogues)
    rows = bank.rows_of([panel for dialogue in dialogues for panel in dialogue.panels], rng)
    visual = vlm.encode_panels(model.model.visual, bank.patches(rows, generator))
    hidden = language_states(model, ids, visual.reshape(len(dialogues), pictures, vlm.TOKENS_PER_PANEL, -1))
    wanted = weights[:, 1:] > 0
    logits = model.lm_head(hidden[:, :-1][wanted])
    losses = functional.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
    share = weights[:, 1:][wanted]
    return torch.as_tensor((losses * share).sum() / share.sum())


def language_states(
    model: Qwen2_5_VLForConditionalGeneration, ids: torch.Tensor, visual: torch.Tensor
) -> torch.Tensor:
    """Last hidden states (batch, length, hidden) of right-padded ids; pictures: (batch, pictures, 4, hidden).

    All rows open alike (user turn, pictures), so one row's positions serve the batch; padding is at the
    right, where causal attention never looks.
    """
    core: Any = model.model
    is_image = ids == model.config.image_token_id
    embedded = core.get_input_embeddings()(ids)
    embedded = embedded.masked_scatter(is_image.unsqueeze(-1), visual.to(embedded.dtype))
    grid = ids.new_tensor([[1, 4, 4]] * visual.shape[1])
    positions, _ = core.get_rope_index(ids[:1], is_image[:1].int(), image_grid_thw=grid)
    output = core.language_model(
        inputs_embeds=embedded, position_ids=positions.expand(-1, len(ids), -1), use_cache=False
    )
    states: torch.Tensor = output.last_hidden_state
    return states


def _float_attention() -> str:
    """Register attention in float32, whose backward pass is three times faster on a CPU; returns its name."""
    import torch
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def forward(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **kwargs: Any
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *rest, **kwargs)

    AttentionInterface.register("sdpa_float32", forward)
    return "sdpa_float32"


class Renderer:
    """Turns dialogues into padded token ids and loss weights, in the chat template's form."""

    def __init__(self, tokenizer: Qwen2Tokenizer, first_token_weight: float) -> None:
        self._tokenizer = tokenizer
        self._first = first_token_weight
        self._known: dict[str, list[int]] = {}

    def batch(self, dialogues: Sequence[Dialogue]) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int64 and weights float, both (batch, longest); weight 0 where nothing is learnt."""
        import torch

        rows = [self._row(dialogue) for dialogue in dialogues]
        longest = max(len(ids) for ids, _ in rows)
        padding = self._tokenizer.pad_token_id
        ids = [ids + [padding] * (longest - len(ids)) for ids, _ in rows]
        weights = [weights + [0.0] * (longest - len(weights)) for _, weights in rows]
        return torch.tensor(ids), torch.tensor(weights)

    def question(self, pictures: int, text: str) -> list[int]:
        """Token ids of one question about so many pictures, up to where the answer begins."""
        ids, _ = self._row(Dialogue((), (Turn(text, ""),)), pictures)
        return ids[:-1]

    def _row(self, dialogue: Dialogue, pictures: int | None = None) -> tuple[list[int], list[float]]:
        picture = "<|vision_start|>" + "<|image_pad|>" * vlm.TOKENS_PER_PANEL + "<|vision_end|>"
        ids: list[int] = []
        weights: list[float] = []
        before = "<|im_start|>user\n" + picture * (len(dialogue.panels) if pictures is None else pictures)
        for turn in dialogue.turns:
            asked = self._encode(before) + self._encode(turn.question)
            asked = asked + self._encode("<|im_end|>\n<|im_start|>assistant\n")
            answer = self._encode(turn.answer) + self._encode("<|im_end|>")
            ids += asked + answer
            weights += [0.0] * len(asked) + [self._first] + [1.0] * (len(answer) - 1)
            before = "\n<|im_start|>user\n"
        return ids, weights

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer(text)["input_ids"]
        return self._known[text]


def bank_of_everything(repeats: int, seed: int, vae: Path | None = None) -> PanelBank:
    """Every panel of the world drawn ``repeats`` times, through the VAE where one is given."""
    return PanelBank(drawn_views(every_panel() * repeats, vlm.PANEL_SIDE, seed, vae=vae))


def themes() -> list[str]:
    """Themes of storybook prompts, which stand in the reward instruction."""
    return sorted({prompt.theme for prompt in storybook_prompts(1_200, seed=1_000)})


def corpus() -> list[str]:
    """Every sentence whose words the tokenizer should know: dialogues, instructions, prompts, reasons."""
    rng = random.Random(0)
    panels, known = every_panel(), themes()
    dialogues = [one_picture(rng.choice(panels), rng) for _ in range(2_000)]
    for shaped in (False, True):
        dialogues += [
            two_pictures(rng.choice(panels), rng.choice(known), rng, traits=TRAITS, shaped=shaped, bare=False)
            for _ in range(2_000)
        ]
    sentences = [
        text for dialogue in dialogues for turn in dialogue.turns for text in (turn.question, turn.answer)
    ]
    for prompt in storybook_prompts(600, seed=1_001):
        named = [f" {name}" for dimension in prompt.criteria.values() for name in dimension]
        criteria = [text for dimension in prompt.criteria.values() for text in dimension.values()]
        reasons = answer(*true_reasons(prompt.panels[0], rng.choice(panels)))
        sentences += [prompt.prompt, reasons, *criteria, *named]
    return [*sentences, *INSTRUCTIONS, *known, "user", "assistant", "system", "Yes", "No", " Yes", " No"]
