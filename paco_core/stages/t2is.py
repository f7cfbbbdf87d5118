"""Policies before and after training on unseen prompts, at every evaluation size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io import paths
from paco_core.runtime.preview import Pictures, Table
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

SHOWN_PROMPTS = 6
SAMPLES, SHEET = 8, 12


def _skipped(params: Params) -> str | None:
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    return None if recipes_of(SETS, params.policies) else "no recipe paints sets"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning.costs import benchmark_cost
    from paco_core.tasks.sets import SETS

    return benchmark_cost(params, SETS, root, "")


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The prompts on which training helped least, and pictures before (above) and after."""
    from paco_core.io.files import read_json, read_table
    from paco_core.io.pictures import read_image

    folder = data / paths.T2IS.name
    scores = read_table(folder / "per_prompt.parquet")
    measure = "gold_consistency" if "gold_consistency" in scores else "consistency"
    cases = scores.pivot_table(measure, ["policy", "size", "prompt_id", "seed"], "when").reset_index()
    cases["change"] = cases["after"] - cases["before"]
    samples = read_json(folder / "samples" / "samples.json")
    first = [s for s in samples if (s["policy"], s["size"]) == (samples[0]["policy"], samples[0]["size"])]
    sample_of = {(s["when"], s["prompt_id"]): s for s in first}
    prompts = list(dict.fromkeys(s["prompt_id"] for s in first))[:SHOWN_PROMPTS]
    selected = [sample_of[phase, prompt] for phase in ("before", "after") for prompt in prompts]
    images = [read_image(folder / "samples" / s["file"]) for s in selected]
    captions = [f"{s['when']} training, seed {s['seed']}\n{s['theme']}" for s in selected]
    alt = f"{samples[0]['policy']} at {samples[0]['size']} px: before above after"
    return {
        f"least_gain_in_{measure}": Table(cases.sort_values("change", kind="stable")),
        "contact_sheet": Pictures(images, len(prompts), alt, captions),
    }


STAGE = Stage(
    device=lambda params: params.policies.device,
    served=True,
    skipped=_skipped,
    cost=_cost,
    headline=(
        ("*.gold_identity_new.change", "*.characters.change"),
        ("*.copies.change",),
        ("*.gold_consistency.change", "*.consistency.change"),
        ("*.gold_following.change", "*.clip_t.change"),
    ),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.benchmarks.checks:policies_gain_consistency",
            "Training lifted consistency on unseen prompts, by the gold metric",
            Path(),
        ),
        library_check(
            "paco_core.benchmarks.checks:policies_still_follow_prompts",
            "Prompt following did not fall, by the gold metric",
            Path(),
        ),
        library_check(
            "paco_core.benchmarks.checks:policies_keep_characters",
            "New panels show the characters better, and no more panels are copies",
            Path(),
        ),
    ),
    compared=True,
)


def run(ctx: StageContext) -> None:
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    params, recipes = ctx.params.t2is, recipes_of(SETS, ctx.params.policies)
    if not recipes:
        return ctx.skip(paths.T2IS, "no recipe of policies.recipes paints sets")

    from paco_core.benchmarks.generated import measure_images, unseen_sets
    from paco_core.benchmarks.paired_changes import compare_changes, with_layouts
    from paco_core.benchmarks.t2is_bench.sets import write_painted
    from paco_core.grpo.prompt_split import trained_prompts
    from paco_core.io.files import write_json
    from paco_core.policies.truncation import log_truncations
    from paco_core.sampling import generation
    from paco_core.sampling.generated_image import SEPARATELY, truncations_by_policy

    folders = {name: ctx.read(paths.POLICIES / name) for name in recipes}
    cases = unseen_sets(ctx.read, ctx.params, set().union(*map(trained_prompts, folders.values())))
    with ctx.progress(cases.count_images(recipes), "images") as progress:
        adapters = {name: folder / "adapter" for name, folder in folders.items()}
        generated = cases.generate_before_and_after(recipes, adapters, ctx.root, progress.advance)
    table = measure_images(generated, cases, ctx.root, ctx.params, ctx.read(paths.REWARD_MERGED))
    paired, rows = [p for p in generated if p.when != SEPARATELY], table[table["when"] != SEPARATELY]
    statistics_options: dict[str, Any] = {
        "seeds": params.seeds,
        "steps": params.steps,
        "resamples": params.bootstrap,
        "seed": params.seed,
    }
    layouts = {p.record.idx: p.record.layout for p in paired}
    result = with_layouts(compare_changes(rows, **statistics_options), rows, layouts, **statistics_options)
    with ctx.writing(paths.T2IS) as out:
        out.mkdir()
        write_json(out / "results.json", result.as_dict())
        table.to_parquet(out / "per_prompt.parquet", index=False)
        generation.save_samples(out / "samples", paired, rows, SAMPLES)
        write_painted(out, generated)
    ctx.tracker.artifact(ctx.root / paths.T2IS / "per_prompt.parquet", f"tables/{paths.T2IS.name}")
    for name, size in dict.fromkeys((p.policy, p.size) for p in paired):
        selected = [p for p in paired if (p.policy, p.size) == (name, size)]
        ctx.image(generation.side_by_side(selected, SHEET), f"{name}_before_above_after_{size}px")
    cut = log_truncations(truncations_by_policy(generated), ctx.log)
    ctx.report({**result.metrics(), **cut}, {f"{name}.": paths.POLICIES / name for name in recipes})
