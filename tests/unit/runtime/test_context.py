from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
import yaml

from paco_core.config.params import ParamsError
from paco_core.io.files import DataError
from paco_core.runtime import checkpoints
from paco_core.runtime.code.stage_code import write_stage_code
from paco_core.runtime.context import open_stage, recipe_params
from paco_core.runtime.tracking import send_left_over
from tests.support.waiting import until


def runs(project: Path) -> list[mlflow.entities.Run]:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def test_recipes_have_equal_names_of_parameters() -> None:
    values = {
        "profile": "smoke", "policies.defaults.epochs": 4, "policies.defaults.base": None,
        "policies.recipes.a.epochs": 8, "policies.recipes.a.rewards.terms.x.weight": 1.0,
    }  # fmt: skip
    assert recipe_params(values) == {
        "profile": "smoke", "recipe.base": None, "recipe.epochs": 8, "recipe.rewards.terms.x.weight": 1.0,
    }  # fmt: skip
    other = {key.replace("recipes.a", "recipes.b"): value for key, value in values.items()}
    assert recipe_params(other) == recipe_params(values)


def test_a_stage_reports_to_metrics_file_and_run(project: Path) -> None:
    with open_stage("prompts", None, project) as ctx:
        ctx.report({"count": 3, "share": float("nan")}, layout="2x2")
    assert json.loads((project / "data/metrics/prompts.json").read_text()) == {"count": 3, "share": None}
    (run,) = runs(project)
    assert run.info.status == "FINISHED" and run.info.run_name == "prompts/storybook/seed0"
    assert run.data.metrics["prompts/count"] == 3
    assert run.data.params["prompts.count"] == str(ctx.params.prompts.count)
    assert run.data.tags["dvc.stage"] == "prompts"


@pytest.mark.slow
def test_sigterm_ends_the_run_killed_and_leaves_no_half_out(project: Path) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from paco_core.runtime.context import open_stage
        with open_stage("prompts", None, Path({str(project)!r})) as ctx:
            with ctx.writing(Path("data/prompts")) as part:
                part.mkdir(); (part / "half").write_text("half")
                print("ready", flush=True)
                sys.stdin.read()
    """
    stage = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert stage.stdout is not None and stage.stdout.readline() == "ready\n"
    stage.send_signal(signal.SIGTERM)
    assert stage.wait(60) == 143
    until(lambda: send_left_over(project).waiting == 0, 120)  # what a busy machine could not send in a few seconds
    assert [run.info.status for run in runs(project)] == ["KILLED"]
    assert not (project / "data").exists()


def test_inputs_are_logged_with_their_dvc_md5(project: Path) -> None:
    (project / "data" / "prompts").mkdir(parents=True)
    (project / "data" / "prompts" / "prompts.jsonl").write_text("{}\n")
    stage = {"cmd": "python -m paco_core run diverse_prompts", "deps": ["data/prompts"]}
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"diverse_prompts": stage}}))
    with open_stage("diverse_prompts", None, project) as ctx:
        ctx.read(Path("data/prompts"))
    (run,) = runs(project)
    # What DVC names this folder: the md5 of its list of files, as `dvc add` wrote it.
    listing = '[{"md5": "8a80554c91d9fca8acb82f023de02f11", "relpath": "prompts.jsonl"}]'
    expected = hashlib.md5(listing.encode()).hexdigest() + ".dir"
    assert [(d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs] == [("prompts", expected)]


def test_invalid_parameters_start_nothing(project: Path) -> None:
    (project / "params.yaml").write_text("profile: storybook\n")
    with pytest.raises(ParamsError, match="is missing"), open_stage("prompts", None, project):
        pass
    assert runs(project) == []


INPUT = "data/prompts/prompts.jsonl"
OTHER_CODE = "def one(images, records):\n    return [2.0]\n"


def _edit_a_parameter(project: Path) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("count: 400", "count: 40", 1))


def _touch_an_input(project: Path) -> None:
    """It was edited, and the edit was taken back."""
    before = (project / INPUT).stat()
    os.utime(project / INPUT, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda project: (project / name).write_text(text)


@pytest.mark.parametrize(
    "edit",
    [
        _edit_a_parameter,
        _write("params.yaml", "profile: ["),
        _write(INPUT, '{"other": 1}\n'),
        _touch_an_input,
        _write("rewards.py", OTHER_CODE),
        _write("edits/a.png", "other pixels"),
    ],
)
def test_what_changes_while_a_stage_runs_fails_it_and_is_not_recorded(
    project: Path, edit: Callable[[Path], object]
) -> None:
    _stage_with_inputs(project)
    with pytest.raises(DataError, match="mine"), open_stage("mine", None, project):
        edit(project)
    assert [run.info.status for run in runs(project)] == ["FAILED"]
    assert not (project / "data/runs").exists()


def test_code_that_was_edited_since_it_was_recorded_starts_nothing(project: Path) -> None:
    _stage_with_inputs(project)
    write_stage_code(project)
    with open_stage("mine", None, project):
        (project / "data/unrelated").write_text("1")
    assert (project / "data/runs/mine.json").is_file()
    (project / "rewards.py").write_text(OTHER_CODE)
    with pytest.raises(DataError, match=r"rewards\.py"), open_stage("mine", None, project):
        raise AssertionError("it runs code that DVC does not record")
    assert [run.info.status for run in runs(project)] == ["FINISHED"]
    write_stage_code(project)
    with open_stage("mine", None, project):
        pass


@pytest.mark.slow
def test_a_recorded_stage_succeeds_if_old_checkpoints_cannot_be_removed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[bool] = []

    def fail(root: Path, _limit_gb: float) -> None:
        recorded.append((root / "data/runs/mine.json").is_file())
        raise PermissionError(13, "Permission denied", "policies@a")

    monkeypatch.setattr(checkpoints, "prune", fail)
    _stage_with_inputs(project)
    with open_stage("mine", None, project):
        pass
    assert recorded == [True] and [run.info.status for run in runs(project)] == ["FINISHED"]


def _stage_with_inputs(project: Path) -> None:
    """A stage with data, a parameter, a reward function of the project and a file of edits that names a picture."""
    for name, text in {
        "data/prompts/prompts.jsonl": "{}\n",
        "edits/edits.jsonl": '{"picture": "a.png", "instruction": "make it red"}\n',
        "edits/a.png": "pixels",
        "rewards.py": "def one(images, records):\n    return [1.0]\n",
        "paco_core/__init__.py": "",
        "paco_core/stages/__init__.py": "",
        "paco_core/stages/mine.py": "def run(ctx):\n    pass\n",
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["edit_prompts"] |= {"source": "file", "file": "edits/edits.jsonl"}
    params["edits"]["painters"] = []
    terms = params["policies"]["recipes"]["flux_t2is"]["rewards"]["terms"]
    terms["own"] = {"weight": 1.0, "reward": "rewards:one"}
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    stage = {
        "cmd": "python -m paco_core run mine",
        "params": ["prompts", "edit_prompts", "policies.recipes.flux_t2is"],
        "deps": ["data/code/mine.json", "data/prompts"],
        "outs": ["data/mine"],
    }
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"mine": stage}}))
