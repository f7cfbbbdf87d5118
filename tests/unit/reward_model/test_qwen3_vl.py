"""A reward model on Qwen3-VL scores, trains and merges as the plain model of transformers computes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from paco_core.adapters.reader import WEIGHTS
from paco_core.config.params import RewardParams
from paco_core.io.files import DataError
from paco_core.reward_model import lora, training
from paco_core.reward_model.golden import validate_golden, write_golden
from paco_core.reward_model.instructions import chat, render_instruction
from paco_core.reward_model.items import answer_module, tokenize_examples
from paco_core.reward_model.merging import merge_adapter, write_weights
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.training.log import LOG
from tests.support import reward_tiny, tiny_qwen3_vl

SIZES = ((32, 32), (64, 96), (120, 40))
PIXELS: dict[str, Any] = {"min_pixels": 32 * 32, "max_pixels": 96 * 96}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3_vl.build(tmp_path_factory.mktemp("qwen3_vl") / "tiny")


def queries() -> list[PairQuery]:
    """Each pair of images of three sizes, in both orders, with queries of several lengths."""
    images = [reward_tiny.picture(seed, 64).resize(size) for seed, size in enumerate(SIZES)]
    return [
        PairQuery(first, second, render_instruction("theme", theme="red " * (1 + 3 * number)))
        for number, first in enumerate(images)
        for second in images
    ]


def plain_scores(folder: Path, pairs: list[PairQuery]) -> list[float]:
    """P(Yes) by the classes of transformers only, one pair at a time."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    size = processor.image_processor.size
    processor.image_processor.size = type(size)(shortest_edge=PIXELS["min_pixels"], longest_edge=PIXELS["max_pixels"])
    yes, no = (processor.tokenizer(word)["input_ids"][0] for word in ("Yes", "No"))
    scores = []
    for query in pairs:
        text = chat(processor, query.instruction)
        inputs = processor(text=[text], images=[query.first, query.second], return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0, -1]
        scores.append(float(torch.sigmoid(logits[yes] - logits[no])))
    return scores


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_those_of_the_plain_model(tmp_path: Path, tied: bool) -> None:
    folder = tiny_qwen3_vl.build(tmp_path / "tiny", seed=1, tied=tied)
    scorer, pairs = Scorer(folder, max_batch=4, **PIXELS), queries()
    expected = plain_scores(folder, pairs)
    assert max(expected) - min(expected) > 0.05
    for _ in ("encoded", "cached"):
        assert [score.value for score in scorer.score(pairs)] == pytest.approx(expected, abs=1e-5)
    assert scorer.network.encoded == len(SIZES)
    cached = sum(h * w // 4 for _, h, w in (scorer.network.grid(query.second) for query in pairs[: len(SIZES)]))
    assert scorer.network.features.bytes == cached * 32 * 4 * 3, "float32 (tokens, hidden) of three levels"


def released_layout(folder: Path) -> None:
    """The files as Qwen published them, with transformers 4.57."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    text["rope_scaling"] = text.pop("rope_parameters")
    text["rope_theta"] = text["rope_scaling"].pop("rope_theta")
    del config["vision_config"]["rope_parameters"]
    config["vision_config"]["model_type"] = "qwen3_vl"
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((folder / "processor_config.json").read_text())
    images = {**processor["image_processor"], "image_processor_type": "Qwen2VLImageProcessorFast"}
    for file, section in (("", images), ("video_", processor["video_processor"])):
        content = {**section, "processor_class": "Qwen3VLProcessor"}
        (folder / f"{file}preprocessor_config.json").write_text(json.dumps(content))
    (folder / "processor_config.json").unlink()
    template = folder / "chat_template.jinja"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template.read_text()}))
    template.unlink()


def test_the_layout_of_the_published_files_is_read(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "released"))
    released_layout(folder)
    pairs = queries()[:2]
    expected = [score.value for score in Scorer(base, **PIXELS).score(pairs)]
    assert [score.value for score in Scorer(folder, **PIXELS).score(pairs)] == expected


def test_golden_pairs_detect_other_weights(base: Path, tmp_path: Path) -> None:
    folder, pairs = Path(shutil.copytree(base, tmp_path / "golden")), queries()[:3]
    write_golden(folder, pairs, Scorer(base).score(pairs), "float32")
    validate_golden(folder, Scorer(folder), "float32")
    with pytest.raises(DataError, match="golden"):
        validate_golden(folder, Scorer(tiny_qwen3_vl.build(tmp_path / "other", seed=1)), "float32")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradients_are_those_of_the_plain_model(base: Path, checkpointing: bool) -> None:
    examples = reward_tiny.pairs(3)
    params = RewardParams.model_validate(reward_tiny.PARAMS)

    def gradients(losses: Any) -> dict[str, torch.Tensor]:
        network = Network.load(base, pixels=(PIXELS["min_pixels"], PIXELS["max_pixels"]))
        wrapped = lora.attach_lora(network.model, params.lora, "tiny", 0)
        for tensor in lora.lora_tensors(wrapped).values():
            torch.nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(tensor.numel()))
        if checkpointing:
            network.model.gradient_checkpointing_enable()
            network.model.train()
        losses(network, wrapped).sum().backward()
        return {name: tensor.grad for name, tensor in lora.lora_tensors(wrapped).items()}  # type: ignore[misc]

    def of_paco(network: Network, wrapped: Any) -> torch.Tensor:
        return answer_module(network, wrapped, "plain", 0.1)(tokenize_examples(network, examples))  # type: ignore[no-any-return]

    def of_plain_model(network: Network, _wrapped: Any) -> torch.Tensor:
        losses = []
        for example, item in zip(examples, tokenize_examples(network, examples), strict=True):
            ids = torch.cat([item.prompt.ids, item.answer])[None]
            pixels = network.processor.image_processor(images=list(example.images), return_tensors="pt")
            is_image = (ids == network.model.config.image_token_id).int()
            logits = network.model(input_ids=ids, mm_token_type_ids=is_image, **pixels).logits[0]
            answer = logits[len(item.prompt.ids) - 1 : -1]
            losses.append(torch.nn.functional.cross_entropy(answer, item.answer))
        return torch.stack(losses)

    computed, expected = gradients(of_paco), gradients(of_plain_model)
    for name, gradient in computed.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)


class Stopped(Exception):
    pass


class StopsAfter:
    """Progress of a training that ends after so many pairs."""

    def __init__(self, pairs: int) -> None:
        self.left = pairs

    def advance(self, pairs: int, _note: str = "") -> None:
        self.left -= pairs
        if self.left <= 0:
            raise Stopped


def train(base: Path, out: Path, progress: Any = None, **changes: Any) -> None:
    settings = {"batch_size": 2, "learning_rate": 3e-2, "checkpoint_every": 3, **PIXELS, **changes}
    params = RewardParams.model_validate({**reward_tiny.PARAMS, **settings})
    examples = reward_tiny.pairs(8)
    checkpoints = out / "checkpoint"
    training.train_reward_model(base, examples, examples[:2], params, out, checkpoints, "code", progress=progress)


def test_a_training_that_stops_resumes_to_the_same_weights(base: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(base, tmp_path / "stopped", StopsAfter(14))  # four steps per epoch: in the second one
    for name in ("stopped", "complete"):
        train(base, tmp_path / name)
    resumed, complete = (load_file(tmp_path / name / "adapter" / WEIGHTS) for name in ("stopped", "complete"))
    assert resumed.keys() == complete.keys() and all(torch.equal(resumed[name], complete[name]) for name in resumed)
    assert (tmp_path / "stopped" / LOG).read_text() == (tmp_path / "complete" / LOG).read_text()


def test_a_merged_adapter_is_a_plain_model_with_the_names_of_its_base(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "out", epochs=1, vision="lora")
    adapter, merged, pairs = tmp_path / "out" / "adapter", tmp_path / "merged", queries()
    trained = {name.rsplit(".", 3)[-3] for name in load_file(adapter / WEIGHTS) if ".visual.blocks." in name}
    assert trained == {"qkv", "proj", "linear_fc1", "linear_fc2"}
    report = merge_adapter(base, adapter, merged, pairs, pixels=(PIXELS["min_pixels"], PIXELS["max_pixels"]))
    scores = plain_scores(merged, pairs)
    assert [score.value for score in report.scores] == pytest.approx(scores, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(scores, plain_scores(base, pairs), strict=True)) > 1e-3
    names = load_file(base / "model.safetensors").keys()
    assert load_file(merged / "model.safetensors").keys() == names and "lm_head.weight" not in names
    (tmp_path / "shards").mkdir()
    write_weights(Network.load(merged).model, tmp_path / "shards", "50KB")
    shards = [load_file(file) for file in sorted((tmp_path / "shards").glob("*.safetensors"))]
    assert len(shards) > 1 and sorted(name for shard in shards for name in shard) == sorted(names)
