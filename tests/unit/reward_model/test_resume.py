"""Training that is killed, split among processes, or evaluated: the same weights, and the best ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageOps
from safetensors.torch import load_file, save_file

from paco_core.adapters.reader import WEIGHTS
from paco_core.config.params import RewardParams
from paco_core.reward_model import checkpoint, training
from paco_core.reward_model.evaluation import RewardEvaluation
from paco_core.reward_model.examples import Example
from tests.support import children, reward_tiny, tiny_vlm
from tests.support.ranks import FSDP2, together

PAIRS, WITHIN_EPOCH_2 = 10, 18  # pairs trained on when the process is killed


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("resume") / "tiny")


def train(base: Path, out: Path, **changes: Any) -> training.TrainingReport:
    examples = reward_tiny.pairs(PAIRS)
    callbacks = {key: changes.pop(key) for key in ("on_metrics", "progress", "log") if key in changes}
    params = RewardParams.model_validate({**reward_tiny.PARAMS, "batch_size": 2, "checkpoint_every": 3, **changes})
    return training.train_reward_model(
        base, examples, examples[:4], params, out, out / "checkpoint", "code", **callbacks
    )


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / training.ADAPTER / WEIGHTS)


CHILD = f"""
import sys, time
from pathlib import Path
from tests.unit.reward_model.test_resume import train

class Stop:
    done = 0
    def advance(self, pairs, note=""):
        self.done += pairs
        if self.done >= {WITHIN_EPOCH_2}:
            Path(sys.argv[2], "reached").touch()
            time.sleep(600)

