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
    """Model that the predictor loads. `null` uses the default model of the predictor."""
    device: Device = "cuda"
    """Device."""


class YesNoJudge(Section):
    """A model that answers yes or no: in this process, or behind an endpoint with log-probabilities."""

    model: NetworkRef | None = None
    """Qwen2.5-VL or Qwen3-VL model that the stage loads in its own process (hub ID, or folder in the layout of
    transformers)."""
    endpoint: ChatParams | None = None
    """Endpoint of a served model that returns log-probabilities, instead of `model`."""

    @model_validator(mode="after")
    def _one_of_them(self) -> YesNoJudge:
        set_fields = [name for name in type(self).model_fields if name != "wording" and getattr(self, name) is not None]
        if len(set_fields) != 1:
            ways = [name for name in type(self).model_fields if name != "wording"]
            raise ValueError(f"name one of {', '.join(ways)}; {' and '.join(set_fields) or 'none'} given")
        return self


class JudgeParams(YesNoJudge):
    wording: Literal["published", "rl"] = "published"
    """Wording of the query: as in the published benchmark (`published`), or as in the RL training (`rl`)."""


class AlignmentParams(YesNoJudge):
    wording: Literal["published", "text"] = "published"
    """Wording of the query: VQAScore's question about the text (`published`), or only the text (`text`)."""
    vqascore: PredictorParams | None = None
    """VQAScore, computed by t2v-metrics in a separate environment. The published results use the model
    clip-flant5-xxl."""


class VieScoreParams(Section):
    """VIEScore of GEdit-Bench: a vision-language model behind an endpoint scores the edits."""

    endpoint: ChatParams
    """Vision-language model that scores the edits."""
    prompts: str | None = None
    """Folder or package with the published queries of VIEScore. `null` uses the queries of paco."""


class T2isBenchParams(Section):
    """T2IS-Bench on the images of the stage ``t2is``. A section that is null skips its metric."""

    prompts: Positive | None = None
    """Maximum number of prompts to evaluate. `null` evaluates all prompts."""
    criteria: UserFile | None = None
    """Path of T2IS-Bench's file `prompt_consistency.json`. `null` uses the criteria in each prompt record."""
    texts: UserFile | None = None
    """Path of T2IS-Bench's file `prompt_alignment.json`, which the alignment metrics need."""
    consistency: JudgeParams | None = None
    alignment: AlignmentParams | None = None
    aesthetics: PredictorParams | None = None
    """Aesthetic predictor, which runs in a separate environment. `null` skips the metric `aesthetics`."""
    pictures: dict[str, BenchmarkFolder] = Field(default_factory=dict)
    """Folders with image sets that other tools generated, by the name of the tool."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""


class VistoryParams(Section):
    """ViStoryBench on the stories of the stage ``t2is``. A section that is null skips its metric."""

    source: ImportedStories | None = None
    """Folder that `paco dataset import vistory` wrote. `null` skips the stage `vistory`."""
    clip: ClipRef | None = None
    """CLIP model of the similarity metrics. `null` skips these metrics."""
    adherence: YesNoJudge | None = None
    bootstrap: Resamples = 2000
    """Bootstrap resamples."""
    seed: Seed = 0
    """Bootstrap seed."""


class ConsistencyRankParams(Section):
    source: BenchmarkFolder | None = None
    """Folder of a benchmark in the ConsistencyRank-Bench format. `null` uses the held-out rankings of the graph."""
    template: Literal["theme", "plain", "marked"] | None = None
    """Template of the query to the reward model. `null` uses the template with which the reward model was trained."""
    clip: ClipRef | None
    """CLIP model of the evaluator CLIP-I. `null` skips this evaluator."""
    scored_elsewhere: dict[str, UserFile] = Field(default_factory=dict)
    """Files with the scores of other evaluators (CSV, JSON Lines, Parquet), by the name of the evaluator."""
    max_instances: Positive | None
    """Number of rankings to evaluate, selected at random. `null` evaluates all rankings."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Random seed of the selected rankings and of the bootstrap."""

    @field_validator("scored_elsewhere")
    @classmethod
    def _names_of_their_own(cls, tables: dict[str, str]) -> dict[str, str]:
        if reserved := [name for name in OWN_JUDGES if name in tables]:
            raise ValueError(f"{reserved[0]} is a model of this stage; choose another name for the table")
        return tables


class EditRewardParams(Section):
    source: BenchmarkFolder | None = None
    """Folder of a benchmark in the EditReward-Bench format. `null` draws edits of the embedded world instead."""
    wording: Literal["rl", "published"] = "rl"
    """Wording of the query to the reward model: as in the RL training (`rl`), or as in the published results
    (`published`)."""
    count: DrawnCount
    """Number of drawn comparisons."""
    size: DrawnSide
    """Side in pixels of the square images that paco draws."""
    clip: ClipRef | None
    """CLIP model of the similarity evaluators. `null` skips these evaluators."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Random seed of the drawn comparisons and of the bootstrap."""


class T2isParams(Section):
    prompts: Positive
    """Maximum number of held-out prompts to evaluate."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Random seeds. paco generates one image per prompt and seed."""
    steps: Positive
    """Sampling steps."""
    separately: bool = False
    """As a baseline, also generate each panel separately with the model before training."""
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""


class GeditParams(Section):
    prompts: Positive
    """Maximum number of held-out prompts to evaluate."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Random seeds. paco generates one image per prompt and seed."""
    steps: Positive
    """Sampling steps."""
    viescore: VieScoreParams | None = None  # null = not judged so
    bootstrap: Resamples
    """Bootstrap resamples."""
    seed: Seed
    """Bootstrap seed."""
