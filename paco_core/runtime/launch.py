"""Start a stage: the one body behind the terminal, Dagster and the schedules."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from dvc_project.project import stages_of
from paco_core.config.params import PARAMS_FILE, Params, ParamsError, load
from paco_core.io import files, targets
from paco_core.io.imports import uncollected, without
from paco_core.runtime import launchers
from paco_core.runtime.context import open_stage, stage_label
from paco_core.runtime.launchers.rendezvous import lost_ranks
from paco_core.runtime.placement import DEVICES, take_gpus
from paco_core.runtime.process import prepare
from paco_core.runtime.stage_lock import only_run

STAGES = Path(__file__).parents[1] / "stages"
SECONDS = Path(".paco") / "seconds"  # outside the outs: time is no result

#: Stages that several processes train together (each has an ``assist`` for ranks other than the first), and how many
#: params.yaml asks for. PACO_LAUNCHER=accelerate takes the number from accelerate's configuration.
SHARED: dict[str, Callable[[Params], int]] = {
    "policies": lambda _params: 1,
    "reward_lora": lambda params: params.reward.processes if params.reward.source == "train" else 1,
}


def stage_names() -> list[str]:
    """Stages that exist, by their files."""
    return sorted(path.stem for path in STAGES.glob("*.py") if path.stem != "__init__")


def run_stage(name: str, item: str | None, root: Path) -> None:
    """Run ``paco_core.stages.<name>`` inside its context.

    Raises:
        ParamsError: for an unknown stage, item or launcher, or invalid parameters.
        DataError: when an input is missing or malformed, or another process runs this stage, or an out
            cannot be written.
    """
    if name not in stage_names():
        raise ParamsError(f"no stage {name!r}; stages: {', '.join(stage_names())}")
    _check_item(name, item, root)
    launcher = launchers.chosen()
    if int(os.environ.get("RANK", "0")) > 0:
        _assist(name, item, root)
        return
    label = stage_label(name, item)
    if (stage := stages_of(root).get(label)) is not None:
        for out in stage.outs:
            targets.writable(root / out.path)
    with ExitStack() as gpus:
        if name in DEVICES and "RANK" not in os.environ:
            for lease in _placed(name, item, root, launcher):
                gpus.enter_context(lease)
        began = time.monotonic()
        with only_run(root, label), open_stage(name, item, root) as context, lost_ranks():
            _stage(name).run(context)
        files.write_json(root / SECONDS / f"{label}.json", {"seconds": round(time.monotonic() - began, 2)})


def _placed(name: str, item: str | None, root: Path, launcher: launchers.Name) -> list[IO[bytes]]:
    """Take the GPUs that the stage computes on; turn into the launcher of its processes where there are several.

    On a Ray cluster, Ray places the work.
    """
    from paco_core.runtime.launchers import accelerated

    params = load(root / PARAMS_FILE)
    device = DEVICES[name](params)
    processes = SHARED[name](params) if name in SHARED else 1
    launches = name in SHARED and (launcher == "accelerate" or processes > 1)
    here = accelerated.processes_here(root, device) if launches and launcher == "accelerate" else processes
    holder = f"{stage_label(name, item)} of {root}"
    leases = [] if launcher == "ray" else take_gpus(device, here, holder, params)
    if launches:
        prepare(params.threads)  # else accelerate gives each rank one thread
        accelerated.become(name, item, root, device, None if launcher == "accelerate" else processes)
    return leases


def _check_item(name: str, item: str | None, root: Path) -> None:
    declared = [stage.item for stage in stages_of(root).values() if stage.group == name]
    items = [known for known in declared if known is not None]
    if declared and not items and item is not None:
        raise ParamsError(f"stage {name} has no items: run it without --item {item}")
    if items and item not in items:
        found = "needs --item" if item is None else f"has no item {item!r}"
        raise ParamsError(f"stage {name} {found}; items (dvc.yaml): {', '.join(items)}")


def _stage(name: str) -> Any:
    """The module of a stage; it imports all that the stage computes with."""
    with uncollected(), without("sklearn"):
        return importlib.import_module(f"paco_core.stages.{name}")


def _assist(name: str, item: str | None, root: Path) -> None:
    """A further rank of a training that accelerate or torchrun started; it neither reports nor writes files."""
    params = load(root / PARAMS_FILE)
    prepare(params.threads)
    if name in SHARED:
        with lost_ranks():
            _stage(name).assist(params, item, root)


def usual_seconds(root: Path, label: str) -> float | None:
    """How long the last finished run of a stage took on this machine; None when there was none.

    Dagster shows by it what a restored stage saved where it did not see the run itself.
    """
    path = root / SECONDS / f"{label}.json"
    return float(files.read_json(path)["seconds"]) if path.is_file() else None
