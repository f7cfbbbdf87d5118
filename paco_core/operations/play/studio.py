"""The models behind the page: loaded when they are first needed, one policy and the judge kept."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from paco_core.data.records.prompt_text import parse_layout
from paco_core.io import paths
from paco_core.io.files import DataError, read_file_stats
from paco_core.io.pictures import limit_pixels
from paco_core.operations import paint, painters, prompt_records
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Job
from paco_core.operations.stories import story_params, story_record
from paco_core.reward_model.instructions import question
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.runtime.placement import one_gpu
from paco_core.sampling.generated_image import BEFORE, GeneratedImage
from paco_core.sampling.origin import policy_version
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import Params
    from paco_core.data.records.records import PromptRecord
    from paco_core.operations.painters import NamedPolicy
    from paco_core.policies.base import Policy
    from paco_core.reward_model.scorer import Scorer
    from paco_core.tasks.base import Task

MOST_PICTURES = 8  # compared at once: 28 pairs
CHARACTER_PIXELS = (1024, 1024)  # width and height of an image with the most pixels that a policy reads


@dataclass(frozen=True)
class StudioOptions:
    """How pictures are to be painted.

    Args:
        policy: as :func:`paco_core.operations.painters.resolve_policy` takes it.
        seeds: how many pictures, of the seeds 0 to ``seeds`` - 1.
        size: side of a picture; None as in :func:`paco_core.operations.paint.generate_seed_images`.
        compare_with: another policy that generates from equal noise, named like ``policy``; None for no comparison.
    """

    policy: str
    seeds: int
    size: int | None
    compare_with: str | None
    layout: str | None = None  # of a set, as :func:`paco_core.operations.prompt_records.set_record` takes it


class Studio:
    """Paints, edits and scores with the models of a project, as its parameters were at the start; for one thread."""

    def __init__(self, root: Path, params: Params, gallery: Gallery, *, metadata: bool = True) -> None:
        self.root, self.params, self.gallery, self._metadata = root, params, gallery, metadata
        self._policy: Policy | None = None
        self._holds: tuple[str, tuple[object, ...] | None] = ("", None)  # recipe's model, and the adapter on it
        self._judge: Scorer | None = None
        self._judges: tuple[object, ...] = ()  # the version of the judge that is loaded
        self._leases = ExitStack()
        self._placed = False

    def close(self) -> None:
        """Give the GPU back."""
        self._leases.close()

    def paint(self, theme: str, panels: Sequence[str], options: StudioOptions, job: Job) -> dict[str, Any]:
        """Sets of a theme, each with its consistency.

        Raises:
            DataError: when the panels cannot be put into a prompt, or there is no such policy.
        """
        painters = self._painters(options, SETS)
        record = prompt_records.set_record(
            theme, panels, options.size or max(painters[-1].recipe.eval_sizes), options.layout
        )
        return self._generate(painters, record, options, job)

    def edit(self, pictures: Sequence[str], instruction: str, options: StudioOptions, job: Job) -> dict[str, Any]:
        """Edits of the first of some pictures of the gallery, each with its editing reward.

        Raises:
            DataError: when there is no such policy, it takes fewer pictures, or one is no longer kept.
        """
        references = [self.gallery.image(name) for name in pictures]
        painters = self._painters(options, EDITS)
        record = prompt_records.edit_record(instruction, references, *(by.recipe.family for by in painters))
        return {**self._generate(painters, record, options, job, references), "references": list(pictures)}

    def plan_story(
        self, panels: Sequence[str], characters: Mapping[str, Sequence[str]], theme: str | None, options: StudioOptions
    ) -> tuple[list[NamedPolicy], PromptRecord]:
        """The policies and the record of :meth:`story`. Loads no model.

        Args:
            characters: names of pictures of the gallery for each character. The record contains them with at most
                :data:`CHARACTER_PIXELS` pixels, because decoded images stay in memory.

        Raises:
            DataError: as :func:`paco_core.operations.stories.story_record`, or if there is no such policy.
        """
        policies = self._painters(options, SETS, story_params(self.params))
        images = {
            name: [limit_pixels(self.gallery.image(picture), CHARACTER_PIXELS) for picture in pictures]
            for name, pictures in characters.items()
        }
        return policies, story_record(panels, images, policies[-1].recipe, theme)

    def story(
        self, policies: Sequence[NamedPolicy], record: PromptRecord, options: StudioOptions, job: Job
    ) -> dict[str, Any]:
        """Stories of :meth:`plan_story`, with the agreement of each panel and character."""
        return self._generate(policies, record, options, job)

    def score(self, names: Sequence[str], theme: str | None, reasons: bool, job: Job) -> dict[str, Any]:
        """How consistent pictures of the gallery are, pair by pair, and why the judge says so.

        Raises:
            DataError: when there is no judge, or a picture is no longer kept.
        """
        pictures = [self.gallery.image(name) for name in names]
        judge = self._judge_of(job)
        if judge is None:
            raise DataError("there is no reward model yet: run `dvc repro reward_merged` first")
        pairs = list(combinations(range(len(pictures)), 2))
        job.step("comparing the pictures", len(pairs) * (2 if reasons else 1))
        rows: list[dict[str, Any]] = []
        for first, second in pairs:
            query = PairQuery(pictures[first], pictures[second], question(theme))
            (score,) = judge.score([query])
            job.advance()
            why = None
            if reasons:
                why = None if score.failed else _reasons(judge, query)
                job.advance()
            rows.append({"first": first, "second": second, **_score_row(score), "reasons": why})
            job.show({"pictures": list(names), "theme": theme, "pairs": list(rows), "mean": None})
        scores = [row["score"] for row in rows if row["score"] is not None]
        mean = fmean(scores) if len(scores) == len(rows) else None  # of the rest it would depend on which pairs failed
        return {"pictures": list(names), "theme": theme, "pairs": rows, "mean": mean}

    def _painters(self, options: StudioOptions, task: Task, params: Params | None = None) -> list[NamedPolicy]:
        """Who paints: the one to compare with, where there is one, then the chosen one.

        Args:
            params: has the recipes to choose from; None = the parameters of the project.
        """
        names = dict.fromkeys(name for name in (options.compare_with, options.policy) if name is not None)
        policies = [painters.resolve_policy(self.root, params or self.params, name, task) for name in names]
        return [  # the last one is the chosen policy, and ``base`` is the model of its recipe
            replace(by, name=painters.BASE, recipe=policies[-1].recipe) if name == painters.BASE else by
            for name, by in zip(names, policies, strict=True)
        ]

    def _generate(
        self,
        painters: Sequence[NamedPolicy],
        record: PromptRecord,
        options: StudioOptions,
        job: Job,
        references: Sequence[Image] = (),
    ) -> dict[str, Any]:
        steps = (self.params.gedit if references else self.params.t2is).steps
        result: dict[str, Any] = {
            "prompt": record.prompt, "theme": record.theme, "seeds": options.seeds, "layout": record.layout,
            "columns": parse_layout(record.layout)[1], "pictures": [], "cut": None,
            "painters": [
                {"name": by.name, "trained": by.adapter is not None, "story": by.recipe.paints_stories}
                for by in painters
            ],
        }  # fmt: skip
        job.show(result)
        for by in painters:
            policy, judge = self._policy_of(by, job), self._judge_of(job)
            models = policy_version(self.root, by.name, by.recipe, by.adapter) if self._metadata else None
            result["judge"] = judge is not None
            passes = prod(record.grid) if by.recipe.paints_stories else 1
            job.step(f"painting by {by.name}", options.seeds * steps * passes)
            with _counted(policy, job):
                # Seed by seed, so each image appears as soon as it is ready. A batch changes images by rounding only.
                for seed in range(options.seeds):
                    (generated,) = paint.generate_seed_images(
                        self.params, policy, by, record, seeds=[seed], side=options.size, steps=steps,
                        references=references, models=models,
                    )  # fmt: skip
                    row = {"by": by.name, **self._row(generated, judge, references)}
                    result = {**result, "cut": _cut(generated), "pictures": [*result["pictures"], row]}
                    job.show(result)
        return result

    def _row(self, generated: GeneratedImage, judge: Scorer | None, references: Sequence[Image]) -> dict[str, Any]:
        """A painted picture as the page shows it; without a judge it has no score, and no cause for that."""
        measure = _score_characters if generated.record.characters else _score
        score = {"score": None, "cause": None} if judge is None else measure(judge, generated, references)
        panels = [] if references else list(map(self.gallery.add, generated.panels, generated.panel_origins))
        picture = self.gallery.add(generated.image, generated.origin)
        return {
            "trained": generated.when != BEFORE, "seed": generated.seed, "picture": picture,
            "panels": panels, "width": generated.image.width, "height": generated.image.height, **score,
        }  # fmt: skip

    def _policy_of(self, by: NamedPolicy, job: Job) -> Policy:
        """The painter's policy: the one that is loaded, where it is of the same model and has no other adapter."""
        model = f"{by.recipe.model_dump_json(exclude={'panels'})} {_version(self.root / by.recipe.model)}"
        adapter = None if by.adapter is None else _version(Path(by.adapter))
        loaded_key, worn = self._holds
        if self._policy is not None and loaded_key == model and (adapter is None or worn in (None, adapter)):
            policy, self._policy = self._policy, None  # kept only where the adapter goes on it
            if by.adapter is not None and worn is None:
                policy.load_adapter(by.adapter)
                self._holds = model, adapter
            self._policy = policy
            return policy
        self._place(job)
        job.step(f"loading {painters.BASE if by.adapter is None else by.name}")
        self._policy = None
        gc.collect()  # what refers to itself in a pipeline would else keep its memory beside the next one's
        self._policy = paint.load_painter_policy(self.root, by)
        self._holds = model, adapter
        return self._policy

    def _judge_of(self, job: Job) -> Scorer | None:
        """The project's judge, as it is now; None where there is none."""
        present = _version(self.root / paths.REWARD_MERGED)
        if self._judge is None or self._judges != present:
            self._place(job)
            job.step("loading the judge")
            self._judge = None
            gc.collect()
            self._judge, self._judges = paint.load_judge(self.root, self.params), present
        return self._judge

    def _place(self, job: Job) -> None:
        """Take a GPU for policy and judge, once, until the page is closed.

        Raises:
            DataError: when none is free: it says who has them, which a page had better say at once than wait.
        """
        if self._placed:
            return
        job.step("loading")
        devices = [self.params.policies.device, self.params.reward.device]
        self._leases.enter_context(one_gpu(devices, f"play in {self.root}", self.params, _raise_no_gpu))
        self._placed = True


