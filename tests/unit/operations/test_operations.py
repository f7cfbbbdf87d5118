"""Measuring again, auditing, telling people, clearing away."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import yaml

from dvc_project.file_locks import hold
from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.records import write_prompts
from paco_core.io import paths
from paco_core.operations import cases, reevaluation
from paco_core.operations.alerts import FILE, alert
from paco_core.operations.audit import audit
from paco_core.operations.promotion.decision import rule_for
from paco_core.operations.promotion.measuring import unseen_by_all
from paco_core.operations.reevaluation import Reevaluation, Subject
from paco_core.serving.servers.registry import FOLDER, Registry, living, remove_stale
from tests.support import provenance_world as world

START = datetime(2026, 1, 1, 3, tzinfo=UTC)
NAME = "flux_t2is"


# --- re-evaluation ----------------------------------------------------------------------------------------


def night(root: Path, number: int, fall: float = 0.0, fresh_fall: float = 0.0, prefix: str = "p") -> Reevaluation:
    """One night's table: equal to every other night's but for what was lost on fixed and on fresh cases."""
    rng = np.random.default_rng(0)
    rows = []
    for case_set, lost in (("fixed", fall), ("fresh", fresh_fall)):
        for n in range(24):
            for seed in (0, 1):
                owner = f"{prefix}{n}" if case_set == "fixed" else f"{number}-{n}"
                rows.append((case_set, owner, seed, rng.normal(0.6, 0.1) - lost * rng.uniform(0.5, 1.5)))
    table = pd.DataFrame(rows, columns=["set", "prompt_id", "unit", "gold_consistency"])
    params = load(root / PARAMS_FILE)
    subject = Subject(NAME, root, "ab.dir", "3")
    return reevaluation.compare_with_previous(root, params, subject, table, START + timedelta(days=number), None)


@pytest.mark.slow
def test_equal_nights_pass_and_a_worse_one_fails(project: Path) -> None:
    first = night(project, 0)
    assert first.check.passed and first.figures["fixed/gold_consistency"] == pytest.approx(0.6, abs=0.05)
    equal = night(project, 1)
    assert equal.check.passed and equal.fixed is not None and equal.fixed.difference == 0
    worse = night(project, 2, fall=0.1)
    assert not worse.check.passed and worse.check.severity == "ERROR"
    assert worse.fixed is not None and worse.fixed.high < 0 and "2026-01-02" in worse.check.description
    # The next night is compared with the bad one, so the fall is told once.
    assert night(project, 3, fall=0.1).check.passed


def test_fresh_cases_do_not_fail_the_check_and_another_benchmark_is_not_compared(project: Path) -> None:
    night(project, 0)
    result = night(project, 1, fresh_fall=0.2)
    assert result.check.passed and result.fresh is not None and result.fresh.is_worse
    assert night(project, 2, prefix="q").fixed is None


def test_fresh_pairs_change_by_the_day_and_hold_both_labels(project: Path) -> None:
    params = load(project / PARAMS_FILE)
    monday, again, tuesday = (cases.drawn_pairs(params, day, 8) for day in ("2026-01-05", "2026-01-05", "2026-01-06"))
    assert [p[0] for p in monday] == [p[0] for p in again] != [p[0] for p in tuesday]
    assert monday[0][1].first.tobytes() == again[0][1].first.tobytes()
    assert [p[2] for p in monday] == ["Yes", "No"] * 4


def test_fresh_prompts_are_neither_trained_on_nor_fixed(project: Path, tmp_path: Path) -> None:
    params = load(project / PARAMS_FILE)
    params = params.model_copy(update={"t2is": params.t2is.model_copy(update={"prompts": 6})})
    records = make_prompts(params.prompts.model_copy(update={"count": 40}), (64, 64), project).records
    (project / paths.PROMPTS).mkdir(parents=True)
    write_prompts(project / paths.PROMPTS / "prompts.jsonl", records)
    trained = [record.idx for record in records[:10]]
    (project / "prompts.json").write_text(json.dumps({"trained": trained, "unseen": []}))
    fixed_cases, again = (unseen_by_all(project, params, NAME, [project]) for _ in range(2))
    monday, tuesday = (cases.fresh(project, params, project, fixed_cases, f"2026-01-0{day}") for day in (5, 6))
    fixed, fresh, other = ({r.idx for r in part.records} for part in (fixed_cases, monday, tuesday))
    assert len(fixed) == len(fresh) == 6 and not fresh & fixed and not fresh & set(trained)
    assert fixed == {r.idx for r in again.records} and fresh != other


def test_editing_policies_are_measured_on_pictures_that_were_held_back_and_on_new_ones(project: Path) -> None:
    params = load(project / PARAMS_FILE)
    editor = params.policies.recipes[NAME].model_copy(update={"family": "flux_kontext"})
    policies = params.policies.model_copy(update={"recipes": {"kontext_edit": editor}})
    params = params.model_copy(update={"policies": policies})
    assert rule_for(params, "kontext_edit").measure == "gold_editing"
    prompts = storybook_edit_prompts(12, 32, seed=0)
    prompts.hold_out(5, seed=0)
    prompts.write(project / paths.EDIT_PROMPTS)
    trained = [record.idx for record in prompts.records if record.part == "train"]
    (project / "prompts.json").write_text(json.dumps({"trained": trained, "unseen": []}))
    fixed = unseen_by_all(project, params, "kontext_edit", [project])
    assert len(fixed.records) == 5 and not {r.idx for r in fixed.records} & set(trained)
    monday, tuesday = (cases.fresh(project, params, project, fixed, f"2026-01-0{day}") for day in (5, 6))
    references = [
        [case.reference(r)[0].tobytes() for r in case.records] for case in (fixed, monday, tuesday) if case.reference
    ]
    assert [len(set(pictures)) for pictures in references] == [5, 5, 5]
    assert len({picture for pictures in references for picture in pictures}) == 15
    imported = params.model_copy(update={"edit_prompts": params.edit_prompts.model_copy(update={"source": "file"})})
    assert cases.fresh(project, imported, project, fixed, "2026-01-05").records == []


# --- the audit --------------------------------------------------------------------------------------------

AUDITED: dict[str, dict[str, Any]] = {
    name: {"cmd": f"python make.py data/{name} {kind}", "deps": ["make.py", *deps], "outs": [f"data/{name}"]}
    for name, kind, deps in (
        ("steady", "same", []), ("moody", "time", ["data/steady"]), ("broken", "fail", []), ("heavy", "same", []),
        ("stale", "same", ["old.py"]),
    )
}  # fmt: skip
AUDITED["heavy"]["meta"] = {"dagster": {"pool": "gpu"}}
MAKE = """
import os, pathlib, sys, time
assert os.environ["PACO_TRACKING"] == "off"
if sys.argv[2] == "fail":
    sys.exit("no luck today")
