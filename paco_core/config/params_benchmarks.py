"""Parameters of the benchmarks and their evaluators."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from paco_core.config.params_base import (
    DISTINCT,
    ChatParams,
    Device,
    DrawnCount,
    DrawnSide,
    Positive,
    Resamples,
    Section,
    Seed,
)
from paco_core.config.references import BenchmarkFolder, ClipRef, Names, NetworkRef, UserFile

#: In rounds: the reward model of the previous round.
BEFORE = "before"
#: Evaluators of the stage ``consistency_rank``. Tables of scores need other names.
REWARD, BASE, CLIP_I, RANDOM = OWN_JUDGES = ("reward", "base", "clip_i", "random")
ImportedStories = Annotated[str, Names("folder", "make it with `paco dataset import vistory` or name another")]


class PredictorParams(Section):
    """A published predictor in a separate environment, because its requirements and licence may differ."""

    python: str = Field(min_length=1)
    """Python interpreter of the predictor's environment."""
    model: str | None = None
    """Model of the predictor. `null` uses its default."""
    device: Device = "cuda"
    """Device."""


class YesNoJudge(Section):
    """A model that answers yes or no: in this process, or behind an endpoint with log-probabilities."""

    model: NetworkRef | None = None
    """Qwen2.5-VL model that runs in this process (hub ID, or folder in the layout of transformers)."""
    endpoint: ChatParams | None = None
    """Endpoint of a model that returns log-probabilities."""

    @model_validator(mode="after")
    def _one_of_them(self) -> YesNoJudge:
        set_fields = [name for name in type(self).model_fields if name != "wording" and getattr(self, name) is not None]
        if len(set_fields) != 1:
            ways = [name for name in type(self).model_fields if name != "wording"]
            raise ValueError(f"name one of {', '.join(ways)}; {' and '.join(set_fields) or 'none'} given")
        return self


class JudgeParams(YesNoJudge):
    wording: Literal["published", "rl"] = "published"
    """Query to the reward model: that of the benchmark (`published`) or that of the RL training (`rl`)."""


class AlignmentParams(YesNoJudge):
    wording: Literal["published", "text"] = "published"
    """VQAScore's question (`published`), or only the text (`text`)."""
    vqascore: PredictorParams | None = None
    """VQAScore by t2v-metrics, in a separate environment. The published results use clip-flant5-xxl."""


class VieScoreParams(Section):
    """VIEScore of GEdit-Bench: a vision-language model behind an endpoint scores the edits."""

    endpoint: ChatParams
    """Vision-language model that scores the edits."""
    prompts: str | None = None
    """Folder or package with the published prompts. `null` uses paco's prompts."""


class T2isBenchParams(Section):
    """T2IS-Bench on the images of the stage ``t2is``. A section that is null skips its metric."""

    prompts: Positive | None = None
    """Maximum prompts. `null` evaluates all."""
    criteria: UserFile | None = None
    """`prompt_consistency.json` of T2IS-Bench. `null` uses the criteria of each record."""
    texts: UserFile | None = None
    """`prompt_alignment.json` of T2IS-Bench, required for alignment."""
    consistency: JudgeParams | None = None
    alignment: AlignmentParams | None = None
    aesthetics: PredictorParams | None = None
    """Aesthetic predictor in a separate environment. `null` skips this metric."""
    pictures: dict[str, BenchmarkFolder] = Field(default_factory=dict)
    """Folders of other image sets, by name."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""


class VistoryParams(Section):
    """ViStoryBench on the stories of the stage ``t2is``. A section that is null skips its metric."""

    source: ImportedStories | None = None
    """Folder from `paco dataset import vistory`. `null` skips the stage."""
    clip: ClipRef | None = None
    """CLIP model of the similarity metrics. `null` skips them."""
    adherence: YesNoJudge | None = None
    bootstrap: Resamples = 2000
    """Bootstrap resamples."""
    seed: Seed = 0
    """Bootstrap seed."""


class ConsistencyRankParams(Section):
    source: BenchmarkFolder | None = None
    """Folder in the ConsistencyRank-Bench format. `null` uses held-out rankings."""
    template: Literal["theme", "plain", "marked"] | None = None
    """Prompt template. `null` uses the template of the training."""
    clip: ClipRef | None
    """CLIP model of the evaluator CLIP-I. `null` skips it."""
    scored_elsewhere: dict[str, UserFile] = Field(default_factory=dict)
    """Score tables of other evaluators, by name (CSV, JSON Lines, Parquet)."""
    max_instances: Positive | None
    """Size of a random subset of the rankings. `null` uses all."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Seed of the subset and the bootstrap."""

    @field_validator("scored_elsewhere")
    @classmethod
    def _names_of_their_own(cls, tables: dict[str, str]) -> dict[str, str]:
        if reserved := [name for name in OWN_JUDGES if name in tables]:
            raise ValueError(f"{reserved[0]} is a model of this stage; choose another name for the table")
        return tables


class EditRewardParams(Section):
    source: BenchmarkFolder | None = None
    """Folder in the EditReward-Bench format. `null` draws edits of the embedded world."""
    wording: Literal["rl", "published"] = "rl"
    """Question of the RL training (`rl`) or of the published results (`published`)."""
    count: DrawnCount
    """Number of drawn comparisons."""
    size: DrawnSide
    """Side of a drawn image in pixels."""
    clip: ClipRef | None
    """CLIP model of the similarity evaluators. `null` skips them."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Seed of the comparisons and the bootstrap."""


class T2isParams(Section):
    prompts: Positive
    """Maximum held-out prompts."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Seeds. Each seed gives one image per prompt."""
    steps: Positive
    """Sampling steps."""
    separately: bool = False
    """Also generate separate panels with the model before training."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""


class GeditParams(Section):
    prompts: Positive
    """Maximum held-out prompts."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Seeds. Each seed gives one image per prompt."""
    steps: Positive
    """Sampling steps."""
    viescore: VieScoreParams | None = None  # null = not judged so
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""
