"""The table of ablations: cells once, kills survived, honest words. Training and painting are stood in for."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fixture_project import records_of
from PIL import Image

from paco_core.benchmarks.statistics import crossed_estimate
from paco_core.cli import main
from paco_core.dataset.records import PromptRecord
from paco_core.files import DataError
from paco_core.params import Params, load
from paco_core.reproduction import command, exam
from paco_core.reproduction.cells import EpochSeconds
from paco_core.reproduction.command import Wish, reproduce
from paco_core.reproduction.findings import HELD, NOT_HELD, OPEN, Finding, findings
from paco_core.reproduction.summary import Summary
from paco_core.reproduction.variants import LARGEST, VARIANTS, chosen
from paco_core.storybook.prompts import storybook_prompts

#: Gold consistency before training, and what each variant adds at 128 px; seeds add a hundredth each.
BARE, GAIN = 0.4, {"full": 0.2, "no_decoupling": 0.3, "no_log_tame": 0.25}
SECONDS = {"full": 10.0, "no_decoupling": 25.0, "no_log_tame": 11.0}
SMALL = ["t2is.prompts=4", "t2is.seeds=[0]", "t2is.bootstrap=100"]


def write_prompts(folder: Path, records: list[PromptRecord]) -> None:
    folder.mkdir(parents=True)
    (folder / "prompts.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))


@pytest.fixture
def made(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose graph made prompts and a reward, as far as names and digests go."""
    monkeypatch.setenv("PACO_TRACKING", "off")
    records = records_of(storybook_prompts(12, seed=0))
    write_prompts(project / "data" / "prompts", records)
    write_prompts(project / "data" / "diverse_prompts", records[:6])
    for model in ("reward_merged", "zoo/clip", "zoo/recogniser"):
        (project / "data" / model).mkdir(parents=True)
        (project / "data" / model / "config.json").write_text(json.dumps({"model": model}))
    return project


