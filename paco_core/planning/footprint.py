"""How much memory and computation a policy's training takes, from its architecture: estimates, printed before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import get_args

from paco_core.config.params import PolicyRecipe
from paco_core.grpo.sizes import token_pixels
from paco_core.io.files import DataError, read_json
from paco_core.planning.reached import MEASURED, ROOFLINE, Kind
from paco_core.policies.base import DECODE_PIXELS
from paco_core.policies.families import edits, family_of

#: Values of hidden width a token that a pass without checkpointing keeps in each block (Megatron's count, arXiv
#: 2205.05198). The other such numbers, in :class:`Blocks`, are fitted to the peaks of the public models on fake tensors
#: (`python -m speed.memory`).
KEPT_A_BLOCK = 34
Layers = dict[str, tuple[int, int]]  # widths in and out of a block's linear layers, in hidden widths


@dataclass(frozen=True)
class Blocks:
    """The linear layers of one kind of transformer, in hidden widths.

    ``modulation`` = weights beside them in a double block, in a single one, and in what all share; ``a_token`` =
    weights that a token meets in a block; ``decoding`` = bytes that decoding a pixel takes in bfloat16, at the peak of
    the public VAEs on fake tensors, whose last layers have ``decoder`` channels; ``sampled`` = values of hidden width
    that a pass without gradient holds for a token of picture and of text; ``backward`` = what the backward of one block
    holds for a token.
    """

    double: Layers
    single: Layers
    modulation: tuple[int, int, int]
    a_token: int
    decoding: int
    sampled: tuple[int, int] = (28, 6)
    backward: int = 27
    decoder: int = 128


_ATTENTION: Layers = dict.fromkeys(
    ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"), (1, 1)
)


def _feed_forward(names: tuple[str, str], first: str, last: str, wide: tuple[int, int] = (4, 4)) -> Layers:
    """Of the picture's and the text's stream; ``wide`` = out of the first layer, into the last one."""
    return {
        f"{name}.{layer}": shape for name in names for layer, shape in ((first, (1, wide[0])), (last, (wide[1], 1)))
    }


_FLUX_SINGLE: Layers = {"to_q": (1, 1), "to_k": (1, 1), "to_v": (1, 1), "proj_mlp": (1, 4), "proj_out": (5, 1)}
_FLUX2_SINGLE: Layers = {"attn.to_qkv_mlp_proj": (1, 9), "attn.to_out": (4, 1)}
BLOCKS: dict[Kind, Blocks] = {
    "FluxTransformer2DModel": Blocks(
        _ATTENTION | _feed_forward(("ff", "ff_context"), "net.0.proj", "net.2"), _FLUX_SINGLE, (12, 3, 0), 12, 1620
    ),
    "QwenImageTransformer2DModel": Blocks(
        _ATTENTION | _feed_forward(("img_mlp", "txt_mlp"), "net.0.proj", "net.2"),
        {},
        (12, 0, 0),
        12,
        3400,
        decoder=96,
    ),
    "Flux2Transformer2DModel": Blocks(  # gated feed-forward layers, and one modulation for all blocks of a sort
        _ATTENTION | _feed_forward(("ff", "ff_context"), "linear_in", "linear_out", (6, 3)),
        _FLUX2_SINGLE,
        (0, 0, 15),
        13,
        1620,
        (30, 30),  # single blocks, most of them, hold the words beside the picture
        55,  # gated layers are wide
    ),
}
#: Bytes of a weight as it is kept: bits, and the scales of blocks of 64 (nf4) or of rows (fp8).
KEPT_BYTES = {"nf4": 0.5 + 4 / 64, "fp8": 1.0}
#: Beside the blocks on a GPU: embedders and decoder (0.35 GB at most), and workspaces of kernels. With it no phase that
#: an H200 measured is above its estimate (docs/reference/gpu.md).
BESIDE_GB = 0.75


@dataclass(frozen=True)
class Architecture:
    """A transformer of double blocks (picture and text apart) and single ones (both together): width and numbers.

    ``patch`` = pixels that a token is high and wide; ``channels`` of a packed latent; ``text_patch`` = the same of a
    text encoder that reads the reference picture too, None for one that reads words alone; ``decoder`` = channels of
    the VAE's last layers over those of the public one.
    """

    hidden: int
    double_blocks: int
    single_blocks: int
    patch: int = 16
    channels: int = 64
    kind: Kind = "FluxTransformer2DModel"
    text_patch: int | None = None
    decoder: float = 1.0

    @property
    def blocks(self) -> int:
        return self.double_blocks + self.single_blocks

    @property
    def parameters(self) -> int:
        """Weights of the blocks: of FLUX 36 d^2 in a double one, 15 d^2 in a single one; of FLUX.2 26 and 13 d^2."""
        blocks = BLOCKS[self.kind]
        double, single = (sum(a * b for a, b in layers.values()) for layers in (blocks.double, blocks.single))
        more, fewer, shared = blocks.modulation
        weights = (double + more) * self.double_blocks + (single + fewer) * self.single_blocks + shared
        return weights * self.hidden**2

    def pass_flops(self, image_tokens: int, text_tokens: int) -> float:
        """Floating point operations of one sample's forward pass: matrix products and attention."""
        tokens = image_tokens + text_tokens
        a_token = BLOCKS[self.kind].a_token
        return (2.0 * a_token * self.hidden**2 * tokens + 4.0 * tokens**2 * self.hidden) * self.blocks

    def tokens(self, recipe: PolicyRecipe, side: int, references: int | None = None) -> tuple[int, int]:
        """Image and text tokens of one pass at a square picture of ``side`` px.

        A reference picture stands beside the noisy one, and where the text encoder reads it among the words.

        Args:
            references: how many; None = one of an edit, and none of other pictures.
        """
        image, words = (side // self.patch) ** 2, recipe.max_sequence_length
        family = family_of(recipe.family)
        beside = int(edits(recipe)) if references is None else references
        if not beside:
            return image, words
        reference = recipe.reference_size or side
        seen = round((family.condition_size or reference) / self.text_patch) ** 2 if self.text_patch else 0
        return image + beside * (reference // self.patch) ** 2, words + beside * seen

    def sampling_gb(
        self, recipe: PolicyRecipe, side: int, batch: int, size: int, references: int | None = None
    ) -> float:
        """What a pass without gradient holds beside the weights.

        Args:
            size: bytes of a value.
            references: as :meth:`tokens`.
        """
        image, words = self.tokens(recipe, side, references)
        picture, text = BLOCKS[self.kind].sampled
        return batch * (picture * image + text * words) * self.hidden * size / 1e9

    def training_gb(self, recipe: PolicyRecipe, size: int, references: int | None = None) -> float:
        """What a pass with gradient and its backward hold beside the weights; guidance keeps both its passes.

        Args:
            size: bytes of a value.
            references: as :meth:`tokens`.
        """
        length = sum(self.tokens(recipe, recipe.train_size, references))
        streams, batch = family_of(recipe.family).passes_a_step(recipe.guidance), recipe.train_batch
        deep = (
            streams * self.blocks + BLOCKS[self.kind].backward
            if recipe.gradient_checkpointing
            else streams * self.blocks * KEPT_A_BLOCK
        )
        return batch * length * deep * self.hidden * size / 1e9

    def decoding_gb(self, side: int, batch: int, size: int) -> float:
        """What the decoder holds, which takes no more pixels at once than :data:`DECODE_PIXELS`."""
        pixels = side**2 * min(batch, max(1, DECODE_PIXELS // side**2))
        return pixels * BLOCKS[self.kind].decoding * self.decoder * size / 2 / 1e9

    def lora_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Weights of a LoRA on the named layers: r (in + out) each."""
        d, blocks, total = self.hidden, BLOCKS[self.kind], 0
        for layers, count in ((blocks.double, self.double_blocks), (blocks.single, self.single_blocks)):
            meant = [shape for name, shape in layers.items() if any(_is_tail(name, target) for target in targets)]
            total += count * sum(rank * d * (wide + high) for wide, high in meant)
        return total + (rank * (d + self.channels) if "proj_out" in targets else 0)  # so is the last layer called


def _is_tail(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


#: Public models by heart, from their configurations.
KNOWN = {
    "black-forest-labs/FLUX.1-dev": Architecture(3072, 19, 38),
    "black-forest-labs/FLUX.1-Kontext-dev": Architecture(3072, 19, 38),
    **dict.fromkeys(
        ("black-forest-labs/FLUX.2-klein-base-4B", "black-forest-labs/FLUX.2-klein-4B"),
        Architecture(3072, 5, 20, channels=128, kind="Flux2Transformer2DModel"),
    ),
    **dict.fromkeys(
        ("black-forest-labs/FLUX.2-klein-base-9B", "black-forest-labs/FLUX.2-klein-9B"),
        Architecture(4096, 8, 24, channels=128, kind="Flux2Transformer2DModel"),
    ),
    **dict.fromkeys(
        (
            "Qwen/Qwen-Image",
            "Qwen/Qwen-Image-2512",
            "Qwen/Qwen-Image-Edit",
            "Qwen/Qwen-Image-Edit-2509",
            "Qwen/Qwen-Image-Edit-2511",
        ),
        Architecture(3072, 60, 0, kind="QwenImageTransformer2DModel", text_patch=28),
    ),
}


def architecture(root: Path, model: str) -> Architecture | None:
    """The architecture of a model folder, or of a hub id that is known by heart; None for another one.

    Raises:
        DataError: when the folder holds no readable configuration, or that of another transformer.
    """
    folder = root / model
    if not folder.is_dir():
        return KNOWN.get(model)
    config = read_json(folder / "transformer" / "config.json")
    kind = config.get("_class_name")
    if kind not in get_args(Kind):
        raise DataError(
            f"{folder}: transformer/config.json is of a {kind}; known kinds are {', '.join(get_args(Kind))}"
        )
    try:
        return Architecture(
            hidden=config["num_attention_heads"] * config["attention_head_dim"],
            double_blocks=config["num_layers"],
            single_blocks=config["num_single_layers"] if BLOCKS[kind].single else 0,
            patch=token_pixels(folder) or 16,
            channels=config["in_channels"],
            kind=kind,
            text_patch=_text_patch(folder),
            decoder=_decoder(folder, BLOCKS[kind].decoder),
        )
    except KeyError as error:
        raise DataError(f"{folder}: transformer/config.json names no {error}") from None


def _text_patch(folder: Path) -> int | None:
    """Pixels a side of what a vision-language text encoder makes one token of."""
    file = folder / "text_encoder" / "config.json"
    vision = read_json(file).get("vision_config") if file.is_file() else None
    return vision["patch_size"] * vision["spatial_merge_size"] if vision else None


def _decoder(folder: Path, public: int) -> float:
    """Channels of the last layers of the VAE's decoder over ``public``; 1 where the folder has no VAE."""
    file = folder / "vae" / "config.json"
    config = read_json(file) if file.is_file() else {}
    channels = config.get("block_out_channels") or [config.get("base_dim", public)]
    return channels[0] / public


@dataclass(frozen=True)
class Footprint:
    """Estimates of one training process: GB by part, and of an epoch floating point operations and H100 seconds.

    ``rounded_gb``: the copy of the adapter that a GPU samples with, part of ``activations_gb``.
    """

    weights_gb: float
    adapter_gb: float
    activations_gb: float
    kept_gb: float
    flops_an_epoch: float
    seconds_an_epoch: float  # in passes, as measured
    roofline_seconds_an_epoch: float  # at best
    rounded_gb: float = 0.0

    @property
    def memory_gb(self) -> float:
        return self.weights_gb + self.adapter_gb + self.activations_gb + self.kept_gb


def footprint(
    found: Architecture, recipe: PolicyRecipe, passes: tuple[int, int], beside: Sequence[Sequence[int]] | None = None
) -> Footprint:
    """Estimate a training.

    Args:
        found: the transformer.
        recipe: with the side of a square as large as a part of its pictures as ``train_size``.
        passes: rollout and trained passes of an epoch; the latter count forward and backward.
        beside: reference pictures beside each part of each picture (:func:`paco_core.planning.squares.beside`); None =
            one of an edit, and pictures that are painted at once.
    """
    beside = [[int(edits(recipe))]] if beside is None else beside
    references = [count for parts in beside for count in parts]
    size = 2 if recipe.dtype == "bfloat16" else 4
    family = family_of(recipe.family)
    lora = found.lora_parameters(recipe.lora.rank, recipe.lora.targets or family.lora_targets)
    moments = 2 if recipe.optimizer == "adamw_8bit" else 8
    # Weight, EMA, gradient, its fp64 sum, moments, and a copy: the old policy or the reference.
    each = 4 + 4 + 4 + 8 + moments + 4 * (recipe.loss in ("nft", "dpo"))
    on_gpu = recipe.device.startswith("cuda")
    rounded = 2 * lora / 1e9 if on_gpu and size == 2 else 0.0
    activations = max(
        found.training_gb(recipe, size, max(references)),
        rounded + found.sampling_gb(recipe, recipe.train_size, recipe.rollout_batch, size, max(references)),
        rounded + found.decoding_gb(recipe.train_size, recipe.rollout_batch, size),
    )
    steps = len(recipe.train_steps or recipe.noise_steps) or recipe.sampling_steps
    painted = recipe.pictures_an_epoch * len(references) / len(beside)
    latents = painted * (recipe.train_size // found.patch) ** 2 * found.channels * 4
    kept = latents * (1 if recipe.forward else steps * (3 if recipe.loss == "grpo_guard" else 2))
    forward = mean(found.pass_flops(*found.tokens(recipe, recipe.train_size, each)) for each in references)
    backward = 3 if recipe.gradient_checkpointing else 2  # frozen weights need no gradient of their own
    sampled, trained = forward * passes[0], forward * passes[1] * backward
    weights = found.parameters * (KEPT_BYTES[recipe.base] if recipe.base else size) / 1e9
    return Footprint(
        weights_gb=weights + (BESIDE_GB if on_gpu else 0.0),
        adapter_gb=lora * each / 1e9,
        activations_gb=activations,
        kept_gb=kept / 1e9,
        flops_an_epoch=sampled + trained,
        seconds_an_epoch=MEASURED[found.kind].seconds(sampled, trained),
        roofline_seconds_an_epoch=ROOFLINE[found.kind].seconds(sampled, trained),
        rounded_gb=rounded,
    )
