"""The reward as MLflow loads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from PIL import Image

from paco_core.reward_model import mlflow_model
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery


@pytest.fixture(scope="module")
def folder(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "merged"
    shutil.copytree(repository / "data/zoo/qwen2_5_vl", folder)
    mlflow_model.write_mlmodel(folder)
    return folder


@pytest.mark.slow
def test_it_scores_as_the_scorer_does(folder: Path, tmp_path: Path) -> None:
    pictures = {name: Image.new("RGB", (56, 56), name) for name in ("red", "blue")}
    for name, picture in pictures.items():
        picture.save(tmp_path / f"{name}.png")
    red, blue = (str(tmp_path / f"{name}.png") for name in pictures)
    inputs = pd.DataFrame({"first": [red, red], "second": [blue, red], "theme": ["a bear", None]}, index=[5, 7])
    predictions = mlflow.pyfunc.load_model(str(folder)).predict(inputs)
    queries = [
        PairQuery(pictures["red"], pictures["blue"], render_instruction("theme", theme="a bear")),
        PairQuery(pictures["red"], pictures["red"], render_instruction("plain")),
    ]
    assert list(predictions.index) == [5, 7]
    assert list(predictions["score"]) == pytest.approx(
        [score.value for score in Scorer(folder).score(queries)], abs=1e-6
    )
    assert len(set(predictions["score"])) == 2
