"""The interface of policies: encode prompts once, predict velocities, decode latents, adapt by LoRA.

A family is one file with a class that follows :class:`Policy`, and one entry in :mod:`.families`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Union

from paco_core.config.references import model_at, weights_file
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError
from paco_core.policies.families import Family, Task, family_of, validate_text_window
from paco_core.runtime.code.stage_code import library_digest

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from paco_core.config.params import LoraParams, PolicyLora, PolicyRecipe
    from paco_core.policies.encoded import Condition, Encoded
    from paco_core.policies.truncation import Truncation

Size = tuple[int, int]  # height and width in pixels
References = Union["Image", Sequence["Image"]]  # of one prompt: one image, or several in order
#: Pixels that are decoded at once, at least one image. For example, 16 images of 1024 px take 25.8 GB in the VAE of
#: FLUX and 55 GB in that of Qwen-Image.
DECODE_PIXELS = 1024 * 1024


@dataclass(frozen=True)
class NoiseKey:
    """The key of one noise tensor. Equal keys give equal noise on every machine, rank and batch size.

    ``image`` is the image's number within its group, or -1 for noise that the whole group shares;
    ``step`` is -1 for the initial noise, else the sampling step whose transition the noise drives.
    """

    prompt_id: str
    image: int
    seed: int
    step: int = -1

    @property
    def generator_seed(self) -> int:
        return seed_of(self.prompt_id, self.image, self.seed, self.step)


def sized_name(name: str, size: Size) -> str:
    """Name of a condition's tensor that is valid for images of one size only."""
    return f"{name} {size[0]}x{size[1]}"


def validate_token_grid(size: Size, multiple: int) -> None:
    """Raise DataError if an image of this size cannot be divided into tokens, with the nearest valid size.

    Args:
        multiple: number of pixels that each side is a multiple of.
    """
    if any(side <= 0 or side % multiple for side in size):
        near = [max(1, round(side / multiple)) * multiple for side in size]
        raise DataError(
            f"an image of {size[0]} x {size[1]} px: each side must be a multiple of {multiple} px; the nearest valid "
            f"size is {near[0]} x {near[1]}"
        )


class Flow(Protocol):
    """The part of a policy that sampling needs. Latents are (N, tokens, channels), fp32."""

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        """The fp32 schedule (steps + 1,), from 1 down to 0, as the pipeline of the family computes it."""

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:
        """Standard normal latents (keys, tokens, channels), one row per key."""

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        """Predicted velocity (N, tokens, channels) in fp32, shaped like ``latents``."""

    def inference_precision(self) -> AbstractContextManager[None]:
        """Context for passes without gradients, which may be computed in a lower precision than training passes."""


