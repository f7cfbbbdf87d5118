"""``paco check``: would the graph run here? Parameters, models, disk and memory, and the cost of each stage."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from dvc_project.lockfile import Entry
from dvc_project.project import DvcProject
from dvc_project.project import ResolvedStage as GraphStage
from dvc_project.state import ProjectState
from paco_core.config import profiles
from paco_core.config.graph_keys import validate_version
from paco_core.config.params import PARAMS_FILE, ChatParams, Params, load, read_text, tree_of
from paco_core.config.references import ADAPTER, NETWORK, layout_fault
from paco_core.data.annotation import answer_file
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.text_table import text_table
from paco_core.planning import placement
from paco_core.planning.amounts import has_pairs
from paco_core.planning.costs import stage_costs
from paco_core.planning.cut_texts import cut_texts
from paco_core.planning.disk import disk_needs, disk_problems
from paco_core.planning.planned_prompts import list_unusable_rows, plan_prompts_or_empty
from paco_core.planning.read_references import describe_references, parts_in_files, read_references
from paco_core.planning.stage_problems import stage_problems
from paco_core.policies.families import is_distilled
from paco_core.runtime.code.stage_code import present_code, valid_code
from paco_core.runtime.stage import Cost, Stage
from paco_core.runtime.torchvision_build import torchvision_problem
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of, task_of

SHOWN_CHANGES = 3
NO_CUDA = "libcuda_not_installed.so"  # tools/cuda_stubs.py writes it where `make setup` leaves CUDA out


@dataclass
class Preflight:
    """Result of ``paco check``. Problems stop a run; remarks do not."""

    profile: str
    costs: dict[str, Cost]  # of what would run
    up_to_date: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems

    def text(self) -> str:
        """The report as plain text, one line per stage."""
        rows = []
        lines = [f"profile {self.profile}: {self._summary()}"]
        for label, cost in self.costs.items():
            time = "time not measured" if cost.seconds is None else f"about {_duration(cost.seconds)}"
            tail = f" ({cost.note})" if cost.note else ""
            rows.append((label, f"{cost.work}; {cost.memory_gb:.1f} GB on {cost.device}, {time}{tail}"))
        lines += text_table(rows, indent="  ")
        measured = [cost.seconds for cost in self.costs.values() if cost.seconds is not None]
        if measured and len(measured) == len(self.costs):
            lines.append(f"  in all about {_duration(sum(measured))} one after another; `make demo` runs two at a time")
        lines += [f"remark: {remark}" for remark in self.remarks]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append("check passed" if self.passed else f"check failed: {len(self.problems)} problem(s)")
        return "\n".join(lines)

    def _summary(self) -> str:
        if not self.up_to_date:
            return "what each stage would do"
        if not self.costs:
            return "nothing would run, all stages are up to date"
        return f"{len(self.up_to_date)} stages are up to date; what the others would do, at most {len(self.costs)}"


def _duration(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def memory_gb() -> float:
    """Memory of this machine, or the limit of this container, in GB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        return min(total, int(text) / 1e9)
    return total


def _endpoints(params: Params) -> dict[str, ChatParams]:
    """Key in params.yaml -> chat endpoint in use."""
    endpoints = {}
    if params.prompts.engine == "openai" and params.prompts.endpoint:
        endpoints["prompts.endpoint"] = params.prompts.endpoint
    if params.annotations.source == "judge" and params.annotations.endpoint:
        endpoints["annotations.endpoint"] = params.annotations.endpoint
    if params.cot_labels.engine == "openai" and params.cot_labels.endpoint:
        endpoints["cot_labels.endpoint"] = params.cot_labels.endpoint
    return endpoints


def _missing_inputs(params: Params, root: Path) -> list[str]:
    """Problems of inputs that are not models, files or folders: answers of people, keys of endpoints."""
    problems = []
    if params.annotations.source == "people":
        try:
            answer_file.read_answers(root)
        except DataError as error:
            problems.append(f"annotations.source people: {error}")
    readers = {"annotations.model": params.annotations.source == "recogniser" and not params.annotations.model}
    readers["cot_labels.model"] = params.cot_labels.engine == "storybook" and not params.cot_labels.model
    problems += [f"{key}: null; name the recogniser's folder" for key, lost in readers.items() if lost]
    layout = {"merged": NETWORK, "adapter": ADAPTER}.get(params.reward.source)
    if layout and (fault := layout_fault(root, str(params.reward.weights), layout)):
        problems.append(f"reward.weights: {fault}")
    return problems + [
        f"{name}: the environment variable {endpoint.api_key_env} holds no key for {endpoint.base_url}"
        for name, endpoint in _endpoints(params).items()
        if endpoint.api_key_env and not os.environ.get(endpoint.api_key_env)
    ]


