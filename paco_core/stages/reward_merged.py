"""The reward model as one complete folder: adapter merged into its base (or merged elsewhere), golden pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Pictures, Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

COMPARED, GOLDEN = 32, 4
MERGE_GB = 4.0  # a shard of merged weights, the LoRA in float32 and the activations of a 7B model
#: Pairs that are drawn where none were held out, and pixels of their sides. They have no label, and need none: a merge
#: and a server are to answer as the model does, whatever it says.
DRAWN_PAIRS, DRAWN_PX = 8, 256


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.models import reward_gb

    stored = reward_gb(params, root)
    converted = params.reward.dtype == "float32" and params.world == "real"  # public weights are stored in bfloat16
    loaded = stored * (2 if converted else 1)
    if params.reward.device == "cpu" and params.reward.dtype == "bfloat16":
        loaded = 0.0  # memory-mapped: in the page cache only
    memory = BASE_GB + min(MERGE_GB, stored) + loaded
    return Cost("1 merge", memory, amounts.seconds(params, 3), params.reward.device)


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The pairs that every server of this model must score alike, first beside second."""
    import pandas as pd

    from paco_core.io.files import read_json
    from paco_core.io.pictures import read_image

    folder = data / paths.REWARD_MERGED.name
    pairs = read_json(folder / "golden.json")["pairs"]
    images = [read_image(folder / pair[side]) for pair in pairs for side in ("first", "second")]
    captions = [f"{side}, score {pair['score']:.3f}" for pair in pairs for side in ("first", "second")]
    return {
        "golden_pairs": Table(pd.DataFrame([{"score": p["score"], "question": p["instruction"]} for p in pairs])),
        "contact_sheet": Pictures(images, 2, "golden pairs, first and second", captions),
    }


STAGE = Stage(
    device=lambda params: params.reward.device,
    unread=lambda params: ("reward.base",) if params.reward.source == "merged" else (),
    cost=_cost,
    headline=(("margin.worst",),),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.reward_model.checks:merged_equals_adapter",
            "Base and adapter give the logits of the merged folder",
            paths.metrics_file(paths.REWARD_MERGED.name),
        ),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.config.references import model_at
    from paco_core.data.records.panels import PanelStore
    from paco_core.io.files import write_text
    from paco_core.models.licence import licence_front
    from paco_core.reward_model import mlflow_model
    from paco_core.reward_model.examples import read_examples
    from paco_core.reward_model.golden import choose_golden, write_golden
    from paco_core.reward_model.instructions import question, render_instruction
    from paco_core.reward_model.merging import merge_adapter
    from paco_core.reward_model.model_card import reward_model_card
    from paco_core.reward_model.yes_probability import PairQuery
    from paco_core.runtime.provenance.chain import RECIPE_TAG
    from paco_core.runtime.tracking.models import registered_name
    from paco_core.storybook.drawn_cases import unlabelled_pairs
    from paco_core.training.log import LOG

    params = ctx.params.reward
    panels = PanelStore.below(ctx.read(paths.GRIDS), ctx.read(paths.PAIRS))
    table = ctx.read(paths.COT_LABELS) / "validation.parquet"
    held_out = read_examples(table, panels.panel, params.template, none_allowed=params.source != "train")
    compared = held_out[:COMPARED]
    queries = [example.query for example in compared]
    # Golden pairs are asked as `paco score` asks where it is given two pictures and no more.
    plain = [replace(example.query, instruction=question(None)) for example in compared if not example.ordered]
    labels: list[bool | None] = [example.consistent for example in compared if not example.ordered]
    if not queries:
        ctx.log(f"reward_merged: there are no validation pairs; {DRAWN_PAIRS} drawn ones take their place")
        synthetic_pairs = unlabelled_pairs(DRAWN_PAIRS, DRAWN_PX)
        queries = [
            PairQuery(first, second, render_instruction(params.template, theme=theme))
            for first, second, theme in synthetic_pairs
        ]
    if not plain:
        plain = [replace(query, instruction=question(None)) for query in queries]
        labels = [None] * len(plain)
    adapter: Path | None = ctx.read(paths.REWARD_LORA) / "adapter"
    base = model_at(ctx.root, params.base, "reward.base")
    if params.source == "merged":
        adapter, base = None, model_at(ctx.root, str(params.weights), "reward.weights")
    with ctx.writing(paths.REWARD_MERGED) as out:
        report = merge_adapter(
            base,
            adapter,
            out,
            [*queries, *plain],
            device=params.device,
            dtype=params.dtype,
            pixels=(params.min_pixels, params.max_pixels),
        )
        scores = report.scores[len(queries) :]
        chosen = choose_golden(plain, scores, labels, GOLDEN)
        golden = [plain[number] for number in chosen], [scores[number] for number in chosen]
        write_golden(out, *golden, params.dtype)
        mlflow_model.write_mlmodel(out)
        log = ctx.root / ctx.place(paths.REWARD_LORA) / LOG if params.source == "train" else None
        licence, pairs = licence_front(params.base, ctx.root), list(zip(*golden, strict=True))
        write_text(
            out / "README.md", reward_model_card(params, ctx.place(paths.REWARD_MERGED).as_posix(), licence, log, pairs)
        )
    recipe = {RECIPE_TAG: ctx.inputs.digest} if ctx.inputs else {}
    ctx.tracker.external_model(registered_name("reward"), ctx.place(paths.REWARD_MERGED), recipe)
    pairs_source = "pairs" if held_out else "drawn_pairs"
    ctx.report({**report.metrics(), pairs_source: float(len(queries))}, {"": paths.REWARD_MERGED})
