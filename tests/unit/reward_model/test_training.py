"""Training on a miniature: gradients, resumption, merging, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer

from paco_core.adapters.reader import WEIGHTS
from paco_core.config.params import LoraParams, RewardParams
from paco_core.io.files import DataError, read_json
from paco_core.reward_model import lora, training
from paco_core.reward_model.evaluation import calibration_error, draw_mistake, evaluate, most_wrong, roc_auc
from paco_core.reward_model.examples import Example, read_examples
from paco_core.reward_model.items import answer_module, tokenize_examples
from paco_core.reward_model.merging import merge_adapter, write_model, write_weights
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.training import epoch_batches, learning_rate_at
from paco_core.reward_model.yes_probability import Score
from tests.support import reward_tiny, tiny_vlm


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("training") / "tiny")


def params(**changes: Any) -> RewardParams:
    return RewardParams.model_validate({**reward_tiny.PARAMS, **changes})


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "adapter" / WEIGHTS)


def train(
    base: Path, out: Path, examples: list[Example], check: int | None = None, on_metrics: Any = None, **changes: Any
) -> training.TrainingReport:
    """Train on examples and validate on the first ``check`` of them."""
    inputs = examples, examples[:check], params(**changes), out, out / "checkpoint", "code"
    return training.train_reward_model(base, *inputs, on_metrics=on_metrics)


@pytest.mark.slow
def test_training_lowers_the_loss_and_logs_every_step(base: Path, tmp_path: Path) -> None:
    examples, logged = reward_tiny.pairs(12), []
    report = train(base, tmp_path, examples, on_metrics=lambda values, step: logged.append((step, values)), epochs=4)
    log = pd.read_csv(tmp_path / training.LOG)
    assert list(log["step"]) == list(range(1, 13)) and report.steps == 12
    assert logged[0][0] == 0 and "validation/calibration_error" in logged[0][1]  # the base, before training
    assert log["loss"].iloc[-3:].mean() < log["loss"].iloc[:3].mean()
    assert log["validation_accuracy"].notna().sum() == 4
    assert logged[-1][0] == 12 and "validation/accuracy" in logged[-1][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "checkpoint", training.LOG]


def test_passing_only_answers_through_the_last_mlp_changes_no_loss_and_no_gradient(base: Path) -> None:
    def passed(is_full: bool) -> tuple[torch.Tensor, dict[str, Any]]:
        network = Network.load(base)
        wrapped = lora.attach_lora(network.model, params().lora, "tiny", 0)
        for tensor in lora.lora_tensors(wrapped).values():
            torch.nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(tensor.numel()))
        if is_full:
            network.states = lambda rows, row, place: network.prefill(rows)[0][row, place]  # type: ignore[method-assign]
        losses = answer_module(network, wrapped, "weighted", 0.1)(tokenize_examples(network, examples))
        losses.sum().backward()
        return losses.detach(), {name: tensor.grad for name, tensor in lora.lora_tensors(wrapped).items()}

    examples = reward_tiny.pairs(4)
    losses, gradients = passed(is_full=False)
    expected, expected_gradients = passed(is_full=True)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_micro_batches_and_gradient_checkpointing_change_no_number(base: Path, tmp_path: Path) -> None:
    settings = {
        "one": {},
        "checkpointed": {"gradient_checkpointing": True},
        "four": {"batch_size": 2, "accumulation": 4},
    }
    logs, reports = [], []
    for name, changes in settings.items():
        train(base, tmp_path / name, reward_tiny.pairs(8), 2, **{"epochs": 1, "batch_size": 8, **changes})
        logs.append(pd.read_csv(tmp_path / name / training.LOG))
        reports.append(weights(tmp_path / name))
    for log in logs:
        assert len(log) == 1 and log["loss"][0] == pytest.approx(logs[0]["loss"][0], rel=1e-5)
        assert log["gradient_norm"][0] == pytest.approx(logs[0]["gradient_norm"][0], rel=1e-4)
    for name, tensor in reports[0].items():
        torch.testing.assert_close(tensor, reports[1][name], rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_names_step_and_pairs(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = reward_tiny.pairs(4)

    def broken(logits: torch.Tensor, answers: Any, _kind: str, _alpha: float) -> torch.Tensor:
        losses = logits.sum() * 0 + torch.zeros(4)
        return torch.where(torch.arange(4) == 2, torch.nan, losses)

    monkeypatch.setattr("paco_core.reward_model.items.answer_loss", broken)
    with pytest.raises(training.TrainingError, match=r"step 1 of 2; pairs: pair-\d;"):
        train(base, tmp_path, examples)
    assert not (tmp_path / "adapter").exists()


def test_lora_touches_the_language_model_only(base: Path) -> None:
    model = Network.load(base).model
    with pytest.raises(DataError, match="'qkv'"):
        lora.attach_lora(model, LoraParams(rank=2, alpha=4, targets=["q_proj", "qkv"]), "tiny", 0)
    wrapped = lora.attach_lora(model, LoraParams(rank=2, alpha=4, targets=["gate_proj", "down_proj"]), "tiny", 0)
    names = list(lora.lora_tensors(wrapped))
    assert len(names) == 2 * 2 * 2  # layers, targets, A and B
    assert all(".language_model." in name and "visual" not in name for name in names)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapter")
    train(base, out, reward_tiny.pairs(8), 2, epochs=1, learning_rate=3e-2)
    return out / "adapter"


@pytest.mark.slow
def test_the_merged_folder_answers_as_base_and_adapter(base: Path, adapter: Path, tmp_path: Path) -> None:
    queries = [example.query for example in reward_tiny.pairs(5)]
    report = merge_adapter(base, adapter, tmp_path / "merged", queries)
    assert report.margins.worst <= 1e-4 and report.rank_agreement > 0.99
    merged, before = Scorer(tmp_path / "merged").first_logits(queries), Scorer(base).first_logits(queries)
    assert float((merged - before).abs().max()) > 1e-2  # the adapter did change the model
    assert (tmp_path / "merged" / "preprocessor_config.json").is_file()
    assert not list((tmp_path / "merged").glob("adapter*"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard_size", ["2GB", "50KB"])
def test_shards_hold_the_bits_that_peft_merges(
    base: Path, adapter: Path, tmp_path: Path, dtype: str, shard_size: str
) -> None:
    network = Network.load(base, dtype=dtype)
    wrapped = lora.load_lora(network.model, adapter)
    for folder in ("sharded", "expected"):
        (tmp_path / folder).mkdir()
    write_weights(network.model, tmp_path / "sharded", shard_size)
    wrapped.merge_and_unload().save_pretrained(tmp_path / "expected")
    files = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 1 or shard_size == "2GB"
    merged = {name: tensor for file in files for name, tensor in load_file(file).items()}
    expected = load_file(tmp_path / "expected" / "model.safetensors")
    assert merged.keys() == expected.keys() and all(torch.equal(merged[name], expected[name]) for name in expected)
    if len(files) > 1:
        index = read_json(tmp_path / "sharded" / "model.safetensors.index.json")
        assert set(index["weight_map"]) == set(expected) and set(index["weight_map"].values()) == {
            f.name for f in files
        }


def test_an_adapter_of_another_base_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    query = reward_tiny.pairs(1)[0].query
    foreign = Path(shutil.copytree(adapter, tmp_path / "foreign"))
    tensors = load_file(adapter / WEIGHTS)
    first = next(name for name in tensors if ".lora_A." in name)
    save_file({**tensors, first: torch.zeros(tensors[first].shape[0], 65)}, foreign / WEIGHTS)
    with pytest.raises(DataError, match=r"lora_A.weight has the shape \[\d+, 65\].*data/zoo/tiny"):
        merge_adapter(base, foreign, tmp_path / "merged", [query])
    other = tiny_vlm.build(tmp_path / "other", seed=1)
    with pytest.raises(DataError, match="of the same shape: .*data/zoo/tiny"):
        merge_adapter(other, adapter, tmp_path / "merged", [query])
    rounded = lora.base_digest(Network.load(base, dtype="bfloat16").model)
    assert rounded == lora.base_digest(Network.load(base).model)  # the same base in another number format


def test_bad_rows_and_tables_are_named(base: Path, tmp_path: Path) -> None:
    row = {"prompt_id": "a", "theme": "red", "first": "g#0", "second": "g#1", "answer": "Yes. The style is the same."}
    file = tmp_path / "train.parquet"

    def panel(ref: str) -> Any:
        if ref.startswith("lost"):
            raise DataError(f"picture {ref} is missing")
        return reward_tiny.picture(0)

    for changes, message in (
        ({"label": "Maybe"}, "Maybe"),
        ({"answer": "No. It differs."}, "Yes"),
        ({"first": "lost#0"}, "lost#0"),
    ):
        pd.DataFrame([{"pair_id": "p1", "label": "Yes", **row, **changes}]).to_parquet(file)
        with pytest.raises(DataError, match=f"pair p1.*{message}"):
            read_examples(file, panel, "theme")
    pd.DataFrame([{"pair_id": "p1", "label": "Yes", **row}])[:0].to_parquet(file)
    with pytest.raises(DataError, match=r"train.parquet"):
        read_examples(file, panel, "theme")
    with pytest.raises(DataError, match="3 pairs say Yes and 0"):
        train(base, tmp_path, [example for example in reward_tiny.pairs(6) if example.consistent])


def test_every_example_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    lengths = [number % 7 for number in range(50)]
    batches = epoch_batches(lengths, 8, seed=3, epoch=0)
    assert sorted(number for batch in batches for number in batch) == list(range(50))
    assert batches == epoch_batches(lengths, 8, seed=3, epoch=0) != epoch_batches(lengths, 8, seed=3, epoch=1)


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [learning_rate_at(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] == 1.0
    assert all(a >= b for a, b in pairwise(rates[9:])) and rates[-1] < 1e-3


class LeaningScorer:
    """Says P(Yes) = 0.9 for some pictures first, 0.6 for others, and fails on one pair."""

    def score(self, queries: Any) -> list[Score]:
        return [
            Score(float("nan"), "lost") if query.first.width == 8 else Score(0.9 if query.first.width == 16 else 0.6)
            for query in queries
        ]


def test_evaluation_tells_position_bias_failures_and_the_most_wrong_pairs() -> None:
    wide, narrow, lost = (reward_tiny.picture(0, side) for side in (16, 4, 8))
    rows = [(wide, narrow, "Yes."), (wide, narrow, "No."), (narrow, wide, "No."), (lost, wide, "Yes.")]
    examples = [Example(f"p{n}", (a, b), "?", answer) for n, (a, b, answer) in enumerate(rows)]
    edit = Example("edit", (narrow, wide), "?", "Yes.", ordered=True)  # turned round it is another question
    evaluation = evaluate(LeaningScorer(), [edit, *examples])
    assert (
        evaluation.true_yes,
        evaluation.false_yes,
        evaluation.true_no,
        evaluation.false_no,
        evaluation.failed,
        evaluation.pairs,
    ) == (2, 2, 0, 0, 1, 5)
    assert evaluation.accuracy == pytest.approx(2 / 4)
    assert evaluation.position_bias == pytest.approx((0.3 + 0.3 - 0.3) / 3)
    assert evaluation.position_spread == pytest.approx(0.3)
    assert evaluation.identical_score == pytest.approx((0.9 + 0.9 + 0.6) / 3)
    assert "| label No | 2 | 0 |" in evaluation.confusion() and "no score: 1" in evaluation.confusion()
    worst = most_wrong([edit, *examples], evaluation.scores)
    assert [(example.id, score) for example, score in worst] == [("p1", 0.9), ("p2", 0.6)]
    red = Example("p", (Image.new("RGB", (8, 4), "red"),) * 2, "?", "No.")
    image = draw_mistake(red, 0.9)
    assert image.getpixel((20, 20)) == (255, 0, 0) == image.getpixel((image.width - 20, 20))
    assert image.getpixel((20, 200)) == (255, 255, 255)  # a wide picture keeps its proportions


def test_roc_auc_and_calibration_by_hand() -> None:
    import numpy as np

    scores, labels = np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, False, False])
    assert roc_auc(scores, labels) == pytest.approx(3.5 / 4)
    assert np.isnan(roc_auc(scores, np.ones(4, bool)))
    expected = (1 * abs(0.9 - 1) + 2 * abs(0.8 - 0.5) + 1 * abs(0.1 - 0)) / 4
    assert calibration_error(scores, labels) == pytest.approx(expected)


@pytest.mark.slow
def test_bfloat16_trains_with_adapter_weights_in_float32(base: Path, tmp_path: Path) -> None:
    report = train(base, tmp_path, reward_tiny.pairs(8), epochs=1, dtype="bfloat16")
    assert report.after.failed == 0
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}


def test_pairs_are_shown_in_both_orders_in_turns_but_edits_are_not(base: Path) -> None:
    network = Network.load(base)
    first, second, edit = reward_tiny.pairs(3)
    items = tokenize_examples(network, [first, second, replace(edit, ordered=True)], swap=True)
    assert [item.images == item.swapped().images[::-1] for item in items] == [True, True, False]
    restored = items[0].swapped().swapped()
    assert (
        restored.images == items[0].images and restored.prompt is items[0].prompt and restored.answer is items[0].answer
    )
    assert all(item.swapped() is item for item in tokenize_examples(network, [first, second]))


def test_the_settings_are_named_as_transformers_4_57_reads_them(tmp_path: Path) -> None:
    """It fails on a list of extra_special_tokens, and takes the sections of the rotary positions from rope_scaling."""
    base = tiny_vlm.build(tmp_path / "base")
    out = tmp_path / "out"
    write_model(Network.load(base), base, out)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert not isinstance(settings.get("extra_special_tokens"), list)
    text = json.loads((out / "config.json").read_text())["text_config"]
    assert text["rope_scaling"]["mrope_section"] == text["rope_parameters"]["mrope_section"]
    assert text["rope_theta"] == text["rope_parameters"]["rope_theta"] and "rope_theta" not in text["rope_scaling"]
    was, now = (AutoConfig.from_pretrained(folder).text_config.rope_parameters for folder in (base, out))
    assert was == now, "this version reads the same"
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (base, out))
    words = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Yes or No?<|im_end|>"
    assert before(words)["input_ids"] == after(words)["input_ids"]
    assert before.get_added_vocab() == after.get_added_vocab()
