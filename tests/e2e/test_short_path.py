"""Published weights and a file of prompts: a policy and its report, by the commands of docs/tutorial/single-gpu.md.

Small weights take the place of the published ones, in the same layout: shards with an index, or a PEFT adapter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from paco_core.config import profiles
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.records import write_prompts
from paco_core.planning.preflight import check_project
from paco_core.reward_model.golden import read_golden
from paco_core.runtime.stage import skip_reason
from paco_core.stages import declared
from tests.e2e.conftest import run_dvc
from tests.support.project_copy import copy_project
from tests.support.small_profiles import use

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

PROMPTS = "data/external/mine.jsonl"
TARGETS = ("policies@flux_t2is", "t2is", "report")
#: What stands in for a GPU and for weights of a hub; the graph and its sources stay those of the profile one_gpu.
SMALL: Mapping[str, Any] = {
    "execution": {"threads": 1, "serving": {"start_timeout_s": 120}},
    "prompts": {"source": PROMPTS},
    "grids": {"device": "cpu", "dtype": "float32", "height": 64, "width": 64, "model": "data/zoo/flux"},
    "edits": {"device": "cpu", "dtype": "float32"},
    "diverse_prompts": {"device": "cpu", "model": "data/zoo/clip"},
    "reward": {
        "weights": "published/reward", "base": "data/zoo/qwen2_5_vl", "device": "cpu", "dtype": "float32",
        "max_pixels": 3136,
    },
    "serving": {"device": "cpu", "dtype": "float32"},
    "consistency_rank": {"clip": None, "bootstrap": 50},
    "edit_reward": {"clip": None},
    "policies": {
        "defaults": {
            "device": "cpu", "dtype": "float32", "epochs": 2, "prompts_per_epoch": 2, "group_size": 4,
            "rollout_batch": 8, "gradient_checkpointing": False, "ema_every": 1, "eval_every": 2, "eval_prompts": 2,
            "eval_steps": 4, "lora": {"rank": 16, "alpha": 32},
        },
        "recipes": {
            "flux_t2is": {
                "model": "data/zoo/flux", "train_size": 64, "eval_sizes": [64], "sampling_steps": 4,
                "max_sequence_length": 40,
                "rewards": {"terms": {"clip_t": {"model": "data/zoo/clip", "device": "cpu"}}},
            }
        },
    },
    "t2is": {"prompts": 2, "seeds": [0], "steps": 4, "bootstrap": 50},
}  # fmt: skip


def publish_reward(root: Path) -> None:
    """The small reward base as a hub carries a merged model: several shards, an index, the processor's files."""
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    base, folder = root / "data" / "zoo" / "qwen2_5_vl", root / "published" / "reward"
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(base)
    model.save_pretrained(folder, max_shard_size="4MB")
    AutoProcessor.from_pretrained(base).save_pretrained(folder)
    assert len(list(folder.glob("model-*.safetensors"))) > 1 and list(folder.glob("*.index.json"))


def write_mine(root: Path, count: int = 6) -> None:
    prompts = make_prompts(profiles.read(root, "storybook").prompts.model_copy(update={"count": count}), (64, 64))
    (root / PROMPTS).parent.mkdir(parents=True, exist_ok=True)
    write_prompts(root / PROMPTS, prompts.records)


def metrics(root: Path, stage: str) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((root / "data" / "metrics" / f"{stage}.json").read_text())
    return metrics


def test_a_policy_is_trained_and_measured_and_the_rest_is_skipped(repository: Path, tmp_path: Path) -> None:
    root = tmp_path / "paco"
    root.mkdir()
    copy_project(repository, root)
    use(root, "one_gpu", SMALL)
    publish_reward(root)
    write_mine(root)
    result = run_dvc(root, "repro", *TARGETS, environment={"PACO_TRACKING": "off"})
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

    assert (root / "data/policies/flux_t2is/adapter/pytorch_lora_weights.safetensors").is_file()
    assert metrics(root, "policies-flux_t2is")["epochs"] == 2
    figures = metrics(root, "t2is")
    assert figures["prompts"] == 2 and figures["flux_t2is.px64.consistency.after"] is not None
    for stage in ("grids-0", "rankings", "annotations", "edits", "pairs", "cot_labels"):
        assert next(iter(metrics(root, stage).values())) == 0, stage
    for stage in ("policies-kontext_edit", "policies-qwen_edit", "consistency_rank", "edit_reward"):
        assert metrics(root, stage) == {}, f"{stage}: no figure, rather than a zero"
        assert skip_reason(root / "data" / stage.replace("-", "/")), stage
    assert metrics(root, "reward_lora") == {"steps": 0.0}, "published weights are not said to be validated"
    assert "pairs" not in metrics(root, "reward_merged") and metrics(root, "reward_merged")["drawn_pairs"] == 8
    golden = read_golden(root / "data" / "reward_merged")
    assert len(golden) == 4 and len({pair.score for pair in golden}) == 4
    report = json.loads((root / "data" / "report" / "metrics.json").read_text())
    left_out = {part["what"] for part in report["skipped"]}
    assert report["missing"] == []
    assert {"the ranking benchmark", "the editing benchmark", "the policy kontext_edit"} <= left_out


@pytest.mark.parametrize("name", ["published", "one_gpu"])
def test_the_profiles_lack_only_what_a_machine_must_bring(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests themselves are offline
    report = check_project(repository, declared(repository), name)
    expected = (
        "prompts.source: data/external/prompts.jsonl is missing",
        "disk:",
        "device cuda:",
        "serving.engine vllm",
    )
    assert [p for p in report.problems if not p.startswith(expected)] == []
    assert report.costs["grids"].work == "nothing: grids.seeds is empty"
