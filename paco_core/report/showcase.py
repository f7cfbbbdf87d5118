"""The pair of pictures that opens the page: chosen by a rule that the page states, with all others behind it.

Most sets change little, so a random pair rarely shows what a training does. The page opens with the largest change,
says so, counts what became of the other sets, and shows all of them further down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paco_core.benchmarks.t2is_bench.sets import COLUMNS, PICTURES, RECORDS
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.io.files import DataError, read_table
from paco_core.io.shards import ShardReader
from paco_core.report.html import Picture
from paco_core.report.policies import SET_MEASURES, times
from paco_core.sampling.generated_image import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.report.html import Figures
    from paco_core.report.policies import MeasureText, PolicyPart

MOST_SETS = 100  # shown: those of the paper's profile are 1024 px wide, and take long to read
THUMBNAIL_PX = 128
WIDEST_ROW = 4  # panels of a set side by side; where a set has more, its own columns
ROSE, UNCHANGED, FELL = "rose", "same", "fell"


class PicturePair(NamedTuple):
    """One prompt and seed, and the measure of the two pictures painted from them."""

    prompt_id: str
    seed: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Rounded, so that differences of thirds and sixths are equal where they should be."""
        return round(self.after - self.before, 9)

    @property
    def outcome(self) -> str:
        return UNCHANGED if self.change == 0 else ROSE if self.change > 0 else FELL


def pairs_of(table: pd.DataFrame, policy: str, size: int, measure: str) -> list[PicturePair]:
    """Every pair of a policy at a size, in the order of the table, which is random by prompt.

    Pairs whose measure failed (NaN) before or after are left out.

    Args:
        table: one row a picture, as in ``per_prompt.parquet`` of the stage ``t2is``.
    """
    rows = table[(table["policy"] == policy) & (table["size"] == size)]
    columns = (rows[name].tolist() for name in ("when", "prompt_id", "seed", measure))
    values = {(phase, str(prompt), int(seed)): float(v) for phase, prompt, seed, v in zip(*columns, strict=True)}
    pairs = [
        PicturePair(prompt, seed, before, values.get((AFTER, prompt, seed), math.nan))
        for (phase, prompt, seed), before in values.items()
        if phase == BEFORE
    ]
    return [pair for pair in pairs if math.isfinite(pair.change)]


def by_change(pairs: Sequence[PicturePair]) -> list[PicturePair]:
    """From the largest rise to the largest fall; of equal ones first the higher end, then the earlier place."""
    return sorted(pairs, key=lambda pair: (-pair.change, -round(pair.after, 9)))


@dataclass(frozen=True)
class Showcase:
    """The set that opens the page, panel by panel, and all sets from the largest rise to the largest fall."""

    title: str
    size: int
    times: str  # the size at which the policy trained, as in "twice "
    measure: MeasureText
    before: list[Picture]
    after: list[Picture]
    columns: int
    key: str
    cards: list[dict[str, Any]]  # each set, small: title, before, after, key of its figures
    of_more: bool  # sets were measured that are not shown


class _ImageStore:
    """What ``t2is`` painted by a policy at a size: pictures by state, prompt and seed."""

    def __init__(self, folder: Path, policy: str, size: int) -> None:
        self._reader = ShardReader.below(folder / PICTURES, require=COLUMNS)
        rows = self._reader.index
        rows = rows[(rows["policy"] == policy) & (rows["px"] == size)]
        keys = zip(rows["painted"].astype(str), rows["prompt_id"].astype(str), rows["seed"].astype(int), strict=True)
        self._ids = dict(zip(keys, rows["id"].astype(str), strict=True))

    def picture(self, pair: PicturePair, phase: str) -> Image:
        image_id = self._ids.get((phase, pair.prompt_id, pair.seed))
        if image_id is None:
            raise DataError(
                f"{paths.T2IS / PICTURES}: no picture of prompt {pair.prompt_id}, seed {pair.seed}, {phase} training, "
                "which per_prompt.parquet lists; run `dvc repro -f -s t2is`"
            )
        return self._reader.read(image_id)


def showcase(
    root: Path, part: PolicyPart, size: int, measure: str, figures: Figures, *, story: bool = False
) -> Showcase | None:
    """The opening about one policy; None where the benchmark painted or measured nothing.

    Args:
        measure: column of ``per_prompt.parquet`` that the rule compares.
        story: whether panels were painted one by one: all of them stand in one row.

    Raises:
        DataError: when a picture or the file of prompts is missing or damaged.
    """
    folder = root / paths.T2IS
    if not (folder / "per_prompt.parquet").is_file():
        return None
    table = read_table(folder / "per_prompt.parquet")
    measured = pairs_of(table, part.name, size, measure) if measure in table else []
    if not measured:
        return None
    ranked = by_change(measured[:MOST_SETS])
    records = {record.idx: record for record in read_prompts(folder / RECORDS)}
    first, images, key = ranked[0], _ImageStore(folder, part.name, size), f"showcase.{part.name}.{size}"
    record, outcomes = records[first.prompt_id], Counter(pair.outcome for pair in ranked)
    prompts = len({pair.prompt_id for pair in ranked})
    figures.add_all(key, {"measured": len(measured), "sets": len(ranked), "prompts": prompts})
    figures.add_all(key, {outcome: outcomes[outcome] for outcome in (ROSE, UNCHANGED, FELL)})

    def panels(phase: str) -> list[Picture]:
        cuts = split_grid(images.picture(first, phase), record.layout)
        return [
            Picture.from_image(image, f"{phase} training, panel {n}: {record.theme}") for n, image in enumerate(cuts, 1)
        ]

    def card(place: int, pair: PicturePair) -> dict[str, Any]:
        theme, name = records[pair.prompt_id].theme, f"{key}.set.{place}"
        figures.add_all(name, {BEFORE: pair.before, AFTER: pair.after})
        small = {
            phase: Picture.thumbnail(images.picture(pair, phase), f"{phase} training: {theme}", THUMBNAIL_PX)
            for phase in (BEFORE, AFTER)
        }
        return {"title": theme, "key": name, **small}

    rows, columns = record.grid
    return Showcase(
        title=record.theme,
        size=size,
        times=times(size, part.train_size),
        measure=SET_MEASURES[measure],
        before=panels(BEFORE),
        after=panels(AFTER),
        columns=columns if rows * columns > WIDEST_ROW and not story else rows * columns,
        key=key,
        cards=[card(place, pair) for place, pair in enumerate(ranked, 1)],
        of_more=len(measured) > len(ranked),
    )
