"""Typed view of ``params.yaml``: every number of the pipeline, checked when it is read.

The file is the one place for numbers; this module knows their names, types and bounds. An unknown
key is an error that names the nearest valid one, so that a typo never trains the wrong thing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from dvc_project.yaml import parse_yaml
from paco_core.config.params_base import (
    AboveZero,
    Area,
    ChatParams,
    Fraction,
    FromZero,
    LoraParams,
    Natural,
    Number,
    PolicyLora,
    Port,
    Positive,
    Section,
    Seed,
    Side,
    TimeZone,
)
from paco_core.config.params_benchmarks import (
    ConsistencyRankParams,
    EditRewardParams,
    GeditParams,
    T2isBenchParams,
    T2isParams,
)
from paco_core.config.params_edits import EditingParams, EditPromptsParams, EditQuestion, EditsParams, Painter
from paco_core.config.params_policies import EarlyStop, PoliciesParams, PolicyRecipe, RewardSet, RewardTerm
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, UserFile
from paco_core.config.registered import nearest
from paco_core.io.files import DataError

__all__ = [
    "ChatParams",
    "EarlyStop",
    "EditPromptsParams",
    "EditQuestion",
    "EditingParams",
    "EditsParams",
    "LoraParams",
    "Painter",
    "Params",
    "PoliciesParams",
    "PolicyLora",
    "PolicyRecipe",
    "PromptsParams",
    "RewardSet",
    "RewardTerm",
    "load",
]

PARAMS_FILE = "params.yaml"
ImportedPairs = Annotated[str, Names("folder", "make it with `paco dataset import` or name another")]


class ParamsError(ValueError):
    """``params.yaml`` does not describe a valid pipeline; the text names each key and what is wrong."""


class PromptsParams(Section):
    engine: Literal["storybook", "import", "openai", "none"]  # none: no prompts, where only pairs are at hand
    count: Positive | None  # null: all of the file
    layout: str = Field(pattern=r"^[1-9][0-9]?x[1-9][0-9]?$")
    seed: Seed
    source: UserFile | None = None  # JSON Lines of T2IS records, for the engine "import"
    endpoint: ChatParams | None = None  # the model that writes, for the engine "openai"

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> PromptsParams:
        if self.engine in ("storybook", "openai") and self.count is None:
            raise ValueError(f"engine {self.engine!r} needs count: how many prompts to make")
        if self.engine == "import" and not self.source:
            raise ValueError("engine 'import' needs source: a JSON Lines file of T2IS records")
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        return self


class DiverseParams(Section):
    encoder: Literal["open_clip", "sentence_transformers", "transformers"] = "open_clip"
    model: ModelRef
    text: Literal["prompt", "theme"] = "prompt"  # prompts longer than the encoder's window are embedded by theme anyway
    device: str
    target: Positive | None
    threshold: Annotated[float, Field(gt=-1.0, le=1.0)] | None

    @model_validator(mode="after")
    def _one_rule_at_most(self) -> DiverseParams:
        if self.target is not None and self.threshold is not None:
            raise ValueError("give target or threshold, and null for the other; null for both keeps every prompt")
        return self


class GridsParams(Section):
    model: ModelRef
    device: str
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    seeds: list[Seed]  # one picture of every prompt from each; none: nothing is painted
    height: Side
    width: Side
    steps: Positive
    guidance: Number
    max_sequence_length: Positive
    batch_size: Positive

    @model_validator(mode="after")
    def _enough_to_rank(self) -> GridsParams:
        if len(self.seeds) == 1:
            raise ValueError("seeds: ranking one picture against another needs two; [] paints none")
        return self


class AnnotationsParams(Section):
    source: Literal["recogniser", "people", "judge", "import", "none"]  # none: nothing is ranked
    model: ModelRef | None = None  # of the recogniser
    file: UserFile | None = None  # rankings made elsewhere, for the source "import"
    store: str = "answers/people.sqlite"  # the database of `paco annotate`; the source "people" reads what it saves
    judge: Literal["pairwise", "listwise"] = "pairwise"  # how a model is asked, for the source "judge"
    endpoint: ChatParams | None = None  # the vision language model that judges
    exclude: tuple[str, ...] = ()  # annotators whose votes do not count

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> AnnotationsParams:
        if self.source == "judge" and self.endpoint is None:
            raise ValueError("source 'judge' needs endpoint: base_url, model and api_key_env")
        return self


class PairsParams(Section):
    rule: Literal["top1_bottom1", "top2_bottom2", "adjacent"]
    confident: bool  # Yes only where the annotator's score says consistent, No only where it does not
    benchmark_untied: bool  # hold out only rankings in which the annotator saw a difference
    split: Literal["prompt", "instance"]
    validation_share: Fraction
    benchmark_share: Fraction
    balance: bool
    leakage: Literal["refuse", "report"] = "refuse"  # of benchmark prompts or pictures into training
    keep_out: BenchmarkFolder | None = None  # rankings that must not be trained on either
    imported: ImportedPairs | None = None  # a folder that `paco dataset import paco_dataset` made; its pairs are added
    identical_share: Fraction = 0.0  # a panel beside itself for so many of the pairs from rankings: always Yes
    editing: EditingParams = EditingParams(source="storybook", count=0)
    seed: Seed


class ReasonsParams(Section):
    engine: Literal["storybook", "openai", "none"]  # none: only answers that pairs come with
    model: ModelRef | None = None  # the recogniser that reads the panels, for the engine "storybook"
    endpoint: ChatParams | None = None  # the vision language model, for the engine "openai"

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> ReasonsParams:
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        return self


class RewardParams(Section):
    source: Literal["train", "adapter", "merged"] = "train"
    weights: ModelRef | None = None  # a published adapter or merged model: folder of the project, or hub id
    base: ModelRef
    device: str
    dtype: Literal["float32", "bfloat16"]
    max_pixels: Area
    min_pixels: Area
    vision: Literal["frozen", "lora"] = "frozen"
    vision_cache_gb: FromZero = 2.0  # features of a frozen tower kept in memory
    lora: LoraParams
    swap: bool = False  # show half of the pairs in the other order, in turns, where the order has no meaning
    answers: Literal["reasons", "decision"] = "reasons"  # decision: "Yes." or "No." alone, the paper's Fast
    loss: Literal["weighted", "legacy", "plain"]
    alpha: Fraction
    average: Literal["example", "token"] = "example"  # token: as released, an answer counts by its length
    label_newline: bool = False  # learn the newline behind the closing token, too, as released
    template: Literal["theme", "plain"]
    learning_rate: AboveZero
    warmup_share: Fraction
    epochs: Positive
    batch_size: Positive
    accumulation: Positive
    max_grad_norm: AboveZero
    gradient_checkpointing: bool = False
    best: Literal["roc_auc", "accuracy", "calibration_error", "position_spread", "last"] = "roc_auc"
    checkpoint_every: Positive = 50  # optimiser steps
    processes: Positive = 1  # of this machine; each batch is split among them
    seed: Seed

    @model_validator(mode="after")
    def _weights_where_not_trained(self) -> RewardParams:
        if (self.source == "train") != (self.weights is None):
            raise ValueError("source 'adapter' or 'merged' needs weights, a folder or hub id; 'train' takes none")
        return self


MediaPlace = Annotated[str, Field(pattern=r"^(file:///|https?://[^/@]+/).*$")]


class ServingParams(Section):
    engine: Literal["transformers", "vllm"]
    host: str
    port: Port  # 0 = any free port
    device: str
    dtype: Literal["float32", "bfloat16", "auto"]
    threads: Positive
    max_batch: Positive  # half of what is in flight: while one batch is answered, the next one is read
    requests_in_flight: Positive
    start_timeout_s: Positive
    request_timeout_s: Positive
    linger_s: FromZero = 0  # a server without users waits so long for the next one
    max_failed_share: Fraction
    wait_for_server_s: FromZero = 0  # pause so long while the server is down; 0 = stop
    both_orders: bool = False  # a pair's score is the mean over both orders of its pictures
    picture_format: Literal["png", "jpeg"] = "png"
    score_cache: str | None = None  # SQLite file of scores that are known
    gateway_port: Port = 0
    allowed_media: list[MediaPlace] = Field(
        default_factory=list
    )  # where pictures may be fetched from; nowhere = data URLs only
    python: str | None = None  # interpreter of vLLM's own environment
    tensor_parallel: Positive = 1
    gpu_share: Fraction = 0.85
    max_model_len: Positive = 8192
    batch_invariant: bool = False  # vLLM on a GPU: scores that do not depend on what is scored beside them


class DevicesParams(Section):
    """How the GPUs of this machine are shared out; no result depends on it."""

    gpus: list[Natural] | None = None  # numbers of those to use; null = all that are visible
    servers: Natural | None = None  # the last so many are for reward servers alone
    memory_gb: AboveZero | None = None  # of each, for `paco check`; null = as nvidia-smi says


class Params(Section):
    profile: str
    world: Literal["storybook", "real"]
    threads: Positive
    time_zone: TimeZone = "UTC"
    devices: DevicesParams = Field(default_factory=DevicesParams)
    checkpoints_gb: AboveZero = 20.0  # what `paco checkpoints` lists takes at most; oldest go first
    prompts: PromptsParams
    diverse_prompts: DiverseParams
    grids: GridsParams
    grid_shards: Annotated[list[Natural], Field(min_length=1)]
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
    gedit: GeditParams

    @model_validator(mode="after")
    def _painted_edits_can_be_labelled(self) -> Params:
        if self.edits.painters and (self.world != "storybook" or self.edit_prompts.source != "storybook"):
            raise ValueError(
                "edits.painters paint what only the embedded world can label (world and edit_prompts.source: "
                "storybook); elsewhere leave painters empty and import labelled triples (pairs.editing.source: import)"
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
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def explain(error: ValidationError, source: str) -> str:
    """One line a fault: file, dotted key, what is wrong, and the nearest valid key for a typo."""
    lines = []
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            name = str(fault["loc"][-1])
            known = _known_keys(Params, fault["loc"])
            near = nearest(name, known)
            hint = f"did you mean '{near}'?" if near else f"known keys: {', '.join(known)}"
            lines.append(f"{source}: unknown key '{key}'; {hint}")
        elif fault["type"] == "missing":
            lines.append(f"{source}: key '{key}' is missing")
        else:
            given = "" if isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
            lines.append(f"{source}: {key}: {fault['msg']}{given}"[:600])
    return "\n".join(lines)


def parse(raw: Any, source: str = PARAMS_FILE) -> Params:
    """Validate a loaded YAML tree.

    Strictly: no text or truth value where a number belongs, no number for a truth value. And as JSON: pydantic's
    strictness allows a list for a tuple, and a mapping for a section, only in what was read from a file.

    Raises:
        ParamsError: naming every offending key and, for unknown ones, the nearest valid key.
    """
    if not isinstance(raw, dict):
        raise ParamsError(f"{source}: expected a mapping of sections, found {type(raw).__name__}")
    try:
        text = json.dumps(raw, default=str)
    except TypeError as error:  # a key that is a list or mapping
        raise ParamsError(f"{source}: {error}") from None
    try:
        return Params.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ParamsError(explain(error, source)) from None


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
        raise ParamsError(f"{path}: no such file; run inside the project, or `paco profile use storybook`")
    return parse(tree_of(read_text(path), path), str(path.name))
