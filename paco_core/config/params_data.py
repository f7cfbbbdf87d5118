"""Parameters of the data: prompts, grids, annotations, pairs and reasons."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from paco_core.config.layouts import LAYOUT, validate_layout
from paco_core.config.params_base import DISTINCT, ChatParams, Device, Fraction, Number, Positive, Section, Seed, Side
from paco_core.config.params_edits import EditingParams
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, PipelineRef, UserFile

Layout = Annotated[str, Field(pattern=LAYOUT)]
ImportedPairs = Annotated[str, Names("folder", "make it with `paco dataset import` or name another")]


class PromptsParams(Section):
    engine: Literal["storybook", "import", "openai", "none"]
    """Source of the prompts. `import` reads a file, `openai` queries a chat model, `none` creates no prompts."""
    count: Positive | None
    """Number of prompts. `null` uses the complete file."""
    layout: Layout | Annotated[list[Layout], Field(min_length=1)] | None
    """Rows x columns of the panels. Prompts alternate between the layouts of a list. `null` accepts every layout."""
    seed: Seed
    """Seed of the prompts from the embedded world."""
    source: UserFile | None = None
    """JSON Lines file of T2IS records, for the engine `import`."""
    endpoint: ChatParams | None = None
    """Chat model that writes prompts, for the engine `openai`."""

    @field_validator("layout", mode="before")
    @classmethod
    def _layouts_are_grids(cls, value: object) -> object:
        for layout in value if isinstance(value, list) else [value]:
            validate_layout(layout)
        return value

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts to use; empty = every layout of the file."""
        return (self.layout,) if isinstance(self.layout, str) else tuple(self.layout or ())

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> PromptsParams:
        if self.engine in ("storybook", "openai"):
            if self.count is None:
                raise ValueError(f"engine {self.engine!r} needs count: how many prompts to make")
            if self.layout is None:
                raise ValueError(f"engine {self.engine!r} needs layout: rows x columns, or a list of them")
        if self.engine == "import" and not self.source:
            raise ValueError("engine 'import' needs source: a JSON Lines file of T2IS records")
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        if len(set(self.layouts)) != len(self.layouts):
            raise ValueError(f"layout {list(self.layouts)} names one twice")
        return self


class DiverseParams(Section):
    encoder: Literal["open_clip", "sentence_transformers", "transformers"] = "open_clip"
    """Library of the embedding model."""
    model: ModelRef
    """Embedding model."""
    text: Literal["prompt", "theme"] = "prompt"
    """Text to embed. If a prompt is too long, paco embeds its theme."""
    device: Device
    """Device."""
    target: Positive | None
    """Number of prompts to keep, chosen for diversity. `null` uses `threshold`."""
    threshold: Annotated[float, Field(gt=-1.0, le=1.0)] | None
    """Maximum cosine similarity of kept prompts. `null` uses `target`."""

    @model_validator(mode="after")
    def _one_rule_at_most(self) -> DiverseParams:
        if self.target is not None and self.threshold is not None:
            raise ValueError("give target or threshold, and null for the other; null for both keeps every prompt")
        return self


class GridsParams(Section):
    model: PipelineRef
    """Image generator (hub ID, or folder in the layout of diffusers)."""
    device: Device
    """Device."""
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    """Weight format. `mixed` uses float32 weights, and samples in bfloat16 if supported."""
    seeds: Annotated[list[Seed], DISTINCT]
    """Seeds. Each seed gives one image per prompt. An empty list skips the stage."""
    height: Side
    """Height of a 2x2 image in pixels. Other layouts use the same panel size."""
    width: Side
    """Width of a 2x2 image in pixels. Other layouts use the same panel size."""
    steps: Positive
    """Sampling steps."""
    guidance: Number
    """Guidance scale."""
    max_sequence_length: Positive
    """Maximum prompt tokens."""
    batch_size: Positive
    """Images per batch. If memory runs out, paco halves it."""

    @model_validator(mode="after")
    def _enough_to_rank(self) -> GridsParams:
        if len(self.seeds) == 1:
            raise ValueError("seeds: ranking one picture against another needs two; [] paints none")
        return self


class AnnotationsParams(Section):
    source: Literal["recogniser", "people", "judge", "import", "none"]
    """Annotator of the candidates. `none` creates no rankings."""
    model: ModelRef | None = None
    """Recogniser of the embedded world."""
    file: UserFile | None = None
    """Rankings (CSV, JSON Lines, Parquet) or Label Studio export, for the source `import`."""
    store: str = "answers/people.sqlite"
    """Database of `paco annotate`, for the source `people`."""
    judge: Literal["pairwise", "listwise"] = "pairwise"
    """Query of the source `judge`: one pair, or all candidates at once."""
    endpoint: ChatParams | None = None
    """Vision-language model, for the source `judge`."""
    exclude: tuple[str, ...] = ()
    """Annotators whose votes paco ignores."""

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> AnnotationsParams:
        if self.source == "judge" and self.endpoint is None:
            raise ValueError("source 'judge' needs endpoint: base_url, model and api_key_env")
        return self


class PairsParams(Section):
    rule: Literal["top1_bottom1", "top2_bottom2", "adjacent"]
    """Rule that selects pairs from a ranking."""
    confident: bool
    """Drop pairs whose label contradicts the annotator's score."""
    benchmark_untied: bool
    """Hold out only rankings whose candidates are not all tied."""
    split: Literal["prompt", "instance"]
    """Unit that the split keeps together."""
    validation_share: Fraction
    """Share of the rankings for validation."""
    benchmark_share: Fraction
    """Share of the rankings held out for ConsistencyRank."""
    balance: bool
    """Use as many Yes pairs as No pairs."""
    leakage: Literal["refuse", "report"] = "refuse"
    """Action if training data contain benchmark prompts or images."""
    keep_out: BenchmarkFolder | None = None
    """Folder of rankings to exclude from training."""
    imported: ImportedPairs | None = None
    """Folder from `paco dataset import paco_dataset` with pairs to add."""
    identical_share: Fraction = 0.0
    """Share of added pairs of identical panels, labelled Yes."""
    editing: EditingParams = EditingParams(source="storybook", count=0)
    seed: Seed
    """Seed of the split."""


class ReasonsParams(Section):
    engine: Literal["storybook", "openai", "none"]
    """Source of the reasons. `none` uses only the answers of the pairs."""
    model: ModelRef | None = None
    """Recogniser of the embedded world."""
    endpoint: ChatParams | None = None
    """Vision-language model that writes reasons, for the engine `openai`."""

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> ReasonsParams:
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        return self
