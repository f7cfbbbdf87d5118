"""docs/contributing/extend.md, followed word by word in a copy of the project, and trained with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import children
from tests.support.reward_project import fill, fill_benchmark

pytestmark = pytest.mark.thorough

BLOCK = re.compile(r'```(?:python|yaml|text) (title|append-to|add-to|after)="([^"]+)"\n(.*?)```', re.DOTALL)
USED = """
import json, sys
from pathlib import Path
import numpy as np, torch
from tests.support.grpo_toys import ToyPolicy, recipe, trainer
from paco_core.config.params import load
from paco_core.policies.families import family_of
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources

given = load(Path("params.yaml")).policies.recipes["flux_t2is"]
assert (given.family, given.dynamics, given.rewards.aggregator) == ("flux_attention", "plain_noise", "smallest")
assert family_of(given.family).lora_targets == ("to_v",)
terms = {"redness": {"weight": 1.0}, "jpeg": {"weight": 1.0}}
own = recipe(
    loss="unclipped", dynamics="plain_noise", epochs=1,
    rewards={"terms": terms, "aggregator": "smallest", "advantage_std": "group"},
)
out = Path("out")
rewards = registry.build_set(own.rewards, Sources())
done = trainer(recipe=own, rewards=rewards).run(out, out / "checkpoint")
print(json.dumps(done.rows[-1]))
assert np.isfinite(done.rows[-1]["reward/redness"]) and done.rows[-1]["update/grad_norm"] > 0
"""


ASSETS = """
from pipelines.definitions import defs
print(*(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()))
"""


DECLARED = """
import json, os
from pathlib import Path
os.environ["CUDA_VISIBLE_DEVICES"] = "5,6"
from dataclasses import replace
from paco_core.config.params import load
from paco_core.planning.costs import stage_costs
from paco_core.runtime import launch
from paco_core.stages import declared
from pipelines.definitions import defs
from paco_pipelines.defs.graph import PROJECT, TRANSLATOR

root, name = Path.cwd(), "colour_rank"
params, stages = load(root / "params.yaml"), declared(root)
one = {name: stages[name]}
cost = stage_costs(one, params, root)[name]
none = params.model_copy(update={"grids": params.grids.model_copy(update={"seeds": []})})
graph = defs.resolve_asset_graph()
said = {
    "cost": f"{cost.work}; about {cost.seconds:.0f} s on {cost.device}",
    "skipped": stage_costs(one, none, root)[name].work,
    "headline": [pattern for patterns in TRANSLATOR.get_headline(PROJECT.stages[name]) for pattern in patterns],
    "checks": sorted(key.name for key in graph.asset_check_keys if key.asset_key.to_user_string() == name),
}
page = TRANSLATOR.get_materialization_metadata(PROJECT, PROJECT.stages[name])
said["page"] = [shown for shown in (*said["headline"], "worst_rankings") if shown in page]
held = launch._place_stage(name, replace(stages[name], device=lambda _params: "cuda"), None, root, "local")
said["gpus"] = os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps(said))
"""


def follow(page: str, root: Path) -> list[str]:
    """Do what the page says; the tables and files that it named."""
    did = []
    for verb, target, code in BLOCK.findall(page):
        if verb == "title":
            (root / target).write_text(code)
        elif verb == "append-to":
            path, text = root / target, (root / target).read_text()
            place = re.search(r"^[A-Z]+ = \{$", text, re.MULTILINE)  # a table can name what stands above it
            end = len(text) if place is None else place.start()
            gap = "\n" if path.suffix == ".yaml" else "\n\n\n"
            path.write_text(f"{text[:end].rstrip()}{gap}{code}\n\n{text[end:]}".rstrip() + "\n")
        elif verb == "after":
            line, _, file = target.rpartition(" in ")
            text = (root / file).read_text()
            assert text.count(f"{line}\n") == 1, f"{file} does not have the line {line!r} once"
            (root / file).write_text(text.replace(f"{line}\n", f"{line}\n{code}"))
        else:
            table, _, file = target.partition(" in ")
            text, line = (root / file).read_text(), f"{table} = {{\n"
            assert text.count(line) == 1, f"{file} has no table {table}"
            (root / file).write_text(text.replace(line, line + code))
        did.append(target)
    return did


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """The library and its parameters, without data and weights."""
    for name in ("paco_core", "pipelines", "profiles"):
        shutil.copytree(repository / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path)
    return tmp_path


def python(copy: Path, *arguments: str) -> str:
    """What a Python that knows the copy prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "pipelines"), children.PATH])}
    result = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_what_the_page_adds_is_found_and_trained_with(repository: Path, copy: Path) -> None:
    did = follow((repository / "docs/contributing/extend.md").read_text(), copy)
    assert len(did) == 18, did
    params = (copy / "params.yaml").read_text()
    for old, new in (
        ("family: flux\n", "family: flux_attention\n"),
        ("dynamics: flow_sde", "dynamics: plain_noise"),
        ("aggregator: log_tame", "aggregator: smallest"),
    ):
        assert old in params
        params = params.replace(old, new, 1)
    (copy / "params.yaml").write_text(params)
    assert '"epoch": 1.0' in python(copy, "-c", USED)