def _reasons(judge: Scorer, query: PairQuery) -> str:
    """What the judge says, or why it cannot: the score stands without."""
    try:
        return judge.generate_reasons([query])[0]
    except DataError as error:
        return f"(no reasons: {error})"


def _raise_no_gpu(waiting: str) -> None:
    raise DataError(f"no GPU is free now ({waiting}); try again when one is")


def _version(folder: Path) -> tuple[object, ...]:
    """Names the bytes of a model's folder, which a training may replace while the page is open.

    Holds: of each file name, inode, size and both times (as :mod:`paco_core.models.content`); nothing of a hub's model,
    which is loaded once.
    """
    return (
        str(folder),
        *(
            (str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            for path, s in read_file_stats(folder).items()
        ),
    )


@contextmanager
def _counted(policy: Policy, job: Job) -> Iterator[None]:
    """Within, each sampling step counts as one of the job, and ends it where it is cancelled."""
    velocity = policy.velocity

    def counting(*args: Any, **kwargs: Any) -> Any:
        velocity_value = velocity(*args, **kwargs)
        job.advance()
        return velocity_value

    policy.velocity = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        del policy.velocity


def _cut(generated: GeneratedImage) -> dict[str, Any] | None:
    """What the policy did not read of a prompt."""
    cut = generated.lost
    return None if cut is None else {"tokens": cut.tokens - cut.window, "of": cut.tokens, "lost": cut.lost}


class _Causes:
    """A judge that remembers why it could not answer."""

    def __init__(self, judge: Scorer) -> None:
        self._judge = judge
        self.first: str | None = None

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        scores = self._judge.score(queries)
        self.first = self.first or next((score.cause for score in scores if score.cause), None)
        return scores


def _score(judge: Scorer, generated: GeneratedImage, references: Sequence[Image]) -> dict[str, Any]:
    scorer = _Causes(judge)
    (value,) = paint.scored(scorer, [generated], references)
    return _value_row(value, scorer)


def _score_characters(judge: Scorer, generated: GeneratedImage, _references: Sequence[Image]) -> dict[str, Any]:
    """The agreement of each panel with each character that its text names, and the mean of these values."""
    scorer = _Causes(judge)
    (panels,) = paint.panel_agreements(scorer, [generated])
    values = [value for panel in panels for value in panel.values()]
    agreements = [
        [{"character": name, **_value_row(value, scorer)} for name, value in panel.items()] for panel in panels
    ]
    return {**_value_row(fmean(values), scorer), "agreements": agreements}


def _value_row(value: float, scorer: _Causes) -> dict[str, Any]:
    return {"score": None, "cause": scorer.first} if math.isnan(value) else _score_row(Score(value))


def _score_row(score: Score) -> dict[str, Any]:
    return {"score": None if score.failed else round(score.value, 4), "cause": score.cause}
