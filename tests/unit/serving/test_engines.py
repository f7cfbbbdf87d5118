"""The same tests against each engine, around the same weights: what a client sees does not tell them apart.

vLLM is looked for in ``$PACO_VLLM_PYTHON`` (an interpreter), else in ``.venv-vllm``, which `make vllm` builds.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from paco_core.config.params import load
from paco_core.io.shards import encode_png
from paco_core.reward_model.golden import read_golden, write_golden
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.serving.engines.vllm import PYTHON
from paco_core.serving.protocol import ServingError
from paco_core.serving.servers.endpoint import RewardEndpoint, check_served
from tests.support import tiny_qwen3_vl
from tests.support.carriers import carriers, drawing
from tests.unit.serving import test_app as app

START_S = 550  # test machines may be busy
CLOSE = {"transformers": 1e-5, "vllm": 1e-4}  # other kernels, same weights, float32


def questions(count: int = 30) -> list[PairQuery]:
    """Pairs of panels as in grids, where each panel meets several others; several texts."""
    pixels = random.Random(0)
    panels = [Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize((56, 56)) for _ in range(8)]
    pairs = [(a, b) for a in panels for b in panels if a is not b]
    texts = [
        render_instruction("plain"),
        *(render_instruction("theme", theme=f"a {word} cat") for word in ("red", "blue", "small")),
    ]
    return [PairQuery(*pair, text) for text in texts for pair in pairs][:count]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The small Qwen2.5-VL, with golden pairs as a merged reward has them."""
    folder = tmp_path_factory.mktemp("engines") / "model"
    shutil.copytree(repository / "data/zoo/qwen2_5_vl", folder)
    write_golden(folder, questions(2), Scorer(folder, threads=1).score(questions(2)), "float32")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    return [score.value for score in Scorer(folder, threads=1).score(questions())]


@contextmanager
def serve(engine: str, folder: Path, repository: Path) -> Iterator[RewardEndpoint]:
    settings = {"engine": engine, "start_timeout_s": START_S, "request_timeout_s": 120, "score_cache": None}
    settings |= {"threads": 1, "linger_s": 0}  # else the second engine would join the server of the first
    if engine == "vllm":
        python = Path(os.environ.get("PACO_VLLM_PYTHON", repository / PYTHON))
        if not python.is_file():
            pytest.skip(f"no vLLM here: {python} does not exist (`make vllm`, or set PACO_VLLM_PYTHON)")
        settings["python"] = str(python)
    serving = load(repository / "params.yaml").serving.model_copy(update=settings)
    with RewardEndpoint.lease(folder, serving, folder.parent, wait=False) as endpoint:
        endpoint.ready()
        assert endpoint.engine == engine
        yield endpoint


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def served(request: pytest.FixtureRequest, repository: Path, folder: Path) -> Iterator[RewardEndpoint]:
    with serve(request.param, folder, repository) as endpoint:
        yield endpoint


@pytest.mark.slow
@pytest.mark.parametrize("engine", CLOSE)
def test_a_qwen3_vl_has_the_same_scores_in_every_engine(engine: str, tmp_path: Path, repository: Path) -> None:
    folder, pairs = tiny_qwen3_vl.build(tmp_path / "model"), questions(10)
    expected = Scorer(folder, threads=1).score(pairs)
    write_golden(folder, pairs[:2], expected[:2], "float32")
    with serve(engine, folder, repository) as endpoint, endpoint.client() as client:
        assert endpoint.check_golden() == pytest.approx(0.0, abs=CLOSE[engine])
        scores = [score.value for score in client.score(pairs)]
    assert scores == pytest.approx([score.value for score in expected], abs=CLOSE[engine])


@pytest.mark.slow
def test_scores_are_those_of_the_model_in_this_process(served: RewardEndpoint, expected: list[float]) -> None:
    close = CLOSE[served.serving.engine]
    with served.client() as client:
        for _ in range(2):
            assert [score.value for score in client.score(questions())] == pytest.approx(expected, abs=close)
            client._token_ids = None  # of a server that does not name them: the 20 most probable tokens are asked for
        assert client.counts.requests == 60
        assert client.generate_reasons(questions(1), 12)[0].startswith(("Yes", "No"))


def test_golden_pairs_tell_another_model(served: RewardEndpoint, folder: Path) -> None:
    assert served.check_golden() == pytest.approx(0.0, abs=CLOSE[served.serving.engine])
    report = check_served(folder, folder.parent, served.serving)
    assert report.passed and report.metadata["model"] == served.model
    golden = (folder / "golden.json").read_bytes()
    try:
        golden_pair = read_golden(folder)[0]
        write_golden(folder, [golden_pair.query], [Score((golden_pair.score + 0.5) % 1)], "float32")
        with pytest.raises(ServingError, match="pair 0"):
            served.check_golden()
    finally:
        (folder / "golden.json").write_bytes(golden)


@pytest.mark.slow
def test_one_data_url_is_one_picture_to_every_engine(served: RewardEndpoint, folder: Path) -> None:
    """Files as people have them, sent by a client that is not ours: answered as what a person sees in them is.

    The odds are compared, which no probability near 1 hides; read otherwise they differ by 0.03 at least.
    """
    files, question, scorer = carriers(), render_instruction("plain"), Scorer(folder, threads=1)
    logits = scorer.first_logits([PairQuery(picture, drawing(), question) for _, picture in files.values()])
    right = (logits[:, scorer.yes_id] - logits[:, scorer.no_id]).tolist()
    logprobs = []
    for data, _ in files.values():
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        body = app.request([url, app.url_of(encode_png(drawing()))], question, model=served.model, top_logprobs=20)
        status, answer = app.post(served.url, {**body, "temperature": 0})
        assert status == 200, answer
        tokens = {
            entry["token"]: entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        }
        logprobs.append(tokens["Yes"] - tokens["No"])
    assert dict(zip(files, logprobs, strict=True)) == pytest.approx(dict(zip(files, right, strict=True)), abs=0.01)