class World:
    """Stands in for what takes long: every training is counted, every examination shows the gain of its variant."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, int]] = []
        self.kill_at: int | None = None

    def train(self, params: Params, _root: Path, name: str, out: Path, _read: Any, reports: Any) -> tuple[Any, str]:
        rule, grpo = params.policies.recipes[name], params.policies
        variant = "no_decoupling" if rule.train_size == 128 else "full"
        variant = "no_log_tame" if rule.rewards.aggregator == "weighted_sum" else variant
        if self.kill_at == len(self.trained):
            os.kill(os.getpid(), signal.SIGKILL)
        self.trained.append((variant, grpo.seed))
        (out / "adapter").mkdir(parents=True, exist_ok=True)
        (out / "adapter" / "name").write_text(f"{variant} {grpo.seed}")
        ratio = 3.0 if variant == "no_log_tame" else 1.5
        epoch = {"reward_ratio": ratio + grpo.seed / 100, "panel_diversity": 0.2}
        for number in (1, 2):
            reports.metrics({"seconds/sample": SECONDS[variant] / 2, "seconds/processor": 1.0}, number)
        reports.metrics({"eval/64/consistency": 0.5}, 2)
        return SimpleNamespace(rows=[{"epoch": 0.0}, epoch, epoch], stopped=None), ""

    @staticmethod
    def sit(self: exam.Exam, adapter: Path | None, folder: Path, advance: Any = None) -> None:
        variant, seed = (adapter / "name").read_text().split() if adapter else ("", "0")
        rows = []
        for size in (64, 128):
            for n, record in enumerate(self.records):
                gain = GAIN.get(variant, 0.0) + int(seed) / 100 + n / 1000
                gold = BARE + n / 10 + (gain if variant else 0.0)
                figures = {"gold_consistency": gold, "gold_following": 0.9, "consistency": gold, "clip_t": 0.8}
                diversity = 0.05 if variant == "no_log_tame" else 0.2
                rows.append({"size": size, "prompt_id": record.idx, "seed": 0, **figures, "panel_diversity": diversity})
                (folder / "pictures" / str(size)).mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (size, size), (n, 0, 0)).save(folder / "pictures" / str(size) / f"{record.idx}.png")
        pd.DataFrame(rows).to_parquet(folder / "table.parquet", index=False)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr("paco_core.stages.policies.train", found.train)
    monkeypatch.setattr(exam.Exam, "sit", World.sit)
    monkeypatch.setattr(command._Table, "_keep_server", lambda _self, _stack: None)
    return found


def wish(*variants: str, seeds: tuple[int, ...] = (0, 1), changes: tuple[str, ...] = ()) -> Wish:
    return Wish(variants or tuple(GAIN), seeds, [*SMALL, *changes], "try")


def test_the_table_says_what_the_figures_say(made: Path, world: World) -> None:
    text = reproduce(made, wish())
    assert world.trained == [(v, seed) for seed in (0, 1) for v in ("full", "no_decoupling", "no_log_tame")]
    out = made / "data" / "reproduce" / "try"
    report = json.loads((out / "report.json").read_text())
    full, high = (report["variants"][name]["measures"]["128"]["gold_consistency"] for name in ("full", "no_decoupling"))
    expected = GAIN["full"] + 0.005 + 0.0015  # mean over two seeds and four prompts
    assert full["change"]["mean"] == pytest.approx(expected) and full["over_full"] is None
    assert full["before"]["mean"] == pytest.approx(BARE + 0.15)
    assert high["over_full"]["mean"] == pytest.approx(0.1) and high["over_full"]["count"] == 8
    training = report["variants"]["no_decoupling"]["trainings"]["1"]
    assert (training["seconds"], training["processor_seconds"], training["epochs"]) == (25.0, 2.0, 2)
    said = {finding["claim"][:24]: (finding["verdict"], finding["evidence"]) for finding in report["findings"]}
    assert said["The full recipe lifts go"][0] == HELD
    assert said["Training at 64 px gives "][0] == NOT_HELD and "+0.100 (+0.100" in said["Training at 64 px gives "][1]
    assert said["The low training size sa"][0] == HELD and "2.50 x" in said["The low training size sa"][1]
    assert said["Log-taming keeps the rat"] == (HELD, said["Log-taming keeps the rat"][1])
    assert "1.50 (1.50 to 1.51 over seeds)" in said["Log-taming keeps the rat"][1]
    assert said["Without log-taming panel"][0] == HELD
    assert [row["figures"]["hours"] for row in report["published"]] == [6.0, 12.0, 6.0]
    assert "(published)" in text and "| no_log_tame | 2 |" in text and text == (out / "report.md").read_text()
    html = (out / "report.html").read_text()
    assert html.count("<img") == 2 * 4 * 4, "two sizes, four prompts, three variants and the bare model"
    assert html.count('class="whisker"') == 4 * 3 * 2, "four measures, three variants, two sizes"


def test_a_finished_cell_is_not_trained_again(made: Path, world: World) -> None:
    reproduce(made, wish("full", seeds=(0,)))
    text = reproduce(made, wish("full", "no_log_tame", seeds=(0, 1)))
    assert world.trained == [("full", 0), ("no_log_tame", 0), ("full", 1), ("no_log_tame", 1)]
    assert "| full | 2 |" in text
    reproduce(made, wish("full", seeds=(0,), changes=("policies.checkpoint_every=3",)))
    assert len(world.trained) == 4, "how often a checkpoint is written changes no result"
    reproduce(made, wish("full", seeds=(0,), changes=("policies.learning_rate=0.5",)))
    assert world.trained[4:] == [("full", 0)]
    assert len(json.loads((made / "data/reproduce/try/report.json").read_text())["variants"]) == 1, "others do not fit"
    with pytest.raises(DataError, match="rest on different settings.*full-seed-0.*remove those.*another --name"):
        command.report_only(made, wish())


def test_killed_and_run_again(made: Path, world: World) -> None:
    world.kill_at = 2
    pid = os.fork()
    if pid == 0:
        try:
            reproduce(made, wish())
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    report = made / "data" / "reproduce" / "try" / "report.json"
    assert list(json.loads(report.read_text())["variants"]) == ["full", "no_decoupling"], "what is done is told already"
    world.kill_at = None
    reproduce(made, wish())
    assert world.trained == [("no_log_tame", 0), ("full", 1), ("no_decoupling", 1), ("no_log_tame", 1)]


def test_the_report_is_written_again_from_what_is_kept(made: Path, world: World, capsys: Any) -> None:
    with pytest.raises(DataError, match="no cell is finished yet; run `paco reproduce`"):
        command.report_only(made, wish())
    reproduce(made, wish())
    out = made / "data" / "reproduce" / "try"
    written = {path.name: path.read_bytes() for path in out.glob("report.*")}
    assert len(written) == 3
    for path in out.glob("report.*"):
        path.unlink()
    shutil.rmtree(made / "data" / "reward_merged")
    main(["reproduce", "--report-only", "--name", "try", "--set", "t2is.bootstrap=100"])
    assert {path.name: path.read_bytes() for path in out.glob("report.*")} == written
    assert capsys.readouterr().out.strip() == written["report.md"].decode().strip()
    main(["reproduce", "--list", "--name", "try"])
    assert "| no_log_tame | Rewards summed as they are | recipe.rewards.aggregator: weighted_sum | 0, 1 |" in (
        capsys.readouterr().out
    )
    (out / "cells" / "full-seed-0" / "result.json").write_text('{"key": "x"}')
    with pytest.raises(DataError, match="full-seed-0/result.json: has no 'variant'; remove it"):
        command.report_only(made, wish())


@pytest.mark.parametrize(
    ("gone", "stage"),
    [("reward_merged", "reward_merged"), ("prompts", "prompts"), ("diverse_prompts", "diverse_prompts")],
)
def test_what_the_graph_has_not_made_is_named(made: Path, world: World, gone: str, stage: str) -> None:
    shutil.rmtree(made / "data" / gone)
    with pytest.raises(DataError, match=f"data/{gone}: missing; run `dvc repro {stage}`"):
        reproduce(made, wish())
    assert not world.trained


def test_wishes_that_mean_nothing(made: Path, world: World) -> None:
    with pytest.raises(DataError, match=r"no variant 'ful'; there are: full, no_decoupling"):
        reproduce(made, wish("ful"))
    with pytest.raises(DataError, match="a seed comes twice"):
        reproduce(made, wish(seeds=(1, 1)))
    with pytest.raises(DataError, match="train_size: 72 px do not divide.*choose 64 or 80"):
        reproduce(made, wish("full", changes=("policies.recipes.flux_t2is.train_size=72",)))
    with pytest.raises(DataError, match="all 12 prompts"):
        shutil.copy(made / "data/prompts/prompts.jsonl", made / "data/diverse_prompts/prompts.jsonl")
        reproduce(made, wish())
    assert not world.trained


def test_a_killed_training_keeps_its_seconds(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    first = EpochSeconds.of(path, "key")
    first.note(1, {"seconds/sample": 2.0, "seconds/processor": 1.0, "reward/x": 9.0})
    first.note(2, {"seconds/sample": 50.0})
    again = EpochSeconds.of(path, "key")  # the second epoch was not in the checkpoint
    again.note(2, {"seconds/sample": 3.0})
    again.note(2, {"eval/64/x": 1.0})
    assert again.total("sample") == 5.0 and EpochSeconds.of(path, "key").total("sample", "processor") == 6.0
    assert EpochSeconds.of(path, "other settings").total("sample") == 0.0


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: value for name, branch in tree.items() for key, value in leaves(branch, f"{path}.{name}").items()}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_a_variant_changes_its_own_keys_and_no_other(repository: Path, variant: Any) -> None:
    params = load(repository / "params.yaml")
    before, after = leaves(params.model_dump()), leaves(variant.applied(params, 7).model_dump())
    differing = {key for key in before | after if before.get(key) != after.get(key)}
    places = {
        "." + key.replace("recipe.", f"policies.recipes.{variant.recipe}.", 1)
        if key.startswith("recipe.")
        else f".{key}"
        for key, value in variant.changes.items()
        if before["." + key.replace("recipe.", f"policies.recipes.{variant.recipe}.", 1)] != value
    }
    assert differing == places | {".policies.seed"}
    if LARGEST in variant.changes.values():
        assert after[".policies.recipes.flux_t2is.train_size"] == 128


def test_the_default_is_every_variant_of_one_recipe() -> None:
    assert chosen(None) == list(VARIANTS) and [v.name for v in chosen(["nft", "full"])] == ["full", "nft"]


def test_few_seeds_widen_the_interval() -> None:
    """Prompts agree within a seed and seeds do not: an interval over prompts alone would be far too sure."""
    rng = np.random.default_rng(0)
    table = rng.normal(0, 0.01, (3, 40)) + np.array([[0.0], [0.5], [1.0]])
    crossed, one = crossed_estimate(table), crossed_estimate(table[1])
    assert crossed.mean == pytest.approx(table.mean()) and crossed.high - crossed.low > 0.6
    assert one.high - one.low < 0.02 and one.groups == 40
    table[0, 0] = np.nan
    assert crossed_estimate(table).missing == 1 and crossed_estimate(table).count == 119
    assert np.isnan(crossed_estimate([[np.nan]]).mean) and np.isnan(crossed_estimate([[1.0]]).low)


def test_what_cannot_be_told_apart_is_said_so(made: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAIN, "no_decoupling", GAIN["full"])
    seen: list[Summary] = []

    def watched(summary: Summary) -> list[Finding]:
        seen.append(summary)
        return findings(summary)

    monkeypatch.setattr("paco_core.reproduction.report.findings", watched)
    reproduce(made, wish("no_decoupling", seeds=(0,)))
    assert findings(seen[-1]) == []
    reproduce(made, wish("full", seeds=(1,)))
    apart = {f.claim[:16]: f for f in findings(seen[-1])}["Training at 64 p"]
    assert (apart.verdict, apart.evidence) == (OPEN, "the two share no training seed")
