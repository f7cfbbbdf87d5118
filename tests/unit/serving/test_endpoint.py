"""Servers are shared by name, end with their last user, and are what their name says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
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
from paco_core.serving.servers.endpoint import RewardEndpoint, model_fingerprint, served_name
from paco_core.serving.servers.registry import Registry, ServerRecord
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
@pytest.mark.parametrize("end", [0, signal.SIGKILL])
def test_a_race_of_processes_starts_one_server_which_ends_with_the_last(model: Path, end: int) -> None:
    users = [user(model.parent) for _ in range(4)]
    outputs = {process.stdout.readline() for process in users if process.stdout}
    assert len(outputs) == 1
    (url, supervisor), name = outputs.pop().split(), served_name(model_fingerprint(model))
    assert Registry(model.parent).leases(name) == 4
    home = Registry(model.parent).server_dir(name)
    users[0].kill()
    for process in users[1:3]:
        process.communicate("")
    assert answers(url)  # the last user still has it
    users[3].send_signal(end)  # 0 is none
    users[3].communicate("")
    assert [process.wait() for process in users] == [-signal.SIGKILL, 0, 0, -end]
    until(lambda: not is_held(home / "alive") and has_ended(int(supervisor)))
    assert not answers(url) and not (home / "server.json").exists()


@pytest.mark.slow
def test_a_killed_supervisor_takes_its_server_along(model: Path, serving: ServingParams, fake: None) -> None:
    root = model.parent
    with RewardEndpoint.lease(model, serving, root) as served:
        os.kill(served.pid, signal.SIGKILL)
        until(lambda: not answers(served.url))
    with RewardEndpoint.lease(model, serving, root) as restarted:  # the next one starts afresh
        assert answers(restarted.url) and restarted.pid != served.pid


@pytest.mark.slow
def test_a_server_waits_for_its_next_user_and_then_ends(model: Path, serving: ServingParams, fake: None) -> None:
    home = Registry(model.parent).server_dir(served_name(model_fingerprint(model)))
    patient = serving.model_copy(update={"linger_s": 3600})
    with RewardEndpoint.lease(model, patient, model.parent) as first:
        pass
    with RewardEndpoint.lease(model, patient, model.parent) as second:
        with RewardEndpoint.lease(model, serving, model.parent) as inner:
            assert inner.pid == second.pid == first.pid and inner.url == second.url == first.url
        assert answers(first.url), "it has another user"
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
    monkeypatch.setattr(endpoint, "code_digest", lambda *_: next(codes))
    with RewardEndpoint.lease(model, patient, model.parent) as first:
        assert first.code == "one" and "one" in first.client()._scoring_fingerprint
    with RewardEndpoint.lease(model, patient, model.parent) as second:
        assert second.pid != first.pid and second.code == "two"
        other = RewardEndpoint.lease(model, patient, model.parent)
        with pytest.raises(ServingError, match="other code"), other:
            raise AssertionError("three")
        assert answers(second.url)
    with RewardEndpoint.lease(model, serving, model.parent) as third:
        assert third.pid == second.pid


def test_up_status_logs_down(model: Path, serving: ServingParams, fake: None) -> None:
    root, name = model.parent, served_name(model_fingerprint(model))
    for _ in range(2):
        assert f"{name} " in endpoint.up(model, serving, root)
    with RewardEndpoint.lease(model, serving, root) as served:
        assert f"{served.pid}" in endpoint.server_status(root) and "1 leases" in endpoint.server_status(root)
    assert answers(served.url)  # people started it: it outlives the lease
    assert served.url in endpoint.server_status(root)
    assert endpoint.logs(root) == "" == endpoint.logs(root, name)
    with pytest.raises(ServingError, match=f"other.*{name}"):
        endpoint.down(root, "other")
    assert endpoint.down(root) == f"stopped {name} at {served.url}"
    assert not answers(served.url) and served.url not in endpoint.server_status(root)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "message"), [("fail", "weights of the wrong shape"), ("hang", "loading for ever")])
def test_a_failed_or_endless_start_shows_the_log_and_leaves_nothing(
    model: Path, serving: ServingParams, monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    monkeypatch.setattr(endpoint, "launch", fake_launch(mode))
    hasty = serving if mode == "fail" else serving.model_copy(update={"start_timeout_s": 1})
    lease = RewardEndpoint.lease(model, hasty, model.parent)
    with pytest.raises(ServingError, match=message), lease:
        pass
    home = Registry(model.parent).server_dir(served_name(model_fingerprint(model)))
    assert not is_held(home / "alive") and not list((home / "leases").iterdir())


def test_a_port_in_use_names_the_process(model: Path, serving: ServingParams, fake: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = serving.model_copy(update={"port": port})
        with pytest.raises(ServingError, match=rf"port {port} .*process {os.getpid()} "):
            endpoint.up(model, settings, model.parent)
    assert "serves at" in endpoint.up(model, settings, model.parent)
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


def test_the_fingerprint_is_dvcs_of_what_the_folder_holds_whatever_the_lock_says(tmp_path: Path, model: Path) -> None:
    (model / "golden").mkdir()
    (model / "golden" / "0.png").write_bytes(b"not a picture")
    # the md5 that DVC 3.67 records for these two files
    assert model_fingerprint(model, tmp_path) == model_fingerprint(model) == "cd3208e4b62e5d04d2615b81815a560a"
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  reward_merged:\n    cmd: x\n    outs:\n"
        "    - {path: model, hash: md5, md5: cd3208e4b62e5d04d2615b81815a560a.dir, size: 15}\n"
    )
    (model / "config.json").write_text("{ }")
    assert model_fingerprint(model, tmp_path) == model_fingerprint(model) != "cd3208e4b62e5d04d2615b81815a560a"
    with pytest.raises(ServingError, match="nothing"):
        model_fingerprint(tmp_path / "nothing")


def test_vllm_gets_its_settings(tmp_path: Path, model: Path, serving: ServingParams) -> None:
    serving = serving.model_copy(update={"engine": "vllm", "device": "cuda", "dtype": "bfloat16"})
    with pytest.raises(Exception, match="make vllm"):
        vllm.server_command("m", "name", "127.0.0.1", 8000, serving, tmp_path)
    (tmp_path / ".venv-vllm/bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm/bin/python").touch()
    line = vllm.server_command("m", "name", "127.0.0.1", 8000, serving, tmp_path)
    options = dict(pairwise(line))
    assert options["--served-model-name"] == "name" and options["--gpu-memory-utilization"] == "0.85"
    assert json.loads(options["--limit-mm-per-prompt"])["image"] == 2
    assert "--trust-remote-code" not in line and options["--max-model-len"] == "8192"
    assert options["--allowed-media-domains"] == "nowhere.invalid" and "--allowed-local-media-path" not in line
    (model / "config.json").write_text('{"text_config": {"max_position_embeddings": 4096}}')
    small = vllm.server_command(str(model), "name", "127.0.0.1", 8000, serving, tmp_path)
    assert dict(pairwise(small))["--max-model-len"] == "4096", "vLLM would not start"

    invariant = serving.model_copy(update={"batch_invariant": True})
    assert vllm.server_environment(invariant)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in vllm.server_environment(serving)
    engines = [endpoint.server_settings(model, "name", settings, tmp_path).engine for settings in (invariant, serving)]
    assert engines == ["vllm batch-invariant", "vllm"], "the scores of one are never taken for the other's"
    for changes in ({"device": "cpu"}, {"engine": "transformers"}):
        with pytest.raises(DataError, match="batch_invariant"):
            launch(model, "name", "127.0.0.1", 8000, 3, invariant.model_copy(update=changes), tmp_path)


def test_a_server_that_would_answer_otherwise_is_told_apart(model: Path, serving: ServingParams) -> None:
    def recipe(**changes: object) -> endpoint.ServerSettings:
        return endpoint.server_settings(model, "name", serving.model_copy(update=changes), model.parent)

    settings = recipe()
    record = ServerRecord(
        "name", "url", 1, settings.engine, "model", 0.0, settings.dtype, settings.code, settings.device, settings.limits
    )
    assert settings.differs(record) is recipe(port=1, threads=7, linger_s=3.0).differs(record) is None
    for changes in ({"dtype": "bfloat16"}, {"device": "cuda:0"}, {"max_model_len": 77}):
        assert recipe(**changes).differs(record) is not None


def test_scores_of_a_gpu_are_not_taken_for_a_processors(tmp_path: Path, serving: ServingParams) -> None:
    fingerprints = []
    for device in ("cpu", "cuda"):
        place = ("vllm", "bfloat16", device, "c", tmp_path, serving, tmp_path / "m/server.log")
        with RewardEndpoint("http://127.0.0.1:1", "m", 1, *place).client() as client:
            fingerprints.append(client._scoring_fingerprint)
    assert fingerprints == ["vllm bfloat16 c png", "vllm bfloat16 c cuda png"]
