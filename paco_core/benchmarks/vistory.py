"""ViStoryBench (arXiv 2505.24862) on generated stories, by a CLIP and a model that answers yes or no.

Similarity is averaged as in the public evaluation, with two differences: its character measures crop each character
out of a panel first (GroundingDINO) and know faces, its style measures embed by CSD. Here one CLIP embeds whole images.
Adherence is the probability of "Yes" to four questions. ViStoryBench lets a language model grade the same four from 0
to 4, the last about a character that is cropped out. Here all are about the whole panel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ImageOps

from paco_core.benchmarks.statistics import Estimate, estimate
from paco_core.benchmarks.t2is_bench.evaluators import ScoreIndex, mean_scores
from paco_core.benchmarks.t2is_bench.sets import PaintedSet, painted_sets, read_records
from paco_core.benchmarks.tables import ResultTable, interval
from paco_core.benchmarks.vistory_characters import IdentityByEvaluator, PanelScores
from paco_core.data.records.story_records import story_of
from paco_core.exchange.vistory_export import write_stories
from paco_core.io.files import DataError
from paco_core.io.pictures import read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PictureQuery, Query, QueryScorer

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.rankings import Embedder
    from paco_core.benchmarks.t2is_bench.evaluators import BenchmarkPart
    from paco_core.data.records.records import PromptRecord
    from paco_core.data.records.story_records import Shot, Story
    from paco_core.rewards.base import RewardBatch

TEMPERATURE = 0.01  # of the choice between a reference and its mirror image, as published
DATASET = "dataset"  # folder of the stories in an export, next to the folders of the methods
ADHERENCE = "adherence"  # mean of its four columns, of those that a story has


class SimilarityByClip:
    """Columns of a story, NaN where it has nothing to compare:

    ``identity_cross``: of a character's panels and its reference pictures; ``identity_self``: of a character's panels
    among each other; ``copy_paste``: how much more these panels are like the first reference than like its mirror
    image, 0.5 = no more; each a mean over characters. ``style_cross``: of a panel and the first reference of each of
    its characters, or of the story's first character where it has none; ``style_self``: of all panels among each other.

    Args:
        folder: where the paths of the reference pictures begin.
    """

    columns: tuple[str, ...] = ("identity_cross", "identity_self", "copy_paste", "style_cross", "style_self")

    def __init__(self, clip: Embedder, folder: Path) -> None:
        self.clip, self.folder = clip, folder
        self.causes: Counter[str] = Counter()
        self.panels: list[PanelScores] = []  # of each measured story: mean cosine of a panel and a character's images

    def count(self, record: PromptRecord) -> int:  # noqa: ARG002
        """It needs no query."""
        return 0

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each.

        Raises:
            DataError: for a record that is no story, or a reference picture that is missing or damaged.
        """
        rows = [
            self._story(story_of(record), self.clip.embed(panels))
            for record, panels in zip(batch.records, batch.panels, strict=True)
        ]
        return dict(zip(self.columns, np.array(rows, dtype=np.float64).T, strict=True))

    def _story(self, story: Story, panels: np.ndarray) -> tuple[float, ...]:
        references = {
            key: self._references(character.pictures) for key, character in story.cast.items() if character.pictures
        }
        cross, among, copied = list[float](), list[float](), list[float]()
        by_panel: dict[tuple[int, str], float] = {}
        for key in story.cast:
            numbers = [number for number, shot in enumerate(story.shots) if key in shot.characters]
            rows = panels[numbers]
            if len(rows) > 1:
                among.append(_mean_cosine(rows))
            if len(rows) and key in references:
                images, mirrored = references[key]
                cross.append(float((rows @ images.T).mean()))
                by_panel |= {(n, key): float((panels[n] @ images.T).mean()) for n in numbers}
                towards = (rows @ np.stack([images[0], mirrored]).T) / TEMPERATURE
                copied.append(float((1 / (1 + np.exp(towards[:, 1] - towards[:, 0]))).mean()))
        self.panels.append(by_panel)
        style = []
        for panel, shot in zip(panels, story.shots, strict=True):
            keys = [key for key in shot.characters if key in references] or list(references)[:1]
            if keys:
                style.append(float(np.mean([panel @ references[key][0][0] for key in keys])))
        return _mean(cross), _mean(among), _mean(copied), _mean(style), _mean_cosine(panels)

    def _references(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings of a character's pictures, (N, width), and of the first one mirrored, (width,)."""
        images = [read_image(self.folder / name) for name in names]
        rows = self.clip.embed([*images, ImageOps.mirror(images[0])])
        return rows[:-1], rows[-1]


def _mean_cosine(rows: np.ndarray) -> float:
    """Mean cosine over unordered pairs; NaN for a single row."""
    return _mean([float(first @ second) for first, second in combinations(rows, 2)])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else np.nan


class AdherenceToShots:
    """Columns ``setting``, ``action``, ``camera`` and ``character``: means over a panel's questions, then over
    panels; NaN where a story has no such question, or any of them failed.
    """

    columns: tuple[str, ...] = ("setting", "action", "camera", "character")

    def __init__(self, scorer: QueryScorer) -> None:
        self.scorer = scorer
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many queries one generated story needs.

        Raises:
            DataError: when the record is no story.
        """
        story = story_of(record)
        return sum(len(_questions(story, shot)) for shot in story.shots)

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""
        queries: list[tuple[ScoreIndex, Query]] = []  # of story, column, panel
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            story = story_of(record)
            for number, (panel, shot) in enumerate(zip(panels, story.shots, strict=True)):
                for column, question in _questions(story, shot):
                    queries.append(((row, column, number), PictureQuery(panel, question)))
        return mean_scores(self.scorer, queries, len(batch), self.columns, self.causes)


def _questions(story: Story, shot: Shot) -> list[tuple[int, str]]:
    """The questions about a panel, each with its column."""
    texts = (("vistory_setting", shot.setting), ("vistory_action", shot.action), ("vistory_camera", shot.camera))
    questions = [
        (column, render_instruction(template, criterion=text)) for column, (template, text) in enumerate(texts)
    ]
    names = [story.cast[key].name for key in shot.characters]
    return questions + [
        (3, render_instruction("vistory_character", criterion=name, instruction=shot.action)) for name in names
    ]


COLUMNS = (*SimilarityByClip.columns, *IdentityByEvaluator.columns, *AdherenceToShots.columns, ADHERENCE)


def painted_stories(folder: Path, rejected: Rejected) -> list[PaintedSet]:
    """The stories among the sets in the out of ``t2is``; records that are none go to ``rejected``."""
    records = []
    for record in read_records(folder, None):
        try:
            story_of(record)
        except DataError as error:
            rejected.add(f"record {record.idx}", str(error))
        else:
            records.append(record)
    return painted_sets(folder, records) if records else []


def estimate_stories(table: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Means over the stories of one method; what was not measured is left out.

    Args:
        table: one row per story: ``prompt_id`` and the measured columns.
    """
    groups = [str(name) for name in table["prompt_id"]]
    if adherence := [name for name in AdherenceToShots.columns if name in table]:
        table = table.assign(**{ADHERENCE: table[adherence].mean(axis=1)})
    estimates = {
        name: estimate(table[name].to_numpy(dtype="float64"), groups=groups, resamples=resamples, seed=seed)
        for name in COLUMNS
        if name in table
    }
    return {name: value for name, value in estimates.items() if value.count}


def vistory_tables(
    methods: Mapping[str, Mapping[str, Estimate]], parts: Mapping[str, BenchmarkPart], stories: int
) -> list[ResultTable]:
    """One row per method, and the model of each part."""
    columns = [name for name in COLUMNS if any(name in row for row in methods.values())]
    rows = [
        [label, *(interval(row[name]) if name in row else "–" for name in columns)] for label, row in methods.items()
    ]
    notes = [f"{name}: {part.judge}" for name, part in parts.items()]
    notes.append(
        f"{stories} stories, with 95% bootstrap intervals over them. Similarities are of whole panels, where "
        "ViStoryBench crops characters and embeds style by CSD; adherence and identity_yes are probabilities of "
        "Yes, where it grades 0 to 4. Published figures are on other scales."
    )
    return [ResultTable("ViStoryBench", ["method", *columns], rows, notes)]


def panel_scores(parts: Mapping[str, BenchmarkPart]) -> dict[str, list[PanelScores]]:
    """Metric -> scores of the panels and characters of each measured story."""
    scores: dict[str, list[PanelScores]] = {}
    for part in parts.values():
        if isinstance(part.measure, SimilarityByClip):
            scores["identity_clip"] = part.measure.panels
        elif isinstance(part.measure, IdentityByEvaluator):
            scores["identity_yes"] = part.measure.panels
    return scores


def write_outputs(source: Path, folder: Path, time: datetime) -> dict[str, int]:
    """Write stories as ViStoryBench reads them, and count stories and pictures.

    The path of a panel is ``METHOD/MODE/LANGUAGE/TIMESTAMP/STORY/shots/NN.png``. The method is the recipe, the mode is
    size, seed, and whether before or after training. The stories and the images of their characters are in
    :data:`DATASET`, as they are published.

    Args:
        source: out of the stage ``t2is``.
        folder: a new folder, which the benchmark calls ``outputs``.
        time: of the run, in the paths.

    Raises:
        DataError: when none of the sets is a story.
    """
    counts, rejected = Counter[str](), Rejected()
    stories = painted_stories(source, rejected)
    for generated_set in stories:
        story = story_of(generated_set.record)
        method, size, phase = generated_set.method.rsplit(".", 2)
        mode = f"{size}-{phase}-seed{generated_set.seed}"
        shots = folder / method / mode / story.language / f"{time:%Y%m%d-%H%M%S}" / story.story / "shots"
        shots.mkdir(parents=True)
        for shot, panel in zip(story.shots, generated_set.panels(), strict=True):
            (shots / f"{shot.index:02d}.png").write_bytes(encode_png(panel))
        counts += Counter({"stories": 1, "pictures": len(story.shots)})
    write_stories({s.record.idx: s.record for s in stories}.values(), folder / DATASET)
    if not counts:
        raise DataError(f"{source}: no generated set is a story of ViStoryBench{rejected.example}")
    return dict(counts)
