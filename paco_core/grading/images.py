"""Images of a comparison: each adapter generates the same prompts from the same noise; finished images are cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import PromptRecord
from paco_core.grading.base_model import GradedBase
from paco_core.grading.candidates import BASE_NAME, Candidate
from paco_core.grpo.sizes import ImageGrid
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import read_image
from paco_core.io.progress import Progress
from paco_core.io.secrets import redacted
from paco_core.models.content import content_of
from paco_core.models.licence import licence_name
from paco_core.policies.base import Policy
from paco_core.runtime.code.stage_code import library_digest
from paco_core.sampling.generated_image import AFTER, GeneratedImage
from paco_core.sampling.generation import generate_images
from paco_core.sampling.origin import ImageOrigin, ModelVersion, PolicyVersion

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPTS_PER_CALL = 4  # between two moments at which images are saved


@dataclass(frozen=True)
class ImageFolder:
    """The images of one adapter, or of the base model without an adapter: one file per prompt and seed."""

    name: str
    folder: Path
    records: Sequence[PromptRecord]
    seeds: Sequence[int]

    def file(self, record: PromptRecord, seed: int) -> Path:
        prompt = digest([record.idx, record.prompt, record.height, record.width, record.layout])
        return self.folder / f"{prompt}-{seed}.png"

    def missing(self) -> list[PromptRecord]:
        """Prompts of which an image does not exist yet."""
        return [record for record in self.records if any(not self.file(record, seed).is_file() for seed in self.seeds)]

    def save(self, image: GeneratedImage, models: PolicyVersion, base: GradedBase) -> None:
        """Save an image with its origin."""
        width, height = image.image.size
        origin = ImageOrigin(
            models, redacted(image.record.prompt), image.seed, width, height, base.steps, base.guidance,
            image.record.layout,
        )  # fmt: skip
        replace(image, origin=origin).save(self.file(image.record, image.seed))

    def first_image(self, record: PromptRecord) -> Image:
        """The image of the first seed."""
        return read_image(self.file(record, self.seeds[0]))

    def images(self, record: PromptRecord) -> list[Image]:
        """The images of a prompt, in the order of the seeds."""
        return [read_image(self.file(record, seed)) for seed in self.seeds]


@dataclass(frozen=True)
class Generation:
    """Prompts, seeds and base model of a comparison.

    Attributes:
        cache: folder of the images; equal adapters, prompts, seeds and settings are generated once.
        encodings: folder of encoded prompts.
    """

    base: GradedBase
    records: Sequence[PromptRecord]
    seeds: Sequence[int]
    cache: Path
    encodings: Path

    @cached_property
    def code(self) -> str:
        """Digest of the code that generates the images."""
        return library_digest("paco_core.sampling.generation", frozenset({self.base.family}), self.cache)

    def folder(self, candidate: Candidate | None) -> ImageFolder:
        """The images of an adapter, or of the base model.

        The key consists of the contents of the base model and the adapter, the settings, and the code of the family.

        Raises:
            DataError: when the adapter has no file.
        """
        content = "" if candidate is None else content_of(candidate.source)
        key = digest([self.base.content, content, self.base.settings, self.code], 32)
        name = BASE_NAME if candidate is None else candidate.name
        return ImageFolder(name, self.cache / key, self.records, self.seeds)

    def run(
        self, candidates: Sequence[Candidate], log: Callable[[str], None]
    ) -> tuple[ImageFolder, dict[str, ImageFolder], dict[str, str]]:
        """Generate what is missing: first by the base model, then by each adapter.

        Returns:
            The images of the base model, the images of each readable adapter by name, and why the others cannot be
            read.

        Raises:
            DataError: when no adapter can be read, or a prompt or size does not fit the base model.
        """
        base, folders, unreadable = self.folder(None), dict[str, ImageFolder](), dict[str, str]()
        for candidate in candidates:
            try:
                folders[candidate.name] = self.folder(candidate)
            except (DataError, PermissionError) as error:
                unreadable[candidate.name] = str(error)
        if base.missing() or any(folder.missing() for folder in folders.values()):
            policy = self.base.load(self.encodings)
            self._validate_sizes(policy)
            self._generate_all(policy, candidates, base, folders, unreadable, log)
        if not folders:
            raise _none_readable(unreadable)
        return base, folders, unreadable

    def _generate_all(
        self,
        policy: Policy,
        candidates: Sequence[Candidate],
        base: ImageFolder,
        folders: dict[str, ImageFolder],
        unreadable: dict[str, str],
        log: Callable[[str], None],
    ) -> None:
        """Generate the images of all adapters. An adapter that fails moves from ``folders`` to ``unreadable``."""
        for candidate in candidates:
            if candidate.name in folders and folders[candidate.name].missing():
                with _leaving_out(candidate, folders, unreadable, log):
                    policy.load_adapter(candidate.source)
        if not folders:
            raise _none_readable(unreadable)
        total = sum(len(folder.missing()) for folder in (base, *folders.values())) * len(self.seeds)
        with Progress(total, "grade", "images", log) as progress:
            with policy.without_adapter():
                self._generate(policy, None, base, progress)
            for candidate in candidates:
                if candidate.name not in folders or not folders[candidate.name].missing():
                    continue
                with _leaving_out(candidate, folders, unreadable, log):
                    policy.load_adapter(candidate.source)
                    self._generate(policy, candidate, folders[candidate.name], progress)

    def _generate(self, policy: Policy, candidate: Candidate | None, folder: ImageFolder, progress: Progress) -> None:
        missing, models = folder.missing(), self._models(candidate)
        for start in range(0, len(missing), PROMPTS_PER_CALL):
            images = generate_images(
                policy,
                missing[start : start + PROMPTS_PER_CALL],
                self.seeds,
                self.base.size,
                name=folder.name,
                when=AFTER,
                steps=self.base.steps,
                guidance=self.base.guidance,
                max_sequence_length=self.base.max_sequence_length,
                record_size="aspect",
            )
            for image in images:
                folder.save(image, models, self.base)
                progress.advance(note=folder.name)

    def _models(self, candidate: Candidate | None) -> PolicyVersion:
        adapter = None if candidate is None else ModelVersion.from_source(candidate.source, candidate.name)
        name = BASE_NAME if candidate is None else candidate.name
        return PolicyVersion(name, self.base.version, licence_name(str(self.base.model), Path()), adapter)

    def _validate_sizes(self, policy: Policy) -> None:
        for record in self.records:
            policy.validate_size(ImageGrid.from_record(record, self.base.size, "aspect", policy.multiple, 0).size)


@contextmanager
def _leaving_out(
    candidate: Candidate, folders: dict[str, ImageFolder], unreadable: dict[str, str], log: Callable[[str], None]
) -> Iterator[None]:
    """Leave out an adapter that cannot be read, or that generates NaN, and go on with the others."""
    try:
        yield
    except DataError as error:
        del folders[candidate.name]
        unreadable[candidate.name] = str(error)
        log(f"left out: {error}")


def _none_readable(unreadable: dict[str, str]) -> DataError:
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in unreadable.items())
    return DataError(f"none of {len(unreadable)} adapters can be read:{reasons}")
