"""Servers are shared by name, end with their last user, and are what their name says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from dvc_project.file_locks import is_held
from paco_core.config.params import ServingParams, load
from paco_core.io.files import DataError
from paco_core.serving.engines import launch, vllm
from paco_core.serving.protocol import ServingError
from paco_core.serving.servers import endpoint
from paco_core.serving.servers.endpoint import RewardEndpoint, fingerprint, served_name
from paco_core.serving.servers.registry import Registry
from tests.support import REPOSITORY, children, waiting
from tests.support.serving_fakes import fake_launch

LIMIT_S = 120


@pytest.fixture
def serving(repository: Path) -> ServingParams:
    return load(repository / "params.yaml").serving.model_copy(update={"linger_s": 0})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "launch", fake_launch("serve"))


until = partial(waiting.until, seconds=LIMIT_S)


def answers(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Gone, or dead and not collected yet."""
    file = Path(f"/proc/{pid}/stat")
    try:
        return file.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


USER = """
import sys, time
from pathlib import Path
from tests.support.serving_fakes import fake_launch
from paco_core.config.params import load
from paco_core.serving.servers import endpoint
from paco_core.serving.servers.endpoint import RewardEndpoint
endpoint.launch = fake_launch("serve")
root = Path(sys.argv[2])
serving = load(Path(sys.argv[1]) / "params.yaml").serving.model_copy(update={"linger_s": 0})
with RewardEndpoint.lease(root / "model", serving, root) as served:
    print(served.url, served.pid, flush=True)
    sys.stdin.read()
"""


def user(root: Path) -> subprocess.Popen[str]:
    """Another process that leases the model below ``root`` until its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(REPOSITORY), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": children.PATH},
    )


@pytest.mark.slow
def test_a_race_of_processes_starts_one_server(model: Path) -> None:
    users = [user(model.parent) for _ in range(8)]
    told = {process.stdout.readline() for process in users if process.stdout}
    assert len(told) == 1
    url, name = told.pop().split()[0], served_name(fingerprint(model))
    assert Registry(model.parent).leases(name) == 8
    users[0].kill()
    for process in users[1:7]:
        process.communicate("")
    assert answers(url)  # the last user still has it
    users[7].communicate("")
    assert [process.wait() for process in users] == [-signal.SIGKILL, *[0] * 7]
    assert not answers(url) and not is_held(Registry(model.parent).home(name) / "alive")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_user_leaves_no_server(model: Path, number: signal.Signals) -> None:
    process = user(model.parent)
    assert process.stdout is not None
    url, supervisor = process.stdout.readline().split()
    process.send_signal(number)
    process.communicate()
    home = Registry(model.parent).home(served_name(fingerprint(model)))
    until(lambda: not is_held(home / "alive"))
    until(lambda: has_ended(int(supervisor)))
    assert not answers(url)
    assert not (home / "server.json").exists()


@pytest.mark.slow
def test_a_killed_supervisor_takes_its_server_along(model: Path, serving: ServingParams, fake: None) -> None:
    root = model.parent
    with RewardEndpoint.lease(model, serving, root) as served:
        os.kill(served.pid, signal.SIGKILL)
        until(lambda: not answers(served.url))
    with RewardEndpoint.lease(model, serving, root) as again:  # the next one starts afresh
        assert answers(again.url) and again.pid != served.pid


@pytest.mark.slow
def test_threads_share_a_server_and_it_ends_with_the_last(model: Path, serving: ServingParams, fake: None) -> None:
    root, urls = model.parent, []

    def lease() -> None:
        with RewardEndpoint.lease(model, serving, root) as served:
            urls.append(served.url)
            both.wait(LIMIT_S)

    both = threading.Barrier(2)
    threads = [threading.Thread(target=lease) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 2 and len(set(urls)) == 1 and not answers(urls[0])


@pytest.mark.slow
def test_a_server_waits_for_its_next_user_and_then_ends(model: Path, serving: ServingParams, fake: None) -> None:
    home = Registry(model.parent).home(served_name(fingerprint(model)))
    patient = serving.model_copy(update={"linger_s": 3600})
    with RewardEndpoint.lease(model, patient, model.parent) as first:
        pass
    with RewardEndpoint.lease(model, patient, model.parent) as second:
        assert second.pid == first.pid and second.url == first.url
    with pytest.raises(RuntimeError), RewardEndpoint.lease(model, patient, model.parent):
        raise RuntimeError("a stage that fails has nothing to wait for")
    assert not is_held(home / "alive")
    with RewardEndpoint.lease(model, serving.model_copy(update={"linger_s": 0.5}), model.parent) as third:
        pass
    assert third.pid != first.pid
    until(lambda: not is_held(home / "alive"))


def test_a_server_of_other_code_answers_for_nobody(
    model: Path, serving: ServingParams, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only waits for its next user ends; one in use is an error. Scores of either are never mixed up."""
    patient, codes = serving.model_copy(update={"linger_s": 3600}), iter(["one", "two", "three", "two"])
    monkeypatch.setattr(endpoint, "digest_of", lambda *_: next(codes))
    with RewardEndpoint.lease(model, patient, model.parent) as first:
        assert first.code == "one" and "one" in first.client()._reckoning
    with RewardEndpoint.lease(model, patient, model.parent) as second:
        assert second.pid != first.pid and second.code == "two"
        other = RewardEndpoint.lease(model, patient, model.parent)
        with pytest.raises(ServingError, match=r"runs other code than this project holds now, and is in use"), other:
            raise AssertionError("three")
        assert answers(second.url)
    with RewardEndpoint.lease(model, serving, model.parent) as third:
        assert third.pid == second.pid


