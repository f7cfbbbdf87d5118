"""Whole processes on the pretended machine: ranks that train together, and the lease that a stage takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from paco_core.runtime import nvidia_smi
from paco_core.runtime.gpus import Gpu
from tests.support import pretended_cuda
from tests.support.grpo_toys import figures, recipe, record, trainer
from tests.support.ranks import FSDP2, together
from tests.support.tiny import TEXT_LENGTH, tiny_flux


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pretended_cuda.environment(gpus=2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.slow
def test_every_process_pretends_from_the_import_of_torch_on(machine: None) -> None:
    code = (
        "import sys, os; from importlib.util import find_spec; find_spec('torch'); print('torch' in sys.modules);"
        "import torch; os.environ['CUDA_VISIBLE_DEVICES'] = '1';"
        "print(torch.zeros(2, device='cuda').device, torch.cuda.device_count())"
    )
    assert python(code).stdout.split() == ["False", "cuda:0", "1"]


def test_the_stand_in_answers_as_nvidia_smi(machine: None) -> None:
    found = nvidia_smi.listed()
    assert [gpu.number for gpu in found.gpus] == ["0", "1"] and found.trouble is None and found.too_old is None
    assert isinstance(found.gpus[0], Gpu) and found.gpus[0].memory_gb == pytest.approx(85.9, abs=0.1)


BACKENDS = """
import sys, torch, torch.distributed as dist
for backend, device in (("nccl", "cuda"), ("gloo", "cpu"), ("nccl", "cpu"), ("gloo", "cuda")):
    dist.init_process_group(backend, init_method=f"file://{sys.argv[1]}-{backend}-{device}", rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(2, device=device))
        dist.all_gather([torch.zeros(2, device=device)], torch.ones(2, device=device))
        print("fine")
    except RuntimeError as error:
        print(error)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_backend_carries_the_tensors_of_its_devices(machine: None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BACKENDS, str(tmp_path / "meeting")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "fine",
        "fine",
        "No backend type associated with device type cpu",
        "ProcessGroupGloo::allgather_: unsupported device type cuda",
    ], done.stderr[-2000:]


def work(model: Path, out: Path, environment: dict[str, str], epochs: int = 2) -> None:
    """One rank trains, as a stage does under a launcher."""
    os.environ.update(environment)
    from paco_core.grpo import evaluation
    from paco_core.policies import base
    from paco_core.training.processes import Processes

    processes = Processes("cuda")
    rank = os.environ.get("RANK", "0")
    assert processes.device == (f"cuda:{rank}" if processes.world_size > 1 else None)
    rule = recipe(
        device="cuda", lora={"rank": 4, "alpha": 8, "targets": ["to_q", "to_v"]}, epochs=epochs, eval_every=2,
        prompts_per_epoch=2, group_size=4, updates_per_epoch=1, rollout_batch=4, train_batch=4, sampling_steps=3,
        eval_steps=2, eval_sizes=[32], eval_seeds=[0], eval_prompts=2, max_sequence_length=TEXT_LENGTH,
    )  # fmt: skip
    policy = base.load("flux", str(model), processes.device or "cuda", "float32")
    made = trainer(
        policy=policy, recipe=rule, train=[record(n) for n in range(4)], unseen=[record(n) for n in (20, 21)],
        processes=processes,
    )  # fmt: skip
    painted: list[int] = []
    real = evaluation.sample_batches

    def counted(*args: Any) -> Any:
        for number, images, trajectories in real(*args):
            painted.append(len(images))
            yield number, images, trajectories

    with mock.patch.object(evaluation, "sample_batches", counted):
        outcome = made.run(out, out / "checkpoint")
    transformer: Any = made.learner.policy.transformer  # type: ignore[attr-defined]
    held = {type(p).__name__ for name, p in transformer.named_parameters() if "lora_" not in name}
    assert held == {"DTensor" if processes.sharded else "Parameter"}
    seen = {"rows": figures(outcome), "resumed_at": outcome.resumed_at, "painted": painted}
    (out / f"rank{rank}.json").write_text(json.dumps(seen))


def seen_by(out: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(out.glob("rank*.json"))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and what one rank on one GPU made of it in two epochs."""
    folder = tmp_path_factory.mktemp("alone")
    model, out = tiny_flux(folder / "flux"), folder / "out"
    out.mkdir()
    with pretended_cuda.pretended():
        work(model, out, {})
    return model, out


@pytest.mark.slow
def test_two_ranks_on_two_gpus_compute_what_one_does(machine: None, alone: tuple[Path, Path], tmp_path: Path) -> None:
    model, made = alone
    together(work, model, tmp_path, {})
    (one,), (first, second) = seen_by(made), seen_by(tmp_path)
    assert first == second
    assert one["painted"] == [2] * 2 and first["painted"] == [1] * 2, "two evaluations, whose pictures are shared out"
    for row, other in zip(one["rows"], first["rows"], strict=True):
        assert other == pytest.approx(row, abs=1e-5, nan_ok=True)


@pytest.mark.slow
def test_two_ranks_with_sharded_weights_train_and_go_on_to_the_same_adapter(
    machine: None, alone: tuple[Path, Path], tmp_path: Path
) -> None:
    """FSDP2, as `launch/fsdp2.yaml` sets it; the second epoch is that of new processes."""
    model, made = alone
    for epochs in (1, 2):
        together(work, model, tmp_path, FSDP2, epochs)
        assert [rank["resumed_at"] for rank in seen_by(tmp_path)] == [epochs - 1] * 2
    one, both = (load_file(next((out / "adapter").glob("*.safetensors"))) for out in (made, tmp_path))
    assert one.keys() == both.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, both[name], rtol=0, atol=1e-5), name
