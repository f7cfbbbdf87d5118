"""A policy and rewards small enough to check PaCo-GRPO in milliseconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from paco_core.config.params import LoraParams, PolicyLora, PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.recipe import assemble, validate_recipe
from paco_core.grpo.scoring import groupwise
from paco_core.grpo.trainer import RunContext, Trainer
from paco_core.io.files import DataError
from paco_core.policies.base import NoiseKey, Size, sized_name
from paco_core.policies.encoded import Condition, Encoded
from paco_core.policies.families import FAMILIES
from paco_core.policies.truncation import Truncation
from paco_core.rewards.base import RewardBatch
from paco_core.training.processes import launched_processes

TOKEN = 16  # pixels
#: What a pass without gradient is counted as, by its adapter.
WITHOUT_GRADIENT = {"default": "sampled", "old": "old", "reference": "reference", None: "reference"}


class ToyPolicy:
    """Tokens of 16 px and 4 channels; the velocity is a frozen linear map plus a trainable one."""

    family, device, multiple = "toy", "cpu", TOKEN
    edits = False
    family_spec = FAMILIES["flux2_klein"]  # its limit of reference images

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.base = torch.randn(5, 4, generator=generator) * 0.3
        self.truncations: dict[str, Truncation] = {}
        self.calls: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.encoders = True
        self.adapters: dict[str, dict[str, torch.Tensor]] = {}
        self.active: str | None = "default"

    def example(self, size: Size, steps: int, _guidance: float, _max_sequence_length: int) -> str:
        return f"image = pipeline(prompt, {size}, {steps})"

    def validate_size(self, size: Size) -> None:
        if any(side % TOKEN for side in size):
            raise DataError(f"{size} does not divide into {TOKEN} px tokens")

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[Image.Image] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        assert self.encoders and references is None
        self.calls["encode"] += 1
        self.truncations |= {
            p: Truncation(len(p.split()), max_sequence_length, " ".join(p.split()[max_sequence_length:]))
            for p in prompts
            if len(p.split()) > max_sequence_length
        }
        return Encoded([{"prompt_embeds": torch.tensor([len(p) % 7 / 7.0])} for p in prompts], "cpu")

    def drop_encoders(self) -> None:
        self.encoders = False

    def inference_precision(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        return torch.cat([torch.linspace(1.0, 1.0 / steps, steps), torch.zeros(1)])

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:
        self.validate_size(size)
        tokens = size[0] // TOKEN * (size[1] // TOKEN)
        return torch.stack(
            [torch.randn(tokens, 4, generator=torch.Generator().manual_seed(k.generator_seed)) for k in keys]
        )

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        kind = "trained" if torch.is_grad_enabled() else WITHOUT_GRADIENT[self.active]
        self.calls[kind] += 1
        self.rows[kind] += len(latents)
        text = condition.tensors["prompt_embeds"][:, None, :].expand(-1, latents.shape[1], -1)
        inputs = torch.cat([latents, text], dim=-1)
        weights = self.adapters.get(self.active) if self.active else None
        adapted = inputs @ weights["a"] @ weights["b"] if weights else 0.0
        return latents * (1.0 - sigma) + inputs @ self.base + adapted

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image.Image]:
        self.calls["decode"] += 1
        rows, columns = size[0] // TOKEN, size[1] // TOKEN
        colours = (latents[..., :3].sigmoid() * 255).to(torch.uint8).reshape(-1, rows, columns, 3).numpy()
        return [Image.fromarray(colour).resize((size[1], size[0]), Image.Resampling.NEAREST) for colour in colours]

    def encode_images(self, pictures: Sequence[Image.Image], size: Size) -> torch.Tensor:
        rows, columns = size[0] // TOKEN, size[1] // TOKEN
        small = [np.asarray(p.resize((columns, rows), Image.Resampling.NEAREST), np.float32) for p in pictures]
        colours = torch.from_numpy(np.stack(small)).reshape(len(small), -1, 3).clamp(1.0, 254.0) / 255.0
        return torch.cat([colours.logit(), torch.zeros(*colours.shape[:2], 1)], dim=-1)

    def add_adapter(self, lora: LoraParams | PolicyLora, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.a = torch.nn.Parameter(torch.randn(5, lora.rank, generator=generator) * 0.3)
        self.b = torch.nn.Parameter(torch.zeros(lora.rank, 4))
        self.adapters["default"] = {"a": self.a, "b": self.b}

    def start_from(self, source: str, scale: float = 1.0) -> None:
        loaded = load_file(Path(source) / "adapter.safetensors")
        self.a, self.b = (torch.nn.Parameter(loaded[name]) for name in ("a", "b"))
        self.adapters["default"] = {"a": self.a, "b": self.b}

    def copy_adapter(self, name: str) -> None:
        self.adapters[name] = {key: value.detach().clone() for key, value in self.trainable().items()}

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        return self.adapters[name]

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        self.active = name
        try:
            yield
        finally:
            self.active = "default"

    def load_adapter(self, folder: Path) -> None:
        raise NotImplementedError

    def save_adapter(self, folder: Path) -> None:
        folder.mkdir()
        save_file({n: p.detach() for n, p in self.trainable().items()}, folder / "adapter.safetensors")

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {"a": self.a, "b": self.b}

    def enable_gradient_checkpointing(self) -> None:
        self.calls["checkpointing"] += 1


class ToyEditor(ToyPolicy):
    """The toy with references: their mean colour is added to every predicted velocity."""

    edits = True

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[tuple[int, list[list[Size]]]] = []

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[Sequence[Image.Image]] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        assert references is not None and len(references) == len(prompts) == len(sizes)
        self.encoded.append((len(prompts), [list(row_sizes) for row_sizes in sizes]))
        rows = []
        for row, pictures, row_sizes in zip(
            super().encode(prompts, max_sequence_length).rows, references, sizes, strict=True
        ):
            colours = [np.asarray(image.convert("RGB")).mean((0, 1)) for image in pictures]
            mean = torch.tensor([*np.mean(colours, axis=0).tolist(), 0.0]) / 255.0
            rows.append({**row, **{sized_name("image_latents", size): mean for size in row_sizes}})
        return Encoded(rows, "cpu")

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        shift = condition.tensors[sized_name("image_latents", size)][:, None, :]
        return super().velocity(latents, sigma, condition, guidance, size) - 0.5 * shift


class Brightness:
    """Mean pixel value of a set, 0 to 1."""

    def __init__(self, name: str = "brightness") -> None:
        self.name = name
        self.causes: dict[str, int] = {}
        self.num_scored = 0

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        self.num_scored += len(batch)
        return np.array([np.mean([np.asarray(p).mean() / 255 for p in panels]) for panels in batch.panels])


def record(number: int) -> PromptRecord:
    text = (
        f"FOUR-PANEL Images with a 2x2 grid layout of thing {'x' * number}. [TOP]-[LEFT]: a. [TOP]-[RIGHT]: b. "
        "[BOTTOM]-[LEFT]: c. [BOTTOM]-[RIGHT]: d."
    )
    return PromptRecord(
        idx=f"p{number}",
        prompt=text,
        height=32,
        width=32,
        layout="2x2",
        theme=f"thing {number}",
        category="Character",
        task_name="Multi-Scenario",
        criteria={"Style": {"one": "same"}},
    )


def recipe(**changes: object) -> PolicyRecipe:
    """A recipe of 4 epochs, 4 prompts x 6 images of 32 px, 2 updates an epoch."""
    values: dict[str, object] = {
        "device": "cpu",
        "dtype": "float32",
        "learning_rate": 0.03,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "lora": {"rank": 2, "alpha": 4, "targets": ["a"]},
        "loss": "ppo",
        "clip_range": 1e-4,
        "max_advantage": 5.0,
        "epochs": 4,
        "prompts_per_epoch": 4,
        "group_size": 6,
        "updates_per_epoch": 2,
        "rollout_batch": 8,
        "train_batch": 5,
        "gradient_checkpointing": False,
        "ema_decay": 0.9,
        "ema_every": 1,
        "eval_every": 2,
        "eval_prompts": 3,
        "eval_steps": 4,
        "eval_seeds": [0, 1],
        "checkpoint_every": 1,
        "seed": 0,
        "family": "flux",
        "model": "toy",
        "train_size": 32,
        "eval_sizes": [32, 64],
        "sampling_steps": 4,
        "noise_steps": [1],
        "dynamics": "flow_sde",
        "noise_level": 0.7,
        "guidance": 3.5,
        "max_sequence_length": 80,
        "rewards": {
            "terms": {"brightness": {"weight": 1.0, "reward": "own:brightness"}},
            "aggregator": "weighted_sum",
            "advantage_std": "group",
        },
    }
    return PolicyRecipe.model_validate(json.loads(json.dumps({**values, **changes})))


TRAIN, UNSEEN = [record(n) for n in range(8)], [record(n) for n in range(20, 23)]


def trainer(**changes: Any) -> Trainer:
    """The toy trainer with some of its parts exchanged: recipe, policy, rewards, prompts, or what is around it."""

    def part(name: str, default: object) -> Any:
        return changes.pop(name, default)

    rule, policy = part("recipe", recipe()), part("policy", ToyPolicy())
    split = PromptSplit(
        part("train", TRAIN), part("unseen", UNSEEN), part("reference", None), part("preferences", None)
    )
    multiple = part("multiple", policy.multiple)
    context = RunContext(**{"rewards": {"brightness": Brightness()}, "identity": {"model": "toy"}, **changes})
    world_size = context.processes.world_size if context.processes else launched_processes()
    validate_recipe(rule, split, groupwise(context.rewards), world_size, multiple)
    return assemble(rule, policy, split, context)


def figures(outcome: Outcome) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds/")} for row in outcome.rows]