class Policy(Flow, Protocol):
    """An image generator or editor under training. Latents are packed: (N, tokens, channels), fp32."""

    family: str
    edits: bool  # each prompt edits reference images
    family_spec: Family
    device: str
    multiple: int  # height and width of images are multiples of it, in pixels
    truncations: dict[str, Truncation]  # of the prompts encoded so far that did not fit into the text window

    def validate_size(self, size: Size) -> None:
        """Raise DataError if the model cannot generate images of this size."""

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        """Encode prompts and, if the policy edits, their reference images. The result has one row per prompt.

        Args:
            references: the reference images of each prompt if the policy edits (:attr:`edits`), else None.
            sizes: a list for each prompt: the sizes of the images that will be generated. An editing family resizes the
                references to each of these sizes, or to about ``reference_size`` if it was loaded with one.
            guidance: guidance of the following passes. If it needs no negative prompt, none is encoded. None encodes
                everything.

        Raises:
            DataError: if the family accepts no references, or a different number of references per prompt.
        """

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:
        """Append reference images to encoded prompts, a sequence of images for each row.

        These images are intermediate results, so their encodings are not cached on disk.

        Args:
            size: size of the images that will be generated.

        Raises:
            DataError: if the family does not support it, or does not accept one of the images.
        """

    def drop_encoders(self) -> None:
        """Free the text encoders. After this call, :meth:`encode` raises an error."""

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image]:
        """Decode clean latents (N, tokens, channels) to N images."""

    def encode_images(self, images: Sequence[Image], size: Size) -> torch.Tensor:
        """Resize images to ``size`` and encode them to clean latents (N, tokens, channels). Inverse of :meth:`decode`.

        Raises:
            DataError: if the family does not support it.
        """

    def add_adapter(self, lora: LoraParams | PolicyLora, seed: int) -> None:
        """Attach a new LoRA adapter, initialized from ``seed``, and freeze everything else.

        If ``lora`` contains no targets, the targets of the family are used.
        """

    def start_from(self, source: str, scale: float = 1.0) -> None:
        """Attach a published adapter, from a folder or hub id, and continue its training.

        Args:
            scale: alpha / rank of the training. B is divided accordingly, so the adapter's update stays the same.

        Raises:
            DataError: if parts of the adapter are not supported. It may change the transformer only.
        """

    def copy_adapter(self, name: str) -> None:
        """Attach a frozen copy of the trained adapter."""

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        """Weights of an adapter, (rank, in) and (out, rank), by the names that :meth:`trainable` returns."""

    def using(self, name: str | None) -> AbstractContextManager[None]:
        """Context that predicts with another adapter, or without any adapter for None."""

    def load_adapter(self, source: Path | str) -> None:
        """Replace the current adapter by a frozen one, to generate images.

        Args:
            source: output of :meth:`save_adapter`, or an adapter of another tool: a folder, a safetensors file or a
                hub id (:func:`paco_core.adapters.reader.read_adapter`). It may also change the text encoders, if they
                have not been dropped.

        Raises:
            DataError: if parts of the adapter are not supported.
        """

    def without_adapter(self) -> AbstractContextManager[None]:
        """Context that generates as before training, without the adapter."""

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in the format that the diffusers pipeline of the family loads."""

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        """Python code that generates with the diffusers ``pipeline`` the same image as this policy by the ODE.

        The code reads ``prompt`` and, if the policy edits, ``picture``. It assigns ``image``.
        """

    def panel_example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        """Like :meth:`example`, for one panel of a story. ``picture`` is a list of the panels that it sees, or empty.

        Only families that generate panels one by one have it.
        """

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Parameters of the adapter by name, in a stable order."""

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations in training passes to save memory."""


def load_recipe_policy(
    recipe: PolicyRecipe, root: Path, *, device: str | None = None, cache: Path | None = None
) -> Policy:
    """Load the policy of a recipe from a folder of the project or from the hub (:func:`load_policy`).

    Args:
        device: replaces the device of the recipe.
        cache: folder for cached encodings.

    Raises:
        DataError: as :func:`load_policy`, and if the text window of the recipe is larger than that of the model.
    """
    validate_text_window("policies.recipes.*", recipe, root)
    model = model_at(root, recipe.model, "policies.recipes.*.model")
    return load_policy(
        recipe.family,
        str(model),
        device or recipe.device,
        recipe.dtype,
        task=recipe.task,
        reference_size=recipe.reference_size,
        cache=cache,
        base=recipe.base,
        transformer=None if recipe.transformer is None else weights_file(root, recipe.transformer),
    )


def load_policy(  # noqa: PLR0913 - options of a policy
    family: str,
    model: str,
    device: str,
    dtype: str,
    *,
    task: Task | None = None,
    reference_size: int | None = None,
    cache: Path | None = None,
    base: str | None = None,
    transformer: Path | None = None,
) -> Policy:
    """Load a policy by its family's name from a folder or hub id.

    Args:
        transformer: file of the transformer's weights. None = those of the model.
        base: number format of the transformer on a GPU. None = that of ``dtype``.
        task: the task of the policy, if its family supports sets and edits. None = sets.
        reference_size: reference images are resized to about ``reference_size`` squared pixels. None = to as many
            pixels as the generated image has. The released pipelines use 1024.
        cache: folder for cached encodings. None = no cache.

    Raises:
        DataError: if the family is unknown, or the pipeline class of the model is not that of the family.
    """
    policy_class = family_of(family).load_class()
    if cache is not None:  # encodings of another version of the code are not reused
        cache = cache / library_digest(policy_class.__module__, frozenset({family}), cache)
    policy: Policy = policy_class.load(
        model,
        device,
        dtype,
        task=task,
        reference_size=reference_size,
        cache=cache,
        base=base,
        transformer=transformer,
    )
    return policy
