"""An environment whose ANTLR breaks Dagster's selections is refused with the remedy."""

import sys

import pytest

from paco_pipelines import antlr, ui


def test_the_pages_are_not_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(antlr, "version", lambda _name: "4.9.3")
    monkeypatch.setattr(sys, "argv", ["ui"])
    monkeypatch.setattr(ui, "serve_ui", lambda *_ports: pytest.fail("started"))
    with pytest.raises(SystemExit, match=r"^ui: antlr4-python3-runtime: 4\.9\.3 is installed"):
        ui.main()
