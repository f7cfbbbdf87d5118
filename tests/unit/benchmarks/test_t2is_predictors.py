"""Predictors of T2IS-Bench that run in an environment of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paco_core.benchmarks.t2is_bench.aesthetics import Aesthetics
from paco_core.benchmarks.t2is_bench.alignment import AlignmentWithTexts
from paco_core.benchmarks.t2is_bench.predictor import Predictor
from paco_core.benchmarks.t2is_bench.texts import Questions
from paco_core.benchmarks.t2is_bench.workers import aesthetics, vqascore
from paco_core.config.params_benchmarks import PredictorParams
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PictureQuery
from paco_core.rewards.base import RewardBatch
from tests.unit.benchmarks.test_t2is_bench import RECORDS, greys

PACKAGES = {
    "t2v_metrics": """
class VQAScore:
    def __init__(self, model, device):
        print("loading", model, device)
        self.model = model
    def __call__(self, images, texts):
        from PIL import Image
        shade = Image.open(images[0]).getpixel((0, 0))[0]
        return [[shade / 100 + len(text) / 1000 for text in texts]]
""",
    "aesthetic_predictor_v2_5": """
import torch
class Model:
    def to(self, device): return self
    def __call__(self, pixels):
        class Found: logits = pixels.mean() * 10
        return Found
class Batch:
    def __init__(self, pixels): self.pixel_values = pixels
def convert_v2_5_from_siglip(low_cpu_mem_usage, encoder_model_name=None):
    import numpy as np
    def prepare(images, return_tensors):
        return Batch(torch.tensor(np.asarray(images), dtype=torch.float32) / 255)
    return Model(), prepare
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> str:
    """An interpreter with stand-ins of both packages, as another environment has the real ones."""
    for name, code in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(code)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.slow
def test_predictors_run_in_an_environment_of_their_own(environment: str) -> None:
    given = PredictorParams(python=environment, device="cpu")
    predictor = Predictor(vqascore, given, "t2v-metrics")
    texts = [{"Entity": ["a", "bb"]}] * 4
    measure = AlignmentWithTexts(predictor, Questions(panels={RECORDS[0].idx: texts}), "text")
    found = measure.measure(RewardBatch(RECORDS[:1], [greys(10, 20, 30, 40)]))
    assert found["entity"] == pytest.approx([0.25 + 0.0015])
    predictor.close()
    predictor = Predictor(aesthetics, given, "aesthetic-predictor-v2-5")
    found = Aesthetics(predictor).measure(RewardBatch(RECORDS[:1], [greys(51, 51, 102, 102)]))
    assert found["aesthetics"] == pytest.approx([0.3], abs=1e-3)
    predictor.close()


def test_a_score_out_of_bounds_is_none(environment: str) -> None:
    predictor = Predictor(vqascore, PredictorParams(python=environment, device="cpu"), "t2v-metrics")
    score = predictor.score([PictureQuery(greys(200)[0], "x")])[0]
    predictor.close()
    assert score.failed and "not in [0, 1]" in str(score.cause)


def test_a_missing_environment_says_what_it_needs(tmp_path: Path) -> None:
    nowhere = Predictor(vqascore, PredictorParams(python=str(tmp_path / "none"), device="cpu"), "t2v-metrics")
    with pytest.raises(DataError, match="make an environment with t2v-metrics and name its python"):
        nowhere.score([PictureQuery(greys(1)[0], "x")])
    nowhere.close()
    bare = Predictor(vqascore, PredictorParams(python=sys.executable, device="cpu"), "t2v-metrics")
    with pytest.raises(DataError, match="No module named 't2v_metrics'"):
        bare.score([PictureQuery(greys(1)[0], "x")])
    bare.close()
