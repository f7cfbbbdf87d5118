"""Servers are shared by name, end with their last user, and are what their name says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from serving_fakes import fake_launch

from paco_core.file_locks import is_held
from paco_core.params import ServingParams, load
from paco_core.serving import endpoint
from paco_core.serving.endpoint import RewardEndpoint, dvc_md5, fingerprint, served_name
from paco_core.serving.engines import vllm
from paco_core.serving.process import ServingError
from paco_core.serving.registry import Registry

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


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


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
sys.path.insert(0, sys.argv[1])
from serving_fakes import fake_launch
from paco_core.params import load
from paco_core.serving import endpoint
from paco_core.serving.endpoint import RewardEndpoint
endpoint.launch = fake_launch("serve")
root = Path(sys.argv[2])
serving = load(Path(sys.argv[1]).parents[1] / "params.yaml").serving.model_copy(update={"linger_s": 0})
with RewardEndpoint.lease(root / "model", serving, root) as served:
    print(served.url, served.pid, flush=True)
    sys.stdin.read()
"""


def user(root: Path) -> subprocess.Popen[str]:
    """Another process that leases the model below ``root`` until its stdin is closed."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), str(here.parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(here), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_user_leaves_no_server(model: Path, number: signal.Signals) -> None:
    process = user(model.parent)
    assert process.stdout is not None
    url, keeper = process.stdout.readline().split()
    process.send_signal(number)
    process.communicate()
    home = Registry(model.parent).home(served_name(fingerprint(model)))
    until(lambda: not is_held(home / "alive"))
    until(lambda: has_ended(int(keeper)))
    assert not answers(url)
    assert not (home / "server.json").exists()


def test_a_killed_keeper_takes_its_server_along(model: Path, serving: ServingParams, fake: None) -> None:
    root = model.parent
    with RewardEndpoint.lease(model, serving, root) as served:
        os.kill(served.pid, signal.SIGKILL)
        until(lambda: not answers(served.url))
    with RewardEndpoint.lease(model, serving, root) as again:  # the next one starts afresh
        assert answers(again.url) and again.pid != served.pid


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


def test_a_start_that_takes_too_long_shows_the_log_and_leaves_nothing(
    model: Path, serving: ServingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "launch", fake_launch("hang"))
    hasty = serving.model_copy(update={"start_timeout_s": 1})
    with (
        pytest.raises(ServingError, match=r"not ready within serving.start_timeout_s = 1:\nloading for ever"),
        RewardEndpoint.lease(model, hasty, model.parent),
    ):
        pass
    assert not is_held(Registry(model.parent).home(served_name(fingerprint(model))) / "alive")


def test_a_client_knows_what_the_living_server_was_started_with(
    model: Path, serving: ServingParams, fake: None
) -> None:
    """Parameters that have changed since do not pass its scores off as another engine's."""
    changed = serving.model_copy(update={"dtype": "bfloat16"})
    with (
        RewardEndpoint.lease(model, serving, model.parent),
        RewardEndpoint.lease(model, changed, model.parent) as attached,
    ):
        assert (attached.engine, attached.dtype) == ("transformers", "float32")
        assert attached.client()._reckoning == "transformers float32 png"


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
        keeper = Path(f"/proc/{served.pid}/cmdline").read_bytes()
        written = [path.read_bytes() for path in served.log.parent.rglob("*") if path.is_file()]
    assert len(written) >= 3 and not any(b"not-to-be-told" in text for text in [keeper, *written])


def test_the_fingerprint_is_dvcs(tmp_path: Path, model: Path) -> None:
    (model / "golden").mkdir()
    (model / "golden" / "0.png").write_bytes(b"not a picture")
    # the md5 that DVC 3.67 records for these two files
    assert fingerprint(model, tmp_path) == dvc_md5(model) == "cd3208e4b62e5d04d2615b81815a560a"
    (model / "config.json").write_text("{ }")
    assert dvc_md5(model) != "cd3208e4b62e5d04d2615b81815a560a"
    with pytest.raises(ServingError, match="no model there"):
        dvc_md5(tmp_path / "nothing")


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
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 4096}}')
    small = vllm.command(str(tmp_path), "name", "127.0.0.1", 8000, serving, tmp_path)
    assert dict(pairwise(small))["--max-model-len"] == "4096", "vLLM would not start"
