"""The reward as a model of MLflow: ``mlflow.pyfunc.load_model("models:/paco-reward@champion")``.

Its folder contains a file ``MLmodel`` that refers to this module, so the folder contains neither pickles nor code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from paco_core.io.files import DataError, write_text
from paco_core.io.pictures import read_image
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PairQuery

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.reward_model.scorer import Scorer

FILE = "MLmodel"
COLUMNS = ("first", "second")


def write_mlmodel(folder: Path) -> None:
    """Write the file ``MLmodel`` for a model folder. The file does not depend on the machine."""
    config = {"flavors": {"python_function": {"loader_module": __name__}}}
    write_text(folder / FILE, yaml.safe_dump(config))


class PairwiseReward:
    """The pyfunc model."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Score pairs of images.

        Args:
            data: columns ``first`` and ``second`` (image files) and, optionally, ``theme``. Without a theme, the
                template ``plain`` is used.

        Returns:
            Columns ``score``, from 0 to 1, or NaN if a pair could not be scored, and ``cause`` of the failure.

        Raises:
            DataError: if a column or an image is missing.
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
    return render_instruction("theme", theme=theme) if isinstance(theme, str) and theme else render_instruction("plain")


def _load_pyfunc(path: str) -> PairwiseReward:
    """Entry point for MLflow: loads the model on a GPU in bfloat16 if there is one, else on the CPU."""
    import torch  # noqa: PLC0415 - this module is imported where the model's folder is written, too

    from paco_core.reward_model.scorer import Scorer  # noqa: PLC0415

    gpu = torch.cuda.is_available()
    return PairwiseReward(Scorer(Path(path), device="cuda" if gpu else "cpu", dtype="bfloat16" if gpu else "float32"))
