"""Measurements that need a GPU, with random weights of full size: `make gpu`, in under 15 minutes.

    python -m speed.gpu                        # one GPU of 80 GB or more; writes a new page of docs/results/
    python -m speed.gpu --tiny --device cpu    # with small weights on any machine; prints the tables

Each part runs in a separate process, so its memory is measured separately.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from paco_core.config import profiles
from paco_core.io.atomic import atomic
from paco_core.io.files import read_json, write_json
from paco_core.planning.gpu_speed import RECORD, GpuSpeed
from paco_core.policies.families import family_of
from speed.gpu_reward import ROOT, VLLM

RESULTS = ROOT / "docs" / "results"
#: The measurement in the repository. Tests compare the memory and the speeds of `paco plan` with it.
RECORDED = RESULTS / "2026-11-26-h200.md"
BEGIN, END = "<!-- figures: written by `make gpu` -->", "<!-- end of the figures -->"
POLICIES = {"flux_t2is": (512, 1024), "kontext_edit": (512, 1024), "qwen_edit": (512,)}
#: A policy and its profile, and the profile of the same one with small weights.
EPOCHS = (
    ("flux_t2is", "paper", "storybook"),
    ("kontext_edit", "paper", "storybook"),
    ("qwen_edit", "paper", "storybook"),
    ("flux_t2is", "klein_48gb", "klein_storybook"),
)
Rows = list[dict[str, Any]]


def run_script(module: str, options: Sequence[str]) -> Rows:
    """Run a script of ``speed`` in a separate process. Returns the rows of its last line."""
    completed = subprocess.run(
        [sys.executable, "-m", f"speed.{module}", *options], capture_output=True, text=True, cwd=ROOT
    )
    if completed.returncode:
        raise SystemExit(f"speed.{module} {' '.join(options)}: exited with {completed.returncode}\n{completed.stderr}")
    rows: Rows = json.loads(completed.stdout.splitlines()[-1])
    return rows


def trainings(tiny: bool, device: str) -> Rows:
    """Each family with small weights: trained, and trained again from a checkpoint."""
    return run_script("gpu_trainer", [*(["flux", "--dtypes", "float32"] if tiny else []), "--device", device])


def policies(tiny: bool, device: str) -> Rows:
    """FLUX.1-dev, Kontext and Qwen-Image-Edit: rollout, trained pass, decoding and evaluation."""
    rows: Rows = []
    for name, sides in POLICIES.items():
        profile, sizes = ("storybook", [64]) if tiny else ("paper", sides)
        rows += run_script(
            "gpu_policies", [name, "--profile", profile, "--device", device, "--sides", *map(str, sizes)]
        )
    return rows


def epochs(tiny: bool, device: str) -> Rows:
    """One epoch of the trainer with each family at full size."""
    rows: Rows = []
    for name, profile, small in EPOCHS:
        rows += run_script("gpu_epoch", [name, "--profile", small if tiny else profile, "--device", device])
    return rows


def reward(tiny: bool, device: str) -> Rows:
    """Qwen2.5-VL-7B: training steps of the reward."""
    return run_script("gpu_reward", ["train", "--device", device, *(["--tiny"] if tiny else [])])


def serving(tiny: bool, device: str, engine: str) -> Rows:
    """Qwen2.5-VL-7B: merging, and serving with vLLM on a free GPU."""
    with tempfile.TemporaryDirectory(prefix="paco-reward-") as folder:
        options = ["--folder", folder, "--device", device, "--engine", engine, *(["--tiny"] if tiny else [])]
        return [row for part in ("merge", "serve") for row in run_script("gpu_reward", [part, *options])]


def machine(device: str) -> str:
    """Date, device and versions, in one line."""
    name = platform.processor() or platform.machine()
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        name = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"
    packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "diffusers", "transformers", "peft"))
    return f"{date.today().isoformat()}, {name}; {packages}"


def table(rows: Rows) -> Iterator[str]:
    """A Markdown table; a column that no row has a value for is left out."""
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if any_value(rows, name)]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(name, row.get(name)) for name in columns) + " |"


def any_value(rows: Rows, name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "MFU":
        return f"{value:.1%}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


#: A new page. Describe the machine and the conclusion in it, and add it to docs/results/README.md and the navigation.
TEMPLATE = f"""# How fast is paco on this GPU, and how much memory does it use?

