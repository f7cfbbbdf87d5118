"""An environment whose ANTLR breaks Dagster's selections is refused with the remedy."""

import dagster as dg
import pytest

from pipelines import antlr


def test_selections_work_in_this_environment() -> None:
    antlr.check_antlr()
    assert "a" in str(dg.AssetSelection.from_string('key:"a"+'))


@pytest.mark.parametrize("found", ["4.9.3", "5.0.0"])
def test_another_version_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(antlr, "version", lambda _name: found)
    with pytest.raises(dg.DagsterInvariantViolationError, match=rf"{found} is installed.*requirements\.txt"):
        antlr.check_antlr()
