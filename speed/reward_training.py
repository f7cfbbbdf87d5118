"""Training pairs per second and peak memory, with and without the head trick and the vision cache.

The head trick: only answer positions go through the last layer's MLP and the language-model head. The vision cache:
features of the frozen tower are computed once a picture. Each variant runs in a process of its own.

    python -m speed.reward_training
    python -m speed.reward_training --model 7b --device cuda --dtype bfloat16 --rank 32 --batch 8 \\
        --side 512 --steps 12 --peak-tflops 989
    python -m speed.reward_training --model tiny --batch 2 --steps 1    # the 7B case in little
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from paco_core.io.numbers import decimal, whole
from speed.reward_common import arguments, examples, in_own_process, network, note, peak_gb, synchronise

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VARIANTS = [
    {"head": "answers", "cache": True},
    {"head": "answers", "cache": False},
    {"head": "all positions", "cache": True},
    {"head": "all positions", "cache": False},
]


def measure(args: argparse.Namespace, variant: dict[str, Any]) -> dict[str, Any]:
    """One variant: a warm-up step, which also fills the cache, then ``args.steps`` optimiser steps."""
    import torch

    from paco_core.config.params import LoraParams
    from paco_core.reward_model import lora
    from paco_core.reward_model.features import FeatureCache
    from paco_core.reward_model.items import answer_module, tokenise
    from paco_core.training.precision import choose_kernels

    choose_kernels(args.device, args.dtype)
    net = network(args)
    net.features = FeatureCache(1 << 40 if variant["cache"] else 0, evict=False)
    pairs = examples(args, args.batch * (args.steps + 1))
    wrapped = lora.attach(net.model, LoraParams(rank=args.rank, alpha=2 * args.rank, targets=TARGETS), args.model, 0)
    if args.checkpointing:
        net.model.gradient_checkpointing_enable()
    wrapped.train()
    optimizer = torch.optim.AdamW(lora.tensors(wrapped).values(), lr=1e-4)
    module = answer_module(net, wrapped, "weighted", 0.1)
    if variant["head"] != "answers":
        module = every_position(net)
    items = tokenise(net, pairs)
    if variant["cache"]:
        net.cached_features([image for pair in pairs for image in pair.images])
    start = 0.0
    for step in range(args.steps + 1):
        if step == 1:  # the first one warms up
            synchronise(args.device)
            start = time.perf_counter()
        batch = items[step * args.batch : (step + 1) * args.batch]
        module(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    synchronise(args.device)
    seconds = time.perf_counter() - start
    rate = args.steps * args.batch / seconds
    row = {**variant, "pairs/s": rate, "peak GB": peak_gb(args.device), "tokens a pair": items[0].length}
    if args.peak_tflops:
        row["MFU"] = rate * flops_a_pair(net, items[0], variant["cache"]) / (args.peak_tflops * 1e12)
    return row


def every_position(net: Any) -> Any:
    """The loss as it is without the trick: the last MLP and logits at every position, in float32."""
    from paco_core.reward_model.items import answers_of, rows_of
    from paco_core.reward_model.loss import answer_loss

    def losses(items: list[Any]) -> Any:
        rows = rows_of(net, items)
        answers = answers_of(rows, net.device)
        logits = net.model.lm_head(net.prefill(rows)[0]).float()
        return answer_loss(logits[answers.row, answers.position], answers, "weighted", 0.1)

    return losses


def flops_a_pair(net: Any, item: Any, cached: bool) -> float:
    """Model FLOPs of one pair: what must be computed, recomputation not counted.

    Forward 2 FLOPs a weight and token; backward 2 more through frozen weights, whose own gradients are not
    needed. Attention 4 x length x width a token and layer, forward and twice that backward, half of it masked.
    """
    text = net.model.config.text_config
    layers = net.model.model.language_model.named_parameters()
    weights = sum(p.numel() for name, p in layers if name.startswith("layers.") and "lora" not in name)
    linear = 4.0 * (weights * item.length + net.model.lm_head.weight.numel() * len(item.answer))
    attention = 3 * 0.5 * 4.0 * item.length**2 * text.hidden_size * text.num_hidden_layers
    if cached:
        return linear + attention
    tower = sum(p.numel() for p in net.model.model.visual.parameters())
    patches = 4 * int((item.prompt.ids == net.model.config.image_token_id).sum())
    return linear + attention + 2.0 * tower * patches


def parser() -> argparse.ArgumentParser:
    options = arguments(__doc__ or "")
    options.add_argument("--rank", type=whole(1), default=16)
    options.add_argument("--steps", type=whole(1), default=5)
    options.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    options.add_argument(
        "--peak-tflops", type=decimal(0), help="of the device in this dtype, for the utilisation (MFU)"
    )
    return options


def main() -> None:
    args = parser().parse_args()
    if args.one:
        print(json.dumps(measure(args, json.loads(args.one))))
        return
    note(args, [in_own_process("reward_training", variant) for variant in VARIANTS])


if __name__ == "__main__":
    main()
