"""Models and files that a run would read: the parameters of the stages that do something."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from dvc_project.project import ResolvedStage
from paco_core.config.params import PARAMS_FILE, Params
from paco_core.config.references import Reference, references
from paco_core.io.paths import in_round
from paco_core.models.hub import cached_snapshot, is_offline
from paco_core.runtime.stage import Stage


def read_references(params: Params, graph: Iterable[ResolvedStage], stages: Mapping[str, Stage]) -> Iterator[Reference]:
    """References of the parameters that a stage would read.

    ``dvc.yaml`` lists the parameters of each stage. A stage that does nothing (``Stage.skipped``) reads none of them.

    Args:
        graph: the stages of ``dvc.yaml``.
        stages: their declarations, by name. A stage without a declaration reads all its parameters.
    """
    readers = [reader for stage in graph if (reader := _reader(stage, params, stages)) is not None]
    for reference in references(params):
        if any(_covers(keys, reference.key) and reference.key not in unread for keys, unread in readers):
            yield reference


def _reader(
    stage: ResolvedStage, params: Params, stages: Mapping[str, Stage]
) -> tuple[tuple[str, ...], frozenset[str]] | None:
    """The keys of a stage's parameters, and those of them that it does not read; None if it does nothing."""
    keys = stage.params.get(PARAMS_FILE)
    if keys is None:
        return None
    declaration = stages.get(in_round(stage.group) or stage.group, Stage())
    if declaration.skipped(params) is not None:
        return None
    return keys, frozenset(declaration.unread(params))


def _covers(keys: tuple[str, ...], key: str) -> bool:
    """Whether ``key`` is one of a stage's parameters, or part of one. Without keys, it depends on the complete file."""
    return not keys or any(key == section or key.startswith(f"{section}.") for section in keys)


def parts_in_files(params: Params) -> dict[str, Collection[str]]:
    """Models whose transformer is not read because the recipes name another file of weights: model -> skipped parts."""
    recipes = params.policies.recipes.values()
    complete = {recipe.model for recipe in recipes if recipe.transformer is None} | {params.grids.model}
    return {recipe.model: ("transformer",) for recipe in recipes if recipe.model not in complete}


def describe_references(
    read: Iterable[Reference], root: Path, skipped: Mapping[str, Collection[str]] | None = None
) -> tuple[list[str], list[str]]:
    """(remarks, problems) about models and files: what is missing, and what will be downloaded.

    Args:
        skipped: parts of models that are not read (:func:`parts_in_files`).
    """
    remarks, problems, skipped = [], [], skipped or {}
    for reference in read:
        if (fault := reference.fault(root)) is not None:
            problems.append(f"{reference.key}: {fault}")
        elif not reference.is_of_hub(root) or cached_snapshot(reference.value, skipped.get(reference.value, ())):
            continue
        elif is_offline():
            problems.append(
                f"{reference.key}: {reference.value} is neither a folder here nor complete in the hub's cache, and "
                "HF_HUB_OFFLINE forbids a download; unset it, or copy the repository into the cache"
            )
        else:
            remarks.append(f"{reference.key}: {reference.value} is not a folder here; it will be loaded from a hub")
    return remarks, problems
