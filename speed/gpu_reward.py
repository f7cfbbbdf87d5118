"""A reward model of random weights on a GPU: training steps, merging, and serving; each command prints its row as JSON.

    python -m speed.gpu_reward train
    python -m speed.gpu_reward merge --folder /tmp/reward    # writes a base, an adapter and the merged model
    python -m speed.gpu_reward serve --folder /tmp/reward    # serves what `merge` wrote

Qwen2.5-VL-7B is built from its published configuration, which costs what the trained weights cost. With `--tiny
--device cpu --engine transformers` the same lines run with small weights, anywhere.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from paco_core.config import profiles
from paco_core.config.params import LoraParams
from paco_core.reward_model import lora
from paco_core.reward_model.examples import Example
from paco_core.reward_model.golden import write_golden
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.items import TokenizedExample, answer_module, tokenize_examples
from paco_core.reward_model.merging import merge_adapter, write_model
from paco_core.reward_model.network import Network
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.training.precision import choose_kernels
from speed.gpu_policies import H100_FLOPS

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "data" / "zoo" / "qwen2_5_vl"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PAIRS = 6  # of a grid
GOLDEN = 4
#: Qwen2.5-VL-7B-Instruct, as its config.json has it.
SEVEN_B: dict[str, dict[str, Any]] = {
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
#: The same shape with small layers.
TINY: dict[str, dict[str, Any]] = {
    "text_config": SEVEN_B["text_config"]
    | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
       "num_key_value_heads": 2, "vocab_size": 8192,
       "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6}},
    "vision_config": SEVEN_B["vision_config"]
    | {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128,
       "fullatt_block_indexes": [1]},
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What is measured; ``side``: pixels of an image's side, ``pairs``: on which a merge is compared."""

    config: dict[str, dict[str, Any]]
    dtype: str
    side: int
    batch: int
    steps: int
    images: int
    pairs: int
    grids: int

    @property
    def pixels(self) -> tuple[int, int]:
        return self.side**2, self.side**2


FULL = Setting(SEVEN_B, "bfloat16", side=512, batch=8, steps=6, images=64, pairs=32, grids=64)
SMALL = Setting(TINY, "float32", side=56, batch=2, steps=1, images=4, pairs=8, grids=8)
LORA = LoraParams(rank=32, alpha=64, targets=TARGETS)


def build_network(setting: Setting, device: str) -> Network:
    """Random weights with the tokenizer of the small model."""
    processor = AutoProcessor.from_pretrained(ZOO)
    bounds = processor.image_processor.size
    processor.image_processor.size = type(bounds)(shortest_edge=setting.pixels[0], longest_edge=setting.pixels[1])
    token = processor.tokenizer.convert_tokens_to_ids
    config = Qwen2_5_VLConfig(
        **setting.config,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, setting.dtype))
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    return Network(model.eval().requires_grad_(False), processor, "random weights")


def examples(setting: Setting, count: int) -> list[Example]:
    """Labelled pairs of images of noise, with three sentences each."""
    rng = Random(0)
    size = (setting.side, setting.side)
    images = [Image.frombytes("RGB", size, rng.randbytes(3 * setting.side**2)) for _ in range(setting.images)]
    question = render_instruction("theme", theme="a red cat in many places, flat style")
    reasons = " The colour differs: red and blue." * 3
    return [
        Example(str(n), (rng.choice(images), rng.choice(images)), question, ("Yes." if n % 2 else "No.") + reasons)
        for n in range(count)
    ]


