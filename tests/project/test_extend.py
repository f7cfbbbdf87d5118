"""docs/how-to/extend.md, followed word by word in a copy of the project, and trained with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest
from reward_project import fill, fill_benchmark

BLOCK = re.compile(r'```(?:python|yaml) (title|append-to|add-to)="([^"]+)"\n(.*?)```', re.DOTALL)
USED = """
import json, sys
from pathlib import Path
import numpy as np, torch
from grpo_toys import ToyPolicy, params, recipe, trainer
from paco_core.config.params import load
from paco_core.policies.families import family_of
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources

given = load(Path("params.yaml")).policies.recipes["flux_t2is"]
assert (given.family, given.dynamics, given.rewards.aggregator) == ("flux_attention", "plain_noise", "smallest")
assert family_of(given.family).lora_targets == ("to_v",)
terms = {"redness": {"weight": 1.0}, "jpeg": {"weight": 1.0}}
own = recipe(
    loss="unclipped", dynamics="plain_noise",
    rewards={"terms": terms, "aggregator": "smallest", "advantage_std": "group"},
)
small = params(epochs=1)
out = Path("out")
rewards = registry.build_set(own.rewards, Sources())
done = trainer(params=small, recipe=own, rewards=rewards).run(out, out / "checkpoint")
print(json.dumps(done.rows[-1]))
assert np.isfinite(done.rows[-1]["reward/redness"]) and done.rows[-1]["update/grad_norm"] > 0
"""


ASSETS = """
from pipelines.definitions import defs
print(*(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()))
"""


def follow(page: str, root: Path) -> list[str]:
    """Do what the page says; the tables and files that it named."""
    did = []
    for verb, where, code in BLOCK.findall(page):
        if verb == "title":
            (root / where).write_text(code)
        elif verb == "append-to" and where == "dvc.yaml":
            (root / where).write_text((root / where).read_text().rstrip() + "\n\n" + code)
        elif verb == "append-to":
            path, mark = root / where, re.compile(r"^[A-Z]+ = \{$", re.MULTILINE)
            text = path.read_text()  # a table can name what stands above it
            place = mark.search(text)
            assert place is not None, f"{where} has no table"
            path.write_text(f"{text[: place.start()]}{code}\n\n{text[place.start() :]}")
        else:
            table, _, file = where.partition(" in ")
            text, line = (root / file).read_text(), f"{table} = {{\n"
            assert text.count(line) == 1, f"{file} has no table {table}"
            (root / file).write_text(text.replace(line, line + code))
        did.append(where)
    return did


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """The library and its parameters, without data and weights."""
    for name in ("dagster_dvc", "dvc_project", "paco_core", "pipelines", "profiles"):
        shutil.copytree(repository / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path)
    return tmp_path


def python(copy: Path, *arguments: str) -> str:
    """What a Python that knows the copy prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), children.PATH])}
    done = subprocess.run([sys.executable, "-P", *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_what_the_page_adds_is_found_and_trained_with(repository: Path, copy: Path) -> None:
    did = follow((repository / "docs/how-to/extend.md").read_text(), copy)
    assert len(did) == 12, did
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
    follow((repository / "docs/how-to/extend.md").read_text(), copy)
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


def test_without_the_page_the_names_are_refused(copy: Path) -> None:
    params = copy / "params.yaml"
    params.write_text(params.read_text().replace("dynamics: flow_sde", "dynamics: plain_noise", 1))
    code = "from paco_core.config.params import load; from pathlib import Path; load(Path('params.yaml'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "dynamics: Input should be 'flow_sde'" in done.stderr
