"""`paco push`: what goes, what is refused, and that a dry run sends nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import numpy
import pytest
from huggingface_hub import CommitOperationAdd
from safetensors.numpy import save

from paco_core.cli import main
from paco_core.io.files import DataError
from paco_core.operations.publish import upload_of, upload_to_hub

WEIGHTS = save({"w": numpy.zeros(3, numpy.float32)})
CARD = "---\nlicense: apache-2.0\nbase_model: owner/base\nbase_model_relation: adapter\n---\n\n# A card\n"


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data/policies/mine/adapter"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    (folder / "weights.safetensors").write_bytes(WEIGHTS)
    monkeypatch.chdir(tmp_path)
    return folder


class Hub:
    """What would be sent."""

    requests: ClassVar[list[dict[str, Any]]] = []

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.requests.append({"made": repo_id, **options})

    def preupload_lfs_files(self, repo_id: str, additions: list[CommitOperationAdd], **_options: Any) -> None:
        self.requests.append({"before": [added.path_in_repo for added in additions]})

    def create_commit(self, repo_id: str, operations: list[CommitOperationAdd], **options: Any) -> Any:
        files = {addition.path_in_repo: addition.upload_info.size for addition in operations}
        self.requests.append({"to": repo_id, "files": files, "repo_type": options["repo_type"]})
        return type("Done", (), {"commit_url": "https://hub/owner/name/commit/1"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    Hub.requests = []
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return Hub.requests


def test_a_model_goes_to_a_private_repository_and_nowhere_in_a_dry_run(
    adapter: Path, hub: list[dict[str, Any]]
) -> None:
    main(["push", str(adapter), "owner/name", "--dry-run"])
    for name, hub_id in (("nowhere", "owner/name"), (str(adapter), "name")):
        with pytest.raises((DataError, SystemExit)):
            main(["push", name, hub_id])
    assert hub == []
    main(["push", str(adapter), "owner/name"])
    assert hub[0] == {"made": "owner/name", "repo_type": "model", "private": True, "exist_ok": True}
    assert hub[1] == {"before": ["README.md", "weights.safetensors"]}
    sizes = {"README.md": len(CARD), "weights.safetensors": len(WEIGHTS)}
    assert hub[2] == {"to": "owner/name", "files": sizes, "repo_type": "model"}
    (adapter / "README.md").write_text(CARD.replace("---\n\n", "configs: []\n---\n\n"))
    (adapter / "weights.safetensors").unlink()
    main(["push", str(adapter), "owner/data", "--public"])
    assert (hub[3]["repo_type"], hub[3]["private"]) == ("dataset", False)


def change(folder: Path) -> None:
    (folder / "README.md").write_text(CARD.replace("A card", "B card"))


def replace(folder: Path) -> None:
    (folder / "new").write_bytes(WEIGHTS)
    (folder / "new").replace(folder / "weights.safetensors")


@pytest.mark.parametrize("act", [change, replace])
@pytest.mark.parametrize("moment", ["before", "during"])
def test_what_changes_after_it_was_looked_at_is_not_published(
    adapter: Path,
    hub: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Path], None],
    moment: str,
) -> None:
    upload = upload_of(Path(), str(adapter))
    if moment == "before":
        act(adapter)
    else:
        monkeypatch.setattr(Hub, "preupload_lfs_files", lambda *_a, **_h: act(adapter))
    with pytest.raises(DataError):
        upload_to_hub(upload, "owner/name", private=True)
    assert not any("to" in request for request in hub)


def test_what_comes_after_it_was_looked_at_is_not_published(adapter: Path, hub: list[dict[str, Any]]) -> None:
    upload = upload_of(Path(), str(adapter))
    (adapter / ".env").write_text("x")
    upload_to_hub(upload, "owner/name", private=True)
    assert list(hub[-1]["files"]) == ["README.md", "weights.safetensors"]


def test_weights_are_not_read_into_memory(adapter: Path, hub: list[dict[str, Any]]) -> None:
    """Neither to look at them nor to send them: a sparse file of 40 GB with a header that describes it."""
    size = 4 * 10**10
    head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (adapter / "weights.safetensors").open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        stream.truncate(8 + len(head) + size)
    assert upload_of(Path(), str(adapter)).faults == []
    with (adapter / "weights.safetensors").open("ab") as stream:
        stream.write(b"DB_HOST=x")
    assert "not a file of safetensors" in upload_of(Path(), str(adapter)).faults[0]


def test_what_a_stage_made_must_be_what_is_recorded(adapter: Path) -> None:
    assert "not what dvc.lock records" in upload_of(Path(), "mine").faults[0]


def local_base(folder: Path) -> None:
    """Owner and name, as it seems, and yet a folder; the model is no adapter."""
    Path("models/base").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: models/base\n---\n")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "names no license": lambda folder: (folder / "README.md").write_text("# A card\n"),
    "without a license_name": lambda folder: (folder / "README.md").write_text("---\nlicense: other\n---\n"),
    "others do not have": lambda folder: (folder / "README.md").write_text(CARD.replace("owner/base", "data/zoo/x")),
    "folder of this machine": local_base,
    "names no base_model": lambda f: (f / "README.md").write_text("---\nlicense: mit\ntags:\n- lora\n---\n"),
    "README.md is missing": lambda folder: (folder / "README.md").replace(folder / "LICENSE"),
    "not UTF-8": lambda folder: (folder / "README.md").write_bytes(CARD.encode() + b"\xff"),
    "a pickle can run code": lambda folder: (folder / "weights.bin").write_bytes(b"1"),
    "a link": lambda folder: (folder / "link.json").symlink_to("/etc/hostname"),
    "a token of Hugging Face (line 2)": lambda f: (f / "merges.txt").write_text("a\nhf_" + "a" * 30),
    "the variable A_TOKEN": lambda folder: (folder / "merges.txt").write_text(f"mine is {os.environ['A_TOKEN']}"),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_what_must_not_leave_is_refused(
    adapter: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret-of-this-machine")
    DAMAGE[fault](adapter)
    assert any(fault in text for text in upload_of(Path(), str(adapter)).faults)
    with pytest.raises((DataError, SystemExit)):
        main(["push", str(adapter), "owner/name"])
    assert hub == []


def test_a_hub_out_of_reach_is_a_sentence(
    adapter: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("no route to https://me:word@hub/x")

    monkeypatch.setattr(Hub, "create_repo", fail)
    with pytest.raises(DataError, match="owner/name") as raised:
        upload_to_hub(upload_of(Path(), str(adapter)), "owner/name", private=True)
    assert "word" not in str(raised.value)
