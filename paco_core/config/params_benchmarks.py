"""Typed view of what ``params.yaml`` says about judges of painted pictures: T2IS-Bench, VIEScore."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from paco_core.config.params_base import ChatParams, Positive, Section
from paco_core.config.references import BenchmarkFolder, ModelRef, UserFile


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
    bootstrap: Positive
    seed: int
