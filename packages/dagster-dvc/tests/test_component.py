"""``dg scaffold defs dagster_dvc.component.DvcProjectComponent``: the real dg, on a project of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dvc_graphs as graphs

COMPONENT = "dagster_dvc.component.DvcProjectComponent"
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
MANIFEST = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""


def dg(root: Path, *arguments: str) -> str:
    folder = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DAGSTER")}
    environment |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [folder / "dg", *arguments], cwd=root, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = graphs.make(tmp_path, graphs.CHAIN, pyproject__toml=MANIFEST)
    (made / "shop/defs").mkdir(parents=True)
    for name, text in (("__init__", ""), ("definitions", DEFINITIONS), ("defs/__init__", "")):
        (made / f"shop/{name}.py").write_text(text)
    return made


@pytest.mark.slow
def test_a_scaffolded_project_has_the_assets_of_dvc_yaml(root: Path) -> None:
    dg(root, "scaffold", "defs", COMPONENT, "data")
    written = root / "shop/defs/data/defs.yaml"
    assert "project_dir: ../../.." in written.read_text()
    dg(root, "check", "defs")
    found = json.loads(dg(root, "list", "defs", "--json"))
    assert {asset["asset_key"]: asset["dependency_keys"] for asset in found["assets"]} == {
        "a": [],
        "b": ["a"],
        "c": ["b"],
    }
    assert [sensor["name"] for sensor in found["sensors"]] == ["dvc_lock"]
    assert len(found["asset_checks"]) == 3

    written.write_text(f"type: {COMPONENT}\nattributes: {{project_dir: ../../.., exclude: [c], sensor: false}}\n")
    found = json.loads(dg(root, "list", "defs", "--json"))
    assert [asset["asset_key"] for asset in found["assets"]] == ["a", "b"] and not found.get("sensors")

    dg(root, "launch", "--assets", "a,b")
    assert (root / "b.out").read_text() == "hello"
