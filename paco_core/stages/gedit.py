"""Editing policies before and after training on unseen pictures, at every evaluation size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Pictures, Table
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks import viescore
    from paco_core.benchmarks.generated import Cases
    from paco_core.config.params import Params
    from paco_core.config.params_benchmarks import VieScoreParams
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview
    from paco_core.sampling.generated_image import GeneratedImage

SHOWN_PROMPTS = 6
SAMPLES, SHEET = 8, 12


def _skipped(params: Params) -> str | None:
    from paco_core.tasks.edits import EDITS
    from paco_core.tasks.table import recipes_of

    return None if recipes_of(EDITS, params.policies) else "no recipe edits"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning.costs import benchmark_cost
    from paco_core.tasks.edits import EDITS

    return benchmark_cost(params, EDITS, root, "at most ")


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The edits that training helped least, and pictures: references, before, after."""
    from paco_core.io.files import read_json, read_table
    from paco_core.io.pictures import read_image

    folder = data / paths.GEDIT.name
    if not (folder / "samples" / "samples.json").is_file():
        return {}  # no policy edits
    scores = read_table(folder / "per_prompt.parquet")
    measure = "gold_editing" if "gold_editing" in scores else "editing"
    cases = scores.pivot_table(measure, ["policy", "size", "task_type", "prompt_id", "seed"], "when").reset_index()
    cases["change"] = cases["after"] - cases["before"]
    samples = read_json(folder / "samples" / "samples.json")
    first = [s for s in samples if (s["policy"], s["size"]) == (samples[0]["policy"], samples[0]["size"])]
    rows = {phase: {s["prompt_id"]: s for s in first if s["when"] == phase} for phase in ("before", "after")}
    prompt_ids = list(rows["before"])[:SHOWN_PROMPTS]
    names = [rows["before"][p]["reference"] for p in prompt_ids]
    names += [rows[phase][p]["file"] for phase in ("before", "after") for p in prompt_ids]
    images = [read_image(folder / "samples" / name) for name in names]
    captions = [f"reference\n{rows['before'][p]['prompt']}" for p in prompt_ids]
    captions += [f"{phase} training" for phase in ("before", "after") for _ in prompt_ids]
    alt = f"{samples[0]['policy']} at {samples[0]['size']} px: reference, before, after"
    return {
        f"least_gain_in_{measure}": Table(cases.sort_values("change", kind="stable")),
        "contact_sheet": Pictures(images, len(prompt_ids), alt, captions),
    }


STAGE = Stage(
    device=lambda params: params.policies.device,
    served=True,
    skipped=_skipped,
    cost=_cost,
    headline=(("*.gold_editing.change", "*.editing.change"), ("*.gold_kept.change",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.benchmarks.checks:policies_gain_edits",
            "Training raised the share of right edits on unseen pictures, by the gold metric",
            Path(),
        ),
    ),
    compared=True,
    tables=True,
)


def _measure(ctx: StageContext) -> tuple[Cases, list[GeneratedImage], pd.DataFrame]:
    """Every editing recipe, before and after training, on editing prompts that were held back."""
    from paco_core.benchmarks.generated import measure_images, unseen_edits
    from paco_core.tasks.edits import EDITS
    from paco_core.tasks.table import recipes_of

    recipes = recipes_of(EDITS, ctx.params.policies)
    cases = unseen_edits(ctx.read, ctx.params, set())
    adapters = {name: ctx.read(paths.POLICIES / name) / "adapter" for name in recipes}
    with ctx.progress(cases.count_images(recipes), "images") as progress:
        generated = cases.generate_before_and_after(recipes, adapters, ctx.root, progress.advance)
    return cases, generated, measure_images(generated, cases, ctx.root, ctx.params, ctx.read(paths.REWARD_MERGED))