target = pathlib.Path(sys.argv[1])
target.mkdir(parents=True)
(target / "f").write_text(str(time.time_ns()) if sys.argv[2] == "time" else "same")
"""


@pytest.fixture
def recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose outs lie there, recorded."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": AUDITED}))
    (project / "make.py").write_text(MAKE)
    (project / "old.py").write_text("old")
    for name in AUDITED:
        (project / "data" / name).mkdir(parents=True)
        (project / "data" / name / "f").write_text("same")
    world.record(project, {name: [f"data/{name}"] for name in AUDITED})
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    for name, stage in lock["stages"].items():
        stage["cmd"] = AUDITED[name]["cmd"]
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    (project / "old.py").write_text("new")
    return project


def test_an_audit_names_what_is_not_reproducible_and_touches_nothing(recorded: Path) -> None:
    before = {p: p.read_bytes() for p in (*recorded.glob("data/*/f"), recorded / "dvc.lock")}
    report = audit(recorded)
    assert {a.out: a.agrees for a in report.outs} == {"data/steady": True, "data/moody": False, "data/broken": False}
    assert report.failed == {"broken": "no luck today"} and report.skipped.keys() == {"heavy", "stale"}
    assert not report.check.passed and {p: p.read_bytes() for p in before} == before
    folders = {p.name for p in (recorded / ".paco/audit").iterdir()}
    assert folders == {"moody", "broken"}, "what differs is kept, to be looked at"
    assert audit(recorded, only=["steady"]).check.passed


# --- alerts and housekeeping ------------------------------------------------------------------------------


def test_alerts_are_kept_before_the_webhook_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posted = []

    def post(url: str, json: dict[str, str], timeout: float) -> httpx.Response:
        posted.append((url, json["text"]))
        if len(posted) > 1:
            raise httpx.ConnectError("down")
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "post", post)
    alert(tmp_path, "reevaluation failed", "worse")
    assert posted == []
    monkeypatch.setenv("PACO_ALERT_WEBHOOK", "https://example.org/secret")
    alert(tmp_path, "reevaluation failed", "worse", "http://127.0.0.1:3000/runs/1")
    alert(tmp_path, "again", "x" * 5000)
    assert posted[0] == ("https://example.org/secret", "reevaluation failed\nworse\nhttp://127.0.0.1:3000/runs/1")
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [line["title"] for line in lines] == ["reevaluation failed", "reevaluation failed", "again"]
    assert len(lines[2]["text"]) == 2000 and "secret" not in (tmp_path / FILE).read_text()


def test_only_what_the_dead_left_is_reaped(tmp_path: Path) -> None:
    homes = {name: tmp_path / FOLDER / name for name in ("dead", "alive")}
    for home in homes.values():
        (home / "leases").mkdir(parents=True)
        for file in ("server.log", "stay", "alive", "leases/1-gone", "leases/2-here"):
            (home / file).touch()
        record = {"name": home.name, "url": "u", "pid": 1, "engine": "e", "model": "m", "started": 0.0}
        (home / "server.json").write_text(json.dumps(record))
    with hold(homes["alive"] / "alive"), hold(homes["alive"] / "leases/2-here"):
        messages = remove_stale(tmp_path)
        assert living(tmp_path) == ["alive"]
    assert len(messages) == 4
    assert {p.name for p in (homes["alive"] / "leases").iterdir()} == {"2-here"}
    assert (homes["alive"] / "server.json").is_file() and (homes["alive"] / "stay").is_file()
    assert not (homes["dead"] / "server.json").exists() and Registry(tmp_path).living("dead") is None
