"""Scorers outside this process: a model behind an OpenAI-compatible endpoint, a predictor in a separate environment."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, Field, TypeAdapter

from paco_core.data.llm.chat_protocol import Endpoint, NoAnswer, picture_part
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import TOP, Query, Score, Unscorable, from_top_logprobs

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams
    from paco_core.config.params_benchmarks import PredictorParams

SCORES = TypeAdapter(list[float])
TAIL = 1000  # characters of a worker's log in an error


class _Token(BaseModel):
    top_logprobs: list[dict[str, Any]]


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _Choice(BaseModel):
    logprobs: _Logprobs | None = None


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class EndpointScorer:
    """P(Yes) against P(No) among the 20 most probable first tokens, " Yes" and "yes" counted with "Yes".

    Raises:
        ChatError: when the environment variable that should hold the key is empty; while scoring, when the endpoint
            refuses the key or the model, or serves nothing any more.
    """

    def __init__(self, params: ChatParams) -> None:
        self.params, self._endpoint = params, Endpoint(params)

    def score(self, queries: Sequence[Query]) -> list[Score]:
        """One score a query, in order; NaN with a cause where none could be had."""
        return self._endpoint.run_all(queries, self._score)

    def _score(self, query: Query) -> Score:
        parts = [*map(picture_part, query.pictures), {"type": "text", "text": query.instruction}]
        body = {
            "model": self.params.model,
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": 1,
            "logprobs": True,
            "top_logprobs": TOP,
        }
        try:
            logprobs = self._endpoint.complete(body, _Answer).choices[0].logprobs
        except NoAnswer as error:
            return Score(math.nan, error.rejection.cause)
        if logprobs is None or not logprobs.content:
            return Score(math.nan, "the answer lacks log-probabilities")
        try:
            return Score(from_top_logprobs(logprobs.content[0].top_logprobs, variants=True))
        except Unscorable as error:
            return Score(math.nan, str(error))


class Predictor:
    """Scores single pictures by ``worker``, a module of :mod:`.workers`; its process lives as long as this object.

    Args:
        packages: what the environment of ``params.python`` must contain, for the message.

    Raises:
        DataError: when there is no such interpreter, or the worker ends or answers something else.
    """

    def __init__(self, worker: ModuleType, params: PredictorParams, packages: str) -> None:
        self.params, self.packages, self.script = params, packages, Path(str(worker.__file__))
        self._folder = tempfile.TemporaryDirectory(prefix="paco-predictor-")
        self._process: subprocess.Popen[str] | None = None

    def score(self, queries: Sequence[Query]) -> list[Score]:
        """One score a query, in order; NaN with a cause where it is not in [0, 1]."""
        scores: list[Score] = []
        for _, part in groupby(queries, key=lambda query: id(query.pictures[0])):
            group = list(part)
            path = Path(self._folder.name) / "picture.png"
            group[0].pictures[0].save(path)
            for value in self._predict(path, [query.instruction for query in group]):
                usable = 0.0 <= value <= 1.0
                scores.append(Score(value) if usable else Score(math.nan, "the predictor's score is not in [0, 1]"))
        return scores

    def _predict(self, picture: Path, texts: list[str]) -> list[float]:
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            print(json.dumps({"picture": str(picture), "texts": texts}), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())
            if not isinstance(answer, list) or len(answer) != len(texts):
                raise ValueError(f"{len(texts)} scores were expected")
            return SCORES.validate_python(answer, strict=True)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.params.python} {self.script.name}: {error}; {self._log()}") from None

    def _start(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [self.params.python, str(self.script), self.params.device, self.params.model or ""]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log_file(),
                    text=True,
                )
            except OSError as error:
                raise DataError(
                    f"{self.params.python}: not an interpreter that can be started ({error.strerror}); make an "
                    f"environment with {self.packages} and name its python"
                ) from None
        return self._process

    def _log_file(self) -> IO[bytes]:
        return (Path(self._folder.name) / "log").open("wb")

    def _log(self) -> str:
        log = Path(self._folder.name) / "log"
        tail = log.read_text(encoding="utf-8", errors="replace").strip()[-TAIL:] if log.is_file() else ""
        return f"its environment needs {self.packages}. It printed: {tail or '(nothing)'}"

    def close(self) -> None:
        """End the process and remove its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        self._folder.cleanup()
