"""The reward model as a scorer of ``mlflow.genai.evaluate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING, Any

from paco_core.api.judge import Judge
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from mlflow.genai.scorers import Scorer

    from paco_core.io.pictures import Picture


def consistency_scorer(judge: Judge | None = None, *, name: str = "consistency") -> Scorer:
    """A scorer that measures the consistency of the images in each row, from 0 to 1.

    ``outputs`` of a row is a list of images, or a dict with the list in ``images``. The score is the mean over all
    pairs (:meth:`paco_core.Judge.consistency`). If ``inputs`` contains a ``reference`` image, it is the mean over the
    pairs of the reference and each image. If ``inputs`` has a ``theme``, it is part of the query. Images are paths,
    data URLs, bytes, images of Pillow, or arrays. If a row has no score, MLflow shows the cause as an error.

    Args:
        judge: the reward model; None loads the one of this project.
        name: of the metric.
    """
    from mlflow.genai.scorers import scorer

    reward_model, lock = judge or Judge(), Lock()

    def score_images(inputs: Mapping[str, Any] | None = None, outputs: Any = None) -> float:
        images, values = _images(outputs), inputs or {}
        reference, theme = values.get("reference"), values.get("theme")
        with lock:  # MLflow calls scorers from several threads
            if reference is None:
                scores = reward_model.set_scores(images, theme=theme)
            else:
                scores = reward_model.scores([(reference, image) for image in images], theme=theme)
        cause = next((score.cause for score in scores if score.failed), None)
        if cause is not None:
            raise DataError(f"the images have no score: {cause}")
        return fmean(score.value for score in scores)

    return scorer(score_images, name=name, aggregations=["mean", "min"], timeout=0)  # loading may take minutes


def _images(outputs: Any) -> Sequence[Picture]:
    images = outputs.get("images") if isinstance(outputs, Mapping) else outputs
    if not isinstance(images, list | tuple) or not images:
        raise DataError(f"outputs: expected a list of images, or a dict with `images`, not {type(outputs).__name__}")
    return images
