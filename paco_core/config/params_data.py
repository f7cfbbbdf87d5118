"""Parameters of the data: prompts, grids, annotations, and the pairs with reasons that the reward learns from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from paco_core.config.layouts import LAYOUT, refuse_layout
from paco_core.config.params_base import DISTINCT, ChatParams, Device, Fraction, Number, Positive, Section, Seed, Side
from paco_core.config.params_edits import EditingParams
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, UserFile

Layout = Annotated[str, Field(pattern=LAYOUT)]
ImportedPairs = Annotated[str, Names("folder", "make it with `paco dataset import` or name another")]


class PromptsParams(Section):
    engine: Literal["storybook", "import", "openai", "none"]
    """who writes prompts; `import` reads a file, `openai` asks a chat model, `none` makes none,
    where only pairs are at hand"""
    count: Positive | None
    """how many prompts; null = all of the file"""
    layout: Layout | Annotated[list[Layout], Field(min_length=1)] | None
    """rows x columns of a set's panels; a list = prompts of each, in turn; null = all records of the file"""
    seed: Seed
    """seed of the prompts that the embedded world writes"""
    source: UserFile | None = None
    """JSON Lines of T2IS records, for the engine `import`"""
    endpoint: ChatParams | None = None
    """chat model that writes, for the engine `openai`"""

    @field_validator("layout", mode="before")
    @classmethod
    def _layouts_are_grids(cls, given: object) -> object:
        for layout in given if isinstance(given, list) else [given]:
            refuse_layout(layout)
        return given

    @property
    def layouts(self) -> tuple[str, ...]:
        """Those that are asked for; none = whatever the file holds."""
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
    """library that embeds prompts"""
    model: ModelRef
    """embedding model"""
    text: Literal["prompt", "theme"] = "prompt"
    """what of a prompt is embedded; prompts longer than the encoder's window are embedded by theme anyway"""
    device: Device
    """where it runs"""
    target: Positive | None
    """how many prompts are kept, the most different ones; null = by threshold"""
    threshold: Annotated[float, Field(gt=-1.0, le=1.0)] | None
    """largest cosine similarity between kept prompts; null = by target"""

    @model_validator(mode="after")
    def _one_rule_at_most(self) -> DiverseParams:
        if self.target is not None and self.threshold is not None:
            raise ValueError("give target or threshold, and null for the other; null for both keeps every prompt")
        return self


class GridsParams(Section):
    model: ModelRef
    """generator that paints"""
    device: Device
    """where it runs"""
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    """number format of its weights; mixed = float32, and painted in bfloat16 where the device computes it"""
    seeds: Annotated[list[Seed], DISTINCT]
    """one picture of every prompt from each; none = nothing is painted"""
    height: Side
    """pixels of a picture of 2x2 panels; those of other layouts have panels of its size"""
    width: Side
    """pixels of a picture of 2x2 panels; those of other layouts have panels of its size"""
    steps: Positive
    """sampling steps"""
    guidance: Number
    """guidance scale"""
    max_sequence_length: Positive
    """tokens of a prompt that the text encoder reads"""
    batch_size: Positive
    """pictures painted at a time; halved by itself where memory is short"""

    @model_validator(mode="after")
    def _enough_to_rank(self) -> GridsParams:
        if len(self.seeds) == 1:
            raise ValueError("seeds: ranking one picture against another needs two; [] paints none")
        return self


class AnnotationsParams(Section):
    source: Literal["recogniser", "people", "judge", "import", "none"]
    """who ranks candidates; `none` ranks nothing"""
    model: ModelRef | None = None
    """recogniser of the embedded world"""
    file: UserFile | None = None
    """table of rankings made elsewhere (CSV, JSON Lines, Parquet) or export of Label Studio, for the source `import`"""
    store: str = "answers/people.sqlite"
    """database of `paco annotate`, whose saved answers the source `people` reads"""
    judge: Literal["pairwise", "listwise"] = "pairwise"
    """how a model is asked, for the source `judge`; about pairs, or about all candidates at once"""
    endpoint: ChatParams | None = None
    """vision language model that judges"""
    exclude: tuple[str, ...] = ()
    """annotators whose votes do not count"""

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> AnnotationsParams:
        if self.source == "judge" and self.endpoint is None:
            raise ValueError("source 'judge' needs endpoint: base_url, model and api_key_env")
        return self


class PairsParams(Section):
    rule: Literal["top1_bottom1", "top2_bottom2", "adjacent"]
    """which candidates of a ranking become a consistent and an inconsistent pair"""
    confident: bool
    """Yes only where the annotator's score says consistent, No only where it does not"""
    benchmark_untied: bool
    """hold out only rankings in which the annotator saw a difference"""
    split: Literal["prompt", "instance"]
    """what is never in two parts at once"""
    validation_share: Fraction
    """share of the rankings for validation"""
    benchmark_share: Fraction
    """share of the rankings held out for ConsistencyRank"""
    balance: bool
    """as many Yes as No"""
    leakage: Literal["refuse", "report"] = "refuse"
    """what to do where a benchmark's prompt or picture is among the training data"""
    keep_out: BenchmarkFolder | None = None
    """folder of rankings that must not be trained on either"""
    imported: ImportedPairs | None = None
    """folder that `paco dataset import paco_dataset` made, whose pairs are added"""
    identical_share: Fraction = 0.0
    """so many of the pairs from rankings again with a panel beside itself, always Yes"""
    editing: EditingParams = EditingParams(source="storybook", count=0)
    seed: Seed
    """seed of the split"""


class ReasonsParams(Section):
    engine: Literal["storybook", "openai", "none"]
    """who writes reasons; `none` = only answers that pairs come with"""
    model: ModelRef | None = None
    """recogniser of the embedded world"""
    endpoint: ChatParams | None = None
    """vision language model that writes, for the engine `openai`"""

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> ReasonsParams:
        if self.engine == "openai" and self.endpoint is None:
            raise ValueError("engine 'openai' needs endpoint: base_url, model and api_key_env")
        return self
