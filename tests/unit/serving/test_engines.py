"""The same tests against each engine, around the same weights: what a client sees does not tell them apart.

vLLM is looked for in ``$PACO_VLLM_PYTHON`` (an interpreter), else in ``.venv-vllm``, which `make vllm` builds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from paco_core.config.params import load
from paco_core.io.http_client import Patience
from paco_core.io.shards import encode_png
from paco_core.reward_model.golden import read_golden, write_golden
from paco_core.reward_model.instructions import render
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.serving.client import RewardClient
from paco_core.serving.engines import transformers_app
from paco_core.serving.engines.vllm import PYTHON
from paco_core.serving.protocol import ServingError
from paco_core.serving.servers.endpoint import RewardEndpoint, check_served
from tests.support.carriers import carriers, drawing
from tests.unit.serving import test_app as app

START_S = 550  # test machines may be busy
CLOSE = {"transformers": 1e-5, "vllm": 1e-4}  # other kernels, same weights, float32


def questions(count: int = 30) -> list[PairQuery]:
    """Pairs of panels as in grids, where each panel meets several others; several texts."""
    pixels = random.Random(0)
    panels = [Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize((56, 56)) for _ in range(8)]
    pairs = [(a, b) for a in panels for b in panels if a is not b]
    texts = [render("plain"), *(render("theme", theme=f"a {word} cat") for word in ("red", "blue", "small"))]
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
    return [score.value for score in Scorer(folder, threads=1).score(questions(200))]


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def served(request: pytest.FixtureRequest, repository: Path, folder: Path) -> Iterator[RewardEndpoint]:
    settings = {"engine": request.param, "start_timeout_s": START_S, "request_timeout_s": 120, "score_cache": None}
    settings |= {"threads": 1, "linger_s": 0}  # else the second engine would join the server of the first
    if request.param == "vllm":
        python = Path(os.environ.get("PACO_VLLM_PYTHON", repository / PYTHON))
        if not python.is_file():
            pytest.skip(f"no vLLM here: {python} does not exist (`make vllm`, or set PACO_VLLM_PYTHON)")
        settings["python"] = str(python)
    serving = load(repository / "params.yaml").serving.model_copy(update=settings)
    with RewardEndpoint.lease(folder, serving, folder.parent, wait=False) as endpoint:
        endpoint.ready()
        assert endpoint.engine == request.param
        yield endpoint


@pytest.mark.slow
def test_scores_are_those_of_the_model_in_this_process(served: RewardEndpoint, expected: list[float]) -> None:
    with served.client() as client:
        scores = client.score(questions())
        assert client.counts.requests == 30 and not client.counts.failures
    assert [score.value for score in scores] == pytest.approx(expected[:30], abs=CLOSE[served.serving.engine])


@pytest.mark.slow
def test_the_twenty_most_probable_tokens_give_the_same_scores(served: RewardEndpoint, expected: list[float]) -> None:
    """For servers of others, whose tokens are not known."""
    with RewardClient(served.url, served.model) as client:
        client.check()
        client._token_ids = None
        scores = client.score(questions(4))
    assert [score.value for score in scores] == pytest.approx(expected[:4], abs=CLOSE[served.serving.engine])


@pytest.mark.slow
def test_200_at_once_equal_one_at_a_time(served: RewardEndpoint, expected: list[float]) -> None:
    with served.client(in_flight=200) as client:
        together = [score.value for score in client.score(questions(200))]
        counts = client.counts
    with served.client(in_flight=1) as client:
        alone = [score.value for score in client.score(questions(200))]
    furthest = max(abs(a - b) for a, b in zip(together, alone, strict=True))
    print(
        f"\n200 at once: {counts.requests} requests for {counts.distinct} distinct questions, {counts.encoded} panels;"
    )
    print(f"{sum(counts.failures.values())} failed; {furthest:.1e} at most from one at a time")
    if served.engine == "transformers":
        assert together == alone, "bit for bit"
    assert together == pytest.approx(alone, abs=1e-5)
    assert together == pytest.approx(expected, abs=CLOSE[served.serving.engine])


@pytest.mark.slow
def test_what_the_model_cannot_read_is_refused_and_spares_its_neighbours(
    served: RewardEndpoint, expected: list[float]
) -> None:
    known = questions(3)
    first, second = known[0].first, known[0].second
    long = PairQuery(first, second, "é" * 16_000)  # two tokens a letter: far beyond 4,096
    narrow = PairQuery(Image.new("RGB", (2, 401)), second, known[0].instruction)
    with served.client() as client:
        scores = client.score([known[0], long, known[1], narrow, known[2]])
        assert client.retries == 0, "asking again would bring nothing else"
    assert [score.failed for score in scores] == [False, True, False, True, False]
    assert [scores[n].value for n in (0, 2, 4)] == pytest.approx(expected[:3], abs=CLOSE[served.serving.engine])
    if served.engine == "transformers":
        assert "HTTP 400: the question, its pictures and the answer exceed" in str(scores[1].cause)
    assert "image: 2 x 401 pixels: its longer side is more than 200 times its shorter one" in str(scores[3].cause)


def test_two_calls_in_a_row_also_from_event_loops(served: RewardEndpoint, expected: list[float]) -> None:
    with served.client() as client:
        for _ in range(2):
            scores = asyncio.run(client.score_async(questions(3)))
            assert [score.value for score in scores] == pytest.approx(expected[:3], abs=1e-4)


def test_golden_pairs_tell_another_model(served: RewardEndpoint, folder: Path) -> None:
    assert served.check_golden() == pytest.approx(0.0, abs=CLOSE[served.serving.engine])
    report = check_served(folder, folder.parent, served.serving)
    assert report.passed and report.metadata["model"] == served.model
    golden = (folder / "golden.json").read_bytes()
    try:
        known = read_golden(folder)[0]
        write_golden(folder, [known.query], [Score((known.score + 0.5) % 1)], "float32")
        with pytest.raises(ServingError, match=r"golden scores are pair 0 [01]\.\d+, expected"):
            served.check_golden()
    finally:
        (folder / "golden.json").write_bytes(golden)


def test_reasons_are_written(served: RewardEndpoint) -> None:
    body = app.request([app.GOOD, app.GOOD], render("plain"), model=served.model, max_tokens=12)
    status, answer = app.post(
        served.url, {**body, "logprobs": False, "top_logprobs": None, "temperature": 0}, **app.JSON
    )
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"].startswith(("Yes", "No"))


REFUSED = ["slightly too large", "truncated", "not base64", "three images", "another model", "too many logprobs"]
REFUSED += ["no json", "no object"]


@pytest.mark.parametrize("name", [*REFUSED, "pixel bomb", "remote", "file"])
def test_bad_requests_are_refused_and_the_server_lives(served: RewardEndpoint, name: str) -> None:
    _, body, status, _ = next(case for case in app.BAD if case[0] == name)
    fit = {**body, "model": served.model} if isinstance(body, dict) and body["model"] == app.NAME else body
    got, answer = app.post(served.url, fit, **app.JSON)
    # vLLM refuses these too, but calls them errors of its own
    assert got == status or (served.serving.engine == "vllm" and name not in REFUSED and got == 500)
    assert answer["error"]["message"]
    with served.client() as client:
        assert not client.score(questions(1))[0].failed


def test_another_model_is_refused_before_anything_is_asked(served: RewardEndpoint) -> None:
    with RewardClient(served.url, "paco-reward@ffffffffffff", patience=Patience(0)) as client:
        with pytest.raises(ServingError, match=f"serves '{served.model}', but 'paco-reward@ffffffffffff'"):
            client.score(questions(1))
        assert client.counts.requests == 0


@pytest.mark.slow
def test_one_data_url_is_one_picture_to_every_engine(served: RewardEndpoint, folder: Path) -> None:
    """Files as people have them, sent by a client that is not ours: answered as what a person sees in them is.

    The odds are compared, which no probability near 1 hides; read otherwise they differ by 0.03 at least.
    """
    files, question, scorer = carriers(), render("plain"), Scorer(folder, threads=1)
    logits = scorer.first_logits([PairQuery(picture, drawing(), question) for _, picture in files.values()])
    right = (logits[:, scorer.yes_id] - logits[:, scorer.no_id]).tolist()
    found = []
    for data, _ in files.values():
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        body = app.request([url, app.url_of(encode_png(drawing()))], question, model=served.model, top_logprobs=20)
        status, answer = app.post(served.url, {**body, "temperature": 0}, **app.JSON)
        assert status == 200, answer
        tokens = {
            one["token"]: one["logprob"] for one in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        }
        found.append(tokens["Yes"] - tokens["No"])
    assert dict(zip(files, found, strict=True)) == pytest.approx(dict(zip(files, right, strict=True)), abs=0.01)


def test_health_and_metrics(served: RewardEndpoint) -> None:
    with urllib.request.urlopen(f"{served.url}/health", timeout=60) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    names = {"transformers": ["paco_requests_total", "paco_panels_known_total"], "vllm": ["vllm:request_success_total"]}
    assert all(name in text for name in names[served.serving.engine])
    with urllib.request.urlopen(f"{served.url}/v1/models", timeout=60) as answer:
        assert [card["id"] for card in json.load(answer)["data"]] == [served.model]


def test_what_is_wrong_with_a_model_is_the_last_line_of_its_servers_log(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no model there \(config.json is missing\)"):
        transformers_app.main(["--model", str(tmp_path), "--served-model-name", "reward"])
