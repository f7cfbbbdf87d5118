"""A policy to paint with from a program: sets of consistent pictures from a prompt, edits of a picture."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from paco_core.config.params import PARAMS_FILE, load
from paco_core.io.files import DataError
from paco_core.io.pictures import Picture, pictures_of
from paco_core.io.project import project_root
from paco_core.operations import paint, painters, prompt_records, stories
from paco_core.policies.encodings import cache_folder
from paco_core.runtime.parent_process import validate_process
from paco_core.runtime.placement import one_gpu
from paco_core.sampling.generated_image import GeneratedImage
from paco_core.sampling.origin import policy_version
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import TASKS, recipes_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.operations.painters import NamedPolicy
    from paco_core.operations.stories import CharacterImages
    from paco_core.policies.base import Policy
    from paco_core.sampling.origin import PolicyVersion
    from paco_core.tasks.base import Task

log = logging.getLogger("paco.painter")
STORIES = "stories"


class Painter:
    """A policy of a project that is ready to paint sets, or to edit pictures.

    Its model is loaded by the first picture. On ``cuda`` it then holds a GPU until it is closed (``with Painter(...) as
    painter:``) or the process ends, so that no stage of the project takes it.

    Args:
        name: a recipe of ``policies.recipes`` (``flux_t2is``), ``RECIPE@champion`` or ``@challenger``, ``base`` (the
            model before training), or an adapter for the first recipe's model: its folder, file or hub id. None: the
            first recipe of what it is asked to do.
        device: ``cpu``, ``cuda`` or ``cuda:1``; None: ``policies.device`` of ``params.yaml``.
        project: root of the project; None: the one that the working folder lies in.

    Raises:
        DataError: when there is no project, no such policy, or it was not trained yet.
    """

    def __init__(self, name: str | None = None, *, device: str | None = None, project: Path | None = None) -> None:
        self._root = project or project_root()
        params = load(self._root / PARAMS_FILE)
        if device is not None:
            params = params.model_copy(update={"policies": params.policies.model_copy(update={"device": device})})
        self._params, self._name, self._pid = params, name, os.getpid()
        self._loaded: dict[str, Policy] = {}  # by purpose
        self._models: dict[str, PolicyVersion] = {}  # by purpose
        self._leases = ExitStack()
        self.named(self._task)  # a name that is none is an error now

    @property
    def _task(self) -> Task:
        """What the policy is for, as far as its name says so; else sets."""
        recipe = (self._name or "").partition("@")[0]
        return next((task for task in TASKS if recipe in recipes_of(task, self._params.policies)), SETS)

    def named(self, task: Task) -> NamedPolicy:
        """The recipe and the adapter that paint sets, or edit.

        Raises:
            DataError: when the name is none of a policy for that.
        """
        return painters.painter(self._root, self._params, self._name, task)

    def paint(
        self,
        prompt: str,
        panels: Sequence[str] = (),
        *,
        layout: str | None = None,
        seeds: int | Sequence[int] = 4,
        size: int | None = None,
        steps: int | None = None,
        compare: bool = False,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[GeneratedImage]:
        """Sets of panels, one a seed: ``image`` is the whole set, ``panels`` its parts in reading order.

        Args:
            prompt: a whole T2IS prompt, which marks its panels, or a theme together with ``panels``.
            panels: what each panel shows.
            layout: rows and columns, such as ``2x3``; see :func:`paco_core.operations.prompt_records.set_record`.
            seeds: how many, 0 to ``seeds`` - 1; or which ones. Equal seeds give equal noise to every policy.
            size: pixels of a side of a picture of 2x2 panels, as large as which they are in other layouts; None: the
                largest evaluation size of the recipe.
            steps: of sampling; None: those of the benchmark.
            compare: also by the model before training; those come first (``when`` is "before" or "after").
            advance: is called with the number of pictures just painted.

        What the policy did not read of a prompt that is too long is ``lost`` of each picture. ``save`` of a picture
        writes a file with its ``origin``: models, prompt, seed and settings.

        Raises:
            DataError: when the prompt has no panels, its parts contradict each other, or the policy is none for sets.
        """
        record = self.set_record(prompt, panels, layout=layout, size=size)
        return self._generate(SETS, record, seeds, size, steps, compare, advance, ())

    def set_record(
        self, prompt: str, panels: Sequence[str] = (), *, layout: str | None = None, size: int | None = None
    ) -> PromptRecord:
        """The prompt as it is painted, put together as those of the trainings; nothing is loaded.

        A prompt of the benchmark ``t2is`` keeps its id, so equal seeds give the images that the benchmark measured.

        Raises:
            DataError: as :meth:`paint`.
        """
        side = size or max(self.named(SETS).recipe.eval_sizes)
        return prompt_records.benchmark_record(self._root, prompt_records.set_record(prompt, panels, side, layout))

    def edit(
        self,
        picture: Picture | Sequence[Picture],
        instruction: str,
        *,
        seeds: int | Sequence[int] = 4,
        size: int | None = None,
        steps: int | None = None,
        compare: bool = False,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[GeneratedImage]:
        """Edits of a picture as an instruction says, one a seed.

        Args:
            picture: a path, bytes of a file, a picture of Pillow, or an array; or a list of them, the one to edit
                first, in the order in which the instruction counts them.
            size: pixels of a side; None: the evaluation size of the recipe that is nearest to the (first) picture.
            seeds, steps, compare, advance: as of :meth:`paint`.

        Raises:
            DataError: when a picture cannot be read, there is no instruction, or the policy is none for edits, or takes
                fewer pictures.
        """
        references = pictures_of(picture)
        record = prompt_records.edit_record(instruction, references, self.named(EDITS).recipe.family)
        return self._generate(EDITS, record, seeds, size, steps, compare, advance, references)

    def story(
        self,
        panels: Sequence[str],
        characters: CharacterImages,
        *,
        theme: str | None = None,
        seeds: int | Sequence[int] = 1,
        size: int | None = None,
        steps: int | None = None,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[GeneratedImage]:
        """Stories with your characters, one per seed, before training and (if the policy is trained) after it.

        Panels are generated one by one. The images of the characters that a panel names and earlier panels are its
        reference images.

        Args:
            panels: the text of each panel, which names its characters.
            characters: one image or a list of up to three images of each character, by name.
            theme: what the story is about, and what all panels share. For example, "a day in the wood. All images show
                watercolor". None: the names of the characters.
            seeds, size, steps, advance: as of :meth:`paint`.

        Raises:
            DataError: if a character or an image cannot be used, no panel names a character, or the policy cannot use
                reference images.
        """
        by = self.story_policy()
        record = stories.story_record(panels, characters, by.recipe, theme)
        chosen = _seeds(seeds)
        policy = self._load(STORIES, by)
        return paint.generate_seed_images(
            self._params, policy, by, record, seeds=chosen, side=size, steps=steps, compare=True,
            models=self._models[STORIES], advance=advance,
        )  # fmt: skip

    def story_policy(self) -> NamedPolicy:
        """The recipe and the adapter of :meth:`story`.

        Raises:
            DataError: if no recipe can generate panels one by one.
        """
        return stories.story_policy(self._root, self._params, self._name)

    def _generate(
        self,
        task: Task,
        record: PromptRecord,
        seeds: int | Sequence[int],
        size: int | None,
        steps: int | None,
        compare: bool,
        advance: Callable[[int], object],
        references: Sequence[Image],
    ) -> list[GeneratedImage]:
        chosen = _seeds(seeds)
        by = self.named(task)
        policy = self._load(task.name, by)
        return paint.generate_seed_images(
            self._params, policy, by, record, seeds=chosen, side=size, steps=steps, references=references,
            compare=compare, models=self._models[task.name], advance=advance,
        )  # fmt: skip

    def _load(self, purpose: str, by: NamedPolicy) -> Policy:
        """The policy for a purpose (a task, or :data:`STORIES`), loaded once."""
        validate_process(self._pid, "Painter")
        if purpose not in self._loaded:
            device, holder = self._params.policies.device, f"paint in {self._root}"
            self._leases.enter_context(one_gpu([device], holder, self._params, log.warning))
            policy = paint.load_painter_policy(self._root, by, cache=cache_folder(self._root))
            self._loaded[purpose] = policy
            self._models[purpose] = policy_version(self._root, by.name, by.recipe, by.adapter)
        return self._loaded[purpose]

    def close(self) -> None:
        """Give the GPU back; a forked process has none."""
        self._loaded.clear()
        if os.getpid() == self._pid:
            self._leases.close()

    def __enter__(self) -> Painter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _seeds(seeds: int | Sequence[int]) -> Sequence[int]:
    """The seeds, at least one.

    Raises:
        DataError: if there is none.
    """
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if not chosen:
        raise DataError(f"seeds={seeds!r}: expected one or more")
    return chosen
