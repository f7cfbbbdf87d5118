"""`paco push`: what goes, what is refused, and that a dry run sends nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalTokenNotFoundError

from paco_core.cli import main
from paco_core.io.files import DataError
from paco_core.operations.publish import parcel

CARD = "---\nlicense: apache-2.0\nbase_model: owner/base\nbase_model_relation: adapter\n---\n\n# A card\n"


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data/policies/mine/adapter"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    (folder / "weights.safetensors").write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    return folder


class Hub:
    """What would be sent."""

    sent: ClassVar[list[dict[str, Any]]] = []

    def create_repo(self, repo_id: str, **how: Any) -> None:
        self.sent.append({"made": repo_id, **how})

    def upload_folder(self, **how: Any) -> Any:
        self.sent.append(how)
        return type("Done", (), {"commit_url": "https://hub/owner/name/commit/1"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    Hub.sent = []
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return Hub.sent


def test_a_dry_run_prints_and_sends_nothing(
    adapter: Path, hub: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", str(adapter), "owner/name", "--dry-run"])
    out = capsys.readouterr().out
    assert "weights.safetensors             5 bytes" in out and "license: apache-2.0" in out and hub == []


def test_a_model_goes_to_a_private_repository(
    adapter: Path, hub: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", str(adapter), "owner/name"])
    assert hub[0] == {"made": "owner/name", "repo_type": "model", "private": True, "exist_ok": True}
    assert hub[1] == {"folder_path": adapter, "repo_id": "owner/name", "repo_type": "model"}
    assert "https://hub/owner/name/commit/1" in capsys.readouterr().out
    (adapter / "README.md").write_text(CARD.replace("---\n\n", "configs: []\n---\n\n"))
    main(["push", str(adapter), "owner/data", "--public"])
    assert (hub[2]["repo_type"], hub[2]["private"]) == ("dataset", False)


def test_what_a_stage_made_must_be_what_is_recorded(adapter: Path) -> None:
    assert "not what dvc.lock records" in parcel(Path(), "mine").faults[0]


DAMAGE = {
    "no card": lambda folder: (folder / "README.md").unlink(),
    "names no license": lambda folder: (folder / "README.md").write_text("# A card\n"),
    "without a license_name": lambda folder: (folder / "README.md").write_text("---\nlicense: other\n---\n"),
    "folder of this project": lambda f: (f / "README.md").write_text(CARD.replace("owner/base", "data/zoo/flux/x")),
    "a pickle can run code": lambda folder: (folder / "weights.bin").write_bytes(b"1"),
    "a link": lambda folder: (folder / "link.json").symlink_to("/etc/hostname"),
    "looks like a key": lambda folder: (folder / "notes.txt").write_text("hf_" + "a" * 30),
    "looks like a key or": lambda folder: (folder / "notes.txt").write_text(f"mine is {os.environ['A_TOKEN']}"),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_what_must_not_leave_is_refused(
    adapter: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret-of-this-machine")
    DAMAGE[fault](adapter)
    said = {"no card": "README.md is missing"}.get(fault, fault)
    assert any(said in text for text in parcel(Path(), str(adapter)).faults)
    with pytest.raises((DataError, SystemExit)):
        main(["push", str(adapter), "owner/name"])
    assert hub == []


def test_without_a_token_the_message_says_where_it_comes_from(
    adapter: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_args: Any, **_how: Any) -> None:
        raise LocalTokenNotFoundError("no token")

    monkeypatch.setattr(Hub, "create_repo", refuse)
    with pytest.raises((DataError, SystemExit)) as raised:
        main(["push", str(adapter), "owner/name"])
    assert "HF_TOKEN" in str(raised.value) + capsys.readouterr().err and hub == []


@pytest.mark.parametrize(("name", "hub_id"), [("nowhere", "owner/name"), ("data/policies/mine/adapter", "name")])
def test_unknown_names_are_refused(adapter: Path, hub: list[dict[str, Any]], name: str, hub_id: str) -> None:
    with pytest.raises((DataError, SystemExit)):
        main(["push", name, hub_id])
    assert hub == []
