"""The verbs of `paco` in a project with a damaged file: one clear line that names it, no traceback, no endless wait."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paco_core.cli.commands import main
from tests.faults import corpus, damage
from tests.faults.verdicts import Ledger, Outcome, unclear
from tests.support import forked

Breach = tuple[Outcome, str] | None
pytestmark = pytest.mark.faults
LIMIT_S = 20.0
DAMAGES = {
    "empty": b"",
    "a list": b"[1, 2]\n",
    "no YAML": b"a: b: c\n\t-",
    "binary": bytes(range(256)),
    "deep": damage.DEEP,
    "alias bomb": damage.BOMB,
    "a folder": None,
}
#: Verb -> the files that it reads; each of them is damaged in turn.
VERBS = {
    ("check",): ("params.yaml", "dvc.lock"),
    ("graph",): ("dvc.yaml",),
    ("plan", "flux_t2is"): ("params.yaml",),
    ("provenance", "data/prompts"): ("dvc.lock", "dvc.yaml"),
    ("profile", "use", "smoke"): ("profiles/smoke.yaml", "params.yaml"),
    ("run", "prompts"): ("params.yaml",),
    ("run", "rankings"): ("data/grids/shard-0/index.parquet",),
    ("run", "diverse_prompts"): ("data/prompts/prompts.jsonl",),
    ("run", "pairs"): ("data/annotations/rankings.parquet", "data/edit_prompts/edits.jsonl"),
    ("run", "cot_labels"): ("data/pairs/train.parquet",),
    ("dataset", "import", "paco_dataset", "paco_dataset", "imported"): ("paco_dataset/dataset_info.json",),
}


@pytest.fixture(scope="module")
def sound(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.make(finished, tmp_path_factory.mktemp("projects") / "project")


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb(sound: Path, tmp_path: Path, ledger: Ledger, verb: tuple[str, ...]) -> None:
    with ledger.row("damaged project", f"paco {' '.join(verb[:2])}") as row:
        for name in VERBS[verb]:
            path = sound / name
            kept = path.read_bytes()
            for what, data in DAMAGES.items():
                path.unlink() if path.is_file() else shutil.rmtree(path)
                path.mkdir() if data is None else path.write_bytes(data)
                row.judge(f"{name}: {what}", told(sound, verb, tmp_path / "log", path))
            shutil.rmtree(path)
            path.write_bytes(kept)


def told(root: Path, verb: tuple[str, ...], log: Path, damaged: Path) -> Breach:
    """A damaged file stops the verb with its name; a verb that can do without it may go on."""

    def act() -> None:
        from tests.faults import micro

        micro.quiet_tracking()
        main(list(verb))

    ended = forked.run(act, root, log=log, limit_s=LIMIT_S)
    shutil.rmtree(root / "imported", ignore_errors=True)
    if ended.code is None:
        return "unclear", f"hangs for more than {LIMIT_S:g} s"
    if ended.code < 0:
        return "unclear", f"ended the interpreter by signal {-ended.code}"
    return unclear(ended.text, (damaged.name, damaged.parent.name)) if ended.code else None
