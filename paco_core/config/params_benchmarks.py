"""Typed view of what ``params.yaml`` says about benchmarks and their judges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paco_core.config.params_base import ChatParams, Drawn, DrawnSide, Positive, Resamples, Section, Seed
from paco_core.config.references import BenchmarkFolder, ModelRef, Names, UserFile

ConvertedWeights = Annotated[str, Names("folder", "put the converted weights there or name another")]


class PredictorParams(Section):
    """A published predictor, run by an environment of its own: its pins and licence need not fit ours."""

    python: str = Field(min_length=1)  # the interpreter of that environment
    model: str | None = None  # null = the predictor's own default
    device: str = "cuda"


class _Judge(Section):
    """Who answers yes or no: a model in this process, or one behind an endpoint that gives log-probabilities."""

    model: ModelRef | None = None  # Qwen2.5-VL: a folder, or a hub id
    endpoint: ChatParams | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> _Judge:
        named = [name for name in type(self).model_fields if name != "wording" and getattr(self, name) is not None]
        if len(named) != 1:
            ways = [name for name in type(self).model_fields if name != "wording"]
            raise ValueError(f"name one of {', '.join(ways)}; {' and '.join(named) or 'none'} given")
        return self


class JudgeParams(_Judge):
    wording: Literal["published", "rl"] = "published"  # the benchmark's own question, or the one that the RL knows


class AlignmentParams(_Judge):
    wording: Literal["published", "text"] = "published"  # VQAScore's question, or each text as it is
    vqascore: PredictorParams | None = None  # as published: t2v-metrics, clip-flant5-xxl


class VieScoreParams(Section):
    """Edits judged as GEdit-Bench judges, by a vision language model behind an endpoint."""

    endpoint: ChatParams
    prompts: str | None = None  # where the published texts are: a folder, or an installed package; null = our own words


class T2isBenchParams(Section):
    """T2IS-Bench on the pictures that the stage ``t2is`` painted; a part that is null is not measured."""

    prompts: Positive | None = None  # of those that were painted, at most
    criteria: UserFile | None = None  # prompt_consistency.json; null = the criteria of the records
    texts: UserFile | None = None  # prompt_alignment.json, which alignment needs
    consistency: JudgeParams | None = None
    alignment: AlignmentParams | None = None
    aesthetics: PredictorParams | None = None
    pictures: dict[str, BenchmarkFolder] = Field(default_factory=dict)  # name -> sets painted elsewhere
    bootstrap: Resamples
    seed: Seed


class ConsistencyRankParams(Section):
    source: BenchmarkFolder | None = (
        None  # folder in ConsistencyRank-Bench's layout; None: the project's own held-out rankings
    )
    template: Literal["theme", "plain", "marked"] | None = None  # None: the one that the reward was trained with
    clip: ModelRef | None
    dreamsim: ConvertedWeights | None = None  # of benchmarks/dreamsim_conversion.py; None: not a judge
    scored_elsewhere: dict[str, UserFile] = Field(
        default_factory=dict
    )  # judge -> JSON Lines of its scores (a closed model)
    max_instances: Positive | None
    bootstrap: Resamples
    seed: Seed


class EditRewardParams(Section):
    source: BenchmarkFolder | None = None  # folder in EditReward-Bench's layout; None: drawn by the embedded world
    wording: Literal["rl", "published"] = "rl"  # the questions of training and RL, or of the published figures
    count: Drawn  # comparisons drawn
    size: DrawnSide  # of a drawn picture, pixels
    clip: ModelRef | None
    bootstrap: Resamples
    seed: Seed


class T2isParams(Section):
    prompts: Positive
    seeds: list[Seed] = Field(min_length=1)
    steps: Positive
    separately: bool = False  # also paint each panel as a picture of its own, by the model before training
    bootstrap: Resamples
    seed: Seed


class GeditParams(Section):
    prompts: Positive  # of the unseen editing prompts, at most
    seeds: list[Seed] = Field(min_length=1)
    steps: Positive
    viescore: VieScoreParams | None = None  # null = not judged so
    bootstrap: Resamples
    seed: Seed
