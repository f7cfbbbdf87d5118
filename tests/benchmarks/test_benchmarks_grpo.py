"""The GPU benchmark's script, with a small model on a CPU: the same code, no meaning in its seconds."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest


def test_the_gpu_script_runs_with_a_small_model(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("grpo_flux_gpu", repository / "speed" / "grpo_flux_gpu.py")
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "grpo_flux_gpu", script)
    spec.loader.exec_module(script)
    out = tmp_path / "result.json"
    asked = ["--tiny", "--device", "cpu", "--sizes", "32", "48", "--tokens", "12", "--steps", "3", "--rank", "2"]
    results = script.main([*asked, "--repeats", "1", "--out", str(out)])
    assert [(r.size, r.batch) for r in results] == [(32, 3), (48, 1)]
    assert all(r.rollout_images_s > 0 and r.train_images_s > 0 and r.decode_images_s > 0 for r in results)
    told = json.loads(out.read_text())
    assert told["model"] == "tiny" and len(told["results"]) == 2
    # 12 d^2 weights a token and block, two operations each, and attention
    assert script.TINY.architecture.pass_flops(4, 16) == pytest.approx(3 * (2 * 12 * 32**2 * 20 + 4 * 20**2 * 32))
