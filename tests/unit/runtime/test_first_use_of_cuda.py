"""CUDA reads CUDA_VISIBLE_DEVICES at its first use: nothing that is imported before the lease may use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dvc_project.file_locks import is_held
from paco_core.config.params import Params, load
from paco_core.runtime import gpus, placement

#: What every entry imports before it leases a GPU; stages lease theirs between their declaration and their `run`.
ENTRIES = (
    "paco_core.cli.paint", "paco_core.cli.play", "paco_core.cli.score", "paco_core.cli.score_table",
    "paco_core.operations.promote", "paco_core.experiments.reproduction", "paco_core.experiments.reward_sweep",
    "paco_core.operations.reevaluation", "paco_core.operations.promotion.measuring", "paco_core.api.painter",
    "paco_core.api.judge", "paco_core.grading.run",
)  # fmt: skip
IMPORTS = """
import importlib, sys, traceback
import torch
def used(name):
    def use(*_args, **_kwargs):
        raise SystemExit("".join(traceback.format_stack()) + f"CUDA is used: {name}")
    return use
for name in ("is_available", "device_count", "current_device", "get_device_properties", "_lazy_init"):
    setattr(torch.cuda, name, used(name))
torch.accelerator.is_available = used("accelerator")
for module in sys.argv[1:]:
    importlib.import_module(module)
if not sys.argv[1:]:
    from pathlib import Path
    from paco_core.stages import declared
    declared(Path("."))
print("to be leased here", flush=True)
import diffusers
"""


@pytest.mark.thorough
@pytest.mark.parametrize("modules", [ENTRIES, ()], ids=["verbs", "stages"])
def test_nothing_uses_cuda_before_the_lease(modules: tuple[str, ...], project: Path) -> None:
    """The last import shows that the guard works: it uses CUDA."""
    result = subprocess.run([sys.executable, "-c", IMPORTS, *modules], capture_output=True, text=True, cwd=project)
    assert result.stdout == "to be leased here\n", result.stderr[-3000:]
    assert result.stderr.rstrip().endswith("CUDA is used: accelerator")


@pytest.fixture
def params(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Of a project on GPUs, on a machine with two."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(placement, "_PROCESS_GPU", placement._ProcessGpu())
    monkeypatch.setenv(gpus.VISIBLE, "GPU-a,GPU-b")
    for name in (gpus.STAGES, gpus.SERVERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["policies"]["defaults"]["device"] = tree["reward"]["device"] = "cuda"
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return load(project / "params.yaml")


def leased_gpus() -> list[str]:
    return [name for name in ("GPU-a", "GPU-b") if is_held(gpus._file(gpus._folder(), gpus.Gpu(name, name)))]


def test_all_who_compute_in_a_process_share_its_gpu_which_it_gets_again_and_no_other(params: Params) -> None:
    """CUDA does not read CUDA_VISIBLE_DEVICES again."""
    with placement.one_gpu(["cpu"], "paint", params), placement.one_gpu(["cuda:1"], "paint", params):
        assert leased_gpus() == [] and os.environ[gpus.VISIBLE] == "GPU-a,GPU-b"
    with placement.one_gpu(["cpu", "cuda"], "paint", params):
        with placement.one_gpu(["cuda"], "score", params):
            assert os.environ[gpus.VISIBLE] == "GPU-a" and leased_gpus() == ["GPU-a"]
        assert leased_gpus() == ["GPU-a"]
    assert leased_gpus() == []
    other = gpus.acquire([gpus.Gpu("GPU-a", "GPU-a")], 1, "a stage", print)

    def refuse(line: str) -> None:
        raise BlockingIOError(line)

    with pytest.raises(BlockingIOError), placement.one_gpu(["cuda"], "paint", params, refuse):
        pass
    other[0].close()
    with placement.one_gpu(["cuda"], "paint", params, refuse):
        assert leased_gpus() == ["GPU-a"]
