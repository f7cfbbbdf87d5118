"""What the two scripts about the reward model share: networks, made-up pairs, and how a figure is noted."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paco_core.io.numbers import whole

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "data" / "zoo" / "qwen2_5_vl"
#: Qwen2.5-VL-7B-Instruct as its config.json has it; the weights are random here, which costs the same.
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
#: The same shape in little, to try the 7B case on a CPU.
TINY: dict[str, dict[str, Any]] = {
    "text_config": SEVEN_B["text_config"]
    | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
       "num_key_value_heads": 2, "vocab_size": 8192,
       "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6}},
    "vision_config": SEVEN_B["vision_config"]
    | {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128,
       "fullatt_block_indexes": [1]},
}  # fmt: skip


def arguments(description: str) -> argparse.ArgumentParser:
    """The options of both scripts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=["zoo", "7b", "tiny"], default="zoo", help="7b and tiny: random weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--side", type=whole(1), default=56, help="pixels of a picture's side")
    parser.add_argument("--pictures", type=whole(1), default=64, help="distinct pictures")
    parser.add_argument("--batch", type=whole(1), default=32)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one variant, in a process of its own
    return parser


def network(args: argparse.Namespace) -> Any:
    """The zoo's model, or one of random weights with the zoo's tokenizer and the paper's pixel bounds."""
    import torch

    from paco_core.reward_model.network import Network

    pixels = (args.side**2, args.side**2)
    if args.model == "zoo":
        return Network.load(ZOO, device=args.device, dtype=args.dtype, pixels=pixels)
    from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    processor = AutoProcessor.from_pretrained(ZOO)
    bounds = processor.image_processor.size
    processor.image_processor.size = type(bounds)(shortest_edge=pixels[0], longest_edge=pixels[1])
    token = processor.tokenizer.convert_tokens_to_ids
    shape = SEVEN_B if args.model == "7b" else TINY
    config = Qwen2_5_VLConfig(
        **shape,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, args.dtype))
    with torch.device(args.device):
        model = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    return Network(model.eval().requires_grad_(False), processor, f"random {args.model}")


def examples(args: argparse.Namespace, count: int, reasons: int = 3) -> list[Any]:
    """Labelled pairs over ``args.pictures`` pictures of noise, with ``reasons`` sentences each."""
    from PIL import Image

    from paco_core.reward_model.examples import Example
    from paco_core.reward_model.instructions import render

    rng = random.Random(0)
    size = (args.side, args.side)
    pictures = [Image.frombytes("RGB", size, rng.randbytes(3 * args.side**2)) for _ in range(args.pictures)]
    words = " The colour differs: red and blue." * reasons
    return [
        Example(
            str(number),
            (rng.choice(pictures), rng.choice(pictures)),
            render("theme", theme="a red cat in many places, flat style"),
            ("Yes." if number % 2 else "No.") + words,
        )
        for number in range(count)
    ]


def synchronise(device: str) -> None:
    """Wait for the accelerator, so that a clock can be read."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def peak_gb(device: str) -> float:
    """Most memory in use so far: of the accelerator, or of this process (resident)."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def in_own_process(script: str, variant: dict[str, Any], options: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure one variant where nothing else has used memory before.

    Args:
        script: the module's name in ``speed``.
        options: of its command line; None = those of this process.
    """
    given = sys.argv[1:] if options is None else options
    command = [sys.executable, "-m", f"speed.{script}", *given, "--one", json.dumps(variant)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if "OutOfMemoryError" in done.stderr:
        return {**variant, "pairs/s": "out of memory"}
    if done.returncode:
        raise SystemExit(f"{variant}: failed\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def note(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows as a table, and write them with date, machine and versions where ``--out`` says."""
    import peft
    import torch
    import transformers

    given = {key: value for key, value in vars(args).items() if key not in ("out", "one")}
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.processor() or "CPU"
    where = {
        "date": datetime.date.today().isoformat(),
        "device": f"{name}, {torch.get_num_threads()} threads" if args.device == "cpu" else name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    print(", ".join(f"{key} {value}" for key, value in {**where, **given}.items()))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = [row.get(name, "") for name in columns]
        print("| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")
    if args.out:
        args.out.write_text(json.dumps({**where, "given": given, "rows": list(rows)}, indent=2) + "\n")
