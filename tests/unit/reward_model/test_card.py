"""The card of a merged reward model: its example gives the golden score, word by word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model

from paco_core.config.params import RewardParams
from paco_core.reward_model.golden import write_golden
from paco_core.reward_model.instructions import TEMPLATES
from paco_core.reward_model.model_card import adapter_card, reward_model_card
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.training.log import write_log
from tests.support import reward_tiny, tiny_qwen3_vl, tiny_vlm

PARAMS = RewardParams.model_validate({**reward_tiny.PARAMS, "base": "Qwen/Qwen2.5-VL-7B-Instruct"})


def printed(card: str, folder: Path) -> float:
    """What the example of a card prints."""
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    command = [sys.executable, "-c", code]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, f"{code}\n{completed.stderr[-3000:]}"
    return float(completed.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("support", [tiny_vlm, tiny_qwen3_vl])
def test_the_example_gives_the_golden_score(support: ModuleType, tmp_path: Path) -> None:
    place = "data/reward_merged"
    folder = support.build(tmp_path / place)
    queries = [example.query for example in reward_tiny.pairs(2)]
    scores = Scorer(folder).score(queries)
    write_golden(folder, queries, scores, "float32")
    write_log(tmp_path / "log.csv", [{"step": 1, "epoch": 1}, {"step": 2, "epoch": 1, "validation_accuracy": 0.75}])
    golden = list(zip(queries, scores, strict=True))
    card = reward_model_card(PARAMS, place, {"license": "apache-2.0"}, tmp_path / "log.csv", golden)
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == PARAMS.base and front["license"] == "apache-2.0"
    assert "| 1 | 0.7500 |" in card and f"| 1 | {queries[1].instruction} | {scores[1].value:.4f} |" in card
    assert printed(card, tmp_path) == pytest.approx(scores[0].value, abs=1e-4)


@pytest.mark.thorough
def test_the_example_of_an_adapter_gives_its_score(tmp_path: Path) -> None:
    base, place = tiny_vlm.build(tmp_path / "base"), "data/reward_lora/adapter"
    network = Network.load(base)
    model = get_peft_model(network.model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3)
    model.save_pretrained(tmp_path / place)
    (example,) = reward_tiny.pairs(1)
    for file, picture in zip(("first.png", "second.png"), example.query.pictures, strict=True):
        picture.save(tmp_path / file)
    (expected,) = Scorer.from_network(network).score([PairQuery(*example.query.pictures, TEMPLATES["plain"])])
    write_log(tmp_path / "log.csv", [{"step": 1, "epoch": 1, "validation_accuracy": 0.75}])
    params = PARAMS.model_copy(update={"base": "base"})
    card = adapter_card(params, place, {"license": "apache-2.0"}, tmp_path / "log.csv")
    front = yaml.safe_load(card.split("---")[1])
    assert (front["base_model_relation"], front["library_name"]) == ("adapter", "peft") and "| 1 | 0.7500 |" in card
    assert printed(card, tmp_path) == pytest.approx(expected.value, abs=1e-4)


def test_a_card_names_its_base_by_an_id_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv", [{"step": 1, "epoch": 1, "validation_accuracy": 0.75}])

    def head() -> dict[str, object]:
        return yaml.safe_load(adapter_card(PARAMS, "here", {}, tmp_path / "log.csv").split("---")[1])  # type: ignore[no-any-return]

    assert head()["base_model"] == PARAMS.base and head()["base_model_relation"] == "adapter"
    (tmp_path / PARAMS.base).mkdir(parents=True)
    assert not {"base_model", "base_model_relation"} & head().keys()
