"""The reward as a model of MLflow: ``mlflow.pyfunc.load_model("models:/paco-reward@champion")``.

Its folder holds a file ``MLmodel``, by which MLflow finds this module: nothing is unpickled, and no code lies in the
folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from paco_core.io.files import DataError, write_text
from paco_core.io.pictures import read_image
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.reward_model.scorer import Scorer

FILE = "MLmodel"
COLUMNS = ("first", "second")


def write(folder: Path) -> None:
    """Write the file by which MLflow loads the model in a folder; the same for the same model, on any machine."""
    found = {"flavors": {"python_function": {"loader_module": __name__}}}
    write_text(folder / FILE, yaml.safe_dump(found))


class PairwiseReward:
    """What MLflow calls."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Score pairs of pictures.

        Args:
            data: columns ``first`` and ``second``, picture files, and, where there is one, ``theme``: what both were
                made for; without it the plain question is asked.

        Returns:
            Columns ``score``, from 0 to 1, NaN where a pair could not be scored, and ``cause``, which says why.

        Raises:
            DataError: naming a column or a picture that is missing.
        """
        if missing := [name for name in COLUMNS if name not in data]:
            raise DataError(f"column {', '.join(missing)} is missing; expected {', '.join(COLUMNS)} and, maybe, theme")
        themes = data["theme"] if "theme" in data else [None] * len(data)
        queries = [
            PairQuery(read_image(Path(first)), read_image(Path(second)), _question(theme))
            for first, second, theme in zip(data["first"], data["second"], themes, strict=True)
        ]
        scores = self._scorer.score(queries)
        columns = {"score": [score.value for score in scores], "cause": [score.cause for score in scores]}
        return type(data)(columns, index=data.index)


def _question(theme: Any) -> str:
    return render("theme", theme=theme) if isinstance(theme, str) and theme else render("plain")


def _load_pyfunc(path: str) -> PairwiseReward:
    """What MLflow calls with the folder: on a GPU in bfloat16 where there is one, else on the processor."""
    import torch  # noqa: PLC0415 - this module is imported where the model's folder is written, too

    from paco_core.reward_model.scorer import Scorer  # noqa: PLC0415

    gpu = torch.cuda.is_available()
    return PairwiseReward(Scorer(Path(path), device="cuda" if gpu else "cpu", dtype="bfloat16" if gpu else "float32"))
