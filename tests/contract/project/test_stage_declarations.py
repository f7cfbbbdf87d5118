"""Stage declarations: their content, their discovery, and the imports that they avoid."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dvc_project.project import stages_of
from paco_core import stages
from paco_core.config.params import ParamsError
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.runtime.code import source
from paco_core.runtime.stage import Stage

HEAVY = {"PIL", "dagster", "diffusers", "mlflow", "numpy", "pandas", "pydantic", "torch", "transformers"}
FILE = """
from paco_core.grpo import losses
from paco_core.planning import footprint
from paco_core.runtime.stage import Cost, Stage
BOTH, OWN = 3, 4
def _estimate():
    return footprint.of(BOTH, OWN)
def _cost(params, root):
    from paco_core.planning import amounts
    return _estimate()
STAGE = Stage(cost=_cost, headline=tuple((name,) for name in ("loss",)))
def run(ctx):
    losses.do(BOTH)
"""


def test_a_declaration_is_read_without_a_library_that_computes() -> None:
    code = (
        "import sys; from importlib import import_module; from paco_core import stages\n"
        "for name in stages.names(): import_module(f'paco_core.stages.{name}').STAGE\n"
        "print(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(result.stdout.split()) == set()


def test_every_stage_of_the_graph_declares_its_cost_and_checks_what_it_makes(repository: Path, tmp_path: Path) -> None:
    declared = stages.declared(repository)
    assert set(declared) == set(stages.names())
    assert list(declared) == [
        name for name in dict.fromkeys(s.group for s in stages_of(repository).values()) if name in declared
    ]
    for name, stage in declared.items():
        assert stage.cost is not None, name
        assert stage.checks or stage.compared, name
        for check in stage.checks:
            with suppress(DataError, ParamsError):  # nothing is here; what the library lacks is another error
                check.reports(tmp_path)
        assert (stage.processes is None) == (not hasattr(stages.stage_file(name), "assist")), name
    assert stages.declaration("code") == Stage(), "an entry of dvc.yaml without a file here"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"loss"', '"accuracy"'),
        ("return _estimate()", "return 2 * _estimate()"),
        ("footprint.of(BOTH, OWN)", "footprint.of(BOTH)"),
        ("BOTH, OWN = 3, 4\n", "BOTH, OWN = 3, 4\nSHOWN = 6\n"),
    ],
)
def test_what_a_stage_says_of_itself_is_no_part_of_its_code(old: str, new: str) -> None:
    changed = FILE.replace(old, new)
    is_unchanged = (
        source.parse_source(changed.encode(), "x.py").digest == source.parse_source(FILE.encode(), "x.py").digest
    )
    assert changed != FILE and is_unchanged == ("SHOWN" not in new), (
        "a constant that nothing names counts as the file's own"
    )


def test_what_it_computes_is_and_so_is_what_both_need() -> None:
    read = source.parse_source(FILE.encode(), "x.py")
    for old, new in (("losses.do(BOTH)", "losses.do(2 * BOTH)"), ("BOTH, OWN = 3", "BOTH, OWN = 5")):
        assert source.parse_source(FILE.replace(old, new).encode(), "x.py").digest != read.digest
    assert "paco_core.grpo.losses" in read.imports and not any("planning" in name for name in read.imports)


def test_the_stage_that_makes_a_path_is_known_by_its_place() -> None:
    assert paths.producer(Path("/x/data/grids/shard-0/index.parquet")) == paths.GRIDS.name
    assert paths.producer(paths.REWARD_MERGED) == "reward_merged"
    outside = ("data/people/answers.jsonl", "data/external/x", "data/metrics/grids-0.json", "grids/a", "data/__init__")
    assert [paths.producer(Path(path)) for path in outside] == [None, None, None, None, None]
