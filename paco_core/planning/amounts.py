"""Amounts of data that the parameters produce, and the seconds of work on them, before a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

from paco_core.config.params import Params
from paco_core.data.prompts.prompts import prompts_per_layout, read_imported_prompts
from paco_core.data.records.prompt_text import parse_layout
from paco_core.io.files import DataError
from paco_core.runtime.stage import LIGHT_S

#: Seconds for one unit of work on two cores with the small models, measured by `make demo` at 64 px.
CPU_SECONDS = {
    "grid_step": 0.008,
    "reward_pair": 0.0125,
    "rollout_step": 0.006,
    "score_pair": 0.007,
    "train_sample": 0.01,
    "bench_question": 0.002,
}
#: Share of a pass's seconds at 64 px that does not grow with its pixels; the rest does (measured at 32 to 128 px).
FIXED = 0.57
START_UP_S = 5.0  # a stage's imports, MLflow and the loading of models
PAIRS_AN_INSTANCE = 1.05  # rule top1_bottom1: two, less duplicates, contradictions and what is left to balance


def prompts(params: Params, root: Path) -> int:
    """Number of prompts. With ``count: null``, the lines of the file, or 0 if it is missing."""
    if params.prompts.engine == "none":
        return 0
    return _lines(root / str(params.prompts.source)) if params.prompts.count is None else params.prompts.count


def diverse_prompts(params: Params, root: Path) -> int:
    """Maximum number of prompts after the selection."""
    return params.diverse_prompts.target or prompts(params, root)


def layouts(params: Params, root: Path) -> dict[str, int]:
    """Number of prompts per layout; empty for a missing or invalid file, which `paco check` reports."""
    prompts = params.prompts
    if prompts.engine == "none":
        return {}
    if prompts.engine != "import":
        return prompts_per_layout(int(prompts.count or 0), prompts.layouts)
    file = root / str(prompts.source)
    try:
        records = read_imported_prompts(file, prompts.layouts, prompts.count).records if file.is_file() else []
    except DataError:
        return {}
    return Counter(record.layout for record in records)


def panels(params: Params, root: Path) -> float:
    """Panels of a set, on average."""
    return _mean(layouts(params, root), lambda panels: panels)


def panel_pairs(params: Params, root: Path) -> float:
    """Pairs of a set's panels, on average."""
    return _mean(layouts(params, root), lambda panels: panels * (panels - 1) // 2)


def _mean(sets_by_layout: Mapping[str, int], count: Callable[[int], int]) -> float:
    """Mean of ``count(number of panels)`` over all sets."""
    total = sum(count(prod(parse_layout(name))) * sets for name, sets in sets_by_layout.items())
    return total / max(1, sum(sets_by_layout.values()))


def pictures(params: Params, root: Path) -> int:
    """Number of generated grids."""
    return diverse_prompts(params, root) * len(params.grids.seeds)


def instances(params: Params, root: Path) -> int:
    """Ranking instances: each panel, and each other grid of its prompt."""
    return round(pictures(params, root) * panels(params, root) * (len(params.grids.seeds) - 1))


def has_pairs(params: Params) -> bool:
    """Whether there is a source of training pairs: rankings of grids, edits, or imported pairs."""
    ranked = params.grids.seeds and params.annotations.source != "none" and params.prompts.engine != "none"
    edited = params.pairs.editing.count != 0 or params.edits.painters
    return bool(ranked or edited or params.pairs.characters.used or params.pairs.imported)


def pairs(params: Params, root: Path) -> int:
    """Maximum number of training pairs, from rankings, edits, drawn characters and imported pairs."""
    ranked = int(instances(params, root) * (1 - params.pairs.benchmark_share) * PAIRS_AN_INSTANCE)
    imported = 0
    if params.pairs.imported:
        from paco_core.data.pairs.imported_pairs import count_to_train_on  # with pandas

        imported = count_to_train_on(root / params.pairs.imported)
    return ranked + imported + (params.pairs.editing.count or 0) + _character_pairs(params)


def _character_pairs(params: Params) -> int:
    """Number of training pairs of drawn characters: one per panel and image of its character."""
    return round(_drawn_character_pairs(params)) - held_out_character_pairs(params)


def held_out_character_pairs(params: Params) -> int:
    """Number of pairs of drawn characters that are held out."""
    return round(_drawn_character_pairs(params) * params.pairs.benchmark_share)


def _drawn_character_pairs(params: Params) -> float:
    """Expected number of pairs of all drawn characters."""
    characters = params.pairs.characters
    return characters.count * sum(characters.references) / len(characters.references)


def size_factor(pixels: float) -> float:
    """Time of a pass relative to 64 px; ``pixels`` of its image and its references."""
    return FIXED + (1 - FIXED) * pixels / 64**2


def seconds(params: Params, work: float) -> float | None:
    """Seconds of a stage with ``work`` seconds of computation on a CPU; None on GPUs, which are not measured."""
    return START_UP_S + work if params.grids.device == "cpu" else None


def writing_seconds(engine: str) -> float | None:
    """Seconds of a stage that writes texts; None for an endpoint, whose speed is unknown."""
    return None if engine == "openai" else LIGHT_S


def _lines(file: Path) -> int:
    """Number of records in a JSON Lines file; 0 if it is missing, which `paco check` reports."""
    if not file.is_file():
        return 0
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())