train(Path(sys.argv[1]), Path(sys.argv[2]), progress=Stop())
"""


@pytest.mark.thorough
def test_kill_minus_nine_in_the_middle_of_an_epoch_costs_no_bit(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": children.PATH, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(base), str(out)], env=environment)
    try:
        deadline = time.monotonic() + 120
        while not (out / "reached").exists():
            assert child.poll() is None and time.monotonic() < deadline, "the child never got there"
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert not (out / training.ADAPTER).exists()

    lines: list[str] = []
    resumed = train(base, out, log=lines.append).metrics()
    assert "resuming after step 6 of 10 (1 of 2 epochs done)" in lines  # 5 steps an epoch: one step into the second
    unbroken = train(base, tmp_path / "whole").metrics()
    assert resumed == pytest.approx(unbroken, rel=0, abs=0, nan_ok=True)
    uninterrupted, killed = weights(tmp_path / "whole"), weights(out)
    assert uninterrupted.keys() == killed.keys()
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)
    assert (tmp_path / "whole" / training.LOG).read_text() == (out / training.LOG).read_text()


#: Two epochs of one optimiser step from two micro-batches; five pairs do not divide by two processes.
TOGETHER = {"epochs": 2, "batch_size": 5, "accumulation": 2, "checkpoint_every": 1, "gradient_checkpointing": False}


class ProcessesEnd(Exception):
    """The processes end here, all of them."""


def train_together(base: Path, out: Path, env: dict[str, str], ends_after: int | None) -> None:
    """One rank: trains to the end, or to where a checkpoint after so many steps was written."""
    os.environ.update(env)
    kinds: set[str] = set()
    save = training._Run._save

    def end(run: Any, *state: Any) -> None:
        save(run, *state)
        kinds.update(type(p).__name__ for p in run.network.model.model.language_model.layers.parameters())
        run.processes.barrier()
        if state[-1].step == ends_after:
            raise ProcessesEnd

    training._Run._save = end  # type: ignore[method-assign]
    try:
        scores = train(base, out, **TOGETHER).after.scores
    except ProcessesEnd:
        return
    (out / f"seen-{os.environ['RANK']}.json").write_text(json.dumps({"scores": scores, "kinds": sorted(kinds)}))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "kinds", "within"),
    [
        pytest.param({}, ["Parameter"], 1e-6, id="ddp"),
        pytest.param(FSDP2, ["DTensor", "Parameter"], 1e-6, id="fsdp2"),
    ],
)
def test_two_processes_train_as_one_also_from_a_checkpoint(
    base: Path, tmp_path: Path, env: dict[str, str], kinds: list[str], within: float
) -> None:
    single = train(base, tmp_path / "one", **TOGETHER)
    (tmp_path / "two").mkdir()
    for ends_after in (1, None):
        together(train_together, base, tmp_path / "two", env, ends_after)
    single_weights, shared = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert any(value.abs().max() > 0 for name, value in single_weights.items() if "lora_B" in name)
    for name, value in single_weights.items():
        torch.testing.assert_close(value, shared[name], rtol=0, atol=within)
    for rank in (0, 1):
        passes = json.loads((tmp_path / f"two/seen-{rank}.json").read_text())
        assert passes["scores"] == pytest.approx(single.after.scores, abs=10 * within) and passes["kinds"] == kinds


def evaluation(**figures: float) -> RewardEvaluation:
    metrics = {"accuracy": 0.5, "roc_auc": 0.5, "calibration_error": 0.1, "position_bias": 0.0, "position_spread": 0.1}
    counts = {"true_yes": 1, "false_yes": 1, "true_no": 1, "false_no": 1, "pairs": 4, "failed": 0}
    return RewardEvaluation(**{**metrics, "identical_score": 0.5, **counts, "scores": (0.5,) * 4, **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "figures", "best_epoch"),
    [
        ("accuracy", [0.6, 0.9, 0.7], 2),
        ("calibration_error", [0.3, 0.2, 0.4], 2),
        ("roc_auc", [0.7, float("nan"), 0.7], 3),
        ("last", [0.9, 0.8, 0.1], 3),
    ],
)
def test_the_best_epoch_by_the_named_metric_is_kept(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, figures: list[float], best_epoch: int
) -> None:
    after_epochs: list[dict[str, torch.Tensor]] = []
    evaluations = iter(
        [evaluation(), *(evaluation(**{metric if metric != "last" else "accuracy": value}) for value in figures)]
    )
    monkeypatch.setattr(training, "evaluate", lambda _scorer, _examples: next(evaluations))
    save = checkpoint.save_reward_checkpoint

    def record(folder: Path, key: str, progress: Any, tensors: Any, moments: Any) -> None:
        save(folder, key, progress, tensors, moments)
        after_epochs.append({name: tensor.detach().clone() for name, tensor in tensors.items()})

    monkeypatch.setattr(checkpoint, "save_reward_checkpoint", record)
    report = train(base, tmp_path, epochs=3, checkpoint_every=100, best=metric)
    assert report.best_epoch == best_epoch
    for name, value in weights(tmp_path).items():
        inside = name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")
        assert torch.equal(value, after_epochs[best_epoch - 1][inside])
    assert not torch.equal(*(list(epoch.values())[1] for epoch in (after_epochs[0], after_epochs[2])))


@pytest.mark.slow
def test_a_vision_tower_in_training_changes_and_its_features_are_not_kept(base: Path, tmp_path: Path) -> None:
    report = train(base, tmp_path / "lora", epochs=1, vision="lora")
    names = weights(tmp_path / "lora")
    visual = [name for name in names if ".visual.blocks." in name]
    assert len(visual) == 2 * 2 * 5  # blocks, A and B, qkv proj gate up down
    assert any(float(names[name].abs().max()) > 0 for name in visual if ".lora_B." in name)
    frozen = train(base, tmp_path / "frozen", epochs=1)
    assert frozen.after.scores != report.after.scores
    train(base, tmp_path / "uncached", epochs=1, vision_cache_gb=0.0)
    frozen_weights, computed = weights(tmp_path / "frozen"), weights(tmp_path / "uncached")
    for name, value in frozen_weights.items():
        torch.testing.assert_close(value, computed[name], rtol=0, atol=1e-6)


def inverted(example: Example) -> Example:
    return replace(example, images=tuple(map(ImageOps.invert, example.images)))


def test_a_checkpoint_is_of_its_parameters_pairs_pictures_and_base_only(base: Path, tmp_path: Path) -> None:
    params = RewardParams.model_validate(reward_tiny.PARAMS)
    examples, check = reward_tiny.pairs(6), reward_tiny.pairs(10)[6:]
    copy = Path(shutil.copytree(base, tmp_path / "copy"))

    def key(**changes: Any) -> str:
        inputs = {"params": params, "examples": examples, "validation": check, "base": base, "loaded": "w", "code": "c"}
        return checkpoint.reward_training_key(**{**inputs, **changes})

    assert key(base=copy) == key() == key(params=params.model_copy(update={"threads": 7}))
    corrected = replace(check[0], answer="No." if check[0].consistent else "Yes.")
    keys = [
        key(),
        key(params=params.model_copy(update={"alpha": 0.2})),
        key(params=params.model_copy(update={"device": "cuda:1"})),
        key(examples=examples[::-1]),
        key(examples=[inverted(examples[0]), *examples[1:]]),
        key(examples=[replace(examples[0], ordered=True), *examples[1:]]),
        key(validation=check[:2]),
        key(validation=[*check, examples[0]]),
        key(validation=[corrected, *check[1:]]),
        key(validation=[inverted(check[0]), *check[1:]]),
        key(loaded="other weights"),
        key(code="other code"),
    ]
    processor = copy / "preprocessor_config.json"
    processor.write_text(processor.read_text() + "\n")
    keys.append(key(base=copy))
    (file,) = copy.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if "visual.blocks.0" in name and name.endswith("weight"))
    save_file({**tensors, name: tensors[name] + 1}, file, {"format": "pt"})
    keys.append(key(base=copy))
    assert len(set(keys)) == len(keys)
