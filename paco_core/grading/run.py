"""Comparison of adapters, from files to the page: `paco grade`, and ``from paco_core import grade``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvc_project.file_locks import hold
from paco_core.api.judge_model import LocalModel, judge_model
from paco_core.config.params import PARAMS_FILE, load
from paco_core.config.references import model_at
from paco_core.grading import page
from paco_core.grading.base_model import graded_base, recipes_for
from paco_core.grading.candidates import find_candidates, project_candidates
from paco_core.grading.comparison import Comparison, compare_adapters
from paco_core.grading.images import Generation, ImageFolder
from paco_core.grading.measures import CachedScorer, Measuring, SubjectImages
from paco_core.grading.prompts import graded_prompts, without_trigger
from paco_core.grpo.metrics import FEWEST_GROUPS
from paco_core.io import paths
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.files import DataError, write_json, write_text
from paco_core.io.pictures import list_pictures
from paco_core.io.progress import Progress
from paco_core.io.project import find_root
from paco_core.io.targets import checked
from paco_core.models.open_clip import OpenClip
from paco_core.models.precision import release_gpu_memory
from paco_core.operations.promotion.measuring import unseen_by_all
from paco_core.policies.encodings import cache_folder
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.tracking import open_run
from paco_core.serving.cache import ScoreCache
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.api.judge_model import RemoteModel
    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grading.base_model import GradedBase
    from paco_core.grading.candidates import Candidate

FOLDER, PAGE, JSON = Path("graded"), "grade.html", "grade.json"
CLIP = "hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K"  # outside of a project
HELD_OUT = 24  # prompts of the project, if there are no others
ABOUT = "Adapters compared by `paco grade`: one metric per adapter and measure."
log = logging.getLogger("paco.grade")


@dataclass(frozen=True)
class Grades:
    """The result of :func:`grade`.

    Attributes:
        comparison: adapters from the highest main measure to the lowest.
        unreadable: why adapters were left out, by name.
        remarks: other properties of the comparison, for example prompts without the trigger.
        figures: the content of ``grade.json``.
        folder: contains ``grade.html``, ``grade.json`` and the images.
        run_url: page of the run in MLflow; None outside of a project.
    """

    comparison: Comparison
    unreadable: Mapping[str, str]
    remarks: Sequence[str]
    figures: Mapping[str, Any]
    folder: Path
    run_url: str | None

    @property
    def best(self) -> str:
        """Name of the best adapter."""
        return self.comparison.best

    def answer(self) -> Answer:
        """The table, and the content of ``grade.json``."""
        lines = [page.terminal_text(self.comparison, self.unreadable, self.remarks), f"page: {self.folder / PAGE}"]
        lines += [] if self.run_url is None else [f"run: {self.run_url}"]
        return Answer("\n".join(lines), {**self.figures, "page": self.folder / PAGE, "run": self.run_url})


def grade(  # noqa: PLR0913 - the options of `paco grade`
    adapters: Sequence[str | Path] = (),
    *,
    model: str | None = None,
    trigger: str | None = None,
    images: Path | None = None,
    prompts: Path | None = None,
    seeds: int = 2,
    size: int | None = None,
    steps: int | None = None,
    reward: str | None = None,
    clip: str | None = None,
    out: Path = FOLDER,
    project: Path | None = None,
    on_line: Callable[[str], None] = log.info,
) -> Grades:
    """Compare adapters. Each adapter and the base model generate the same prompts from the same noise.

    What a killed call has generated and scored is in ``out``. The next call with the same arguments resumes.

    Args:
        adapters: files, folders and hub ids, as of :func:`paco_core.grading.candidates.find_candidates`; none = the
            trained recipes of the project, and their checkpoints.
        model: base model: a recipe of the project, a folder or a hub id; None = that of the first recipe.
        trigger: word or words for the subject in the prompts.
        images: folder of images of the subject. They decide which adapter is best (``identity``); without them, the
            consistency of images of one prompt does.
        prompts: T2IS records, or a text file with one prompt per line; None = twelve built-in prompts with the trigger,
            or without one, held-out prompts of the project.
        seeds: number of seeds, from seed 0.
        size: side of an image with one panel or 2x2 panels, in pixels.
        steps: sampling steps.
        reward: reward model, as of :class:`paco_core.Judge`.
        clip: CLIP model for the text following.
        out: folder of the page, of ``grade.json`` and of the images.
        project: root of the project; None = the one around the working folder, if there is one.
        on_line: is called with progress and warnings.

    Raises:
        DataError: when an input is missing or invalid, no adapter can be read, or another process writes to ``out``.
    """
    root = project or find_root()
    params = load(root / PARAMS_FILE) if root is not None else None
    base = graded_base(root, params, model)
    base = replace(base, size=size or base.size, steps=steps or base.steps)
    with _exclusive(out):
        recipes = {} if root is None or params is None else _trained(root, recipes_for(root, params, model))
        candidates = _candidates(root, adapters, recipes, out)
        records = _records(root, params, prompts, trigger, base, list(recipes))
        if images is not None:
            list_pictures(images)  # a folder without images is an error now
        elif seeds < 2 and any(record.layout == "1x1" for record in records):
            raise DataError("seeds: 1: images of one prompt are compared; choose 2 or more, or add --images FOLDER")
        judge = _reward_model(root, reward)
        devices = [base.device, judge.device if isinstance(judge, LocalModel) else "cpu"]
        with nullcontext() if root is None or params is None else one_gpu(devices, f"grade in {root}", params, on_line):
            encodings = out / "encodings" if root is None else cache_folder(root)
            generation = Generation(base, records, range(seeds), out / "images", encodings)
            base_images, folders, unreadable = generation.run(candidates, on_line)
            release_gpu_memory(base.device)
            references = None if images is None else SubjectImages.from_folder(images, on_line)
            measuring = Measuring(
                CachedScorer(judge, ScoreCache(out / "scores.db")), _clip(root, params, clip, base.device), references,
                trigger,
            )  # fmt: skip
            tables = _measure(measuring, base_images, folders, on_line)
        comparison = compare_adapters([c for c in candidates if c.name in folders], tables, base_images.name)
        remarks = _remarks(records, trigger, references, measuring.scorer)
        figures = to_jsonable(page.comparison_json(comparison, folders, unreadable, remarks))
        write_json(out / JSON, figures)
        write_text(out / PAGE, page.grade_page(comparison, base_images, folders, unreadable, remarks))
        url = None if root is None or params is None else _track(root, params, comparison, base, out)
    return Grades(comparison, unreadable, remarks, figures, out, url)


@contextmanager
def _exclusive(out: Path) -> Iterator[None]:
    """Be the only comparison that writes to a folder."""
    checked(out, "folder")
    try:
        lock = hold(out / "grade.lock")
    except BlockingIOError:
        raise DataError(f"{out}: another `paco grade` writes there; wait, or name another folder with --out") from None
    with lock:
        yield


def _trained(root: Path, recipes: Mapping[str, PolicyRecipe]) -> dict[str, PolicyRecipe]:
    return {name: recipe for name, recipe in recipes.items() if (root / paths.POLICIES / name).is_dir()}


def _candidates(
    root: Path | None, adapters: Sequence[str | Path], recipes: Mapping[str, PolicyRecipe], out: Path
) -> list[Candidate]:
    if adapters:
        return find_candidates(adapters)
    if root is None:
        raise DataError("name the adapters to compare: files, folders or OWNER/NAME")
    if not recipes:
        raise DataError("no recipe of this base model is trained; run `dvc repro policies`, or name adapters")
    return project_candidates(root, recipes, out / "checkpoints")


def _records(
    root: Path | None,
    params: Params | None,
    prompts: Path | None,
    trigger: str | None,
    base: GradedBase,
    recipes: Sequence[str],
) -> list[PromptRecord]:
    """The prompts; held-out prompts of the project's benchmark if there is neither a file nor a trigger."""
    if prompts is None and not trigger and root is not None and params is not None and recipes:
        folders = [root / paths.POLICIES / name for name in recipes]
        return list(unseen_by_all(root, params, recipes[0], folders).records[:HELD_OUT])
    return graded_prompts(prompts, trigger, base.size)


