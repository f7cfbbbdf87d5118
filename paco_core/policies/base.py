"""What every policy family offers to the trainer: encode once, predict velocities, decode, adapt.

A family is one file with a class that follows :class:`Policy`, and one entry in :mod:`.families`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Union

from paco_core.config.references import model_at
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError
from paco_core.policies.families import Family, Task, family_of, refuse_text_window
from paco_core.runtime.code.stage_code import library_digest

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from paco_core.config.params import LoraParams, PolicyLora, PolicyRecipe
    from paco_core.policies.cuts import Cut
    from paco_core.policies.encoded import Condition, Encoded

Size = tuple[int, int]  # height and width in pixels
References = Union["Image", Sequence["Image"]]  # of one prompt: a picture, or several in their order
#: Decoded at once at most, or one picture: 16 of 1024 px take 25.8 GB in the VAE of FLUX, 55 GB in that of Qwen-Image.
DECODE_PIXELS = 1024 * 1024


@dataclass(frozen=True)
class NoiseKey:
    """Names one draw of noise. Equal keys give equal noise on every machine, rank and batch size.

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


def sized(name: str, size: Size) -> str:
    """Name of a condition's tensor that holds for pictures of one size only."""
    return f"{name} {size[0]}x{size[1]}"


def refuse_tokens(size: Size, multiple: int) -> None:
    """Raise DataError for a picture that does not divide into tokens, with the nearest size that does.

    Args:
        multiple: pixels that a token is high and wide.
    """
    if any(side <= 0 or side % multiple for side in size):
        near = [max(1, round(side / multiple)) * multiple for side in size]
        raise DataError(
            f"a picture of {size[0]} x {size[1]} does not divide into {multiple} px tokens; "
            f"the nearest that does is {near[0]} x {near[1]}"
        )


class Flow(Protocol):
    """What sampling asks of a policy: a schedule, noise and velocities. Latents: (N, tokens, channels), fp32."""

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        """The fp32 schedule (steps + 1,), from 1 down to 0, as the family's own pipeline makes it."""

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:
        """Standard normal latents, (keys, tokens, channels), a row each."""

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        """Predicted velocity (N, tokens, channels) in fp32, shaped like ``latents``."""

    def painting(self) -> AbstractContextManager[None]:
        """Passes of the block only paint: they may be computed in a smaller number format than trained ones."""


