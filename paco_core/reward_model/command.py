"""`paco score`: two picture files, one score."""

from __future__ import annotations

from pathlib import Path

from paco_core import paths
from paco_core.files import DataError
from paco_core.params import PARAMS_FILE, load
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.shards import decode_image


def score_pair(
    root: Path, first: str | Path, second: str | Path, theme: str | None, model: str | None, reasons: bool
) -> str:
    """The score of two picture files as text, followed by the model's reasons where they are asked for.

    Args:
        theme: asks with the template ``theme``; without it the template ``plain`` is used.
        model: a model folder; the merged reward of this project when None.

    Raises:
        DataError: when a picture or the model is missing.
    """
    from paco_core.reward_model.scorer import Scorer

    params = load(root / PARAMS_FILE)
    folder = root / (model or paths.REWARD_MERGED)
    if not folder.is_dir():
        raise DataError(f"{folder}: no reward model there; run `dvc repro reward_merged`, or name one with --model")
    pictures = []
    for path in (Path(first), Path(second)):
        if not path.is_file():
            raise DataError(f"{path}: no such picture")
        pictures.append(decode_image(path.read_bytes(), str(path)))
    instruction = render("theme", theme=theme) if theme else render("plain")
    query = PairQuery(pictures[0], pictures[1], instruction)
    scorer = Scorer(folder, device=params.serving.device, threads=params.threads)
    text = f"{scorer.score([query])[0].value:.4f}"
    return f"{text}\n{scorer.generate_reasons([query])[0]}" if reasons else text
