"""What a task knows: its prompts, reference pictures, measures of success, and the benchmark that measures it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.config.params_benchmarks import GeditParams, T2isParams
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.grpo.prompt_split import PromptSplit
    from paco_core.storybook.recogniser import Recogniser

Read = Callable[[Path], Path]  # an input of the caller: its place, after a look whether it is there
Given = Literal["panels", "reference"]


@dataclass(frozen=True)
class Foreseen:
    """What the stages before a training will leave, as far as parameters and prompt files say it.

    Attributes:
        prompts: of the stage ``prompts``; stand-ins if a language model writes them.
        kept: how many of them ``diverse_prompts`` keeps, at most.
        edits: of the stage ``edit_prompts``; stand-ins where they are drawn.
    """

    prompts: Sequence[PromptRecord]
    kept: int
    edits: Sequence[EditRecord]


class GoldMeasure(Protocol):
    """The embedded world's truth about pictures, which no training sees."""

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """Measures by name, (N,) each.

        Raises:
            DataError: when a record is not one of the embedded world's.
        """


@dataclass(frozen=True)
class Success:
    """Names of measures: what training is to raise, and what it must not cost.

    Attributes:
        goal: what is to rise.
        guard: what must not fall for a new champion; None for nothing.
        follows: how far the prompt or instruction was followed; None where nothing measures it.
    """

    goal: str
    guard: str | None = None
    follows: str | None = None


class Task(ABC):
    """One kind of pictures to train for.

    Attributes:
        name: ``sets`` or ``edits``.
        results: out of the stage that measures trained policies.
        prompts: folder of the prompts that policies are trained on.
        given: what a reward finds beside each picture: the panels of a set, or the picture that was edited.
        gold, judged: measures of success by the embedded world's truth, and by the trained judge.
        group: column of a benchmark's table; rows that agree in it stand or fall together.
        cases: what the benchmark counts, in words.
        drawn: what these groups are, in words.
    """

    name: ClassVar[str]
    results: ClassVar[Path]
    prompts: ClassVar[Path]
    given: ClassVar[Given]
    gold: ClassVar[Success]
    judged: ClassVar[Success]
    group: ClassVar[str]
    cases: ClassVar[str]
    drawn: ClassVar[str]

    @property
    def benchmark(self) -> str:
        """The stage that measures trained policies, and its section of ``params.yaml``."""
        return self.results.name

    @abstractmethod
    def split(self, recipe: PolicyRecipe, read: Read) -> PromptSplit:
        """What a policy trains on and is watched on.

        Raises:
            DataError: when too few prompts are there.
        """

    @abstractmethod
    def foresee(self, recipe: PolicyRecipe, foreseen: Foreseen, read: Read) -> PromptSplit | None:
        """What :meth:`split` will give, before the prompts are made; None where there will be none at all.

        Which of them are trained on is settled by :meth:`split` alone, their numbers and sizes are these.

        Raises:
            DataError: as :meth:`split`.
        """

    @abstractmethod
    def paintable(
        self, recipe: PolicyRecipe, foreseen: Foreseen, read: Read
    ) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
        """All prompts of which some are trained on, and of which evaluations and the benchmark paint some.

        A prompt may be among both, before :meth:`split` has settled it. There are none where they are missing.

        Raises:
            DataError: for a file of prompts that cannot be used.
        """

    @abstractmethod
    def validate_truth(self, records: Iterable[PromptRecord]) -> None:
        """Raise DataError naming a record that :meth:`gold_measure` cannot measure."""

    @abstractmethod
    def gold_measure(self, recogniser: Recogniser) -> GoldMeasure:
        """The embedded world's truth about pictures of this task."""

    def truth(self, params: Params, recogniser: Path) -> GoldMeasure | None:
        """:meth:`gold_measure` by the recogniser in a folder; None in the real world."""
        if params.world != "storybook":
            return None
        from paco_core.storybook.recogniser import Recogniser

        return self.gold_measure(Recogniser.from_pretrained(recogniser))

    def unseen_truth(self, params: Params, read: Read) -> Gold | None:
        """:meth:`truth` for the evaluations of a training; None in the real world."""
        if params.world != "storybook":
            return None
        measure = self.truth(params, read(Path(str(params.annotations.model))))
        assert measure is not None, "the embedded world has a truth"

        def gold(panels: list[list[Image]], records: list[PromptRecord]) -> dict[str, np.ndarray]:
            return measure.measure(RewardBatch(records, panels))

        return gold

    def numbers(self, params: Params) -> T2isParams | GeditParams:
        """The parameters of the task's benchmark."""
        found: T2isParams | GeditParams = getattr(params, self.benchmark)
        return found

    def panels_alone(self, params: Params) -> bool:  # noqa: ARG002
        """Whether the benchmark also paints each panel as a picture of its own."""
        return False

    def success(self, world: str) -> Success:
        """By truth where there is one."""
        return self.gold if world == "storybook" else self.judged
