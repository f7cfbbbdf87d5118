"""What leaves the project for a hub: a model's folder or a data set's, looked at before it goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Lock
from dvc_project.yaml import parse_yaml
from paco_core.io.files import DataError, read_text
from paco_core.io.secrets import redacted
from paco_core.operations.named import folder_of

CARD = "README.md"
PICKLED = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"}
LARGEST = 50_000_000_000  # bytes; the hub takes no larger file
TEXT = {".md", ".json", ".jsonl", ".txt", ".yaml", ".yml", ".csv", ".jinja"}
SHOWN = 1_000_000  # bytes of a text that is looked at for secrets
_KEY = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16})\b")
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class Parcel:
    """A folder that is to be uploaded: its files with their sizes, the head of its card, and what speaks against it."""

    folder: Path
    kind: Kind
    files: Sequence[tuple[str, int]]
    head: str
    faults: Sequence[str]

    def text(self) -> str:
        """The files, the card's head and the faults, for people."""
        width = max((len(name) for name, _ in self.files), default=0)
        lines = [
            f"{self.folder} ({self.kind})",
            *(f"  {name:<{width}}  {size:>12,} bytes" for name, size in self.files),
        ]
        lines += [
            f"in all {sum(size for _, size in self.files):,} bytes",
            "",
            "head of the card:",
            self.head or "(none)",
        ]
        return "\n".join([*lines, *(["", "refused:"] if self.faults else []), *(f"- {fault}" for fault in self.faults)])


def parcel(root: Path, name: str) -> Parcel:
    """What a name stands for, looked at.

    Args:
        name: ``reward_merged``, ``reward_lora``, a policy's recipe, ``NAME@champion`` (``reward`` or a recipe), or a
            folder that `paco dataset export` wrote.

    Raises:
        DataError: when there is no such thing.
    """
    folder, out = folder_of(root, name)
    if not folder.is_dir():
        raise DataError(f"{folder}: nothing is there to push")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    head, faults = _head(folder)
    kind: Kind = "dataset" if "configs" in head else "model"
    if out is not None and Workspace(root).md5(out.as_posix()) != Lock.read(root).md5_of(out.as_posix()):
        faults.append(f"{out}: not what dvc.lock records; run `dvc repro`, or `dvc checkout {out}`")
    for path, (shown, size) in zip(files, listed, strict=True):
        if path.suffix in PICKLED:
            faults.append(f"{shown}: a pickle can run code when it is loaded; write safetensors")
        if path.is_symlink():
            faults.append(f"{shown}: a link; copy what it names")
        if size > LARGEST:
            faults.append(f"{shown}: {size:,} bytes, the hub takes files up to {LARGEST:,}")
        if path.suffix in TEXT and _secret(path):
            faults.append(f"{shown}: holds what looks like a key or a password")
    return Parcel(folder, kind, listed, _shown(folder), faults)


def _head(folder: Path) -> tuple[dict[str, object], list[str]]:
    """The head of a folder's card, and what it lacks."""
    if not (folder / CARD).is_file():
        return {}, [f"{CARD} is missing: a card says what this is, and under which licence"]
    try:
        head = parse_yaml(_shown(folder))
    except DataError as error:
        return {}, [f"{CARD}: its head is no YAML ({error})"]
    found = head if isinstance(head, dict) else {}
    licence = found.get("license")
    if not licence:
        return found, [f"{CARD}: its head names no license"]
    if licence == "other" and not found.get("license_name"):
        return found, [f"{CARD}: license is other, without a license_name; write under which terms this is published"]
    base = str(found.get("base_model", ""))
    if found.get("base_model_relation") == "adapter" and not _ID.fullmatch(base):
        return found, [f"{CARD}: base_model {base} is a folder of this project, which others do not have"]
    return found, []


def _shown(folder: Path) -> str:
    card = folder / CARD
    parts = read_text(card).split("---", 2) if card.is_file() else []
    return parts[1].strip() if len(parts) == 3 and not parts[0].strip() else ""


def _secret(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(SHOWN)
    return redacted(text) != text or _KEY.search(text) is not None


def push(found: Parcel, hub_id: str, *, private: bool) -> str:
    """Upload a folder; the address of what is there then. The token is the hub library's own: HF_TOKEN, or its login.

    Raises:
        DataError: when something speaks against it, the id is none, or the hub refuses.
    """
    if found.faults:
        raise DataError(f"{found.folder}: not pushed: " + "; ".join(found.faults))
    check_id(hub_id)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(hub_id, repo_type=found.kind, private=private, exist_ok=True)
        done = api.upload_folder(folder_path=found.folder, repo_id=hub_id, repo_type=found.kind)
    except LocalTokenNotFoundError:
        raise DataError("the hub asks for a token: set HF_TOKEN, or log in with `hf auth login`") from None
    except HfHubHTTPError as error:
        raise DataError(f"{hub_id}: the hub refuses: {redacted(str(error).splitlines()[0])}") from None
    return str(done.commit_url)


def check_id(hub_id: str) -> None:
    """Raise DataError unless it is ``owner/name``."""
    if not _ID.fullmatch(hub_id):
        raise DataError(f"{hub_id!r} is no id of a hub; expected OWNER/NAME")
