"""What the pages of the benchmarks show: the cases that went worst, and the page itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from paco_core.io.files import read_table
from pipelines.previews.tables import pictures, table

SHOWN_PROMPTS = 6


def worst_rankings(data: Path, _item: str) -> dict[str, Any]:
    """The instances that the trained reward ordered worst."""
    found = read_table(data / "consistency_rank" / "per_instance.parquet")
    found = found[found["method"] == "reward"].sort_values(["accuracy", "tau"], kind="stable")
    return {"worst_rankings": table(found[["instance_id", "prompt_id", "accuracy", "tau", "scores", "ranking"]])}


def lost_consistency(data: Path, _item: str) -> dict[str, Any]:
    """The prompts on which training helped least, and pictures before (above) and after."""
    from paco_core.io.files import read_json
    from paco_core.io.pictures import read_image

    found = read_table(data / "t2is" / "per_prompt.parquet")
    measure = "gold_consistency" if "gold_consistency" in found else "consistency"
    cases = found.pivot_table(measure, ["policy", "size", "prompt_id", "seed"], "when").reset_index()
    cases["change"] = cases["after"] - cases["before"]
    shown: dict[str, Any] = {f"least_gain_in_{measure}": table(cases.sort_values("change", kind="stable"))}
    samples = read_json(data / "t2is" / "samples" / "samples.json")
    first = [s for s in samples if (s["policy"], s["size"]) == (samples[0]["policy"], samples[0]["size"])]
    files = {(s["when"], s["prompt_id"]): data / "t2is" / "samples" / s["file"] for s in first}
    prompts = list(dict.fromkeys(s["prompt_id"] for s in first))[:SHOWN_PROMPTS]
    images = [read_image(files[when, prompt]) for when in ("before", "after") for prompt in prompts]
    alt = f"{samples[0]['policy']} at {samples[0]['size']} px: before above after"
    return {**shown, "contact_sheet": pictures(images, len(prompts), alt)}


def judged_sets(data: Path, _item: str) -> dict[str, Any]:
    """The figures of each method, as the benchmark's table has them."""
    import pandas as pd

    from paco_core.io.files import read_json

    result = read_json(data / "t2is_bench" / "results.json")
    rows = [
        {"method": label, **{name: value["mean"] for name, value in result["figures"][method].items()}}
        for method, label in result["methods"].items()
    ]
    return {"judged_sets": table(pd.DataFrame(rows))}


def lost_edits(data: Path, _item: str) -> dict[str, Any]:
    """The edits that training helped least, and pictures: references, before, after."""
    from paco_core.io.files import read_json
    from paco_core.io.pictures import read_image

    if not (data / "gedit" / "samples" / "samples.json").is_file():
        return {}  # no policy edits
    found = read_table(data / "gedit" / "per_prompt.parquet")
    measure = "gold_editing" if "gold_editing" in found else "editing"
    cases = found.pivot_table(measure, ["policy", "size", "task_type", "prompt_id", "seed"], "when").reset_index()
    cases["change"] = cases["after"] - cases["before"]
    samples = read_json(data / "gedit" / "samples" / "samples.json")
    first = [s for s in samples if (s["policy"], s["size"]) == (samples[0]["policy"], samples[0]["size"])]
    rows = {when: {s["prompt_id"]: s for s in first if s["when"] == when} for when in ("before", "after")}
    prompts = list(rows["before"])[:SHOWN_PROMPTS]
    names = [rows["before"][p]["reference"] for p in prompts]
    names += [rows[when][p]["file"] for when in ("before", "after") for p in prompts]
    images = [read_image(data / "gedit" / "samples" / name) for name in names]
    alt = f"{samples[0]['policy']} at {samples[0]['size']} px: reference, before, after"
    return {
        f"least_gain_in_{measure}": table(cases.sort_values("change", kind="stable")),
        "contact_sheet": pictures(images, len(prompts), alt),
    }


def page(data: Path, _item: str) -> dict[str, Any]:
    return {"page": dg.MetadataValue.path(str(data / "report" / "index.html"))}


SHOWN = {
    "consistency_rank": worst_rankings,
    "t2is": lost_consistency,
    "t2is_bench": judged_sets,
    "gedit": lost_edits,
    "report": page,
}
