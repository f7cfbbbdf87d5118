"""Typed view of what ``params.yaml`` says about benchmarks and their judges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from paco_core.config.params_base import (
    DISTINCT,
    ChatParams,
    Device,
    Drawn,
    DrawnSide,
    Positive,
    Resamples,
    Section,
    Seed,
)
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, UserFile

#: In rounds: the judge of the round before.
BEFORE = "before"
#: Judges that the stage ``consistency_rank`` asks itself; a table of scores has another name.
REWARD, BASE, CLIP_I, RANDOM = OWN_JUDGES = ("reward", "base", "clip_i", "random")
ImportedStories = Annotated[str, Names("folder", "make it with `paco dataset import vistory` or name another")]


class PredictorParams(Section):
    """A published predictor, run by an environment of its own: its pins and licence need not fit ours."""

    python: str = Field(min_length=1)
    """interpreter of the environment that has it"""
    model: str | None = None
    """its model; null = its own default"""
    device: Device = "cuda"
    """where it runs"""


class YesNoJudge(Section):
    """Who answers yes or no: a model in this process, or one behind an endpoint that gives log-probabilities."""

    model: ModelRef | None = None
    """Qwen2.5-VL that answers in this process"""
    endpoint: ChatParams | None = None
    """model behind an endpoint that gives log-probabilities"""

    @model_validator(mode="after")
    def _one_of_them(self) -> YesNoJudge:
        named = [name for name in type(self).model_fields if name != "wording" and getattr(self, name) is not None]
        if len(named) != 1:
            ways = [name for name in type(self).model_fields if name != "wording"]
            raise ValueError(f"name one of {', '.join(ways)}; {' and '.join(named) or 'none'} given")
        return self


class JudgeParams(YesNoJudge):
    wording: Literal["published", "rl"] = "published"
    """the benchmark's own question, or the one of the RL"""


class AlignmentParams(YesNoJudge):
    wording: Literal["published", "text"] = "published"
    """VQAScore's question, or each text as it is"""
    vqascore: PredictorParams | None = None
    """t2v-metrics in an environment of its own, as published with clip-flant5-xxl"""


class VieScoreParams(Section):
    """Edits judged as GEdit-Bench judges, by a vision language model behind an endpoint."""

    endpoint: ChatParams
    """vision language model that judges"""
    prompts: str | None = None
    """folder or installed package of the published texts; null = our own words"""


class T2isBenchParams(Section):
    """T2IS-Bench on the pictures that the stage ``t2is`` painted; a part that is null is not measured."""

    prompts: Positive | None = None
    """painted prompts that are measured, at most; null = all"""
    criteria: UserFile | None = None
    """prompt_consistency.json of T2IS-Bench; null = the records' own"""
    texts: UserFile | None = None
    """prompt_alignment.json of T2IS-Bench, which alignment needs"""
    consistency: JudgeParams | None = None
    alignment: AlignmentParams | None = None
    aesthetics: PredictorParams | None = None
    """aesthetic predictor in an environment of its own; null = not measured"""
    pictures: dict[str, BenchmarkFolder] = Field(default_factory=dict)
    """sets painted elsewhere, a folder by name"""
    bootstrap: Resamples
    """resamples of the confidence intervals"""
    seed: Seed
    """seed of the resamples"""


class VistoryParams(Section):
    """ViStoryBench on the stories that the stage ``t2is`` painted; a part that is null is not measured."""

    source: ImportedStories | None = None
    """folder that `paco dataset import vistory` made; null = the stage is skipped"""
    clip: ModelRef | None = None
    """CLIP of the similarities; null = not measured"""
    adherence: YesNoJudge | None = None
    bootstrap: Resamples = 2000
    """resamples of the confidence intervals"""
    seed: Seed = 0
    """seed of the resamples"""


class ConsistencyRankParams(Section):
    source: BenchmarkFolder | None = None
    """folder in ConsistencyRank-Bench's layout; null = the project's held-out rankings"""
    template: Literal["theme", "plain", "marked"] | None = None
    """question that is asked; null = the one that the reward was trained with"""
    clip: ModelRef | None
    """CLIP of the judge CLIP-I; null = not a judge"""
    scored_elsewhere: dict[str, UserFile] = Field(default_factory=dict)
    """judges by name, with tables of their scores (CSV, JSON Lines, Parquet)"""
    max_instances: Positive | None
    """rankings, drawn at random; null = all"""
    bootstrap: Resamples
    """resamples of the confidence intervals"""
    seed: Seed
    """seed of the draw and of the resamples"""

    @field_validator("scored_elsewhere")
    @classmethod
    def _names_of_their_own(cls, tables: dict[str, str]) -> dict[str, str]:
        if taken := [name for name in OWN_JUDGES if name in tables]:
            raise ValueError(f"{taken[0]} is a judge of this stage; give the table another name")
        return tables


class EditRewardParams(Section):
    source: BenchmarkFolder | None = None
    """folder in EditReward-Bench's layout; null = drawn by the embedded world"""
    wording: Literal["rl", "published"] = "rl"
    """questions of training and RL, or of the published figures"""
    count: Drawn
    """comparisons that are drawn"""
    size: DrawnSide
    """pixels of a drawn picture's side"""
    clip: ModelRef | None
    """CLIP of the judges by similarity; null = none"""
    bootstrap: Resamples
    """resamples of the confidence intervals"""
    seed: Seed
    """seed of the comparisons and of the resamples"""


class T2isParams(Section):
    prompts: Positive
    """unseen prompts that are painted, at most"""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """one picture of every prompt from each"""
    steps: Positive
    """sampling steps"""
    separately: bool = False
    """also paint each panel as a picture of its own, by the model before training"""
    bootstrap: Resamples
    """resamples of the confidence intervals"""
    seed: Seed
    """seed of the resamples"""


class GeditParams(Section):
    prompts: Positive
    """unseen editing prompts, at most"""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """one picture of every prompt from each"""
    steps: Positive
    """sampling steps"""
    viescore: VieScoreParams | None = None  # null = not judged so
    bootstrap: Resamples
    """resamples of the confidence intervals"""
    seed: Seed
    """seed of the resamples"""