def test_up_status_logs_down(model: Path, serving: ServingParams, fake: None) -> None:
    root = model.parent
    assert "no reward model is served" in endpoint.status(root)
    name = served_name(fingerprint(model))
    assert f"{name} serves at http://127.0.0.1:" in endpoint.up(model, serving, root)
    assert "already serves" in endpoint.up(model, serving, root)
    with RewardEndpoint.lease(model, serving, root) as served:
        assert "1 leases" in endpoint.status(root)
    assert answers(served.url)  # people started it: it outlives the lease
    assert served.url in endpoint.status(root) and "until `paco serve down`" in endpoint.status(root)
    assert endpoint.logs(root) == "" == endpoint.logs(root, name)
    with pytest.raises(ServingError, match=f"'other' names 0 servers; known are: {name}"):
        endpoint.down(root, "other")
    assert endpoint.down(root) == f"stopped {name} at {served.url}"
    assert not answers(served.url) and endpoint.down(root) == "no reward model was served"


@pytest.mark.slow
def test_a_failed_start_shows_the_log_and_leaves_nothing(
    model: Path, serving: ServingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "launch", fake_launch("fail"))
    with (
        pytest.raises(ServingError, match="weights of the wrong shape"),
        RewardEndpoint.lease(model, serving, model.parent),
    ):
        pass
    home = Registry(model.parent).home(served_name(fingerprint(model)))
    assert not is_held(home / "alive") and not list((home / "leases").iterdir())


def test_batch_invariance_is_asked_of_vllm_and_refused_where_nothing_offers_it(
    tmp_path: Path, model: Path, serving: ServingParams
) -> None:
    gpu = {"device": "cuda", "dtype": "bfloat16"}
    asked = serving.model_copy(update={**gpu, "engine": "vllm", "batch_invariant": True})
    plain = asked.model_copy(update={"batch_invariant": False})
    assert vllm.environment(asked)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in vllm.environment(plain)
    engines = [endpoint.recipe(model, "name", settings, tmp_path).engine for settings in (asked, plain)]
    assert engines == ["vllm batch-invariant", "vllm"], "the scores of one are never taken for the other's"
    for wrong in (asked.model_copy(update={"device": "cpu"}), asked.model_copy(update={"engine": "transformers"})):
        with pytest.raises(DataError, match=r"execution.serving.batch_invariant: .* does not offer it on a"):
            launch(model, "name", "127.0.0.1", 8000, 3, wrong, tmp_path)


