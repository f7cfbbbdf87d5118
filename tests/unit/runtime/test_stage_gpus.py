"""Stages and servers of one machine each get GPUs of their own, however they were started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvc_project.file_locks import is_held
from paco_core.io.files import DataError
from paco_core.runtime import gpus, launch, placement
from paco_core.runtime.launchers import accelerated
from paco_core.serving.engines import Launch
from paco_core.serving.servers.registry import Registry, ServerSettings
from paco_core.stages import declaration

RUN = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from paco_core.runtime import launch
from paco_core.stages import declaration
held = launch._placed(sys.argv[1], declaration(sys.argv[1]), sys.argv[2] or None, Path("."), "local")
print("has", os.environ["CUDA_VISIBLE_DEVICES"], "servers", os.environ["PACO_SERVER_GPUS"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, by name alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
    for name in (gpus.STAGES, gpus.SERVERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def on_gpus(project: Path, **sections: Any) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    for name in ("grids", "reward", "policies", "serving"):
        (tree[name]["defaults"] if name == "policies" else tree[name])["device"] = "cuda"
    for name, changes in sections.items():
        tree.setdefault(name, {}).update(changes)
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", RUN, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_stages_at_once_have_a_gpu_each_and_the_next_waits(project: Path) -> None:
    on_gpus(project)
    stages = [started("grids", "0"), started("grids", "1")]
    try:
        first = [line(stage) for stage in stages[:2]]
        assert sorted(first) == ["has 0 servers 2", "has 1 servers 2"]
        stages.append(started("policies", "flux_t2is"))
        waits = line(stages[2])
        assert (waits.startswith("waiting for a GPU: GPU 0 has grids@") and f"of {project}" in waits) or "of ." in waits
        stages[0].kill()
        assert line(stages[2]) == f"has {first[0].split()[1]} servers 2"
    finally:
        for stage in stages:
            stage.kill()
            stage.communicate()


def test_a_training_takes_a_gpu_for_each_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as params.yaml or accelerate's configuration says, held by the launcher that the stage becomes."""
    on_gpus(project, execution={"reward": {"processes": 2}})
    (project / "launch").mkdir()
    (project / "launch" / "ddp.yaml").write_text("num_machines: 1\nnum_processes: 2\n")
    became: list[tuple[str, str, bool]] = []

    def replace_process(stage: str, *_more: object) -> None:
        held = [gpus._file(gpus._folder(), gpu) for gpu in gpus.visible()]
        became.append((stage, os.environ[gpus.VISIBLE], all(is_held(file) for file in held)))

    monkeypatch.setattr(accelerated, "replace_process", replace_process)
    for stage, item, launcher in (("reward_lora", None, "local"), ("policies", "qwen_edit", "accelerate")):
        for lease in launch._placed(stage, declaration(stage), item, project, launcher):  # type: ignore[arg-type]
            assert os.get_inheritable(lease.fileno())
            lease.close()
        monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
    assert became == [("reward_lora", "0,1", True), ("policies", "0,1", True)]
    (project / "launch" / "ddp.yaml").write_text("num_processes: 7\n")
    with pytest.raises(DataError, match=r"policies@qwen_edit of .* needs 7 GPUs, and stages have 2 here \(0, ?1\)"):
        launch._placed("policies", declaration("policies"), "qwen_edit", project, "accelerate")
    (project / "launch" / "ddp.yaml").write_text("num_machines: 1\n")
    with pytest.raises(DataError, match="needs num_processes"):
        launch._placed("policies", declaration("policies"), "qwen_edit", project, "accelerate")


def test_numbered_devices_processors_and_ray_take_no_lease(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(project, grids={"device": "cuda:1"})
    assert (
        launch._placed("grids", declaration("grids"), "0", project, "local") == []
        and os.environ[gpus.VISIBLE] == "0,1,2"
    )
    assert launch._placed("policies", declaration("policies"), "flux_t2is", project, "ray") == []
    monkeypatch.delenv(gpus.SERVERS)
    on_gpus(project, grids={"device": "cpu"}, serving={"device": "cpu"})
    assert launch._placed("grids", declaration("grids"), "0", project, "local") == [] and gpus.SERVERS not in os.environ


def test_a_server_computes_on_its_own_gpu_and_holds_it_while_it_lives(project: Path) -> None:
    on_gpus(project)
    leases = launch._placed("policies", declaration("policies"), "flux_t2is", project, "local")
    assert os.environ[gpus.VISIBLE] == "0"
    told = project / "told"
    code = f"import os, time; open({str(told)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(60)"
    server = Launch([sys.executable, "-c", code], {**os.environ}, inherits=True)
    settings = ServerSettings("fake", "model", "127.0.0.1", 0, "float32", 0.0, lambda _h, _p, _d: server, gpus=1)
    registry = Registry(project)
    _, lease = registry.join("paco-reward@a", settings)
    deadline = time.monotonic() + 20
    while not (told.is_file() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    file = gpus._file(gpus._folder(), gpus.Gpu("2", "2"))
    assert told.read_text() == "2" and is_held(file) and b"server paco-reward@a" in file.read_bytes()
    registry.leave("paco-reward@a", lease)
    assert not is_held(file)
    for held in leases:
        held.close()


def test_whoever_starts_a_server_outside_a_stage_places_it_too(project: Path) -> None:
    on_gpus(project, execution={"devices": {"gpus": [2, 1], "servers": 1}})
    placement.announce_servers(project)
    assert (os.environ[gpus.STAGES], os.environ[gpus.SERVERS]) == ("2", "1")