def _nothing_to_train_on(params: Params) -> list[str]:
    """Problem of a reward model that has no training pairs."""
    if params.reward.source != "train" or has_pairs(params):
        return []
    return [
        "reward.source train: there is nothing to train on; rank grids (grids.seeds, annotations.source), name a "
        "folder of pairs (pairs.imported), or use published weights (reward.source: merged or adapter)"
    ]


def _untrainable(params: Params) -> list[str]:
    """Remarks about recipes without prompts."""
    lacking = recipes_of(EDITS, params.policies) if params.edit_prompts.source == "none" else {}
    if params.prompts.engine == "none":
        lacking |= {n: recipe for n, recipe in recipes_of(SETS, params.policies).items() if recipe.prompts is None}
    return [f"policies.recipes.{name}: cannot be trained: there are no prompts for it" for name in lacking]


def _distilled(params: Params, root: Path) -> list[str]:
    """Remarks about recipes that train a distilled model, which NFT and GRPO blur."""
    return [
        f"policies.recipes.{name}: {recipe.model} is distilled to a few steps, and training blurs such weights; train "
        "the base model, whose adapter the distilled one loads" + UNGUIDED * (recipe.guidance > 1)
        for name, recipe in params.policies.recipes.items()
        if is_distilled(root, recipe.model)
    ]


UNGUIDED = " (it also needs no guidance: set it to 1)"


def _graph_without_recipe(params: Params, declared: Set[str], graph: Mapping[str, GraphStage]) -> list[str]:
    """Recipes of params.yaml that dvc.yaml does not train, or whose benchmark does not read them.

    Args:
        declared: names of the recipes, and of those that are null: the graph has these, and trains nothing.
    """
    trained = {stage.item for stage in graph.values() if stage.group == paths.POLICIES.name}
    problems = []
    for name, recipe in params.policies.recipes.items() if trained else ():
        benchmark = graph.get(task_of(recipe).benchmark)
        if name not in trained:
            problems.append(
                f"policies.recipes.{name}: not in dvc.yaml; add it to `foreach` of policies, with its prompts and what "
                "it is judged_by"
            )
        elif benchmark and not {(paths.POLICIES / name).as_posix(), paths.POLICIES.as_posix()} & set(benchmark.deps):
            problems.append(
                f"policies.recipes.{name}: {benchmark.name} in dvc.yaml does not read it; add data/policies/{name} to "
                f"its deps and policies.recipes.{name} to its params"
            )
    return problems + [
        f"dvc.yaml: policies trains {name}, which policies.recipes does not have; take it out of `foreach`, or set the "
        "recipe to null"
        for name in sorted(str(item) for item in trained - declared)
    ]


def _unlisted_sections(graph: Mapping[str, GraphStage]) -> list[str]:
    """Stages whose section dvc.yaml does not list: a change of it would run nothing again, and nobody would notice."""
    return [
        f"dvc.yaml, {name}: its section of params.yaml is not among its params, so a change of it would run nothing; "
        f"add `params: [{name}]`"
        for name, stage in {stage.group: stage for stage in graph.values()}.items()
        if name in Params.model_fields
        and not any(not keys or name in (key.split(".")[0] for key in keys) for keys in stage.params.values())
    ]


def _declared(root: Path, profile: str | None) -> set[str]:
    """Names below ``policies.recipes``, as the parameters spell them."""
    path = root / PARAMS_FILE
    tree = tree_of(read_text(path), path) if profile is None else profiles.resolve(root, profile)
    return set(tree["policies"]["recipes"])