def test_the_benchmark_of_the_page_runs_and_is_an_asset(repository: Path, copy: Path, mlflow_template: Path) -> None:
    follow((repository / "docs/contributing/extend.md").read_text(), copy)
    fill(copy)
    fill_benchmark(copy)
    shutil.copy(mlflow_template, copy / "mlflow.db")
    python(copy, "-m", "paco_core", "code")
    assert "paco_core/stages/colour_rank.py" in json.loads((copy / "data/code/colour_rank.json").read_text())["modules"]
    python(copy, "-m", "paco_core", "run", "colour_rank")
    figures = json.loads((copy / "data/metrics/colour_rank.json").read_text())
    assert (
        figures["instances"] == 6 and 0 <= figures["colour.accuracy"] <= 1 and figures["colour.unscorable_share"] == 0
    )
    assert "colour_rank" in python(copy, "-c", ASSETS).split()
    declared = json.loads(python(copy, "-c", DECLARED))
    assert declared == {
        "cost": "at most 400 instances; about 2 s on cpu",
        "skipped": "nothing: no ranking is held out",
        "gpus": "5",
        "headline": ["colour.accuracy", "instances"],
        "page": ["colour.accuracy", "instances", "worst_rankings"],
        "checks": ["every_panel_has_a_colour", "figures_hold", "in_sync_with_dvc"],
    }, declared
    tables = python(copy, "-m", "paco_core", "tables")
    assert "Mean colours" in tables and "\nRandom order  " in tables
    assert "colour_rank: the run that dvc.lock names is not recorded here" in tables
    before = json.loads((copy / "data/code/colour_rank.json").read_text())["modules"]
    file = copy / "paco_core/stages/colour_rank.py"
    file.write_text(file.read_text().replace('("instances",)', '("cases",)').replace("rows=5", "rows=7"))
    python(copy, "-m", "paco_core", "code")
    assert json.loads((copy / "data/code/colour_rank.json").read_text())["modules"] == before, "nothing runs again"


def test_the_stage_of_the_page_reports_and_its_parameter_is_checked(
    repository: Path, copy: Path, mlflow_template: Path
) -> None:
    follow((repository / "docs/contributing/extend.md").read_text(), copy)
    shutil.copy(mlflow_template, copy / "mlflow.db")
    params = (copy / "params.yaml").read_text().replace("  count: 400\n", "  count: 12\n", 1)
    (copy / "params.yaml").write_text(params)
    for stage in ("prompts", "prompt_lengths"):
        python(copy, "-m", "paco_core", "run", stage)
    figures = json.loads((copy / "data/metrics/prompt_lengths.json").read_text())
    assert figures["short"] == 0 < 20 <= figures["words.min"] <= figures["words.mean"] <= figures["words.max"]
    assert "prompt_lengths" in python(copy, "-c", ASSETS).split()
    described = python(copy, "-m", "paco_core", "params", "prompt_lengths")
    assert "prompts with fewer words are counted as short" in described
    (copy / "params.yaml").write_text(params.replace("min_words: 20", "min_words: 0"))
    with pytest.raises(AssertionError, match=r"prompt_lengths\.min_words: Input should be greater"):
        python(copy, "-m", "paco_core", "check")
