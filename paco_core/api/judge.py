"""A reward model to ask from a program: how consistent are these pictures, which is nearest, and why?"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

import numpy as np

from paco_core.api.judge_model import Dtype, judge_model
from paco_core.data.records.panels import split_grid
from paco_core.io.files import DataError
from paco_core.io.pictures import Picture, picture_of, pictures_of
from paco_core.reward_model.instructions import question
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.runtime.parent_process import validate_process
from paco_core.serving.client import RewardClient

if TYPE_CHECKING:
    from paco_core.reward_model.scorer import Scorer
    from paco_core.sampling.generated_image import GeneratedImage

log = logging.getLogger("paco.judge")
PAIRS = 256  # whose pictures are in memory at once
#: One theme for all pairs, or one for each; None where a pair has none.
Themes: TypeAlias = "str | Sequence[str | None] | None"
Pictures: TypeAlias = "list[Picture] | tuple[Picture, ...]"


class Ranked(NamedTuple):
    """A candidate: its number in the order in which it was given, and its score."""

    candidate: int
    score: float


class Judge:
    """A reward model that is ready to be asked about pictures.

    A score is the probability, 0 to 1, that the model answers "Yes" to whether two pictures are consistent (PaCo-RL,
    arXiv 2512.04784, section 3). A pair that it cannot score is NaN, and a warning says why. Pictures are paths, bytes
    of a file, pictures of Pillow, or arrays (:func:`paco_core.io.pictures.picture_of`).

    In a project the model is loaded as ``reward`` in ``params.yaml`` says, so that scores are those of the stages;
    elsewhere on a GPU where there is one, with the pixel bounds of the model's folder.

    Args:
        model: a folder, a name on the hub (``OWNER/NAME``), or the address of a server (``http://host:port``), whose
            key, where it wants one, is in ``PACO_API_KEY``. None: the reward that this project trained.
        device: ``cpu``, ``cuda`` or ``cuda:1``; None as said above. A server has its own.
        dtype: None: as said above; on a GPU outside a project bfloat16, on a processor float32.
        served: the id of the model to ask, where a server has several.
        project: root of the project; None: the one that the working folder lies in, if any.

    Raises:
        DataError: when the model is missing, damaged, of another kind, or does not give the golden scores that were
            written with it; when there is no such device.
        ServingError: when no server answers at the address, or it has several models and ``served`` names none.

    A forked process cannot use its parent's judge: create one in each process.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: Dtype | None = None,
        served: str | None = None,
        project: Path | None = None,
    ) -> None:
        chosen = judge_model(model, device=device, dtype=dtype, served=served, project=project)
        self._gpu = ExitStack()  # held for as long as this judge is there
        self._gpu.enter_context(chosen.place())
        self._scorer, self._pid = chosen.load(), os.getpid()

    @property
    def scorer(self) -> Scorer | RewardClient:
        """The model that scores.

        Raises:
            RuntimeError: in a process that was forked from the one that created this judge.
        """
        validate_process(self._pid, "Judge")
        return self._scorer

    @overload
    def score(self, first: Picture, second: Picture, *, theme: str | None = None) -> float: ...

    @overload
    def score(self, first: Pictures, second: Pictures, *, theme: Themes = None) -> np.ndarray: ...

    def score(
        self, first: Picture | Pictures, second: Picture | Pictures, *, theme: Themes = None
    ) -> float | np.ndarray:
        """How consistent two pictures are, 0 to 1; of two lists of pictures, each pair: (pairs,) float64.

        Args:
            theme: what both were made for; without it the model is asked plainly. For lists one, or one a pair.

        Raises:
            DataError: when a picture cannot be read, the lists differ in length, or a theme contains a mark of a chat
                template such as ``<|im_end|>``.
        """
        values = self._values(self.scores(_pairs(first, second), theme=theme))
        return values if isinstance(first, list | tuple) else float(values[0])

    def matrix(self, pictures: Sequence[Picture], *, theme: str | None = None) -> np.ndarray:
        """Scores of all pairs of pictures: (pictures, pictures) float64, symmetric, with NaN on the diagonal.

        Each pair is asked once, the earlier picture first, as the reward ``consistency`` asks about panels of a set.

        Raises:
            DataError: when there are fewer than two pictures, or one cannot be read.
        """
        return square(self._values(self.set_scores(pictures, theme=theme)), len(pictures))

    def consistency(self, pictures: Sequence[Picture], *, theme: str | None = None) -> float:
        """How consistent a set of pictures is: the mean over its pairs; NaN where one of them has no score.

        It is the reward ``consistency`` of the trainings, for a set's panels and theme.

        Raises:
            DataError: as :meth:`matrix`.
        """
        return float(self._values(self.set_scores(pictures, theme=theme)).mean())

    def rank(self, reference: Picture, candidates: Sequence[Picture], *, theme: str | None = None) -> list[Ranked]:
        """Candidates by how consistent they are with a reference, best first; those without a score last.

        The reference is asked as the first picture, as in the benchmark ConsistencyRank. Equal scores keep their order.

        Raises:
            DataError: when a picture cannot be read.
        """
        first = picture_of(reference)
        values = self._values(self.scores([(first, candidate) for candidate in candidates], theme=theme))
        ranked = [Ranked(number, float(score)) for number, score in enumerate(values)]
        return sorted(ranked, key=lambda candidate: math.inf if math.isnan(candidate.score) else -candidate.score)

    @overload
    def explain(self, first: Picture, second: Picture, *, theme: str | None = None) -> str: ...

    @overload
    def explain(self, first: Pictures, second: Pictures, *, theme: Themes = None) -> list[str]: ...

    def explain(
        self, first: Picture | Pictures, second: Picture | Pictures, *, theme: Themes = None
    ) -> str | list[str]:
        """The model's answer in words, "Yes." or "No." and its reasons; of two lists of pictures, one a pair.

        Raises:
            DataError: when a picture cannot be read, or the model cannot answer about one.
        """
        reasons = self.reasons(_pairs(first, second), theme=theme)
        return reasons if isinstance(first, list | tuple) else reasons[0]

    def painted(
        self, pictures: Sequence[GeneratedImage], reference: Picture | Sequence[Picture] | None = None
    ) -> np.ndarray:
        """What :class:`paco_core.Painter` painted: the consistency of each set, or the editing reward of each edit.

        Args:
            reference: the picture that was edited, or all that the instruction is about; None for sets.

        Returns:
            (pictures,) float64, as the rewards ``consistency`` and ``editing`` give them; NaN where there is none.
        """
        from paco_core.operations import paint

        references = () if reference is None else pictures_of(reference)
        return np.array(paint.scored(self.scorer, pictures, references), dtype=np.float64)

    def characters(self, stories: Sequence[GeneratedImage]) -> list[list[dict[str, float]]]:
        """How well each panel of stories keeps the characters that its text names, as :meth:`Painter.story` makes them.

        Returns:
            For each story and panel: a score of 0 to 1 by the name of the character; NaN if there is none. It is
            P(Yes) as in the reward ``characters``.
        """
        from paco_core.operations import paint

        return paint.panel_agreements(self.scorer, stories)

    def scores(
        self,
        pairs: Sequence[tuple[Picture, Picture]],
        *,
        theme: Themes = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[Score]:
        """The score of each pair, in order; where it has none, NaN with the cause.

        Args:
            on_batch: is called with the number of pairs just done.

        Raises:
            DataError: when a picture cannot be read.
        """
        return [score for queries in _queries(pairs, theme) for score in self.scorer.score(queries, on_batch)]

    def set_scores(
        self,
        pictures: Sequence[Picture],
        *,
        theme: str | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[Score]:
        """:meth:`scores` of the pairs of a set: first with second, first with third, and so on.

        Raises:
            DataError: as :meth:`matrix`.
        """
        if len(pictures) < 2:
            raise DataError(f"{len(pictures)} picture: consistency needs two or more")
        return self.scores(list(combinations(pictures, 2)), theme=theme, on_batch=on_batch)

    def grid_scores(
        self, pictures: Sequence[Picture], layouts: Sequence[str], *, themes: Sequence[str | None]
    ) -> list[Score]:
        """The consistency of each grid, a picture of several panels, in order; where it has none, NaN with the cause.

        It is the reward ``consistency``: a grid with any pair that cannot be scored has no score.

        Args:
            layouts: rows and columns of each grid, such as ``2x2``.
            themes: what each grid was made for, or None.

        Raises:
            DataError: when a picture cannot be read, does not divide into its layout, or has a single panel.
        """
        pairs: list[tuple[Picture, Picture]] = []
        words: list[str | None] = []
        counts = []
        for picture, layout, theme in zip(pictures, layouts, themes, strict=True):
            panels = split_grid(picture_of(picture), layout)
            if len(panels) < 2:
                raise DataError(f"layout {layout} has one panel: consistency needs two or more")
            pairs += combinations(panels, 2)
            counts.append(len(pairs) - len(words))
            words += [theme] * counts[-1]
        scores = iter(self.scores(pairs, theme=words))
        return [_mean([next(scores) for _ in range(count)]) for count in counts]

    def reasons(self, pairs: Sequence[tuple[Picture, Picture]], *, theme: Themes = None) -> list[str]:
        """The model's answer in words for each pair, in order.

        Raises:
            DataError: as :meth:`explain`.
        """
        return [text for queries in _queries(pairs, theme) for text in self.scorer.generate_reasons(queries)]

    def close(self) -> None:
        """End the threads of a client, or give the GPU back. In a forked process nothing happens."""
        if os.getpid() == self._pid:
            self._gpu.close()
            if isinstance(self._scorer, RewardClient):
                self._scorer.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _values(self, scores: Sequence[Score]) -> np.ndarray:
        """The values, after a warning that counts those that are missing by their cause."""
        for cause, count in Counter(score.cause for score in scores if score.failed).items():
            log.warning("%d of %d pairs have no score: %s", count, len(scores), cause)
        return np.array([score.value for score in scores], dtype=np.float64)


def _mean(scores: Sequence[Score]) -> Score:
    """The mean, or the first failure: a mean over the rest would depend on which pairs failed."""
    failed = next((score for score in scores if score.failed), None)
    return failed or Score(fmean(score.value for score in scores))


def square(values: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
    """Scores of the pairs of ``count`` pictures, (pairs,), as a symmetric matrix (count, count) without a diagonal."""
    matrix = np.full((count, count), math.nan)
    upper = np.triu_indices(count, 1)
    matrix[upper] = values
    matrix.T[upper] = values
    return matrix


def _pairs(first: Picture | Pictures, second: Picture | Pictures) -> list[tuple[Picture, Picture]]:
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            raise DataError(f"{len(first)} first and {len(second)} second pictures; expected as many")
        return list(zip(first, second, strict=True))
    if isinstance(first, list | tuple) or isinstance(second, list | tuple):
        raise DataError("expected two pictures, or two lists of pictures; rank() compares one with several")
    return [(first, second)]


def _queries(pairs: Sequence[tuple[Picture, Picture]], theme: Themes) -> Iterator[list[PairQuery]]:
    """Questions, so many at a time that their pictures fit into memory; each picture is read once among them."""
    themes = [theme] * len(pairs) if theme is None or isinstance(theme, str) else list(theme)
    if len(themes) != len(pairs):
        raise DataError(f"{len(themes)} themes for {len(pairs)} pairs; expected one, or one a pair")
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        read = {id(picture): picture_of(picture) for picture in {id(p): p for pair in part for p in pair}.values()}
        yield [
            PairQuery(read[id(first)], read[id(second)], question(words))
            for (first, second), words in zip(part, themes[start : start + PAIRS], strict=True)
        ]
