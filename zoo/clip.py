"""The zoo's CLIP: an open_clip model of panels and their sub-prompts, trained by contrast.

It gives the ``clip_t`` reward and the text features that diversification compares. The folder loads
with ``open_clip.create_model_and_transforms("local-dir:FOLDER")`` and ``get_tokenizer`` of the same name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.model import CLIP
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from paco_core.io.atomic import atomic
from paco_core.io.files import write_json
from paco_core.storybook.prompts import panel_text, storybook_prompts
from paco_core.storybook.recogniser import TRAITS, normalize_pixels, split_by_trait
from paco_core.storybook.world import VOCABULARY
from zoo.fitting import Log, Schedule, fit
from zoo.text import learn_byte_pairs
from zoo.views import Views, drawn_views, random_panels, spoil

SIDE = 64
CONTEXT = 48
VOCABULARY_SIZE = 1_200
START, END, PAD = "<|startoftext|>", "<|endoftext|>", "<|pad|>"


@dataclass(frozen=True)
class ClipSettings:
    """Numbers of CLIP's training."""

    pool: int = 24_000
    steps: int = 400
    batch: int = 128
    learning_rate: float = 2e-3
    heads_weight: float = 1.0
    seed: int = 0


def build(work_dir: Path, out_dir: Path, recipe: ClipSettings | None = None, log: Log | None = print) -> None:
    """Train (or resume) in ``work_dir`` and write the member's folder.

    Augmented drawings are sufficient: retrieval works equally well for reconstructions by an autoencoder. The tokenizer
    is trained once and stored in ``work_dir``, so a resumed run has the same token ids.
    """
    recipe = recipe or ClipSettings()
    if not (work_dir / "tokenizer").is_dir():
        with atomic(work_dir / "tokenizer") as part:
            build_tokenizer(corpus()).save_pretrained(part)
    tokenizer = AutoTokenizer.from_pretrained(work_dir / "tokenizer")
    model = build_model(tokenizer, recipe.seed)
    views = drawn_views(random_panels(recipe.pool, recipe.seed), SIDE, recipe.seed)
    schedule = Schedule(recipe.steps, recipe.learning_rate)
    train(model, tokenizer, views, schedule=schedule, recipe=recipe, folder=work_dir / "drawings", log=log)
    export(model, tokenizer, out_dir)


def measure_clip(folder: Path, vae: Path) -> dict[str, float]:
    """Metrics of the card: top-1 retrieval of an image's sub-prompt among 64, for drawings and reconstructions."""
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    measured: dict[str, float] = {}
    for size in (32, 64):
        for kind, decoder in (("drawings", None), ("reconstructions", vae)):
            views = drawn_views(random_panels(640, 9_100 + size), SIDE, 9_100, (size,), decoder)
            measured[f"retrieval_{kind}_{size}px"] = retrieval(model, tokenizer, views)
    return measured


def corpus() -> list[str]:
    """Prompts, themes and sub-prompts whose words get tokens."""
    prompts = storybook_prompts(1_500, seed=1_000)
    return [text for p in prompts for text in (p.prompt, p.theme, *map(panel_text, p.panels))]


def build_tokenizer(corpus: Iterable[str]) -> PreTrainedTokenizerFast:
    """Word-like byte pairs between a start and an end token, padded behind the end."""
    vocabulary, merges = learn_byte_pairs(corpus, VOCABULARY_SIZE - 3)
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in (PAD, START, END)])
    core.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(text, core.token_to_id(text)) for text in (START, END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=START, eos_token=END, pad_token=PAD, model_max_length=CONTEXT
    )


def configuration(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """open_clip's model configuration: a small residual network and a 3 x 128 text transformer."""
    return {
        "embed_dim": 128,
        "vision_cfg": {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 16, "head_width": 64},
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": len(tokenizer),
            "hf_tokenizer_name": "storybook-clip",
            "width": 128,
            "heads": 4,
            "layers": 3,
            "pad_id": tokenizer.pad_token_id,
            "eos_id": tokenizer.eos_token_id,
            "pool_type": "eos",
        },
    }


