"""Is the reward model served, under its right name, with its right scores?"""

from __future__ import annotations

import time
from pathlib import Path

from paco_core.config.params import ServingParams
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError
from paco_core.serving.servers.endpoint import RewardEndpoint, fingerprint, served_name

NAME = "reward_endpoint_healthy"


def check_served(folder: Path, root: Path, serving: ServingParams) -> CheckReport:
    """Ask the living server of the model in ``folder`` for its name and its golden pairs; starts nothing."""
    try:
        model = served_name(fingerprint(folder, root))
        endpoint = RewardEndpoint.living(folder, serving, root)
    except DataError as error:
        return CheckReport(NAME, False, "WARN", str(error))
    if endpoint is None:
        text = f"no server of {model} is up; stages start a private one when they need it"
        return CheckReport(NAME, False, "WARN", text, {"model": model})
    metadata: dict[str, str | int | float] = {
        "model": model,
        "url": endpoint.url,
        "engine": endpoint.engine,
        "process": endpoint.pid,
        "leases": endpoint.leases(),
    }
    began = time.perf_counter()
    try:
        worst = endpoint.check_golden()
    except DataError as error:
        return CheckReport(NAME, False, "ERROR", str(error), metadata)
    metadata["seconds"] = round(time.perf_counter() - began, 3)
    if worst is None:
        return CheckReport(NAME, True, "ERROR", f"{model} answers; its folder has no golden pairs", metadata)
    metadata["golden_difference"] = worst
    text = f"{model} answers; its golden pairs differ by {worst:.2g} in the log-odds of Yes at most"
    return CheckReport(NAME, True, "ERROR", text, metadata)
