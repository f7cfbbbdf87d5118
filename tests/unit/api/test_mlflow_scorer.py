"""`paco_core.consistency_scorer`: the reward model among the scorers of MLflow."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core import Judge, consistency_scorer
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_of
from tests.support import reward_tiny, tiny_vlm

pytestmark = pytest.mark.slow


def data_url(file: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(Path(file).read_bytes()).decode()}"


@pytest.fixture
def folder(project: Path) -> Path:
    """A project with a reward model and four images."""
    tiny_vlm.build(project / paths.REWARD_MERGED)
    for number in range(4):
        reward_tiny.picture(number).save(project / f"{number}.png")
    return project


def test_the_example_of_the_docs_runs(folder: Path, repository: Path) -> None:
    page = (repository / "docs/reference/metrics.md").read_text()
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "consistency_scorer" in text]
    names: dict[str, Any] = {}
    exec(compile(example, "metrics.md", "exec"), names)
    judge, metrics = Judge(), names["result"].metrics
    scores = [
        judge.consistency(["0.png", "1.png"], theme="a blue bear"),
        float(np.mean([judge.score("0.png", name) for name in ("2.png", "3.png")])),
    ]
    assert metrics["consistency/mean"] == pytest.approx(np.mean(scores))
    assert metrics["consistency/min"] == pytest.approx(min(scores)) and metrics["num_images/mean"] == 2


def test_images_in_any_form_have_equal_scores(folder: Path) -> None:
    scorer = consistency_scorer(name="set")
    files = ["0.png", "1.png", "2.png"]
    expected = scorer(outputs=files)
    images = [Image.open(file) for file in files]
    assert scorer.name == "set" and 0 < expected < 1
    assert [scorer(outputs=outputs) for outputs in (images, {"images": files}, [data_url(f) for f in files])] == [
        expected
    ] * 3


def test_rows_without_a_score_are_errors(folder: Path) -> None:
    scorer = consistency_scorer(Judge())
    for outputs in (None, "0.png", [], ["0.png"], {"files": ["0.png"]}, ["0.png", "none.png"]):
        with pytest.raises(DataError):
            scorer(outputs=outputs)


@pytest.mark.parametrize(
    "url", ["data:image/png,abc", "data:image/png;base64,!!", "data:image/png;base64,YWJj", "data:"]
)
def test_a_damaged_data_url_is_named(url: str) -> None:
    with pytest.raises(DataError, match="data URL"):
        picture_of(url)