def _reward_model(root: Path | None, reward: str | None) -> LocalModel | RemoteModel:
    if reward is None and (root is None or not (root / paths.REWARD_MERGED).is_dir()):
        raise DataError(
            "there is no reward model here; name one: --reward FOLDER, OWNER/NAME on the hub, or http://HOST:PORT"
        )
    return judge_model(reward, project=root)


def _clip(root: Path | None, params: Params | None, clip: str | None, device: str) -> OpenClip:
    """The CLIP model: that of a recipe's reward, if none is named."""
    recipes = {} if params is None else recipes_of(SETS, params.policies)
    terms = [recipe.rewards.terms.get("clip_t") for recipe in recipes.values()]
    model = clip or next((term.model for term in terms if term is not None and term.model), CLIP)
    return OpenClip(str(model_at(root or Path(), model, "--clip")), device, half_on_gpu=True)


def _measure(
    measuring: Measuring, base: ImageFolder, folders: Mapping[str, ImageFolder], on_line: Callable[[str], None]
) -> dict[str, pd.DataFrame]:
    """The measures of the base model and of each adapter, by name."""
    measured, base_images = [base, *folders.values()], [image for r in base.records for image in base.images(r)]
    with Progress(sum(map(measuring.count_queries, measured)), "score", "pairs", on_line) as progress:
        return {folder.name: measuring.measure(folder, base_images, progress.advance) for folder in measured}


def _remarks(
    records: Sequence[PromptRecord], trigger: str | None, references: SubjectImages | None, scorer: CachedScorer
) -> list[str]:
    remarks = [f"{count} pairs have no score: {cause}" for cause, count in scorer.causes.items()]
    if trigger and (missing := without_trigger(records, trigger)):
        remarks.append(f"{len(missing)} of {len(records)} prompts do not contain the trigger {trigger!r}")
    if len(records) < FEWEST_GROUPS:
        remarks.append(f"{len(records)} prompts: no intervals, at least {FEWEST_GROUPS} are needed")
    if references is not None and references.unreadable:
        remarks.append(f"{references.unreadable} of the images of the subject cannot be read")
    if references is not None and len(references.thumbnails) == 1:
        remarks.append("one image of the subject: the identity is likeness to this image")
    return remarks


def _track(root: Path, params: Params, comparison: Comparison, base: GradedBase, out: Path) -> str | None:
    """Log the table as a run of MLflow; its page."""
    settings = {**base.settings, "model": str(base.model), "main": comparison.main, "prompts": comparison.prompts}
    with open_run(root, "paco/grade", f"grade/{out.name}", {"profile": params.profile}, about=ABOUT) as tracker:
        tracker.params(settings)
        tracker.tags({"paco.grade.best": comparison.best})
        for adapter in comparison.adapters:
            prefix = re.sub(r"[^\w./ -]", "_", adapter.candidate.name)
            tracker.metrics({f"{prefix}/{name}": value.mean for name, value in adapter.measures.items()})
            tracker.metrics(adapter.difference.metrics(f"{prefix}/difference_to_best"))
        for name in (JSON, PAGE):
            tracker.artifact(out / name)
        return tracker.url