def _rate(
    ctx: StageContext, params: VieScoreParams, cases: Cases, generated: list[GeneratedImage]
) -> viescore.EditRatings:
    """VIEScore of each edit by a model behind an endpoint."""
    import numpy as np

    from paco_core.benchmarks import viescore
    from paco_core.benchmarks.viescore_prompts import wording
    from paco_core.rewards.base import validate_failed_share

    assert cases.reference is not None, "cases of edits have reference images"
    words = wording(params.prompts, ctx.root)
    ctx.log(f"{viescore.describe_queries(generated, words)}, to {params.endpoint.model}, asked in {words.name}")
    with ctx.progress(2 * len(generated), "queries", "gedit viescore") as progress:
        ratings = viescore.rate_edits(generated, cases.reference, params.endpoint, words, ctx.root, progress.advance)
    rejected = {name: int(count) for name, count in ratings.counts.items() if name.startswith("rejected.")}
    for name, values in ratings.columns.items():
        share, failed = ctx.params.serving.max_failed_share, int(np.isnan(values).sum())
        validate_failed_share(failed, len(values), share, f"VIEScore {name}", rejected)
    return ratings


def run(ctx: StageContext) -> None:
    import pandas as pd

    from paco_core.benchmarks import viescore
    from paco_core.benchmarks.edit_changes import compare_edits
    from paco_core.benchmarks.published import GEDIT
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.benchmarks.viescore_prompts import wording
    from paco_core.io.answer import to_jsonable
    from paco_core.io.files import write_json, write_jsonl
    from paco_core.policies.truncation import log_truncations
    from paco_core.sampling import generation
    from paco_core.sampling.generated_image import truncations_by_policy
    from paco_core.tasks.edits import EDITS
    from paco_core.tasks.table import recipes_of

    params = ctx.params.gedit
    generated: list[GeneratedImage] = []
    table, reference, ratings = pd.DataFrame(), None, None
    if recipes_of(EDITS, ctx.params.policies):
        cases, generated, table = _measure(ctx)
        reference = cases.reference
        ratings = None if params.viescore is None else _rate(ctx, params.viescore, cases, generated)
        table = table if ratings is None else table.assign(**ratings.columns)
    else:
        ctx.log("no recipe of policies.recipes edits pictures: there is nothing to measure")
    result = compare_edits(table, seeds=params.seeds, steps=params.steps, resamples=params.bootstrap, seed=params.seed)
    published = [row.as_dict() for row in GEDIT]
    with ctx.writing(paths.GEDIT) as out:
        out.mkdir()
        tree, rated = {**result.as_dict(), "published": published}, None
        if ratings is not None and params.viescore is not None:
            draws = {"resamples": params.bootstrap, "seed": params.seed}
            words, model = wording(params.viescore.prompts, ctx.root), params.viescore.endpoint.model
            rows = viescore.macro_means(table, viescore.intersection_ids(generated), **draws)
            rated = viescore.ratings_table(rows, model, words)
            tree["viescore"] = {"judge": model, "wording": words.name, "rows": rows}
            write_jsonl(out / "answers.jsonl", ratings.answers)
        write_json(out / "results.json", to_jsonable(tree))
        table.to_parquet(out / "per_prompt.parquet", index=False)
        write_result_tables(out, "GEdit-Bench", result.tables(GEDIT, rated))
        if generated:
            generation.save_samples(out / "samples", generated, table, SAMPLES, reference)
    for name, size in dict.fromkeys((p.policy, p.size) for p in generated):
        selected = [p for p in generated if (p.policy, p.size) == (name, size)]
        ctx.image(generation.side_by_side(selected, SHEET, reference), f"{name}_reference_before_after_{size}px")
    ctx.tracker.artifact(ctx.root / paths.GEDIT, "tables")
    counts = {} if ratings is None else {f"viescore.{name}": float(count) for name, count in ratings.counts.items()}
    recipes = recipes_of(EDITS, ctx.params.policies)
    cut = log_truncations(truncations_by_policy(generated), ctx.log)
    ctx.report({**result.metrics(), **counts, **cut}, {f"{name}.": paths.POLICIES / name for name in recipes})
