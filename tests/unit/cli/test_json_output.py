"""`--json`: one document, of the same figures as the text, from every verb that prints some."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from paco_core.cli import commands as cli
from paco_core.io.answer import Answer, to_jsonable
from paco_core.operations.promotion.decision import Side


def text_and_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    """What a verb prints for people, and for programs."""
    outputs = []
    for flags in ((), ("--json",)):
        cli.main([*words, *flags])
        outputs.append(capsys.readouterr().out)
    return outputs[0], json.loads(outputs[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def with_models(project: Path, repository: Path) -> Path:
    """A project with the models of the embedded world."""
    (project / "data").mkdir()
    (project / "data/zoo").symlink_to(repository / "data/zoo")
    return project


@pytest.mark.slow
def test_checks(with_models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text, report = text_and_json(capsys, "check")
    assert report["passed"] and report["problems"] == []
    for cost in report["costs"]:
        assert f"{cost['stage']} " in text and f"{cost['memory_gb']:.1f} GB on {cost['device']}" in text
    monkeypatch.setattr("paco_core.planning.preflight.memory_gb", lambda: 0.1)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["check", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert exit_info.value.code == 1 and not report["passed"] and "memory" in report["problems"][0]


def test_an_answer_is_its_text_and_its_figures_are_plain() -> None:
    nested = Answer("inner", {"path": Path("a/b"), "bad": math.inf})
    answer = Answer("0.50 of 3", {"share": 0.5, "count": 3, "nested": nested, "side": Side("1", "x", {"m": math.nan})})
    assert answer == "0.50 of 3" and answer.splitlines() == ["0.50 of 3"]
    assert json.loads(answer.json()) == to_jsonable(answer) == {
        "share": 0.5, "count": 3, "nested": {"path": "a/b", "bad": None},
        "side": {"version": "1", "md5": "x", "figures": {"m": None}},
    }  # fmt: skip
