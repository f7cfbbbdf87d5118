"""paco computes what plain diffusers, peft and transformers compute, at the smallest size of the comparison."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def peers(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository))
    return importlib.import_module("speed.peers")


@pytest.mark.thorough
def test_results_are_those_of_the_peers(peers: ModuleType, repository: Path) -> None:
    result = peers.compare(16, 1, repository)
    assert result.unequal() == []
    rows = [
        line
        for line in result.table().splitlines()
        if re.fullmatch(r"\| .* \| [\d.]+ \| [\d.]+ \| [\d.]+ \| .* \|", line)
    ]
    assert len(rows) == len(result.seconds) == 5
    kinds = [set(differences) for differences in result.differences.values()]
    assert kinds == [{"pixels", "weights"}, {"pixels", "weights"}, {"weights"}, {"scores"}, {"scores"}]


def test_results_that_differ_fail(peers: ModuleType) -> None:
    result = peers.Comparison()
    result.add("epoch", 2.0, 1.0, {"pixels": 1.0, "weights": 0.01})
    result.add("epoch", 1.5, 1.2, {"pixels": 9.0})  # only the first round is compared, because the weights drift apart
    assert result.unequal() == [] and result.seconds == {"epoch": (1.5, 1.0)}
    result.add("scores", 1.0, 1.0, {"scores": float("nan")})
    result.add("training", 1.0, 1.0, {"weights": 0.5})
    assert [line.partition(":")[0] for line in result.unequal()] == ["scores", "training"]
