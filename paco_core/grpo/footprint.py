"""How much memory and computation a policy's training takes, from its architecture: estimates, told before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paco_core.files import DataError, read_json
from paco_core.params import PoliciesParams, PolicyRecipe
from paco_core.policies.base import policy_class

H100_FLOPS = 989e12  # dense bf16, from its data sheet
LATENT = 64  # channels of a packed latent
UTILISATION = 0.4  # of that, assumed
ACTIVATIONS_A_BLOCK = 34  # values of hidden width that one block keeps for its backward (Megatron's count, 2205.05198)


@dataclass(frozen=True)
class Architecture:
    """A FLUX transformer: hidden width and blocks; ``patch`` = pixels that a token is high and wide."""

    hidden: int
    double_blocks: int
    single_blocks: int
    patch: int = 16

    @property
    def parameters(self) -> int:
        """Weights of the blocks: 36 d^2 in a double block, 15 d^2 in a single one."""
        return (36 * self.double_blocks + 15 * self.single_blocks) * self.hidden**2

    def pass_flops(self, image_tokens: int, text_tokens: int) -> float:
        """Floating point operations of one sample's forward pass: matrix products and attention."""
        tokens, blocks = image_tokens + text_tokens, self.double_blocks + self.single_blocks
        return 2.0 * 12 * self.hidden**2 * tokens * blocks + 4.0 * tokens**2 * self.hidden * blocks

    def lora_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Weights of a LoRA on the named layers: r (in + out) each."""
        d = self.hidden
        double = dict.fromkeys(("to_q", "to_k", "to_v", "to_out.0"), (d, d))
        double |= dict.fromkeys(("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"), (d, d))
        double |= {"ff.net.0.proj": (d, 4 * d), "ff.net.2": (4 * d, d)}
        double |= {"ff_context.net.0.proj": (d, 4 * d), "ff_context.net.2": (4 * d, d)}
        single = {"to_q": (d, d), "to_k": (d, d), "to_v": (d, d), "proj_mlp": (d, 4 * d), "proj_out": (5 * d, d)}
        total = 0
        for layers, count in ((double, self.double_blocks), (single, self.single_blocks)):
            meant = [shape for name, shape in layers.items() if any(_is_tail(name, target) for target in targets)]
            total += count * sum(rank * (wide + high) for wide, high in meant)
        return total + (rank * (d + LATENT) if "proj_out" in targets else 0)  # the last layer has that name too


def _is_tail(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


KNOWN = {"black-forest-labs/FLUX.1-dev": Architecture(3072, 19, 38)}


def architecture(root: Path, model: str) -> Architecture | None:
    """The architecture of a model folder, or of a hub id that is known by heart; None for another one.

    Raises:
        DataError: when the folder holds no readable configuration.
    """
    folder = root / model
    if not folder.is_dir():
        return KNOWN.get(model)
    config, vae = (read_json(folder / part / "config.json") for part in ("transformer", "vae"))
    try:
        hidden = config["num_attention_heads"] * config["attention_head_dim"]
        patch = 2 ** len(vae["block_out_channels"])  # the VAE halves once less than it has widths; packing once more
        return Architecture(hidden, config["num_layers"], config["num_single_layers"], patch)
    except KeyError as error:
        raise DataError(f"{folder}: the configuration names no {error}; is it a FLUX pipeline?") from None


@dataclass(frozen=True)
class Footprint:
    """Estimates of one training process: GB by part, and floating point operations of an epoch."""

    weights_gb: float
    adapter_gb: float
    activations_gb: float
    kept_gb: float
    flops_an_epoch: float

    @property
    def memory_gb(self) -> float:
        return self.weights_gb + self.adapter_gb + self.activations_gb + self.kept_gb


def footprint(found: Architecture, params: PoliciesParams, recipe: PolicyRecipe, passes: tuple[int, int]) -> Footprint:
    """Estimate a training.

    Args:
        found: the transformer.
        passes: rollout and trained passes of an epoch; the latter count forward and backward.
    """
    size = 2 if params.dtype == "bfloat16" else 4
    tokens = (recipe.train_size // found.patch) ** 2
    length = tokens + recipe.max_sequence_length
    blocks = found.double_blocks + found.single_blocks
    targets = params.lora.targets or policy_class(recipe.family).lora_targets
    lora = found.lora_parameters(params.lora.rank, targets)
    moments = 2 if params.optimizer == "adamw_8bit" else 8
    each = 4 + 4 + 4 + 8 + moments + (4 if params.loss == "nft" else 0)  # weight, EMA, gradient, its fp64 sum, moments
    deep = blocks + ACTIVATIONS_A_BLOCK if params.gradient_checkpointing else blocks * ACTIVATIONS_A_BLOCK
    trained = params.train_batch * length * found.hidden * size * deep
    sampled = params.rollout_batch * length * found.hidden * size * ACTIVATIONS_A_BLOCK / 2
    steps = len(recipe.train_steps or recipe.noise_steps) or recipe.sampling_steps
    images = params.prompts_per_epoch * params.group_size
    kept = (
        images
        * tokens
        * LATENT
        * 4
        * (1 if params.loss == "nft" else steps * (3 if params.loss == "grpo_guard" else 2))
    )
    forward = found.pass_flops(tokens, recipe.max_sequence_length)
    backward = 3 if params.gradient_checkpointing else 2  # frozen weights need no gradient of their own
    return Footprint(
        weights_gb=found.parameters * size / 1e9,
        adapter_gb=lora * each / 1e9,
        activations_gb=max(trained, sampled) / 1e9,
        kept_gb=kept / 1e9,
        flops_an_epoch=forward * (passes[0] + passes[1] * backward),
    )
