"""The consistency of a served judge for VeRL-Omni's HTTP scorer.

    python examples/trainers/verl_omni_scorer.py --judge http://127.0.0.1:PORT --prompts train_metadata.jsonl

VeRL-Omni (``verl_omni.utils.reward_score.http_scorer_client``; the protocol is flow_grpo's) posts a pickled
``{"images": [JPEG bytes], "prompts": [str], "metadata": {}}`` and reads a pickled ``{"scores": [float]}`` or
``{"error": str}``. It sends no metadata, so layout and theme are those of the prompt's record in ``--prompts``. An
error reaches its log with our cause, and with ``required: true`` it stops the training.

A pickle may run code when it is read. This script reads plain values only and rejects classes.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from scorer_service import Answer, arguments, by_prompt, find_record, run

from paco_core import Judge
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.validation import first_validation_error


class Request(BaseModel):
    """The request of VeRL-Omni."""

    model_config = ConfigDict(strict=True)
    images: list[bytes]
    prompts: list[str]


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"expected a pickle of plain values, but it contains {module}.{name}")


def read(body: bytes) -> Request:
    """Read the request in a pickle.

    Raises:
        DataError: if it contains anything else.
    """
    try:
        request = Request.model_validate(_Plain(io.BytesIO(body)).load())
    except ValidationError as error:
        raise DataError(f"not a request of a scorer: {first_validation_error(error)}") from None
    except Exception as error:  # a damaged pickle raises almost anything  # noqa: BLE001
        raise DataError(f"not a request of a scorer: {error}") from None
    if len(request.images) != len(request.prompts):
        raise DataError(f"{len(request.images)} images for {len(request.prompts)} prompts")
    return request


def answerer(judge: Judge, records: dict[str, PromptRecord]) -> Answer:
    """Answers requests with one score per image, or the cause of a failure."""

    def scores(body: bytes) -> dict[str, Any]:
        request = read(body)
        matches = [find_record(records, prompt) for prompt in request.prompts]
        layouts, themes = [record.layout for record in matches], [record.theme for record in matches]
        results = judge.grid_scores(request.images, layouts, themes=themes)
        if causes := [f"picture {n}: {score.cause}" for n, score in enumerate(results) if score.failed]:
            raise DataError("; ".join(causes))
        return {"scores": [score.value for score in results]}

    def answer(_method: str, _path: str, body: bytes) -> tuple[int, str, bytes]:
        try:
            response = scores(body)
        except DataError as error:
            response = {"error": str(error)}
        return 200, "application/octet-stream", pickle.dumps(response)

    return answer


if __name__ == "__main__":
    parser = arguments("Consistency for VeRL-Omni's HTTP scorer.", 19082)
    parser.add_argument("--prompts", type=Path, required=True, help="T2IS records (JSON Lines) of the training")
    options = parser.parse_args()
    known_prompts = by_prompt(options.prompts)
    run(lambda judge: answerer(judge, known_prompts), options)
