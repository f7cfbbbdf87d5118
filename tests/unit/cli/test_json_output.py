"""`--json`: one document, of the same figures as the text, from every verb that prints some."""

from __future__ import annotations

import argparse
import inspect
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paco_core.benchmarks.tables import ResultTable, write_tables
from paco_core.cli import commands as cli
from paco_core.cli.arguments import parser
from paco_core.io import paths
from paco_core.io.answer import Answer, plain
from paco_core.io.files import write_json
from paco_core.operations.promotion.decision import Side
from paco_core.runtime.tracking import open_run


def both(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    """What a verb prints for people, and for programs."""
    said = []
    for more in ((), ("--json",)):
        cli.main([*words, *more])
        said.append(capsys.readouterr().out)
    return said[0], json.loads(said[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def made(project: Path, repository: Path) -> Path:
    """A project with the models of the embedded world."""
    (project / "data").mkdir()
    (project / "data/zoo").symlink_to(repository / "data/zoo")
    return project


def verbs(whole: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield verb
                yield from verbs(verb)


def test_every_verb_that_shows_figures_takes_json_and_no_other() -> None:
    for verb in verbs(parser()):
        act = verb.get_default("act")
        if act is None:
            continue
        takes = any("--json" in found._option_string_actions for found in (verb, *verbs(verb)))
        assert takes == ("_show(" in inspect.getsource(act)), verb.prog


@pytest.mark.slow
def test_plans(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, found = both(capsys, "plan", "flux_t2is")
    assert f"images per epoch     {found['images_an_epoch']} =" in text
    assert f"{found['rollout_batches']} batches" in text and f"optimiser steps      {found['optimiser_steps']}" in text
    assert f"in all               {found['images']} images" in text
    assert f"about {found['estimates']['memory_gb']:.2g} GB per process" in text
    assert f"about {found['estimates']['seconds'] / 60:.1f} min" in text
    text, found = both(capsys, "plan", "flux_t2is", "--profile", "paper")
    assert all(
        f"{hours:.2g} GPU hours" in text and gpu in text for gpu, hours in found["estimates"]["gpu_hours"].items()
    )
    assert f"in one GPU about {found['estimates']['together_gb']:.0f} GB" in text.replace("on one", "in one")


@pytest.mark.slow
def test_checks(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = both(capsys, "check")
    assert found["passed"] and found["problems"] == []
    for cost in found["costs"]:
        assert f"{cost['stage']} " in text and f"{cost['memory_gb']:.1f} GB on {cost['device']}" in text
    monkeypatch.setattr("paco_core.planning.preflight.memory_gb", lambda: 0.1)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1 and not found["passed"] and "memory" in found["problems"][0]


def test_the_tour_and_the_tables(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(made / paths.metrics_file("report"), {"accuracy": 0.8152, "share": None})
    text, found = both(capsys, "tour")
    assert found["figures"] == {"accuracy": 0.8152, "share": None} and "0.8152" in text and found["report"] in text
    (made / paths.CONSISTENCY_RANK).mkdir()
    write_tables(made / paths.CONSISTENCY_RANK, "x", [ResultTable("Ranks", ["judge", "accuracy"], [["ours", "0.815"]])])
    text, found = both(capsys, "tables")
    (table,) = next(one["tables"] for one in found if one["benchmark"] == "consistency_rank")
    assert table["rows"] == [["ours", "0.815"]] and "ours      0.815" in text
    unmade = sorted(one["benchmark"] for one in found if not one["tables"])
    assert unmade == ["edit_reward", "gedit", "t2is_bench", "vistory"]


def test_comparisons(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    for name, value in (("a", 0.5), ("b", float("nan"))):
        with open_run(made, "paco/x", name, {}) as tracker:
            tracker.metrics({"loss": value, "share": 0.25})
    text, found = both(capsys, "compare", "a", "b")
    assert [run["metrics"] for run in found["runs"]] == [{"loss": 0.5, "share": 0.25}, {"loss": None, "share": 0.25}]
    assert all(run["run_id"] in text for run in found["runs"]) and Path(found["page"]).is_file()


def test_an_answer_is_its_text_and_its_figures_are_plain() -> None:
    nested = Answer("inner", {"path": Path("a/b"), "bad": math.inf})
    answer = Answer("0.50 of 3", {"share": 0.5, "count": 3, "nested": nested, "side": Side("1", "x", {"m": math.nan})})
    assert answer == "0.50 of 3" and answer.splitlines() == ["0.50 of 3"]
    assert json.loads(answer.json()) == plain(answer) == {
        "share": 0.5, "count": 3, "nested": {"path": "a/b", "bad": None},
        "side": {"version": "1", "md5": "x", "figures": {"m": None}},
    }  # fmt: skip
