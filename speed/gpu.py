"""Measurements that need a GPU, with random weights of full size: `make gpu`, in under 15 minutes.

    python -m speed.gpu                        # one GPU of 80 GB or more; writes a new page of docs/results/
    python -m speed.gpu --minutes 12           # starts no script after 12 minutes
    python -m speed.gpu --tiny --device cpu    # with small weights on any machine; prints the tables

Each script runs in a separate process, so its memory is measured separately. Measurements that no page has yet come
first. The page is written after each script: a killed run keeps what it measured. A script that fails is a row with the
reason.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from paco_core.config import profiles
from paco_core.io.atomic import atomic
from paco_core.io.files import read_json, write_json
from paco_core.io.numbers import whole_number
from paco_core.planning.gpu_speed import RECORD, GpuSpeed
from paco_core.policies.families import family_of, is_editing
from speed.gpu_reward import ROOT, VLLM

RESULTS = ROOT / "docs" / "results"
#: The measurement in the repository. Tests compare the memory and the speeds of `paco plan` with it.
RECORDED = RESULTS / "2026-11-26-h200.md"
BEGIN, END = "<!-- figures: written by `make gpu` -->", "<!-- end of the figures -->"
POLICIES = {"flux_t2is": (512, 1024), "kontext_edit": (512, 1024), "qwen_edit": (512,)}
#: A policy and its profile, and the profile of the same one with small weights.
#: Arguments of `speed.gpu_epoch` for one epoch, and the profile of the same policy with small weights.
EPOCHS = (
    (["flux_t2is", "--profile", "klein_48gb"], "klein_storybook"),
    (["flux_t2is", "--profile", "paper"], "storybook"),
    (["flux_t2is", "--profile", "paper", "--compile"], "storybook"),
    (["kontext_edit", "--profile", "paper"], "storybook"),
    (["qwen_edit", "--profile", "paper"], "storybook"),
)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One call of a script, whose rows belong to the table ``title``."""

    title: str
    script: str
    options: list[str]

    def run(self) -> Rows:
        """The rows of the script's last line; one row with the reason if the script fails."""
        command = [sys.executable, "-m", f"speed.{self.script}", *self.options]
        completed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if completed.returncode:
            reason = (completed.stderr.strip().splitlines() or ["no message"])[-1]
            return [{"script": shlex.join([self.script, *self.options]), "error": reason[:200]}]
        rows: Rows = json.loads(completed.stdout.splitlines()[-1])
        return rows


def measurements(tiny: bool, device: str, engine: str, folder: str) -> list[Measurement]:
    """All calls, the most valuable first.

    Args:
        folder: where the merged reward model is written; serving reads it there.
    """
    size, at = ["--tiny"] if tiny else [], ["--device", device]
    server = ["--folder", folder, "--engine", engine, *at, *size]
    # On a CPU, compiling takes minutes: tests/unit/grpo/test_compiled.py covers it.
    cases = [case for case in EPOCHS if not (tiny and "--compile" in case[0])]
    epochs = [[name, "--profile", small if tiny else profile, *flags] for (name, _, profile, *flags), small in cases]
    serving = "Reward model, merging and serving"
    calls = [
        Measurement("Epochs", "gpu_epoch", [*epochs[0], *at]),
        Measurement(serving, "gpu_reward", ["merge", *server]),
        Measurement(serving, "gpu_reward", ["serve", *server]),
        *(Measurement("Epochs", "gpu_epoch", [*options, *at]) for options in epochs[1:]),
        Measurement("Reward model, training", "gpu_reward", ["train", *at, *size]),
    ]
    for name, sides in POLICIES.items():
        profile, sizes = ("storybook", [64]) if tiny else ("paper", sides)
        calls.append(
            Measurement("Policies", "gpu_policies", [name, "--profile", profile, *at, "--sides", *map(str, sizes)])
        )
    return [*calls, Measurement("Trainings", "gpu_trainer", [*(["flux", "--dtypes", "float32"] if tiny else []), *at])]


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
            today, references = date.today().isoformat(), int(is_editing(recipe))
            speeds_by_size.append(GpuSpeed(gpu, today, recipe.model, side, sampled, trained, references))
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
    parser.add_argument(
        "--minutes", type=whole_number(1), help="start no script after this many minutes (default: no limit)"
    )
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
    begun, tables, skipped = time.monotonic(), dict[str, Rows](), list[str]()
    with tempfile.TemporaryDirectory(prefix="paco-reward-") as folder:
        for call in measurements(args.tiny, args.device, args.engine, folder):
            name = shlex.join([call.script, *call.options])
            if args.minutes is not None and time.monotonic() - begun > 60 * args.minutes:
                skipped.append(name)
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            tables.setdefault(call.title, []).extend(call.run())
            seconds = time.monotonic() - begun
            text = page_text(f"{machine(args.device)}; {seconds:.0f} s in all.", tables)
            if not args.tiny:
                write(args.page, text)
                write_speeds(RECORD, speeds(tables.get("Policies", []), torch.cuda.get_device_name(args.device)))
    print(text)
    if skipped:
        print(f"not started after {args.minutes} minutes: " + "; ".join(skipped), file=sys.stderr)


def page_text(headline: str, tables: dict[str, Rows]) -> str:
    """The headline, and one Markdown table per title."""
    lines = [line for title, rows in tables.items() for line in (f"### {title}", "", *table(rows), "")]
    return "\n".join([headline, "", *lines]).rstrip()


if __name__ == "__main__":
    main()