@pytest.mark.slow
def test_a_start_that_takes_too_long_shows_the_log_and_leaves_nothing(
    model: Path, serving: ServingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "launch", fake_launch("hang"))
    hasty = serving.model_copy(update={"start_timeout_s": 1})
    with (
        pytest.raises(ServingError, match=r"not ready within execution.serving.start_timeout_s = 1:\nloading for ever"),
        RewardEndpoint.lease(model, hasty, model.parent),
    ):
        pass
    assert not is_held(Registry(model.parent).home(served_name(fingerprint(model))) / "alive")


def test_a_server_of_another_number_format_is_not_joined(model: Path, serving: ServingParams, fake: None) -> None:
    """Its scores would be others than the parameters ask for, and be kept as theirs."""
    changed = serving.model_copy(update={"dtype": "bfloat16"})
    with RewardEndpoint.lease(model, serving, model.parent) as first:
        assert first.client()._reckoning == f"transformers float32 {first.code} png"
        other = RewardEndpoint.lease(model, changed, model.parent)
        with pytest.raises(ServingError, match=r"is transformers float32, params.yaml asks for transformers bfloat16"):
            other.__enter__()
        known = RewardEndpoint.living(model, changed, model.parent)
        assert known is not None and (known.engine, known.dtype) == ("transformers", "float32")


def test_a_port_in_use_names_the_process(model: Path, serving: ServingParams, fake: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = serving.model_copy(update={"port": port})
        with pytest.raises(ServingError, match=rf"port {port} .*process {os.getpid()} \(.*python"):
            endpoint.up(model, wanted, model.parent)
    assert "serves at" in endpoint.up(model, wanted, model.parent)
    endpoint.down(model.parent)


def test_other_machines_are_let_in_with_a_key_only(
    model: Path, serving: ServingParams, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACO_API_KEY", raising=False)
    with pytest.raises(ServingError, match="PACO_API_KEY"):
        endpoint.up(model, serving.model_copy(update={"host": "0.0.0.0"}), model.parent)
    monkeypatch.setenv("PACO_API_KEY", "not-to-be-told")
    with RewardEndpoint.lease(model, serving.model_copy(update={"host": "0.0.0.0"}), model.parent) as served:
        supervisor = Path(f"/proc/{served.pid}/cmdline").read_bytes()
        written = [path.read_bytes() for path in served.log.parent.rglob("*") if path.is_file()]
    assert len(written) >= 3 and not any(b"not-to-be-told" in text for text in [supervisor, *written])


def test_the_fingerprint_is_dvcs(tmp_path: Path, model: Path) -> None:
    (model / "golden").mkdir()
    (model / "golden" / "0.png").write_bytes(b"not a picture")
    # the md5 that DVC 3.67 records for these two files
    assert fingerprint(model, tmp_path) == fingerprint(model) == "cd3208e4b62e5d04d2615b81815a560a"
    (model / "config.json").write_text("{ }")
    assert fingerprint(model) != "cd3208e4b62e5d04d2615b81815a560a"
    with pytest.raises(ServingError, match="no model there"):
        fingerprint(tmp_path / "nothing")


def test_vllm_gets_its_settings(tmp_path: Path, serving: ServingParams) -> None:
    serving = serving.model_copy(update={"engine": "vllm", "device": "cuda", "dtype": "bfloat16"})
    with pytest.raises(Exception, match="make vllm"):
        vllm.command("m", "name", "127.0.0.1", 8000, serving, tmp_path)
    (tmp_path / ".venv-vllm/bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm/bin/python").touch()
    line = vllm.command("m", "name", "127.0.0.1", 8000, serving, tmp_path)
    options = dict(pairwise(line))
    assert options["--served-model-name"] == "name" and options["--gpu-memory-utilization"] == "0.85"
    assert json.loads(options["--limit-mm-per-prompt"])["image"] == 2
    assert "--trust-remote-code" not in line and options["--max-model-len"] == "8192"
    assert options["--allowed-media-domains"] == "nowhere.invalid" and "--allowed-local-media-path" not in line
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 4096}}')
    small = vllm.command(str(tmp_path), "name", "127.0.0.1", 8000, serving, tmp_path)
    assert dict(pairwise(small))["--max-model-len"] == "4096", "vLLM would not start"
