"""Parameters and a graph of an earlier version: moved without a loss, or refused with the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvc_project.project import DvcProject
from paco_core.cli.commands import main
from paco_core.cli.status import status
from paco_core.config import profiles
from paco_core.config.execution import REMOVED, earlier_places
from paco_core.config.graph_keys import validate_version
from paco_core.config.migration import migrate
from paco_core.config.params import Params, ParamsError
from paco_core.planning.preflight import check_project
from paco_core.runtime.code.stage_code import write_stage_code
from paco_core.stages import declared

WRITTEN = Path(__file__).parent / "written/project"


@pytest.fixture
def updated(project: Path) -> Path:
    """The present graph with parameters and a profile of the earlier version."""
    shutil.copyfile(WRITTEN / "params.yaml", project / "params.yaml")
    shutil.copyfile(WRITTEN / "profile.yaml", project / "profiles/mine.yaml")
    return project


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of all that is no section."""
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from leaves(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, tree


def in_file(root: Path) -> dict[str, Any]:
    return dict(leaves(yaml.safe_load((root / "params.yaml").read_text())))


def present_place(key: str) -> str:
    places = earlier_places(Params)
    prefix = next((old for old in places if key == old or key.startswith(f"{old}.")), None)
    return key if prefix is None else places[prefix] + key.removeprefix(prefix)


def test_earlier_parameters_are_refused_with_the_remedy(updated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status"])
    printed = capsys.readouterr().err
    assert "params.yaml: threads is execution.threads now" in printed and "`paco params --migrate`" in printed


def test_a_migration_keeps_every_value_and_its_comment(updated: Path, repository: Path) -> None:
    before = in_file(updated)
    printed = migrate(updated)
    assert "params.yaml: 50 keys moved" in printed
    assert "params.yaml: deleted consistency_rank.dreamsim (None): " in printed
    assert "params.yaml: deleted serving.allowed_media ([]): " in printed
    after = in_file(updated)
    assert {present_place(key): value for key, value in before.items() if key not in REMOVED}.items() <= after.items()
    assert not any("allowed_media" in key for key in after)
    assert "threads: 2 # mine" in (updated / "params.yaml").read_text()
    shutil.copyfile(repository / "params.yaml", updated / "profiles/storybook.yaml")
    mine = profiles.read(updated, "mine")
    assert (mine.threads, mine.serving.port, mine.policies.recipes["flux_t2is"].epochs) == (2, 8123, 3)


def test_a_migration_adds_what_the_present_graph_names(updated: Path) -> None:
    assert "params.yaml: added policies.defaults.base, vistory, rounds.items" in migrate(updated)
    validate_version(updated)
    assert "round_grids" not in {stage.group for stage in DvcProject(updated).stages.values()}
    assert "added" not in migrate(updated)


def test_an_earlier_graph_is_refused_before_anything_runs(updated: Path) -> None:
    """DVC would run all stages up to the first one that reads a moved key."""
    shutil.copyfile(WRITTEN / "dvc.yaml.txt", updated / "dvc.yaml")
    migrate(updated)
    expected = "policies uses policies.device, which is policies.defaults.device now"
    with pytest.raises(ParamsError, match=expected):
        write_stage_code(updated)
    with pytest.raises(ParamsError, match=expected):
        check_project(updated, declared(updated))
    assert expected in status(updated).fault
