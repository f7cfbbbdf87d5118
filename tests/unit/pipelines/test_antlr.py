"""An environment whose ANTLR breaks Dagster's selections is refused with the remedy."""

import sys

import dagster as dg
import pytest

from paco_pipelines import antlr, ui


def test_selections_work_in_this_environment() -> None:
    assert antlr.antlr_problem() is None
    assert "a" in str(dg.AssetSelection.from_string('key:"a"+'))


@pytest.mark.parametrize("found", ["4.9.3", "5.0.0"])
def test_another_version_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(antlr, "version", lambda _name: found)
    problem = antlr.antlr_problem()
    assert problem is not None and f"{found} is installed" in problem and "locks/run.txt" in problem


def test_the_pages_are_not_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(antlr, "version", lambda _name: "4.9.3")
    monkeypatch.setattr(sys, "argv", ["ui"])
    monkeypatch.setattr(ui, "serve", lambda *_ports: pytest.fail("started"))
    with pytest.raises(SystemExit, match=r"^ui: antlr4-python3-runtime: 4\.9\.3 is installed"):
        ui.main()