def synchronize(device: str) -> None:
    """Wait for the GPU, before a clock is read."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_gb(device: str) -> float:
    """Peak memory so far: of the GPU, or of this process (resident)."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def train(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """Optimizer steps of the reward's training after one that warms up, with gradient checkpointing."""
    device = args.device
    choose_kernels(device, setting.dtype)
    network = build_network(setting, device)
    pairs = examples(setting, setting.batch * (setting.steps + 1))
    wrapped = lora.attach_lora(network.model, LORA, "random", 0)
    network.model.gradient_checkpointing_enable()
    wrapped.train()
    optimizer = torch.optim.AdamW(lora.lora_tensors(wrapped).values(), lr=1e-4)
    module, items = answer_module(network, wrapped, "weighted", 0.1), tokenize_examples(network, pairs)
    network.cached_features([image for pair in pairs for image in pair.images])
    begun = 0.0
    for step in range(setting.steps + 1):
        if step == 1:
            synchronize(device)
            begun = time.perf_counter()
        module(items[step * setting.batch : (step + 1) * setting.batch]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    synchronize(device)
    rate = setting.steps * setting.batch / (time.perf_counter() - begun)
    figures = {"pairs/s": rate, "peak GB": peak_gb(device), "tokens a pair": items[0].length}
    return {**figures, "MFU": rate * flops_per_pair(network, items[0]) / H100_FLOPS}


def flops_per_pair(network: Network, item: TokenizedExample) -> float:
    """Model FLOPs of one pair with cached vision features; recomputation is not counted.

    Forward 2 FLOPs per weight and token; backward 2 more through frozen weights, whose own gradients are not
    needed. Attention 4 x length x width per token and layer, forward and twice that backward, half of it masked.
    """
    text = network.model.config.text_config
    layers = network.model.model.language_model.named_parameters()
    weights = sum(p.numel() for name, p in layers if name.startswith("layers.") and "lora" not in name)
    linear = 4.0 * (weights * item.length + network.model.lm_head.weight.numel() * len(item.answer))
    return linear + 3 * 0.5 * 4.0 * item.length**2 * float(text.hidden_size * text.num_hidden_layers)


def merge_and_compare(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """Write base and adapter, merge them, write golden pairs; the merge's seconds, memory and faithfulness."""
    folder, network = args.folder, build_network(setting, args.device)
    write_model(network, ZOO, folder / "base")
    wrapped = lora.attach_lora(network.model, LORA, "random", 0)
    with torch.no_grad():
        for name, weight in lora.lora_tensors(wrapped).items():
            if "lora_B" in name:  # a fresh adapter changes nothing: nobody would notice if it got lost
                weight.normal_(std=0.01)
    lora.save_lora(wrapped, folder / "adapter", lora.base_digest(network.model))
    del network, wrapped
    if args.device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    queries = [example.query for example in examples(setting, setting.pairs)]
    begun, merged = time.perf_counter(), folder / "merged"
    options: dict[str, Any] = {"device": args.device, "dtype": setting.dtype, "pixels": setting.pixels}
    report = merge_adapter(folder / "base", folder / "adapter", merged, queries, **options)
    seconds = time.perf_counter() - begun
    write_golden(merged, queries[:GOLDEN], report.scores[:GOLDEN], setting.dtype)
    margins = {"log-odds off, mean": report.margins.mean, "worst": report.margins.worst}
    return {"part": "merge", "seconds": seconds, **margins, "peak GB": peak_gb(args.device)}


def grids(count: int, pixels: Random, side: int) -> list[PairQuery]:
    """The six pairs of each of ``count`` grids of four new panels of ``side`` px, each grid with a separate theme."""
    queries = []
    for number in range(count):
        panels = [Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize((side, side)) for _ in range(4)]
        text = render_instruction("theme", theme=f"a red cat at the beach {number}")
        queries += [PairQuery(first, second, text) for first, second in combinations(panels, 2)]
    return queries


def serve(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """Start the engine, which includes the golden check; pairs per second all at once and one request at a time."""
    options = {"engine": args.engine, "device": args.device.partition(":")[0], "dtype": setting.dtype}
    options |= {"score_cache": None, "linger_s": 0, "start_timeout_s": 1200, "python": str(VLLM)}
    serving = profiles.read(ROOT, "paper").serving.model_copy(update=options)
    pixels, count = Random(0), setting.grids
    begun = time.perf_counter()
    row: dict[str, Any] = {"part": f"serving, {args.engine}"}
    with (
        RewardEndpoint.lease(args.folder / "merged", serving, args.folder) as endpoint,
        endpoint.client(plain=True) as client,
    ):
        row["seconds to the first answer"] = time.perf_counter() - begun
        row["golden pairs off, log-odds"] = endpoint.check_golden()
        client.score(grids(count, pixels, setting.side))  # warms up
        begun = time.perf_counter()
        client.score(grids(count, pixels, setting.side))
        row["all at once, pairs/s"] = PAIRS * count / (time.perf_counter() - begun)
        few = max(1, count // 8)
        begun = time.perf_counter()
        for query in grids(few, pixels, setting.side):
            client.score([query])
        row["one at a time, pairs/s"] = PAIRS * few / (time.perf_counter() - begun)
    return row


PARTS: dict[str, Callable[[Setting, argparse.Namespace], dict[str, Any]]] = {
    "train": train, "merge": merge_and_compare, "serve": serve,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, default=Path("reward"))
    parser.add_argument("--tiny", action="store_true", help="small weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    args = parser.parse_args()
    try:
        row = PARTS[args.part](SMALL if args.tiny else FULL, args)
    except torch.OutOfMemoryError:
        row = {"part": args.part, "pairs/s": "out of memory"}
    print(json.dumps([row]))


if __name__ == "__main__":
    main()
