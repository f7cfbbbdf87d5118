"""Saving: adapters are complete behind wrappers, and saving is validated before the first epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from paco_core.adapters.attach import adapter_state_dict
from paco_core.config.params import LoraParams
from paco_core.policies import base
from paco_core.training.checkpoint import validate_saving
from tests.support import loras
from tests.support.tiny import tiny_flux


@pytest.fixture
def policy(tmp_path: Path) -> Any:
    policy = base.load_policy("flux", str(tiny_flux(tmp_path / "flux")), "cpu", "float32")
    policy.add_adapter(LoraParams(rank=2, alpha=4, targets=["to_q", "net.2"]), 0)
    return policy


def test_the_names_are_those_of_a_plain_model_behind_wrappers(policy: Any, tmp_path: Path) -> None:
    policy.save_adapter(tmp_path / "plain")
    policy.enable_gradient_checkpointing()
    blocks = policy.transformer.transformer_blocks
    blocks[0] = checkpoint_wrapper(blocks[0])
    policy.save_adapter(tmp_path / "wrapped")
    plain, wrapped = (load_file(tmp_path / name / loras.FILE) for name in ("plain", "wrapped"))
    assert plain.keys() == wrapped.keys() and len(plain) == len(policy.trainable())


def test_a_trained_tensor_that_would_be_left_out_is_an_error(policy: Any) -> None:
    policy.transformer.proj_out.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="tensors would be saved of"):
        adapter_state_dict(policy.transformer, "default")


def test_what_cannot_be_saved_is_found_at_once_and_nothing_stays(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folders: list[Path] = []

    def save(folder: Path) -> None:
        folders.append(folder)
        folder.mkdir()
        (folder / "part").write_bytes(b"x")
        raise TypeError("no number")

    with pytest.raises(TypeError, match="no number"):
        validate_saving(save)
    assert folders[0].is_relative_to(tmp_path) and not list(tmp_path.iterdir())