def _up_to_date(state: ProjectState, labels: Iterable[str]) -> list[str]:
    """Labels of the stages that no run of the graph would run; a label may stand for all items of a stage."""
    pending, names = state.to_run(), defaultdict[str, set[str]](set)
    for stage in state.project.stages.values():
        for label in {stage.name, stage.group}:
            names[label].add(stage.name)
    return [label for label in labels if names[label] and not pending & names[label]]


def _changed_code(project: DvcProject, lock: Mapping[str, Entry]) -> list[str]:
    """Which module, library, file or default has changed since each stage ran.

    Raises:
        DataError: when a source file is invalid.
    """
    derived, remarks = project.derived, []
    if not derived.md5s:
        derived = valid_code(project.root)
    for entry in lock.values():
        for path, md5 in entry.inputs.deps.items():
            changes = derived.changes(path, md5) if derived.md5s.get(path, md5) != md5 else []
            if changes:
                tail = f" and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
                remarks.append(f"{entry.stage} will run again: {'; '.join(changes[:SHOWN_CHANGES])}{tail}")
    return remarks


def _lost_outs(root: Path, entries: Iterable[Entry]) -> list[str]:
    """Outs that ``dvc.lock`` records and that are not here; a stage that reads one would stop."""
    return [
        f"{out}: recorded in dvc.lock, but not here; `dvc checkout {out}` restores it from the cache, "
        f"or `dvc repro {entry.stage}` makes it again"
        for entry in entries
        for out in entry.outs
        if not (root / out).exists()
    ]


def check_project(root: Path, stages: Mapping[str, Stage], profile: str | None = None) -> Preflight:
    """Check a project against ``params.yaml``, or against a profile that is not in use.

    Raises:
        ParamsError: when the parameters are invalid or of another version than ``dvc.yaml``, or no profile is called so
            (there is nothing to check then).
    """
    validate_version(root)
    params = load(root / PARAMS_FILE) if profile is None else profiles.read(root, profile)
    costs, state = stage_costs(stages, params, root), ProjectState(DvcProject(root, present_code))
    current = _up_to_date(state, costs) if profile is None else []
    report = Preflight(params.profile, {label: cost for label, cost in costs.items() if label not in current}, current)
    if (problem := torchvision_problem()) is not None:
        report.problems.append(f"{problem} (nothing else is checked before)")
        return report
    graph = state.project.stages
    read = list(read_references(params, graph.values(), stages))
    report.remarks, report.problems = describe_references(read, root, parts_in_files(params))
    report.problems += (
        _missing_inputs(params, root) + stage_problems(params, root, stages) + _nothing_to_train_on(params)
    )
    report.remarks += _untrainable(params) + _distilled(params, root) + list_unusable_rows(params, root)
    report.remarks += cut_texts(params, root, plan_prompts_or_empty(params, root))
    report.problems += _graph_without_recipe(params, _declared(root, profile), graph) + _unlisted_sections(graph)
    report.remarks += _lost_outs(root, state.lock.values()) + (
        _changed_code(state.project, state.lock) if profile is None else []
    )
    report.problems += disk_problems(disk_needs(params, read, report.costs, root), root)
    on_cpu = sorted(cost.memory_gb for cost in report.costs.values() if cost.device == "cpu")
    if on_cpu and on_cpu[-1] > memory_gb():
        report.problems.append(f"memory: {memory_gb():.1f} GB, the largest stage needs about {on_cpu[-1]:.1f} GB")
    elif sum(on_cpu[-2:]) > memory_gb():
        report.remarks.append(
            f"memory: {memory_gb():.1f} GB; two stages at a time may need {sum(on_cpu[-2:]):.1f} GB; `dvc repro` and "
            "`make demo JOBS=1` run one"
        )
    remarks, problems = placement.described(params, root, stages, report.costs)
    report.remarks += remarks
    report.problems += problems
    if any(cost.device.startswith("cuda") for cost in report.costs.values()):
        import torch

        if not torch.cuda.is_available():
            report.problems.append("device cuda: no GPU is visible to PyTorch here")
        if (Path(torch.__file__).parent / "lib" / NO_CUDA).is_file():
            report.problems.append("device cuda: this environment was made without CUDA; `make setup GPU=1` adds it")
    if params.serving.engine == "vllm" and not (root / (params.serving.python or ".venv-vllm/bin/python")).is_file():
        report.problems.append("serving.engine vllm: its environment is missing; build it with `make vllm`")
    return report
