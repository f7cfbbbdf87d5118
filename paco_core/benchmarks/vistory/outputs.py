"""Painted stories as ViStoryBench reads them: ``METHOD/MODE/LANGUAGE/TIMESTAMP/STORY/shots/NN.png``.

The method is the recipe; the mode says size, seed, and whether before or after training.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

from paco_core.benchmarks.vistory.stories import painted_stories
from paco_core.data.records.story_records import story_of
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png


def write_outputs(painted: Path, folder: Path, made: datetime) -> dict[str, int]:
    """Write each panel under the number of its shot; counts of stories and pictures.

    Args:
        painted: out of the stage ``t2is``.
        folder: a new folder: what the benchmark calls ``outputs``.
        made: the time that stands for the run.

    Raises:
        DataError: when none of what was painted is a story.
    """
    counts, rejected = Counter[str](), Rejected()
    for one in painted_stories(painted, rejected):
        story = story_of(one.record)
        method, size, when = one.method.rsplit(".", 2)
        mode = f"{size}-{when}-seed{one.seed}"
        shots = folder / method / mode / story.language / f"{made:%Y%m%d-%H%M%S}" / story.story / "shots"
        shots.mkdir(parents=True)
        for shot, panel in zip(story.shots, one.panels(), strict=True):
            (shots / f"{shot.index:02d}.png").write_bytes(encode_png(panel))
        counts += Counter({"stories": 1, "pictures": len(story.shots)})
    if not counts:
        raise DataError(f"{painted}: none of what was painted is a story of ViStoryBench{rejected.example}")
    return dict(counts)
