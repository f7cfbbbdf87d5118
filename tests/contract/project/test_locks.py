"""The locks hold what pip needs in order to take them with their hashes."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import REPOSITORY

PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[([^]]*)\])?==", re.MULTILINE)
LOCKS = sorted(path.name for path in REPOSITORY.glob("locks/*.txt"))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_pin_names_the_extras_that_others_ask_for(lock: str) -> None:
    """pip before 24 refuses the hash of `gql` where a package asks for `gql[requests]`."""
    pinned = PIN.findall((REPOSITORY / "locks" / lock).read_text())
    pins = {canonicalize_name(name): extras.split(", ") for name, extras in pinned}
    assert len(pins) > 10
    lacking = []
    for distribution in metadata.distributions():
        if canonicalize_name(distribution.metadata["Name"]) not in pins:
            continue
        for demand in map(Requirement, distribution.requires or []):
            name = canonicalize_name(demand.name)
            if name in pins and (demand.marker is None or demand.marker.evaluate({"extra": ""})):
                lacking += [
                    f"{distribution.metadata['Name']} asks for {demand}"
                    for extra in demand.extras
                    if extra not in pins[name]
                ]
    assert lacking == []


EXTRAS = {"score": set(), "run": {"pipeline", "ocr", "ray", "sentences", "team"}}


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_holds_what_pyproject_asks_for(lock: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == EXTRAS["run"] | {"vllm", "eight-bit"}
    extras = [requirement for extra in EXTRAS[lock] for requirement in project["optional-dependencies"][extra]]
    text = (REPOSITORY / f"locks/{lock}.txt").read_text()
    pinned = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", text, re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in pinned}
    for required in map(Requirement, [*project["dependencies"], *extras]):
        if required.name not in ("dvc-project", "dagster-dvc"):  # built from here
            assert required.specifier.contains(pins[canonicalize_name(required.name)], prereleases=True), required
