"""The card of an exported data set: contents, rules, agreement of the annotators, licences."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from paco_core.config.params import Params
from paco_core.exchange.rank_bench import PROMPTS, RANKS
from paco_core.io import paths
from paco_core.io.files import read_json

RULES = {
    "top1_bottom1": "the candidate ranked first is consistent with the reference, the last is not",
    "top2_bottom2": "the two candidates ranked first are consistent with the reference, the last two are not",
    "adjacent": "the candidate ranked first is consistent with the reference, the second is not",
}

#: The counts of a card: label, out of the stage, and name of the stage's metric.
_COUNTS = (
    ("prompts", paths.PROMPTS, "prompts"), ("diverse prompts", paths.DIVERSE_PROMPTS, "prompts"),
    ("ranking instances", paths.RANKINGS, "instances"), ("votes", paths.ANNOTATIONS, "votes"),
    ("rankings", paths.ANNOTATIONS, "rankings"),
    ("training pairs", paths.PAIRS, "train"), ("of these consistent", paths.PAIRS, "train_yes"),
    ("of these edits", paths.PAIRS, "train_editing"), ("validation pairs", paths.PAIRS, "validation"),
    ("benchmark rankings", paths.PAIRS, "benchmark"), ("benchmark prompts", paths.PAIRS, "benchmark_prompts"),
    ("training answers", paths.COT_LABELS, "train_answers"),
)  # fmt: skip


def build_card(root: Path, params: Params, form: str, licence: str, generator: str) -> str:
    """The text of ``README.md``, with the front matter that a hub and ``datasets`` read.

    Args:
        root: of the project, whose metrics of stages and ``agreement.json`` the card shows.
        form: name of the format.
        licence: of this data set, as its publisher states it.
        generator: licence of the model that painted the pictures.
    """
    metrics = {out: _json(root / paths.metrics_file(out.name)) for _, out, _ in _COUNTS}
    counts = [(label, value) for label, out, key in _COUNTS if (value := metrics[out].get(key)) is not None]
    prefix = "dropped."
    dropped = [(k.removeprefix(prefix), v) for k, v in metrics[paths.PAIRS].items() if k.startswith(prefix)]
    agreement = _json(root / paths.ANNOTATIONS / "agreement.json")
    count = len(agreement.get("annotators", []))
    source = f"{count} annotator{'' if count == 1 else 's'} (source: {agreement.get('source', 'unknown')})"
    lines = [
        "---", yaml.safe_dump(_front_matter(form, licence), sort_keys=False).strip(), "---", "",
        "# Pairwise consistency of generated image sets", "",
        "Panels of grids that a text-to-image model painted for one prompt, ranked by how consistent they are with a "
        "reference panel, and pairs made from the rankings. The method is PaCo-RL's (arXiv 2512.04784).", "",
        "## Counts", "", *_table(("step", "number"), counts), "",
        "## Rules", "",
        f"- Pairs: `{params.pairs.rule}`: {RULES[params.pairs.rule]}.",
        *(["- A label that the annotator's own score contradicts is left out."] if params.pairs.confident else []),
        f"- Split by {params.pairs.split}; classes {'balanced within 3%' if params.pairs.balance else 'not balanced'}.",
        f"- Prompts: engine `{params.prompts.engine}`. Pictures: `{params.grids.model}`, {params.grids.steps} steps, "
        f"guidance {params.grids.guidance}, seeds {', '.join(map(str, params.grids.seeds))}.",
        f"- Reasons: engine `{params.cot_labels.engine}`.", "",
        *(["Left out on the way:", "", *_table(("cause", "number"), dropped), ""] if dropped else []),
        "## Agreement", "",
        f"Ranked by {source}; {agreement.get('shared_instances', 0)} instances were ranked by two or more.", "",
        *_table(
            ("figure", "value"),
            [(name, _number(agreement.get(key))) for name, key in (
                ("Kendall's W", "kendall_w"), ("Kendall's tau", "kendall_tau"), ("pairwise agreement", "pairwise"),
            )],
        ), "",
        "## Licences", "",
        f"- This data set: {licence}.",
        f"- The pictures were painted by `{params.grids.model}`, licence: {generator}. Its terms apply to them.",
        *(
            [f"- Prompts come from `{params.prompts.source}`; the terms of that source apply to them."]
            if params.prompts.engine == "import" else []
        ), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _front_matter(form: str, licence: str) -> dict[str, Any]:
    head: dict[str, Any] = {"license": licence, "task_categories": ["image-text-to-text"], "tags": ["consistency"]}
    if form == "parquet":
        splits = [{"split": split, "path": f"{split}.parquet"} for split in ("train", "validation")]
        ranked = [{"split": "test", "path": "benchmark.parquet"}]
        head["configs"] = [
            {"config_name": "pairs", "default": True, "data_files": splits},
            {"config_name": "benchmark", "data_files": ranked},
        ]
    elif form == "paco_dataset":
        splits = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "validation")]
        head["configs"] = [{"config_name": "pairs", "default": True, "data_files": splits}]
    elif form == "rank_bench":
        head["configs"] = [
            {"config_name": "rankings", "default": True, "data_files": [{"split": "test", "path": RANKS}]},
            {"config_name": "prompts", "data_files": [{"split": "test", "path": PROMPTS}]},
        ]
    return head


def _json(file: Path) -> dict[str, Any]:
    return dict(read_json(file)) if file.is_file() else {}


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)]


def _number(value: Any) -> str:
    if not isinstance(value, int | float) or math.isnan(value):
        return "not known (one annotator)"
    return f"{value:.3f}"
