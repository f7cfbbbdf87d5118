"""The tables of `paco reproduce`: cells once, kills survived. Experiments are stood in for."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paco_core.cli.commands import main
from paco_core.config.changes import changed
from paco_core.config.params import load
from paco_core.experiments import reproduction as command
from paco_core.experiments import reproduction_summary as summary
from paco_core.experiments.reproduction import run_reproduction
from paco_core.experiments.variants import LARGEST, VARIANTS, build_recipe_cell, select_variants
from paco_core.io.files import DataError
from paco_core.runtime.tracking import flatten
from tests.support import forked
from tests.support.reproduced import BARE, GAIN, KONTEXT, SMALL, World, options, reported

pytestmark = pytest.mark.thorough


SECONDS = {"full": 10.0, "no_decoupling": 25.0, "no_log_tame": 11.0, "kontext": 8.0}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow has the seconds of each training."""

    def seconds(_store: object, name: str, _epochs: int) -> dict[str, Any]:
        return {"run": "r", "seconds": SECONDS[name.split("-")[1]], "processor_seconds": 2.0, "ended": "today"}

    monkeypatch.setattr(summary, "read_training_time", seconds)


@pytest.mark.usefixtures("timed")
def test_the_table_says_what_the_figures_say(completed_project: Path, world: World) -> None:
    text = run_reproduction(completed_project, options())
    assert world.trained == [(v, seed) for seed in (0, 1) for v in ("full", "no_decoupling", "no_log_tame")]
    report = reported(completed_project)
    full, high = (report["variants"][name]["measures"]["192"]["gold_consistency"] for name in ("full", "no_decoupling"))
    expected = GAIN["full"] + 0.005 + 0.0025  # mean over two seeds and six prompts
    assert full["change"]["mean"] == pytest.approx(expected) and full["over_plain"] is None
    assert full["before"]["mean"] == pytest.approx(BARE + 0.25)
    assert high["over_plain"]["mean"] == pytest.approx(0.1) and high["over_plain"]["count"] == 12
    training = report["variants"]["no_decoupling"]["trainings"]["1"]
    assert (training["seconds"], training["processor_seconds"], training["epochs"]) == (25.0, 2.0, 2)
    assert training["stopped"] is False and training["experiment"].startswith("try-no_decoupling-1-")
    assert training["reward_ratio"] == pytest.approx(1.51)
    assert "| no_decoupling | 25 (25 to 25) | 2.50 | 2 (2 to 2) | 1.50 (1.50 to 1.51) | " in text
    assert text == (completed_project / "data/reproduce/try/report.md").read_text()


def test_a_finished_cell_is_not_trained_again(completed_project: Path, world: World) -> None:
    run_reproduction(completed_project, options("full", seeds=(0,)))
    text = run_reproduction(completed_project, options("full", "no_log_tame", seeds=(0, 1)))
    assert world.trained == [("full", 0), ("no_log_tame", 0), ("full", 1), ("no_log_tame", 1)]
    assert "| full | 2 |" in text
    run_reproduction(completed_project, options("full", seeds=(0,), changes=("policies.defaults.learning_rate=0.5",)))
    assert world.trained[4:] == [("full", 0)]
    assert list(reported(completed_project)["variants"]) == ["full"], (
        "cells of other settings do not stand in one table"
    )
    command.report_only(completed_project, options())
    assert len(reported(completed_project)["variants"]["full"]["trainings"]) == 2
    (completed_project / "params.yaml").write_text((completed_project / "params.yaml").read_text() + "# changed\n")
    with pytest.raises(DataError):
        command.report_only(completed_project, options())


def test_killed_and_run_again(completed_project: Path, world: World) -> None:
    world.kill_at = 2
    assert forked.run(lambda: run_reproduction(completed_project, options()), completed_project).killed
    assert list(reported(completed_project)["variants"]) == ["full", "no_decoupling"], "what is done is told already"
    world.kill_at = None
    run_reproduction(completed_project, options())
    assert world.trained == [("no_log_tame", 0), ("full", 1), ("no_decoupling", 1), ("no_log_tame", 1)]


def test_the_report_is_written_again_from_what_is_kept(completed_project: Path, world: World) -> None:
    run_reproduction(completed_project, options())
    out = completed_project / "data" / "reproduce" / "try"
    written = {path.name: path.read_bytes() for path in out.glob("report.*")}
    assert len(written) == 3
    for path in out.glob("report.*"):
        path.unlink()
    shutil.rmtree(completed_project / "data" / "reward_merged")
    main(["reproduce", "--report-only", "--name", "try", "--set", *SMALL])
    assert {path.name: path.read_bytes() for path in out.glob("report.*")} == written


