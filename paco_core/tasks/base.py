"""Interface of a task: its prompts, reference images, measures of success, and benchmark."""

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

Read = Callable[[Path], Path]  # checks that an input of the caller exists, and returns its path
RewardInput = Literal["panels", "reference"]


@dataclass(frozen=True)
class PlannedPrompts:
    """The prompts that the stages before a training will make, as far as parameters and prompt files determine them.

    Attributes:
        prompts: of the stage ``prompts``; placeholders if a language model writes them.
        num_diverse: maximum number of them that ``diverse_prompts`` keeps.
        edits: of the stage ``edit_prompts``; placeholders if they are sampled.
    """

    prompts: Sequence[PromptRecord]
    num_diverse: int
    edits: Sequence[EditRecord]


class GoldMeasure(Protocol):
    """Ground-truth metrics of the embedded world, which training never uses."""

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """Metrics by name, (N,) each.

        Raises:
            DataError: when a record is not from the embedded world.
        """


@dataclass(frozen=True)
class Success:
    """Names of metrics of a task.

    Attributes:
        goal: the metric that training should raise.
        constraint: the metric that must not fall for a new champion; None = no constraint.
        follows: how well the prompt or instruction was followed; None = not measured.
    """

    goal: str
    constraint: str | None = None
    follows: str | None = None


class Task(ABC):
    """A task of policies.

    Attributes:
        name: ``sets`` or ``edits``.
        results: out of the stage that measures trained policies.
        prompts: folder of the training prompts.
        reward_input: input of a reward besides the image: the panels of a set, or the reference image of an edit.
        gold, judged: measures of success by ground truth, and by the reward model.
        group: column of the benchmark's table by which rows are grouped for confidence intervals.
        cases: plural of a benchmark's row, for texts.
        sampling_units: plural of a group, for texts.
    """

    name: ClassVar[str]
    results: ClassVar[Path]
    prompts: ClassVar[Path]
    reward_input: ClassVar[RewardInput]
    gold: ClassVar[Success]
    judged: ClassVar[Success]
    group: ClassVar[str]
    cases: ClassVar[str]
    sampling_units: ClassVar[str]

    @property
    def benchmark(self) -> str:
        """The stage that measures trained policies, and its section of ``params.yaml``."""
        return self.results.name

    @abstractmethod
    def split(self, recipe: PolicyRecipe, read: Read) -> PromptSplit:
        """Training and evaluation prompts of a policy.

        Raises:
            DataError: when there are too few prompts.
        """

    @abstractmethod
    def plan_split(self, recipe: PolicyRecipe, planned: PlannedPrompts, read: Read) -> PromptSplit | None:
        """The expected result of :meth:`split`, before the prompts are made; None if there will be none.

        Numbers and sizes are those of :meth:`split`. The assignment of single prompts may differ.

        Raises:
            DataError: as :meth:`split`.
        """

    @abstractmethod
    def candidates(
        self, recipe: PolicyRecipe, planned: PlannedPrompts, read: Read
    ) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
        """Prompts that may be used for training, and prompts that may be used for evaluation and the benchmark.

        A prompt may be in both before :meth:`split` assigns it. If prompts are missing, there are none.

        Raises:
            DataError: when a file of prompts is invalid.
        """

    @abstractmethod
    def validate_truth(self, records: Iterable[PromptRecord]) -> None:
        """Check that :meth:`gold_measure` can measure the records.

        Raises:
            DataError: with the record that it cannot measure.
        """

    @abstractmethod
    def gold_measure(self, recogniser: Recogniser) -> GoldMeasure:
        """Ground-truth metrics of images of this task."""

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
        numbers: T2isParams | GeditParams = getattr(params, self.benchmark)
        return numbers

    def has_separate_panels(self, params: Params) -> bool:  # noqa: ARG002
        """Whether the benchmark also generates each panel as a separate image."""
        return False

    def success(self, world: str) -> Success:
        """Measures of success: ground truth if the world has it, otherwise the reward model."""
        return self.gold if world == "storybook" else self.judged
