"""Parameters of the data: prompts, grids, annotations, pairs and reasons."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from paco_core.config.layouts import LAYOUT, validate_layout
from paco_core.config.params_base import DISTINCT, ChatParams, Device, Fraction, Number, Positive, Section, Seed, Side
from paco_core.config.params_characters import CharacterPairsParams
from paco_core.config.params_edits import EditingParams
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, PipelineRef, UserFile

Layout = Annotated[str, Field(pattern=LAYOUT)]
ImportedPairs = Annotated[str, Names("folder", "make it with `paco dataset import` or name another")]


class PromptsParams(Section):
    engine: Literal["storybook", "import", "openai", "none"]
    """Source of the prompts. `storybook` writes prompts of the embedded world, `import` reads a file, `openai` queries
    a chat model, `none` creates no prompts."""
    count: Positive | None
    """Number of prompts. `null` uses all prompts of the file in `prompts.source`."""
    layout: Layout | Annotated[list[Layout], Field(min_length=1)] | None
    """Rows x columns of the panels of a set. If you list several layouts, the prompts alternate between them. `null`
    accepts every layout in the file."""
    seed: Seed
    """Random seed of the prompts that the embedded world writes."""
    source: UserFile | None = None
    """JSON Lines file of T2IS records, which the engine `import` reads."""
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
    """Text to embed: the complete prompt, or only its theme. If a prompt is too long for the model, paco embeds the
    theme of the prompt."""
    device: Device
    """Device."""
    target: Positive | None
    """Number of diverse prompts to select. `null` selects prompts by `threshold` instead."""
    threshold: Annotated[float, Field(gt=-1.0, le=1.0)] | None
    """Maximum cosine similarity between two selected prompts. `null` selects prompts by `target` instead."""

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
    """Number format of the model's weights. `mixed` uses float32 weights, and samples in bfloat16 if the device
    supports bfloat16."""
    seeds: Annotated[list[Seed], DISTINCT]
    """Random seeds. paco generates one grid per prompt and seed. If the list is empty, paco skips the stage `grids`."""
    height: Side
    """Height in pixels of an image with 2x2 panels. Panels of other layouts have the size of these panels."""
    width: Side
    """Width in pixels of an image with 2x2 panels. Panels of other layouts have the size of these panels."""
    steps: Positive
    """Sampling steps."""
    guidance: Number
    """Guidance scale."""
    max_sequence_length: Positive
    """Maximum prompt tokens."""
    batch_size: Positive
    """Number of images per batch. If memory runs out, paco halves the batch."""

    @model_validator(mode="after")
    def _enough_to_rank(self) -> GridsParams:
        if len(self.seeds) == 1:
            raise ValueError("seeds: ranking one picture against another needs two; [] paints none")
        return self


class AnnotationsParams(Section):
    source: Literal["recogniser", "people", "judge", "import", "none"]
    """Annotator that ranks the candidates: the recogniser, people, a chat model (`judge`), or a file (`import`). `none`
    creates no rankings."""
    model: ModelRef | None = None
    """Recogniser of the embedded world."""
    file: UserFile | None = None
    """File of rankings (CSV, JSON Lines, Parquet) or Label Studio export, which the source `import` reads."""
    store: str = "answers/people.sqlite"
    """Database in which `paco annotate` saves the answers of people, for the source `people`."""
    judge: Literal["pairwise", "listwise"] = "pairwise"
    """Query of the source `judge`: one image pair per query (`pairwise`), or all candidates in one query
    (`listwise`)."""
    endpoint: ChatParams | None = None
    """Vision-language model that ranks the candidates, for the source `judge`."""
    exclude: tuple[str, ...] = ()
    """Annotators whose votes paco ignores."""

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> AnnotationsParams:
        if self.source == "judge" and self.endpoint is None:
            raise ValueError("source 'judge' needs endpoint: base_url, model and api_key_env")
        return self


class PairsParams(Section):
    rule: Literal["top1_bottom1", "top2_bottom2", "adjacent"]
    """Rule that selects Yes pairs and No pairs from a ranking."""
    confident: bool
    """Drop each pair whose label contradicts the score that the annotator gave."""
    benchmark_untied: bool
    """Leave rankings whose candidates are all tied out of the held-out benchmark."""
    split: Literal["prompt", "instance"]
    """Unit that paco never divides between training, validation and benchmark: all data of a prompt, or one ranking or
    pair."""
    validation_share: Fraction
    """Share of the training data that paco uses for validation instead of training."""
    benchmark_share: Fraction
    """Share of the rankings that paco holds out for the benchmark ConsistencyRank."""
    balance: bool
    """Drop pairs until there are about as many Yes pairs as No pairs."""
    leakage: Literal["refuse", "report"] = "refuse"
    """Action if the training data contain prompts or images of the benchmark: stop with an error (`refuse`), or only
    report them (`report`)."""
    keep_out: BenchmarkFolder | None = None
    """Folder in the ConsistencyRank-Bench format. paco excludes the prompts and images of this benchmark from
    training."""
    imported: ImportedPairs | None = None
    """Folder that `paco dataset import paco_dataset` wrote. paco adds the pairs of this folder to your pairs."""
    identical_share: Fraction = 0.0
    """Number of pairs of two identical panels that paco adds with the label Yes, divided by the number of other
    pairs."""
    editing: EditingParams = EditingParams(source="storybook", count=0)
    characters: CharacterPairsParams = CharacterPairsParams()
    seed: Seed
    """Seed of the split."""


class ReasonsParams(Section):
    engine: Literal["storybook", "openai", "none"]
    """Source of the reasons: the embedded world, or a vision-language model (`openai`). `none` uses only the answers
    that your pairs contain."""
    model: ModelRef | None = None
    """Recogniser of the embedded world."""
    endpoint: ChatParams | None = None
    """Vision-language model that writes reasons, for the engine `openai`."""

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> ReasonsParams:
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        return self
