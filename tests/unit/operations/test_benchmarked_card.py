"""The benchmark result in the card of a published policy: exactly the metrics file, of exactly these weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvc_project.hashing import Workspace
from paco_core.models.benchmark_section import HEADING, pending_section, replace_section
from paco_core.operations.benchmark_result import result_section
from paco_core.operations.benchmarked_card import benchmarked_card
from paco_core.operations.named import copy_named_files, folder_of
from paco_core.operations.publish import upload_of

POLICY, METRICS = "data/policies/flux_t2is", "data/metrics/t2is.json"
HEAD = "---\nlicense: apache-2.0\nbase_model: owner/base\nbase_model_relation: adapter\n---\n\n# A card\n"
CARD = f"{HEAD}\n{pending_section('t2is')}\n## License\n\nAs of the base.\n"


def change(mean: float, low: float, high: float, name: str = "flux_t2is.px64.gold_consistency") -> dict[str, float]:
    values = {"before": 0.421875, "after": 0.421875 + mean, "change": mean, "change_low": low, "change_high": high}
    return {f"{name}.{key}": value for key, value in values.items()}


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_contains_the_values_of_the_metrics_file() -> None:
    metrics = {
        "prompts": 48,
        **change(0.1684, 0.1042, 0.2326),
        **change(-0.0113, -0.0137, -0.0084, "flux_t2is.px64.panel_diversity"),
        **change(0.1, 0.05, 0.15, "flux_t2is.px64.gold_consistency.2x2"),
        **change(0.5, 0.4, 0.6, "flux_t2is_2.px64.gold_consistency"),
    }
    text = result_section("flux_t2is", "t2is", "gold_consistency", metrics)
    assert text is not None and "48 prompts" in text
    assert rows(text) == [
        ["64", "gold_consistency", "0.4219", "0.5903", "+0.1684", "+0.1042 to +0.2326"],
        ["64", "panel_diversity", "0.4219", "0.4106", "-0.0113", "-0.0137 to -0.0084"],
    ]


@pytest.mark.parametrize(
    ("interval", "conclusion"), [((0.1, 0.2), "improves"), ((-0.2, 0.2), "cannot tell"), ((-0.2, -0.1), "gets worse")]
)
def test_the_conclusion_follows_from_the_interval(interval: tuple[float, float], conclusion: str) -> None:
    metrics = change(sum(interval) / 2, *interval)
    text = result_section("flux_t2is", "t2is", "gold_consistency", metrics)
    assert text is not None and conclusion in text.split("|")[0]


def test_metrics_without_an_interval_or_of_another_policy_make_no_section() -> None:
    incomplete: dict[str, Any] = {**change(0.1, 0.0, 0.2), "flux_t2is.px64.gold_consistency.change_low": None}
    for metrics in ({}, incomplete, change(0.1, 0.0, 0.2, "other.px64.gold_consistency")):
        assert result_section("flux_t2is", "t2is", "gold_consistency", metrics) is None


def test_only_the_section_is_replaced_and_twice_is_once() -> None:
    section = f"{HEADING}\n\nNew.\n"
    changed = replace_section(CARD, section)
    assert changed == f"{HEAD}\n{section}\n## License\n\nAs of the base.\n"
    assert replace_section(changed, section) == changed
    assert replace_section(HEAD, section) == HEAD, "a card of an earlier version"


@pytest.fixture
def root(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a policy, a benchmark of it, and records of them in ``dvc.lock``."""
    (tmp_path / "params.yaml").write_text((repository / "params.yaml").read_text())
    (tmp_path / POLICY / "adapter").mkdir(parents=True)
    (tmp_path / POLICY / "adapter/README.md").write_text(CARD)
    (tmp_path / METRICS).parent.mkdir(parents=True)
    (tmp_path / METRICS).write_text(json.dumps({"prompts": 48, **change(0.1684, 0.1042, 0.2326)}))
    policy, metrics = ({"path": path, "md5": Workspace(tmp_path).md5(path)} for path in (POLICY, METRICS))
    stages = {
        "policies@flux_t2is": {"cmd": "train", "outs": [policy]},
        "t2is": {"cmd": "measure", "deps": [policy], "outs": [metrics]},
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_copy_of_a_card_contains_the_result_and_the_project_card_stays(root: Path) -> None:
    copy_named_files(root, "flux_t2is", root / "copy")
    assert rows((root / "copy/README.md").read_text())[0][4:] == ["+0.1684", "+0.1042 to +0.2326"]
    assert (root / POLICY / "adapter/README.md").read_text() == CARD
    upload = upload_of(root, "flux_t2is")
    assert upload.faults == [] and upload.card is not None
    assert rows(upload.card.decode())[0][4:] == ["+0.1684", "+0.1042 to +0.2326"]
    assert upload.files == [("README.md", len(upload.card))]


def test_a_result_of_other_weights_or_a_changed_metrics_file_is_not_written(root: Path) -> None:
    md5 = folder_of(root, "flux_t2is").md5
    assert benchmarked_card(root, CARD, "flux_t2is", md5) != CARD
    for policy, version in (("flux_t2is", "0" * 32), ("flux_t2is", None), ("kontext_edit", md5), ("unknown", md5)):
        assert benchmarked_card(root, CARD, policy, version) == CARD
    (root / METRICS).write_text(json.dumps(change(0.9, 0.8, 1.0)))
    assert benchmarked_card(root, CARD, "flux_t2is", md5) == CARD
