"""Whole processes on the pretended machine: ranks that train together, and the lease that a stage takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from tests.support import pretended_cuda
from tests.support.grpo_toys import figures, recipe, record, trainer
from tests.support.ranks import FSDP2, together
from tests.support.tiny import TEXT_LENGTH, tiny_flux

pytestmark = pytest.mark.thorough


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pretended_cuda.environment(gpus=2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


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
    policy = base.load_policy("flux", str(model), processes.device or "cuda", "float32")
    training = trainer(
        policy=policy, recipe=rule, train=[record(n) for n in range(4)], unseen=[record(n) for n in (20, 21)],
        processes=processes,
    )  # fmt: skip
    batch_sizes: list[int] = []
    real = evaluation.sample_batches

    def counted(*args: Any) -> Any:
        for number, images, trajectories in real(*args):
            batch_sizes.append(len(images))
            yield number, images, trajectories

    with mock.patch.object(evaluation, "sample_batches", counted):
        outcome = training.run(out, out / "checkpoint")
    transformer: Any = training.learner.policy.transformer  # type: ignore[attr-defined]
    parameter_types = {type(p).__name__ for name, p in transformer.named_parameters() if "lora_" not in name}
    assert parameter_types == {"DTensor" if processes.sharded else "Parameter"}
    results = {"rows": figures(outcome), "resumed_at": outcome.resumed_at, "painted": batch_sizes}
    (out / f"rank{rank}.json").write_text(json.dumps(results))


def seen_by(out: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(out.glob("rank*.json"))]


@pytest.fixture(scope="module")
def single_gpu_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and what one rank on one GPU made of it in two epochs."""
    folder = tmp_path_factory.mktemp("alone")
    model, out = tiny_flux(folder / "flux"), folder / "out"
    out.mkdir()
    with pretended_cuda.pretended():
        work(model, out, {})
    return model, out


def test_two_ranks_on_two_gpus_compute_what_one_does(
    machine: None, single_gpu_run: tuple[Path, Path], tmp_path: Path
) -> None:
    model, single_out = single_gpu_run
    together(work, model, tmp_path, {})
    (single,), (first, second) = seen_by(single_out), seen_by(tmp_path)
    assert first == second
    assert single["painted"] == [2] * 2 and first["painted"] == [1] * 2, (
        "two evaluations, whose pictures are shared out"
    )
    for row, other in zip(single["rows"], first["rows"], strict=True):
        assert other == pytest.approx(row, abs=1e-5, nan_ok=True)


def test_two_ranks_with_sharded_weights_train_and_go_on_to_the_same_adapter(
    machine: None, single_gpu_run: tuple[Path, Path], tmp_path: Path
) -> None:
    """FSDP2, as `launch/fsdp2.yaml` sets it; the second epoch is that of new processes."""
    model, single_out = single_gpu_run
    for epochs in (1, 2):
        together(work, model, tmp_path, FSDP2, epochs)
        assert [rank["resumed_at"] for rank in seen_by(tmp_path)] == [epochs - 1] * 2
    single, sharded = (load_file(next((out / "adapter").glob("*.safetensors"))) for out in (single_out, tmp_path))
    assert single.keys() == sharded.keys()
    for name, tensor in single.items():
        assert torch.allclose(tensor, sharded[name], rtol=0, atol=1e-5), name
