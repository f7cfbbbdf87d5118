"""A judge in fewer bits: asked of both engines by vLLM's names, and refused where it cannot work."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paco_core.config.changes import changed
from paco_core.config.params import Params, ParamsError, ServingParams, load
from paco_core.planning.models import language_layers
from paco_core.reward_model import quantised
from paco_core.reward_model.network import Network
from paco_core.serving.engines import launch
from paco_core.serving.engines.transformers_app import _arguments
from tests.support import tiny_qwen3_vl, tiny_vlm

GPU = {"serving.device": "cuda", "serving.dtype": "bfloat16"}


@pytest.fixture
def params(repository: Path) -> Params:
    return load(repository / "params.yaml")


@pytest.mark.parametrize("quantization", ["fp8", "bitsandbytes"])
def test_each_engine_is_started_with_it(params: Params, tmp_path: Path, quantization: str) -> None:
    changes = {**GPU, "serving.quantization": quantization, "execution.serving.python": "python"}
    (tmp_path / "python").touch()
    for engine in ("vllm", "transformers"):
        serving: ServingParams = changed(params, {**changes, "serving.engine": engine}).serving
        line = launch(tmp_path, "judge", "127.0.0.1", 1, 3, serving, tmp_path).command
        assert line[line.index("--quantization") + 1] == quantization
        if engine == "transformers":
            assert _arguments(line[3:]).quantization == quantization
        else:
            read = "bitsandbytes" if quantization == "bitsandbytes" else "safetensors"
            assert line[line.index("--load-format") + 1] == read
        assert serving.program == f"{engine} {quantization}", "scores of one are never taken for the other's"


def test_a_processor_float32_and_batch_invariance_are_refused(params: Params) -> None:
    invariant = {**GPU, "serving.engine": "vllm", "execution.serving.batch_invariant": True}
    for changes in ({}, {**GPU, "serving.dtype": "float32"}, invariant):
        with pytest.raises(ParamsError, match="quantization fp8"):
            changed(params, {**changes, "serving.quantization": "fp8"})


def test_tower_and_head_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda _name: object())
    monkeypatch.setattr("transformers.BitsAndBytesConfig", dict)
    options: dict[str, Any] = quantised.reward_quantization("bitsandbytes", "cuda:1")
    assert options["device_map"] == {"": "cuda:1"}
    assert options["quantization_config"]["llm_int8_skip_modules"] == ["model.visual", "lm_head"]


@pytest.mark.parametrize("support", [tiny_vlm, tiny_qwen3_vl])
def test_weights_of_the_layers_are_counted_from_the_configuration(support: ModuleType, tmp_path: Path) -> None:
    model = support.build(tmp_path / "model")
    layers = Network.load(model).model.model.language_model.layers
    counted = sum(p.numel() for name, p in layers.named_parameters() if name.endswith("proj.weight"))
    assert language_layers(tmp_path, "model") == counted
    assert language_layers(tmp_path, "Qwen/Qwen2.5-VL-7B-Instruct") == pytest.approx(6.53e9, rel=0.01)
    assert language_layers(tmp_path, "another/model") == 0