def test_wishes_that_mean_nothing_and_missing_data_train_nothing(completed_project: Path, world: World) -> None:
    size = ("policies.recipes.flux_t2is.train_size=72",)
    for wish in (options("ful"), options("qwen"), options(seeds=(1, 1)), options("full", changes=size)):
        with pytest.raises(DataError):
            run_reproduction(completed_project, wish)
    shutil.rmtree(completed_project / "data" / "reward_merged")
    with pytest.raises(DataError, match="data/reward_merged"):
        run_reproduction(completed_project, options())
    assert not world.trained


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_a_variant_changes_its_own_keys_and_no_other(repository: Path, variant: Any) -> None:
    params = load(repository / "params.yaml")
    base_recipe = params.policies.recipes["flux_t2is"]
    recipe = base_recipe.model_dump(exclude=base_recipe.inherited()) if variant.recipe == "flux_t2is" else KONTEXT
    params = changed(params, {"policies.recipes": {variant.recipe: recipe}})
    after = changed(params, build_recipe_cell(variant, params, 7, {}).changes)
    before, after = flatten(params.model_dump()), flatten(after.model_dump())
    place = f"policies.recipes.{variant.recipe}"
    differing = {key for key in before | after if before.get(key) != after.get(key)} - {f"{place}.seed"}
    assert differing <= {re.sub("^recipe", place, key) for key in variant.changes}
    assert bool(differing) == bool(variant.changes) and after[f"{place}.seed"] == 7
    if LARGEST in variant.changes.values():
        assert after[f"{place}.train_size"] == 192


def test_the_default_is_every_variant_whose_recipe_is_there() -> None:
    assert select_variants(None, {"flux_t2is", "kontext_edit", "qwen_edit"}) == list(VARIANTS)
    assert [v.name for v in select_variants(None, {"flux_t2is"})][-1] == "nft"
    assert [v.name for v in select_variants(["nft", "full"], ())] == ["full", "nft"]


def test_an_editing_policy_has_a_part_of_its_own(completed_project: Path, world: World) -> None:
    run_reproduction(completed_project, options("full", "kontext"))
    assert world.trained == [("full", 0), ("kontext", 0), ("full", 1), ("kontext", 1)], "seeds go in turns"
    edits = reported(completed_project, "kontext_edit")
    editing = edits["variants"]["kontext"]["measures"]["128"]["gold_editing"]
    assert editing["before"]["mean"] == pytest.approx(BARE) and editing["over_plain"] is None
    assert editing["change"]["mean"] == pytest.approx(0.3 + 0.005 + 0.0025) and editing["change"]["groups"] == 6
    assert list(reported(completed_project, "flux_t2is")["variants"]) == ["full"]
    assert list(reported(completed_project, "kontext_edit")["variants"]) == ["kontext"]


def test_edits_of_one_picture_stand_or_fall_together(completed_project: Path, world: World) -> None:
    world.edits_per_picture = 2
    run_reproduction(completed_project, options("kontext"))
    measures = reported(completed_project, "kontext_edit")["variants"]["kontext"]["measures"]
    change = measures["64"]["gold_editing"]["change"]
    assert (change["groups"], change["count"]) == (3, 6), "three pictures under two seeds"


def test_two_commands_share_a_table(completed_project: Path, world: World) -> None:
    """The other one, a process of its own, runs the same command while this one trains its first cell."""
    outcomes: list[int] = []

    def other() -> None:
        world.meanwhile = lambda: None
        if (pid := os.fork()) == 0:
            world.trained.clear()
            try:
                run_reproduction(completed_project, options())
                expected = [(v, s) for s in (0, 1) for v in GAIN if (v, s) != ("full", 0)]
                os._exit(0 if world.trained == expected else 4)
            finally:
                os._exit(3)
        outcomes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert {name: len(row["trainings"]) for name, row in reported(completed_project)["variants"].items()} == {
            "full": 1, "no_decoupling": 2, "no_log_tame": 2,
        }  # fmt: skip

    world.meanwhile = other
    run_reproduction(completed_project, options())
    assert outcomes == [0] and world.trained == [("full", 0)], "what the other trained is not trained again"
    assert {len(row["trainings"]) for row in reported(completed_project)["variants"].values()} == {2}


def test_a_case_that_a_seed_does_not_measure_is_not_missing() -> None:
    index = pd.MultiIndex.from_tuples([(0, "a"), (0, "b"), (1, "b"), (1, "c")], names=["seed", "group"])
    scores = pd.Series([1.0, 2.0, 3.0, np.nan], index)
    estimate = summary._crossed(scores, None, 100)
    assert (estimate.mean, estimate.count, estimate.missing) == (2.0, 3, 1)


def test_variants_without_a_common_seed_have_no_difference(completed_project: Path, world: World) -> None:
    run_reproduction(completed_project, options("no_decoupling", seeds=(0,)))
    run_reproduction(completed_project, options("full", seeds=(1,)))
    measures = reported(completed_project)["variants"]["no_decoupling"]["measures"]["192"]
    assert measures["gold_consistency"]["over_plain"] is None