**Question.** How many images per second does each model sample and train, and does its memory fit the plan?

**Setup.** `make gpu`.

**Result.**

{BEGIN}
{END}

**Conclusion.**

**Limits.** One GPU and one run per row.
"""


def write(page: Path, figures: str) -> None:
    """Put the figures between the marks of the page. A page that does not exist is created."""
    text = page.read_text(encoding="utf-8") if page.exists() else TEMPLATE
    before, _, tail = text.partition(BEGIN)
    _, _, after = tail.partition(END)
    if not after:
        raise SystemExit(f"{page}: the marks {BEGIN!r} and {END!r} are missing")
    with atomic(page) as part:
        part.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")


def speeds(rows: Rows, gpu: str) -> list[GpuSpeed]:
    """Passes per second of each model and size, from the rows of :func:`policies`."""
    recipes, images = profiles.read(ROOT, "paper").policies.recipes, dict[tuple[str, int], dict[str, float]]()
    for row in rows:
        images.setdefault((row["policy"], row["side"]), {})[row["phase"]] = row.get("images/s", 0.0)
    speeds_by_size = []
    for (name, side), phases in images.items():
        if {"rollout", "trained pass"} <= phases.keys():  # else it ran out of memory
            recipe = recipes[name]
            passes = family_of(recipe.family).passes_per_step(recipe.guidance)
            sampled, trained = phases["rollout"] * recipe.sampling_steps * passes, phases["trained pass"] * passes
            speeds_by_size.append(GpuSpeed(gpu, date.today().isoformat(), recipe.model, side, sampled, trained))
    return speeds_by_size


def write_speeds(record: Path, new: Sequence[GpuSpeed]) -> None:
    """Put the speeds of a GPU in place of its earlier ones; `paco plan` reads them."""
    gpus = {speed.gpu for speed in new}
    rows = [row for row in read_json(record) if row["gpu"] not in gpus]
    write_json(record, rows + [asdict(speed) for speed in new])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small weights; prints, and writes no page")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    page = RESULTS / f"{date.today().isoformat()}-gpu.md"
    parser.add_argument("--page", type=Path, default=page, help="the page that gets the tables")
    args = parser.parse_args(arguments)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "skipped: PyTorch finds no CUDA GPU here; `python -m speed.gpu --tiny --device cpu` runs every line of it"
        )
        return
    if args.engine == "vllm" and not VLLM.is_file():
        raise SystemExit(f"{VLLM} does not exist: `make vllm` (or --engine transformers)")
    begun = time.monotonic()
    parts = {
        "Trainings": lambda: trainings(args.tiny, args.device),
        "Policies": lambda: policies(args.tiny, args.device),
        "Epochs": lambda: epochs(args.tiny, args.device),
        "Reward model, training": lambda: reward(args.tiny, args.device),
        "Reward model, merging and serving": lambda: serving(args.tiny, args.device, args.engine),
    }
    lines, rows = [], dict[str, Rows]()
    for title, part in parts.items():
        print(f"{title} ...", file=sys.stderr, flush=True)
        rows[title] = part()
        lines += [f"### {title}", "", *table(rows[title]), ""]
    figures = "\n".join([machine(args.device) + f"; {time.monotonic() - begun:.0f} s in all.", "", *lines]).rstrip()
    print(figures)
    if not args.tiny:
        write(args.page, figures)
        write_speeds(RECORD, speeds(rows["Policies"], torch.cuda.get_device_name(args.device)))


if __name__ == "__main__":
    main()
