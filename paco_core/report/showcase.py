"""Sets before and after training that open the report: a typical and a clear gain, selected by a rule.

Most sets change little, so a random set rarely shows the effect of a training, and the largest gain exaggerates it. The
report states the rule, counts the outcomes of all sets, and shows all of them further down.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paco_core.benchmarks.t2is_bench.sets import COLUMNS, PICTURES, RECORDS
from paco_core.data.records import prompt_text
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import read_prompts
from paco_core.grpo.sizes import PUBLIC_TOKEN, picture_size
from paco_core.io import paths
from paco_core.io.files import DataError, read_table
from paco_core.io.shards import ShardReader
from paco_core.models.metric_meanings import METRICS
from paco_core.report.html import Picture
from paco_core.report.policies import times
from paco_core.sampling.generated_image import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.models.metric_meanings import MetricMeaning
    from paco_core.report.html import Figures
    from paco_core.report.policies import PolicyPart

MOST_SETS = 100  # shown: those of the paper's profile are 1024 px wide, and take long to read
THUMBNAIL_PX = 128
WIDEST_ROW = 4  # panels of a set side by side; where a set has more, its own columns
ROSE, UNCHANGED, FELL = "rose", "same", "fell"
SCORE = "consistency"  # by the reward model
TYPICAL, CLEAR = "typical", "clear"
#: Share of the sets with a gain whose gain is at most that of the example: the median, and the 90th percentile.
SHARES = {TYPICAL: 0.5, CLEAR: 0.9}


class PicturePair(NamedTuple):
    """One prompt and seed, and the measure of the two pictures painted from them.

    ``score_change`` is the change of the reward model's score, which orders pairs with equal changes of the measure.
    """

    prompt_id: str
    seed: int
    before: float
    after: float
    score_change: float = 0.0

    @property
    def change(self) -> float:
        """Rounded, so that differences of thirds and sixths are equal where they should be."""
        return round(self.after - self.before, 9)

    @property
    def outcome(self) -> str:
        return UNCHANGED if self.change == 0 else ROSE if self.change > 0 else FELL


def pairs_of(table: pd.DataFrame, policy: str, size: int, measure: str) -> list[PicturePair]:
    """Every pair of a policy at a size, in the order of the table, which is random by prompt.

    Pairs whose measure failed (NaN) before or after are left out. A missing change of the reward model's score is 0.

    Args:
        table: one row a picture, as in ``per_prompt.parquet`` of the stage ``t2is``.
    """
    rows = table[(table["policy"] == policy) & (table["size"] == size)]
    cases = list(zip(rows["when"], rows["prompt_id"].astype(str), rows["seed"].astype(int), strict=True))
    values = dict(zip(cases, map(float, rows[measure]), strict=True))
    scores = dict(zip(cases, map(float, rows[SCORE]), strict=True)) if SCORE in rows else {}
    pairs = []
    for phase, prompt, seed in cases:
        if phase != BEFORE:
            continue
        before, after = (values.get((state, prompt, seed), math.nan) for state in (BEFORE, AFTER))
        change = scores.get((AFTER, prompt, seed), math.nan) - scores.get((BEFORE, prompt, seed), math.nan)
        pairs.append(PicturePair(prompt, seed, before, after, change if math.isfinite(change) else 0.0))
    return [pair for pair in pairs if math.isfinite(pair.change)]


def by_change(pairs: Sequence[PicturePair]) -> list[PicturePair]:
    """From the largest rise to the largest fall; of equal ones first the higher end, then the earlier place."""
    return sorted(pairs, key=lambda pair: (-pair.change, -round(pair.after, 9)))


def examples(pairs: Sequence[PicturePair]) -> dict[str, PicturePair]:
    """A typical and a clear gain: the sets at the median and at the 90th percentile of the gains.

    Percentiles are those of the nearest rank among the pairs that rose. Of several pairs with this gain, the same
    percentile of the reward model's change decides. The clear gain has another prompt than the typical one: the pair
    whose gain is nearest to the percentile and no smaller than the typical gain. If no other prompt has such a pair,
    both have the same prompt. Without a gain there is no example. If only one pair rose, it is the typical one.
    """
    rising = [pair for pair in pairs if pair.outcome == ROSE]
    selected: dict[str, PicturePair] = {}
    for name, share in SHARES.items():
        if not rising:
            break
        gain = _percentile(rising, share, lambda pair: pair.change).change
        prompts = {pair.prompt_id for pair in selected.values()}
        smallest = max((pair.change for pair in selected.values()), default=0.0)
        candidates = [pair for pair in rising if pair.prompt_id not in prompts and pair.change >= smallest] or rising
        nearest = min((pair.change for pair in candidates), key=lambda change: (abs(change - gain), -change))
        pair = _percentile(
            [pair for pair in candidates if pair.change == nearest], share, lambda pair: pair.score_change
        )
        if pair not in selected.values():
            selected[name] = pair
    return selected


def _percentile(pairs: Sequence[PicturePair], share: float, key: Callable[[PicturePair], float]) -> PicturePair:
    """The pair of the nearest rank: the first one that at least ``share`` of the pairs do not exceed."""
    return sorted(pairs, key=key)[math.ceil(share * len(pairs)) - 1]


def has_different_texts(record: PromptRecord) -> bool:
    """Whether the panels of a prompt have different texts. Else, a consistent set looks like copies of one panel."""
    panels = prompt_text.parse_prompt(record.prompt, record.layout).panels
    return len({panel.text for panel in panels}) > 1


def paint_command(record: PromptRecord, policy: str, recipe: PolicyRecipe, seed: int) -> str | None:
    """The command that generates a set of the benchmark again, before and after training; None if none does.

    `paco paint` uses the id of the benchmark's prompt, so the noise is equal. It generates panels of the shape that
    the record states, so a recipe with another ``record_size`` may have images of another size.
    """
    size = max(recipe.eval_sizes)
    sizes = [picture_size(record, size, rule, PUBLIC_TOKEN) for rule in (recipe.record_size, "aspect")]
    if sizes[0] != sizes[1]:
        return None
    parts = prompt_text.parse_prompt(record.prompt, record.layout)
    panels = [panel.text for panel in parts.panels]
    words = [record.prompt, "--layout", record.layout]
    if str(prompt_text.prompt_from_theme(parts.theme, panels, record.layout)) == record.prompt:
        words = [parts.theme, "--panels", *panels, "--layout", record.layout]
    return shlex.join(["paco", "paint", *words, "--policy", policy, "--seed", str(seed), "--seeds", "1", "--compare"])


@dataclass(frozen=True)
class ShowcaseSet:
    """One set before and after training, panel by panel.

    Attributes:
        kind: ``typical`` or ``clear``.
        key: of the numbers before and after.
        command: generates it again; None if no command does.
    """

    kind: str
    title: str
    seed: int
    before: list[Picture]
    after: list[Picture]
    columns: int
    key: str
    command: str | None


def clear_command(shown_sets: Sequence[ShowcaseSet]) -> str | None:
    """The command of the clear gain, else of the typical one; None if no command generates either again."""
    commands = {example.kind: example.command for example in shown_sets}
    return commands.get(CLEAR) or commands.get(TYPICAL)


@dataclass(frozen=True)
class Showcase:
    """The sets that open the page, and all sets from the largest rise to the largest fall."""

    size: int
    times: str  # the size at which the policy trained, as in "twice "
    measure: MetricMeaning
    examples: list[ShowcaseSet]
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


def showcase(root: Path, part: PolicyPart, recipe: PolicyRecipe, measure: str, figures: Figures) -> Showcase | None:
    """The opening about one policy at its largest evaluation size; None if the benchmark generated no set.

    Args:
        measure: column of ``per_prompt.parquet`` that the rule compares.

    Raises:
        DataError: when a picture or the file of prompts is missing or damaged.
    """
    folder, size = root / paths.T2IS, max(recipe.eval_sizes)
    if not (folder / "per_prompt.parquet").is_file():
        return None
    table = read_table(folder / "per_prompt.parquet")
    measured = pairs_of(table, part.name, size, measure) if measure in table else []
    if not measured:
        return None
    ranked = by_change(measured[:MOST_SETS])
    records = {record.idx: record for record in read_prompts(folder / RECORDS)}
    images, key = _ImageStore(folder, part.name, size), f"showcase.{part.name}.{size}"
    varied = [pair for pair in ranked if has_different_texts(records[pair.prompt_id])]
    outcomes, prompts = Counter(pair.outcome for pair in ranked), len({pair.prompt_id for pair in ranked})
    figures.add_all(key, {"measured": len(measured), "sets": len(ranked), "prompts": prompts})
    figures.add_all(key, {outcome: outcomes[outcome] for outcome in (ROSE, UNCHANGED, FELL)})

    def panels(pair: PicturePair, phase: str) -> list[Picture]:
        record = records[pair.prompt_id]
        cuts = split_grid(images.picture(pair, phase), record.layout)
        return [
            Picture.from_image(image, f"{phase} training, panel {n}: {record.theme}") for n, image in enumerate(cuts, 1)
        ]

    def example(kind: str, pair: PicturePair) -> ShowcaseSet:
        record = records[pair.prompt_id]
        rows, columns = record.grid
        return ShowcaseSet(
            kind,
            record.theme,
            pair.seed,
            before=panels(pair, BEFORE),
            after=panels(pair, AFTER),
            columns=columns if rows * columns > WIDEST_ROW and not recipe.paints_stories else rows * columns,
            key=f"{key}.set.{ranked.index(pair) + 1}",
            command=paint_command(record, part.name, recipe, pair.seed),
        )

    def card(place: int, pair: PicturePair) -> dict[str, Any]:
        theme, name = records[pair.prompt_id].theme, f"{key}.set.{place}"
        figures.add_all(name, {BEFORE: pair.before, AFTER: pair.after})
        small = {
            phase: Picture.thumbnail(images.picture(pair, phase), f"{phase} training: {theme}", THUMBNAIL_PX)
            for phase in (BEFORE, AFTER)
        }
        return {"title": theme, "key": name, **small}

    return Showcase(
        size=size,
        times=times(size, part.train_size),
        measure=METRICS[measure],
        examples=[example(kind, pair) for kind, pair in examples(varied or ranked).items()],
        key=key,
        cards=[card(place, pair) for place, pair in enumerate(ranked, 1)],
        of_more=len(measured) > len(ranked),
    )
