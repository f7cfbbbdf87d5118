"""Write docs/results/published.md: the published rows of paco_core/benchmarks/published.py.

``python tools/docs/tables.py``. A test compares the page with what this would write.
"""

from collections.abc import Sequence
from pathlib import Path

from paco_core.benchmarks import published
from paco_core.benchmarks.tables import ResultTable, number

PAGE = Path("docs") / "results" / "published.md"
OPENING = """\
# The paper's tables

These rows were published by others. `paco tables` prints them next to the rows of your run. They come from public data
and released models. The embedded world uses drawings and small models, so compare directions with it, never values.

<!-- written by `python tools/docs/tables.py` from paco_core/benchmarks/published.py; change it there -->
"""
#: Each table of that module: its title, what its columns are called and to how many digits, and what it says.
TABLES = {
    "CONSISTENCY_RANK": (
        "ConsistencyRank: which image is most consistent?",
        {"accuracy": "accuracy", "t1_b1": "T1-B1", "tau_paper": "tau (index order)", "rho_paper": "rho (index order)"},
        "3,136 human rankings of four sub-figures of FLUX.1-dev. `paco tables` prints the measured rows of "
        "[`consistency_rank`](../reference/benchmarks.md#consistencyrank-consistency_rank) above them.",
    ),
    "EDIT_REWARD": (
        "EditReward-Bench: which edit is better?",
        {"prompt_following": "prompt following", "consistency": "consistency", "overall": "overall"},
        "Strict accuracy, mean over task types. Measured rows: "
        "[`edit_reward`](../reference/benchmarks.md#editreward-bench-edit_reward).",
    ),
    "MMRB2": (
        "MMRB2: which edit is better?",
        {"overall": "accuracy"},
        "Share of 1,000 pairs of edits, each judged in both orders, by models that saw both edits at once. "
        "Measured rows: [`edit_reward`](../reference/benchmarks.md#editreward-bench-edit_reward) with an "
        "[import of MMRB2](../reference/dataset-formats.md#mmrb2-mmrb2).",
    ),
    "T2IS_ABLATION": (
        "What resolution decoupling and log-tame do, on T2IS-Bench",
        {"aesthetics": "aesthetics", "following": "following", "consistency": "consistency", "hours": "hours"},
        "A FLUX.1-dev policy; hours on 8 x H100. The same ablations at small scale, over three seeds: "
        "[ablations](2026-11-22-ablations.md).",
    ),
    "T2IS_BENCH": (
        "T2IS-Bench: sets of images",
        {"average_qwen": "average, Qwen2.5-VL evaluators", "average_gemma": "average, Gemma evaluators"},
        "596 prompts; 0.2 aesthetics + 0.3 alignment + 0.5 consistency, by the model that judged consistency. Measured "
        "rows: [`t2is_bench`](../reference/public-benchmarks.md#t2is-bench-t2is_bench).",
    ),
    "GEDIT": (
        "GEdit-Bench: edits",
        {"sc": "semantic consistency", "pq": "perceptual quality", "overall": "overall"},
        "English, full set; 0 to 10, by a vision language model; overall is the mean of sqrt(SC x PQ), each task with "
        "equal weight. Measured rows: [`gedit`](../reference/benchmarks.md#gedit-bench-gedit).",
    ),
}


def page() -> str:
    """The page as it should be.

    Raises:
        SystemExit: the module has a table that is not shown here, or a figure that no column holds.
    """
    tables = {name: rows for name, rows in vars(published).items() if isinstance(rows, tuple) and name.isupper()}
    if set(tables) != set(TABLES):
        raise SystemExit(f"tools/docs/tables.py: {sorted(set(tables) ^ set(TABLES))} are not in both places")
    return "\n".join([OPENING, *(_table(name, rows).markdown() for name, rows in tables.items())])


def _table(name: str, rows: Sequence[published.PublishedRow]) -> ResultTable:
    title, columns, note = TABLES[name]
    for row in rows:
        if lost := set(row.figures) - set(columns):
            raise SystemExit(f"tools/docs/tables.py: {name}: no column for {sorted(lost)}")
    cells = [[row.model, *(_cell(key, row.figures.get(key)) for key in columns)] for row in rows]
    sources = ", ".join(sorted({row.source for row in rows}))
    return ResultTable(title, ["", *columns.values()], cells, [note, f"Source: {sources}."])


def _cell(key: str, value: float | None) -> str:
    return number(value, 1 if key == "hours" else 3)


if __name__ == "__main__":
    (Path(__file__).resolve().parents[2] / PAGE).write_text(page())
