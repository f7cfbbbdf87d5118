"""Origin of a generated image: models, prompt, seed and sampling, as its file's metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from paco_core.config.references import model_at
from paco_core.io.files import DataError
from paco_core.io.image_metadata import ImageMetadata, read_record
from paco_core.models.content import content_of
from paco_core.models.licence import licence_name
from paco_core.runtime.versions import md5_of_folder

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe

FORMAT = 1
SAMPLER = "Euler"  # of the ODE of a flow model (``policies``)
HASH = 10  # characters of a hash in ``parameters``, as in other tools


@dataclass(frozen=True)
class ModelVersion:
    """A model, and which version of it.

    Attributes:
        name: its id on the hub, or the name of its folder or file without the path.
        version: the commit on the hub, or the MD5 of its files. Of an adapter in the project, it is DVC's MD5 of the
            folder. Empty if the hub does not answer.
    """

    name: str
    version: str

    @classmethod
    def from_source(cls, source: Path | str, name: str | None = None) -> ModelVersion:
        """Version of a folder, a file or a model of the hub (str)."""
        if isinstance(source, str):
            return cls(source, content_of(source).removeprefix(source).removeprefix("@"))
        return cls(name or source.name, content_of(source))


@dataclass(frozen=True)
class PolicyVersion:
    """The models that generate the images of a policy.

    Attributes:
        policy: name of the policy: a recipe, ``RECIPE@champion``, an adapter, or ``base``.
        license: license of the base, which also applies to its adapters.
        adapter: None if the base generates.
    """

    policy: str
    base: ModelVersion
    license: str
    adapter: ModelVersion | None


def policy_version(root: Path, name: str, recipe: PolicyRecipe, adapter: Path | str | None) -> PolicyVersion:
    """Versions of the models of a policy. Files that have not changed are not read again.

    Args:
        adapter: folder, file or hub id (str); None for the base.
    """
    base = ModelVersion.from_source(model_at(root, recipe.model, "model"))
    return PolicyVersion(name, base, licence_name(recipe.model, root), _adapter_version(root, name, adapter))


def _adapter_version(root: Path, policy: str, adapter: Path | str | None) -> ModelVersion | None:
    if adapter is None or isinstance(adapter, str):
        return None if adapter is None else ModelVersion.from_source(adapter)
    place = adapter.absolute()
    if place.is_dir() and place.is_relative_to(root.absolute()):
        return ModelVersion(policy, str(md5_of_folder(root.absolute(), place)))
    return ModelVersion.from_source(adapter, policy)


@dataclass(frozen=True)
class ImageOrigin:
    """The origin of one image. It contains no path, no host and no time, so equal images have equal files.

    Attributes:
        width, height: of the image in pixels.
        layout: rows and columns of the panels.
        panel: number of the panel, from 0, if the image is one panel of a set.
        references: MD5 of the pixels of each image that was edited (:func:`paco_core.io.pictures.picture_digest`).
        paco: version of paco.
    """

    models: PolicyVersion
    prompt: str
    seed: int
    width: int
    height: int
    steps: int
    guidance: float
    layout: str
    panel: int | None = None
    references: tuple[str, ...] = ()
    paco: str = version("paco-rl")

    @property
    def parameters(self) -> str:
        """The prompt, and one line of settings in the form of AUTOMATIC1111's web UI, which other tools parse."""
        base, adapter = self.models.base, self.models.adapter
        settings: dict[str, Any] = {
            "Steps": self.steps, "Sampler": SAMPLER, "CFG scale": self.guidance, "Seed": self.seed,
            "Size": f"{self.width}x{self.height}", "Model hash": base.version[:HASH], "Model": base.name,
            "Lora hashes": adapter and f"{adapter.name}: {adapter.version[:HASH]}", "License": self.models.license,
            "Layout": self.layout, "Panel": self.panel, "Version": f"paco {self.paco}",
        }  # fmt: skip
        line = ", ".join(f"{key}: {_quoted(value)}" for key, value in settings.items() if value not in (None, ""))
        return f"{self.prompt}\n{line}"


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(mark in text for mark in ',:\n"') else text


def image_metadata(origins: Sequence[ImageOrigin]) -> ImageMetadata | None:
    """Metadata of a file that shows these images: one, or those of a contact sheet. None without an origin."""
    if not origins:
        return None
    origins = list(dict.fromkeys(origins))
    return ImageMetadata(
        "\n\n".join(origin.parameters for origin in origins),
        {"format": FORMAT, "images": [asdict(origin) for origin in origins]},
    )


def read_origins(file: Path) -> list[ImageOrigin]:
    """The origins of the images that a file shows; more than one for a contact sheet.

    Raises:
        DataError: if the file is not an image, is not of paco, or its metadata are damaged or of a newer version.
    """
    record = read_record(file)
    if record.get("format") != FORMAT:
        raise DataError(
            f"{file}: its metadata have format {record.get('format')!r}; this version of paco reads format {FORMAT}"
        )
    try:
        origins = TypeAdapter(list[ImageOrigin]).validate_python(record.get("images"))
    except ValidationError as error:
        raise DataError(f"{file}: the record of its origin is damaged: {error.errors()[0]['msg']}") from None
    if not origins:
        raise DataError(f"{file}: the record of its origin is damaged: it lists no image")
    return origins
