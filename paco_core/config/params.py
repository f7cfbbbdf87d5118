"""Typed view of ``params.yaml``: every number of the pipeline, checked when it is read.

The file is the one place for numbers; this module knows their names, types and bounds. An unknown
key is an error that names the nearest valid one, so that a typo never trains the wrong thing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from dvc_project.yaml import parse_yaml
from paco_core.config.execution import EXECUTION, EXECUTION_ONLY, REMOVED, earlier_places, has, moved, places
from paco_core.config.params_base import (
    DISTINCT,
    AboveZero,
    ChatParams,
    LoraParams,
    Natural,
    PolicyLora,
    Positive,
    Section,
    TimeZone,
)
from paco_core.config.params_benchmarks import (
    ConsistencyRankParams,
    EditRewardParams,
    GeditParams,
    T2isBenchParams,
    T2isParams,
    VistoryParams,
)
from paco_core.config.params_characters import CharacterKind, CharacterPairsParams
from paco_core.config.params_data import (
    AnnotationsParams,
    DiverseParams,
    GridsParams,
    PairsParams,
    PromptsParams,
    ReasonsParams,
)
from paco_core.config.params_edits import EditingParams, EditPainter, EditPromptsParams, EditQuestion, EditsParams
from paco_core.config.params_losses import EarlyStop, HackMeter
from paco_core.config.params_policies import PoliciesParams, PolicyRecipe
from paco_core.config.params_reward import RewardParams, ServingParams
from paco_core.config.params_rewards import HttpScorer, RewardSet, RewardTerm, Rubric
from paco_core.config.params_rounds import RoundsParams
from paco_core.config.params_training import PolicyTraining
from paco_core.io.files import DataError
from paco_core.io.messages import nearest
from paco_core.io.validation import message

__all__ = [
    "AnnotationsParams",
    "CharacterKind",
    "CharacterPairsParams",
    "ChatParams",
    "EarlyStop",
    "EditPainter",
    "EditPromptsParams",
    "EditQuestion",
    "EditingParams",
    "EditsParams",
    "GridsParams",
    "HackMeter",
    "HttpScorer",
    "LoraParams",
    "PairsParams",
    "Params",
    "PoliciesParams",
    "PolicyLora",
    "PolicyRecipe",
    "PolicyTraining",
    "PromptsParams",
    "ReasonsParams",
    "RewardParams",
    "RewardSet",
    "RewardTerm",
    "Rubric",
    "ServingParams",
    "load",
]

PARAMS_FILE = "params.yaml"


class ParamsError(ValueError):
    """``params.yaml`` does not describe a valid pipeline; the text names each key and what is wrong."""


class OtherVersionError(ParamsError):
    """``params.yaml``, ``dvc.yaml`` and the library are of different versions; the text names keys and the remedy."""


class DevicesParams(Section):
    """How the GPUs of this machine are shared out; no result depends on it."""

    gpus: list[Natural] | None = None
    """Indices of the GPUs to use, in this order. `null` uses all visible GPUs."""
    servers: Natural | None = None
    """Number of GPUs at the end of `gpus` that are only for reward servers. `null` uses as many GPUs as one server
    needs, if at least one GPU remains for training."""
    memory_gb: AboveZero | None = None
    """Memory per GPU in GB, with which `paco check` calculates. `null` reads the memory with nvidia-smi."""


class Params(Section):
    profile: str
    """Name of the profile in reports and MLflow runs."""
    world: Literal["storybook", "real"]
    """Kind of images: `storybook` for images of the embedded world, which its recogniser can label, `real` for all
    other images."""
    threads: Annotated[Positive, EXECUTION_ONLY]
    """CPU threads per stage."""
    time_zone: Annotated[TimeZone, EXECUTION_ONLY] = "UTC"
    """Time zone of the schedules, for example Europe/Berlin."""
    devices: Annotated[DevicesParams, EXECUTION_ONLY] = Field(default_factory=DevicesParams)
    checkpoints_gb: Annotated[AboveZero, EXECUTION_ONLY] = 20.0
    """Maximum total size of all checkpoints in GB. If the checkpoints need more, paco deletes the oldest ones."""
    prompts: PromptsParams
    diverse_prompts: DiverseParams
    grids: GridsParams
    grid_shards: Annotated[list[Natural], Field(min_length=1), DISTINCT]
    """Numbers of the shards into which paco divides the grids. Prompt n belongs to shard n modulo the number of
    shards."""
    annotations: AnnotationsParams
    edit_prompts: EditPromptsParams
    edits: EditsParams
    pairs: PairsParams
    cot_labels: ReasonsParams
    reward: RewardParams
    serving: ServingParams
    policies: PoliciesParams
    consistency_rank: ConsistencyRankParams
    edit_reward: EditRewardParams
    t2is: T2isParams
    t2is_bench: T2isBenchParams
    vistory: VistoryParams = Field(default_factory=VistoryParams)
    gedit: GeditParams
    rounds: RoundsParams = Field(default_factory=RoundsParams)

    @model_serializer(mode="wrap")
    def _as_in_file(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As a file has them: how to run in ``execution``, and each recipe without the defaults."""
        return moved(dump(self), {key: place for place, key in places(Params).items()})

    @model_validator(mode="after")
    def _painted_edits_can_be_labelled(self) -> Params:
        if self.edits.painters and (self.world != "storybook" or self.edit_prompts.source != "storybook"):
            raise ValueError(
                "edits.painters paint what only the embedded world can label (world and edit_prompts.source: "
                "storybook); elsewhere leave painters empty and import labelled triples (pairs.editing.source: import)"
            )
        return self

    @model_validator(mode="after")
    def _rounds_train_a_recipe(self) -> Params:
        if self.rounds.items and self.rounds.recipe not in self.policies.recipes:
            names = ", ".join(self.policies.recipes)
            raise ValueError(f"rounds.recipe {self.rounds.recipe!r}: no recipe of policies.recipes; there are: {names}")
        if self.rounds.items and self.rounds.ask.choose == "disagree":
            name = self.rounds.recipe
            if self.policies.recipes[name].held_out_judge is None:
                raise ValueError(
                    "rounds.ask.choose: disagree compares the previous reward model with a held-out one: give "
                    f"policies.recipes.{name} a hack_meter whose held_out is a term `reward: consistency` with a "
                    "`model`"
                )
        return self


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Field names valid where an unknown key was met (walks the models along ``location``)."""
    current: type[BaseModel] | None = model
    for part in location[:-1]:
        if current is not None and part in current.model_fields:
            current = _model_in(current.model_fields[str(part)].annotation)
    return [] if current is None else list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a type is, or is made of: of a mapping's values, say."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def explain(error: ValidationError, source: str) -> str:
    """One line a fault: file, dotted key, what is wrong, and the nearest valid key for a typo."""
    lines, in_file = [], {key: place for place, key in places(Params).items()}
    for fault in error.errors():
        parts = [str(part) for part in fault["loc"]]
        for end in range(len(parts), 0, -1):
            if place := in_file.get(".".join(parts[:end])):
                parts[:end] = [place]
                break
        key = ".".join(parts)
        if fault["type"] == "extra_forbidden":
            name = str(fault["loc"][-1])
            names = _known_keys(Params, fault["loc"])
            near = nearest(name, names)
            hint = f"did you mean '{near}'?" if near else f"known keys: {', '.join(names)}"
            lines.append(f"{source}: unknown key '{key}'; {hint}")
        elif fault["type"] == "missing":
            lines.append(
                f"{source}: key '{key}' is missing; add it, or bring back what was committed with "
                f"`git checkout -- {source}`"
            )
        else:
            input_text = "" if isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
            lines.append(f"{source}: {f'{key}: ' if key else ''}{message(fault)}{input_text}"[:600])
    return "\n".join(lines)


def parse(raw: Any, source: str = PARAMS_FILE) -> Params:
    """Validate a loaded YAML tree, and put its section ``execution`` where the code reads it.

    Strictly: no text or truth value where a number belongs, no number for a truth value. And as JSON: pydantic's
    strictness allows a list for a tuple, and a mapping for a section, only in what was read from a file.

    Raises:
        ParamsError: naming every offending key, for unknown ones the nearest valid key, and for those of an earlier
            version where they stand now.
    """
    if not isinstance(raw, dict):
        raise ParamsError(f"{source}: expected a mapping of sections, found {type(raw).__name__}")
    validate_no_earlier_keys(raw, source)
    tree = moved(raw, places(Params))
    if left := tree.pop(EXECUTION, None):
        raise ParamsError("\n".join(_unknown_below(left, EXECUTION, source)))
    try:
        text = json.dumps(tree, default=str)
    except TypeError as error:  # a key that is a list or mapping
        raise ParamsError(f"{source}: {error}") from None
    try:
        return Params.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ParamsError(explain(error, source)) from None


def _unknown_below(left: Any, key: str, source: str) -> Iterator[str]:
    """What is left in ``execution`` after every key that is known has been taken out."""
    if isinstance(left, dict) and left:
        for name, value in left.items():
            yield from _unknown_below(value, f"{key}.{name}", source)
    elif key == EXECUTION:
        yield f"{source}: execution: expected a section (got {left!r})"
    else:
        near = nearest(key, list(places(Params)))
        yield f"{source}: unknown key '{key}'" + (f"; did you mean '{near}'?" if near else "")


def validate_no_earlier_keys(raw: Any, source: str) -> None:
    """Find keys of an earlier version.

    Raises:
        OtherVersionError: naming each with the key that it has now, or with what to do without it.
    """
    lines = [f"{source}: {old} is {new} now" for old, new in earlier_places(Params).items() if has(raw, old)]
    lines += [f"{source}: {key} no longer exists: {advice}" for key, advice in REMOVED.items() if has(raw, key)]
    if lines:
        tail = [f"{source}: and {len(lines) - 8} keys more"] if len(lines) > 8 else []
        advice = "`paco params --migrate` moves or deletes them, in params.yaml and in the profiles"
        raise OtherVersionError("\n".join([*lines[:8], *tail, advice]))


def read_text(path: Path) -> str:
    """The text of a parameter file.

    Raises:
        ParamsError: naming the file when it is a folder, and the byte where it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise ParamsError(f"{path}: a folder, expected a file") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None


def tree_of(text: str, path: Path) -> Any:
    """What the text of a parameter file says.

    Raises:
        ParamsError: naming file and line, when it is no YAML.
    """
    try:
        return parse_yaml(text)
    except DataError as error:
        raise ParamsError(f"{path}: {error}") from None


def load(path: Path) -> Params:
    """Read and validate a parameter file.

    Raises:
        ParamsError: when the file is missing, is no UTF-8 text or no YAML, or holds an invalid value.
    """
    if not path.is_file():
        raise ParamsError(
            f"{path}: no such file; run inside the project, or bring it back with `git checkout -- params.yaml`"
        )
    return parse(tree_of(read_text(path), path), str(path.name))