def train(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    views: Views,
    *,
    schedule: Schedule,
    recipe: ClipSettings,
    folder: Path,
    log: Log | None,
) -> None:
    """One phase of symmetric contrastive training of images and captions, with temporary trait heads.

    Panels that share all traits within a batch are one class, not negatives of each other.
    """
    heads = nn.Linear(128, sum(len(words) for words in VOCABULARY.values()))
    parts = nn.ModuleDict({"model": model, "heads": heads})
    token_ids: dict[str, list[int]] = {}

    def loss_at(step: int) -> torch.Tensor:
        seed = recipe.seed * 1_000_003 + step
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(views), (recipe.batch,), generator=generator)
        panels = [views.panels[row] for row in rows.tolist()]
        clip: Any = model
        raw = clip.encode_image(as_input(spoil(views.pixels[rows], generator)))
        image = functional.normalize(raw, dim=-1)
        ids = _ids([panel_text(panel) for panel in panels], tokenizer, token_ids)
        text = functional.normalize(clip.encode_text(ids), dim=-1)
        logits = clip.logit_scale.exp().clamp(max=50) * image @ text.T
        labels = views.labels[rows]
        is_equal = (labels[:, None] == labels[None]).all(dim=2).float()
        target = is_equal / is_equal.sum(dim=1, keepdim=True)
        contrast = (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)) / 2
        read = split_by_trait(heads(raw))
        traits = [functional.cross_entropy(read[trait], labels[:, k]) for k, trait in enumerate(TRAITS)]
        return torch.as_tensor(contrast + recipe.heads_weight * torch.stack(traits).mean())

    model.train()
    fit(parts, loss_at, schedule, folder, f"clip ({folder.name})", log)
    model.eval()


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> torch.nn.Module:
    """A fresh open_clip ``CLIP``."""
    torch.manual_seed(seed)
    model: torch.nn.Module = CLIP(**configuration(tokenizer))
    return model


def export(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that ``local-dir:`` loads, atomically."""
    preprocess = {
        "mean": list(OPENAI_DATASET_MEAN),
        "std": list(OPENAI_DATASET_STD),
        "interpolation": "bicubic",
        "resize_mode": "squash",
    }
    notes = {name: folder / name for name in ("README.md", "card.json") if (folder / name).is_file()}
    with atomic(folder, replace=True) as part:
        part.mkdir(parents=True)
        # Half precision on disk halves the folder; loading copies it into float32 weights.
        weights = {
            name: (value.half() if value.is_floating_point() else value).contiguous()
            for name, value in model.state_dict().items()
        }
        save_file(weights, part / "open_clip_model.safetensors")
        tokenizer.save_pretrained(part)
        config = {"model_cfg": configuration(tokenizer), "preprocess_cfg": preprocess}
        write_json(part / "open_clip_config.json", config)
        for name, path in notes.items():
            shutil.copy(path, part / name)


def as_input(pictures: torch.Tensor) -> torch.Tensor:
    """Convert images (n, 3, s, s) in -1..1 to inputs of open_clip (OpenAI's mean and standard deviation)."""
    mean = torch.tensor(OPENAI_DATASET_MEAN).view(1, 3, 1, 1)
    deviation = torch.tensor(OPENAI_DATASET_STD).view(1, 3, 1, 1)
    return ((pictures + 1) / 2 - mean) / deviation


def retrieval(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    views: Views,
    candidates: int = 64,
) -> float:
    """Share of images whose caption scores highest among ``candidates`` captions of other panels (top-1)."""
    clip: Any = model
    hits = total = 0
    with torch.inference_mode():
        for start in range(0, len(views) - candidates + 1, candidates):
            panels = views.panels[start : start + candidates]
            pictures = as_input(normalize_pixels(views.pixels[start : start + candidates]))
            image = functional.normalize(clip.encode_image(pictures), dim=-1)
            ids = _ids([panel_text(panel) for panel in panels], tokenizer, {})
            best = (image @ functional.normalize(clip.encode_text(ids), dim=-1).T).argmax(dim=1).tolist()
            hits += sum(panels[row] == panels[column] for row, column in enumerate(best))
            total += candidates
    return hits / total


def _ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, token_ids: dict[str, list[int]]) -> torch.Tensor:
    """Token ids (batch, context), padded and cut as open_clip's wrapper does."""
    for text in texts:
        if text not in token_ids:
            encoded = tokenizer(text, max_length=CONTEXT, padding="max_length", truncation=True)
            token_ids[text] = encoded["input_ids"]
    return torch.tensor([token_ids[text] for text in texts])