class Policy(Flow, Protocol):
    """An image generator or editor under training. Latents are packed: (N, tokens, channels), fp32."""

    family: str
    edits: bool  # each prompt changes reference pictures
    known: Family
    device: str
    multiple: int  # pixels that a picture's sides are multiples of
    cut: dict[str, Cut]  # the prompts encoded so far that did not fit into the text window, and what they lost

    def check_size(self, size: Size) -> None:
        """Raise DataError when the model's packing cannot hold a picture of this size."""

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        """Encode prompts, and the reference pictures of each where the policy edits, one row each.

        Args:
            references: of each prompt where :attr:`edits`, else None; as many as the family takes.
            sizes: of the pictures that will be painted, a list for each prompt; an editing family brings the prompt's
                reference to each of them (or to about ``reference_size``, where it was loaded with one).
            guidance: of the passes to come. What only guided passes need is left out where it asks for none of them,
                and encoded when None.

        Raises:
            DataError: for references where none are taken, or for more or fewer a prompt than the family takes.
        """

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:
        """Encoded prompts with reference pictures behind those that they have, a sequence for each row.

        These pictures are made in passing: their encodings are not remembered on disk.

        Args:
            size: of the picture that will be painted from each.

        Raises:
            DataError: where the family cannot, or for a picture that it does not take.
        """

    def drop_encoders(self) -> None:
        """Free the text encoders; :meth:`encode` is an error from here on."""

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image]:
        """Clean latents (N, tokens, channels) to N pictures."""

    def encode_pictures(self, pictures: Sequence[Image], size: Size) -> torch.Tensor:
        """Pictures, brought to ``size``, to clean latents (N, tokens, channels): the inverse of :meth:`decode`.

        Raises:
            DataError: where the family cannot.
        """

    def add_adapter(self, lora: LoraParams | PolicyLora, seed: int) -> None:
        """Attach a fresh LoRA adapter, drawn from ``seed``, and freeze everything else.

        Where ``lora`` names no targets, they are the family's own.
        """

    def start_from(self, source: str, scale: float = 1.0) -> None:
        """Attach a published adapter, from a folder or hub id, and continue its training.

        Args:
            scale: alpha / rank of the training. B is divided accordingly, so the adapter's update stays the same.

        Raises:
            DataError: naming what of it cannot be taken into account; it may change the transformer alone.
        """

    def copy_adapter(self, name: str) -> None:
        """Attach a second, frozen adapter that equals the trained one as it is now."""

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        """Of an adapter (rank, in) and (out, rank), by the names that :meth:`trainable` gives to the trained one's."""

    def using(self, name: str | None) -> AbstractContextManager[None]:
        """Predict with another adapter, or with none at all, for the length of a block."""

    def load_adapter(self, source: Path | str) -> None:
        """Attach an adapter to paint with, frozen, in the place of the one before.

        Args:
            source: what :meth:`save_adapter` wrote, or an adapter from elsewhere: a folder, a safetensors file or a
                hub id (:func:`paco_core.adapters.reader.read`). It may also change the text encoders, as long as they
                are there.

        Raises:
            DataError: naming what of it cannot be taken into account.
        """

    def without_adapter(self) -> AbstractContextManager[None]:
        """Paint as before training, for the length of a block, also where an adapter is loaded."""

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter so that the family's plain pipeline loads it."""

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        """Python that paints with the plain diffusers ``pipeline`` as this policy does without noise.

        It finds ``prompt``, and ``picture`` where the policy edits, and gives ``image``.
        """

    def panel_example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        """As :meth:`example` of one panel of a story, where ``picture`` is a list of the panels that it sees, or empty.

        Only of families that paint panels one by one.
        """

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The adapter's parameters by name, in a stable order."""

    def enable_gradient_checkpointing(self) -> None:
        """Trade computation for memory in trained passes."""


def load_recipe(recipe: PolicyRecipe, root: Path, *, device: str | None = None, cache: Path | None = None) -> Policy:
    """Load the policy that a recipe names, from a folder of the project or from the hub; see :func:`load`.

    Args:
        device: instead of the recipe's.

    Raises:
        DataError: also for a text window that the model does not have.
    """
    refuse_text_window("policies.recipes.*", recipe, root)
    model = model_at(root, recipe.model, "policies.recipes.*.model")
    return load(
        recipe.family,
        str(model),
        device or recipe.device,
        recipe.dtype,
        task=recipe.task,
        reference_size=recipe.reference_size,
        cache=cache,
        base=recipe.base,
    )


def load(
    family: str,
    model: str,
    device: str,
    dtype: str,
    *,
    task: Task | None = None,
    reference_size: int | None = None,
    cache: Path | None = None,
    base: str | None = None,
) -> Policy:
    """Load a policy by its family's name from a folder or hub id.

    Args:
        base: number format in which a GPU keeps the transformer; that of ``dtype`` when None.
        task: what the policy does, where its family paints sets and edits; None = sets.
        reference_size: side of a square of as many pixels as reference pictures are brought to; None = as many
            as the painted picture has. The released pipelines bring them to 1024.
        cache: folder below which encodings are remembered; None = they are made anew.

    Raises:
        DataError: when the family is unknown, or the model's pipeline class is not the family's.
    """
    kind = family_of(family).load_class()
    if cache is not None:  # what other code encoded is not taken for this code's
        cache = cache / library_digest(kind.__module__, frozenset({family}), cache)
    policy: Policy = kind.load(model, device, dtype, task=task, reference_size=reference_size, cache=cache, base=base)
    return policy
