"""Pictures for a person, by a policy of the project: sets from a prompt, edits of a picture, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.painted import AFTER, BEFORE, Painted
from paco_core.benchmarks.painting import paint
from paco_core.data.records import prompt_text
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord, validated
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.operations.promotion.champions import ALIASES, Champions, adapter_of
from paco_core.policies.base import load_recipe
from paco_core.reward_model.scorer import Scorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency
from paco_core.rewards.editing import Editing
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.policies.base import Policy
    from paco_core.reward_model.yes_probability import PairScorer
    from paco_core.tasks.base import Task

BASE = "base"
DEFAULT_LAYOUTS = {4: "2x2", 6: "2x3", 8: "2x4"}  # of composed prompts of so many panels; others stand in one row


@dataclass(frozen=True)
class NamedPolicy:
    """A recipe, and the adapter that its training left, or one from elsewhere; None is the model before training."""

    name: str
    recipe: PolicyRecipe
    adapter: Path | str | None  # a hub id is a str


def painter(root: Path, params: Params, name: str | None, task: Task) -> NamedPolicy:
    """The painter that a name, or the folder of an adapter, stands for.

    Args:
        name: as of :func:`named`; or the folder, the file or the hub id (OWNER/NAME) of an adapter for the model of the
            task's first recipe; None is that recipe.

    Raises:
        DataError: as :func:`named`.
    """
    recipes = _recipes(params, task)
    if name is not None and name != BASE and (Path(name).exists() or (name.count("/") == 1 and name[0] not in "./~")):
        path = Path(name)
        found = _adapter(path) if path.is_dir() else path if path.exists() else name
        return NamedPolicy(path.name.removesuffix(".safetensors"), next(iter(recipes.values())), found)
    return named(root, params, name or next(iter(recipes)), task)


def named(root: Path, params: Params, name: str, task: Task) -> NamedPolicy:
    """The painter of a name; no name leads to another file.

    Args:
        name: a recipe of ``policies.recipes``, ``RECIPE@champion`` (or ``@challenger``), or ``base``.

    Raises:
        DataError: when there is none of that name, or it was not trained yet.
    """
    recipes = _recipes(params, task)
    if name == BASE:
        first = next(iter(recipes))
        return NamedPolicy(first, recipes[first], None)
    recipe, _, alias = name.partition("@")
    if recipe not in recipes:
        raise DataError(f"{name!r} is no policy for {task.name}: choose {BASE}, {', '.join(recipes)}, or a folder")
    if not alias:
        folder = root / paths.POLICIES / recipe
        if not folder.is_dir():
            raise DataError(f"{folder}: not trained yet; run `dvc repro policies@{recipe}`, or choose {BASE}")
        return NamedPolicy(name, recipes[recipe], _adapter(folder))
    if alias not in ALIASES:
        raise DataError(f"{name!r}: the aliases are {', '.join(ALIASES)}")
    version = Champions(root).at(recipe, alias)
    if version is None:
        raise DataError(f"{recipe} has no {alias}; `paco promote {recipe}` makes one")
    return NamedPolicy(name, recipes[recipe], adapter_of(root, version))


def _recipes(params: Params, task: Task) -> dict[str, PolicyRecipe]:
    recipes = recipes_of(task, params.policies)
    if not recipes:
        raise DataError(f"no recipe of policies.recipes is for {task.name}")
    return recipes


def _adapter(folder: Path) -> Path:
    return folder / "adapter" if (folder / "adapter").is_dir() else folder


def set_record(prompt: str, panels: Sequence[str], side: int, layout: str | None = None) -> PromptRecord:
    """A set from a whole T2IS prompt, whose text marks its panels, or from a theme and the text of each panel.

    Args:
        side: of the picture, where it is square; where the panels stand in another shape, the picture has about as many
            pixels, so that they are square themselves.
        layout: rows and columns, such as ``2x3``; None is what the prompt states (its marks, or its head), and of a
            theme with panels, which states none, :func:`default_layout`.

    Raises:
        DataError: when the prompt marks no panels and none are given, or both; when its marks, its head, the panels and
            ``layout`` contradict each other; or the picture would be too large.
    """
    marks = len(prompt_text.PANEL_MARK.findall(prompt))
    if bool(marks) == bool(panels):
        raise DataError(
            "give a prompt that marks its panels ([TOP]-[LEFT]: ...), or a theme and the text of each panel (--panels)"
        )
    theme = prompt.strip()
    layout = prompt_text.layout_of(theme, layout) or default_layout(len(panels))
    if panels:
        theme = prompt_text.HEAD.sub("", theme).strip()
        parts = prompt_text.from_theme(theme, panels, layout)
    else:
        parts = prompt_text.parse(prompt, layout)
    text = str(parts)
    theme = parts.subject.removeprefix("of ") or prompt  # the judge is asked about what the set is of
    rows, columns = prompt_text.parse_layout(layout)
    return validated(PromptRecord, {
        "idx": digest([text, layout]), "prompt": text, "height": side * rows, "width": side * columns, "layout": layout,
        "theme": theme, "category": "", "task_name": "", "criteria": {},
    }, "this set")  # fmt: skip


def default_layout(panels: int) -> str:
    """How so many panels of a composed prompt stand where nobody says it; the prompt states it from then on."""
    return DEFAULT_LAYOUTS.get(panels, f"1x{panels}")


def edit_record(instruction: str, picture: Image) -> EditRecord:
    """An instruction about a picture.

    Raises:
        DataError: when the picture is too wide or too high, or there is no instruction.
    """
    return validated(EditRecord, {
        "idx": digest([instruction, picture.tobytes().hex()[:4096], picture.size]), "prompt": instruction,
        "height": picture.height, "width": picture.width, "theme": instruction, "task_name": "",
        "reference": "picture", "part": "unseen",
    }, "this picture and instruction")  # fmt: skip


def load_policy(root: Path, by: NamedPolicy, *, cache: Path | None = None) -> Policy:
    """The policy of a painter, with its adapter.

    Args:
        cache: folder below which encodings of prompts and reference pictures are remembered; None = nothing is written.
    """
    policy = load_recipe(by.recipe, root, cache=cache)
    if by.adapter is not None:
        policy.load_adapter(by.adapter)
    return policy


def pictures(
    params: Params,
    policy: Policy,
    by: NamedPolicy,
    record: PromptRecord,
    *,
    seeds: Sequence[int],
    side: int | None = None,
    steps: int | None = None,
    reference: Image | None = None,
    compare: bool = False,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Painted]:
    """One picture a seed by a painter, without noise steps; equal seeds give equal noise to every painter.

    Args:
        policy: the painter's, as :func:`load_policy` loads it.
        side: scale of the pictures; when None, the largest evaluation size of the recipe, and of an edit the one that
            is nearest to its picture.
        reference: the picture that is edited.
        compare: also by the model before training.
        advance: is called with the number of pictures just painted.
    """
    task, recipe = (SETS if reference is None else EDITS), by.recipe
    numbers = params.t2is if task is SETS else params.gedit
    found: list[Painted] = []
    for when in (BEFORE, AFTER):
        if not (compare or by.adapter is None if when == BEFORE else by.adapter is not None):
            continue
        with policy.without_adapter() if when == BEFORE else nullcontext():
            found += paint(
                policy,
                [record],
                seeds,
                side or _side(recipe, reference),
                name=by.name,
                when=when,
                steps=steps or numbers.steps,
                guidance=recipe.guidance,
                max_sequence_length=recipe.max_sequence_length,
                reference=None if reference is None else lambda _record: reference,
                record_size="aspect",
                advance=advance,
            )
    return found


def _side(recipe: PolicyRecipe, reference: Image | None) -> int:
    if reference is None:
        return max(recipe.eval_sizes)
    own = max(reference.size)
    return min(recipe.eval_sizes, key=lambda side: abs(side - own))


def load_judge(root: Path, params: Params) -> Scorer | None:
    """The project's reward model; None where there is none yet."""
    folder = root / paths.REWARD_MERGED
    return Scorer.configured(folder, params.reward) if folder.is_dir() else None


def scored(scorer: PairScorer, painted: Sequence[Painted], reference: Image | None = None) -> list[float]:
    """Consistency of each set, or editing reward of each edit, by a reward model; NaN where it could not judge."""
    records, images = [p.record for p in painted], [p.image for p in painted]
    if reference is None:
        return [float(value) for value in Consistency(scorer)(RewardBatch(records, [p.panels for p in painted]))]
    batch = RewardBatch(records, [[image] for image in images], images, [reference] * len(images))
    return [float(value) for value in Editing(scorer)(batch)]
