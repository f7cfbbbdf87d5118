"""Upload of a folder to a hub: a model or a data set, after a check of every file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Lock
from dvc_project.yaml import parse_yaml
from paco_core.config.params import PARAMS_FILE
from paco_core.io.files import DataError, read_text_file, read_yaml
from paco_core.io.secret_search import Search
from paco_core.io.secrets import redacted
from paco_core.io.text_table import text_table
from paco_core.operations.named import NamedFolder, folder_of, meant_model
from paco_core.operations.publish_contents import CARD, Kind, is_pickled, sort_of, uses

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

LARGEST = 50_000_000_000  # bytes; the hub takes no larger file
IN_MEMORY = 10_000_000  # bytes; the hub takes what is smaller with the commit itself, and what is larger before it
BULK = {".safetensors", ".parquet", ".png", ".jpg", ".jpeg", ".webp"}  # by these names the hub takes them before it
MAX_REASONS = 20  # reasons against a folder
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

#: Size, inode, and the times of the last change of content and of anything else: another one is another file.
Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Upload:
    """A folder that is to be uploaded: its files with their sizes, the head of its card, and what speaks against it."""

    folder: Path
    kind: Kind
    files: Sequence[tuple[str, int]]
    head: str
    faults: Sequence[str]
    stamps: Sequence[Stamp] = field(default=(), repr=False)  # of the files, before they were looked at
    card: bytes | None = field(default=None, repr=False)  # uploaded instead of the card in the folder

    def text(self) -> str:
        """The files, the card's head and the faults, for people."""
        files = [(name, f"{size:,} bytes") for name, size in self.files]
        lines = [f"{self.folder} ({self.kind})", *text_table(files, right=[1], indent="  ")]
        lines += [
            f"in all {sum(size for _, size in self.files):,} bytes",
            "",
            "head of the card:",
            self.head or "(none)",
            *(["", "refused:"] if self.faults else []),
            *(f"- {why}" for why in self.reasons()),
        ]
        return redacted("\n".join(lines))

    def reasons(self) -> list[str]:
        """The first faults, and how many more there are."""
        omitted = len(self.faults) - MAX_REASONS
        return [*self.faults[:MAX_REASONS], *([f"and {omitted} more"] if omitted > 0 else [])]


def upload_of(root: Path, name: str) -> Upload:
    """What a name stands for, looked at.

    Args:
        name: ``reward_merged``, ``reward_lora``, a policy's recipe, ``NAME@champion`` (``reward`` or a recipe), or a
            folder that `paco dataset export` wrote.

    Raises:
        DataError: when there is no such thing.
    """
    named_folder = folder_of(root, name)
    folder, out = named_folder.folder, named_folder.out
    if not folder.is_dir():
        raise DataError(f"{folder}: {meant_model(root, name)}nothing is there to push; `dvc repro` makes the models")
    paths, faults = _files(folder)
    head, faults_of_card = _head(folder, root)
    kind: Kind = "dataset" if "configs" in head else "model"
    if out is not None and Workspace(root).md5(out.as_posix()) != Lock.read(root).md5_of(out.as_posix()):
        faults_of_card.append(f"{out}: not what dvc.lock records; run `dvc repro`, or `dvc checkout {out}`")
    names = [path.relative_to(folder).as_posix() for path in paths]
    stamps = [_stamp(path) for path in paths]
    search = Search(os.environ, _key_variables(root))
    for path, relative_name in zip(paths, names, strict=True):
        faults += [f"{relative_name}: {why}" for why in _against(path, relative_name, kind, search)]
    card = _changed_card(root, named_folder) if CARD in names and not faults else None
    if card is not None:
        faults += [
            f"{CARD}: holds what looks like {secret} (line {line})" for secret, line in search.matches([card]).items()
        ]
    sizes = [
        len(card) if card is not None and name == CARD else stamp[0] for name, stamp in zip(names, stamps, strict=True)
    ]
    files = list(zip(names, sizes, strict=True))
    return Upload(folder, kind, files, _card_head(folder), [*faults_of_card, *faults], stamps, card)


def _changed_card(root: Path, named_folder: NamedFolder) -> bytes | None:
    """The model card with the result of the benchmark; None if the card stays as it is."""
    text = read_text_file(named_folder.folder / CARD)
    changed = named_folder.benchmarked_card(root, text)
    return None if changed == text else changed.encode()


def _key_variables(root: Path) -> set[str]:
    """The variables that hold keys of endpoints and scorers, as the project's parameters name them."""
    file = root / PARAMS_FILE
    variables, trees = set[str](), [read_yaml(file) if file.is_file() else {}]
    while trees:
        for key, value in trees.pop().items():
            if isinstance(value, dict):
                trees.append(value)
            elif key == "api_key_env" and value:
                variables.add(str(value))
    return variables


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """The plain files below a folder, and what else is there; no link is followed."""
    files, faults = list[Path](), list[str]()
    for place, folders, names in os.walk(folder):
        for name in sorted([*folders, *names]):
            path = Path(place, name)
            relative_name = path.relative_to(folder).as_posix()
            if name.startswith("."):
                faults.append(f"{relative_name}: a hidden file; none is published, move it out of the folder")
            elif path.is_symlink():
                faults.append(
                    f"{relative_name}: a link; replace it by a copy of what it names, or push a copy: `paco fetch`"
                )
            elif path.is_file():
                files.append(path)
            elif not path.is_dir():
                faults.append(f"{relative_name}: neither a file nor a folder; move it out of the folder")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return sorted(files), faults


def _against(path: Path, relative_name: str, kind: Kind, search: Search) -> Iterator[str]:
    """What speaks against a file."""
    if not relative_name.isprintable() or search.matches([relative_name.encode(errors="replace")]):
        yield "its name has control characters, or what looks like a secret; rename it"
    try:
        if is_pickled(path):
            yield "a pickle can run code when it is loaded; write safetensors"
            return
        if (size := path.stat().st_size) > LARGEST:
            yield f"{size:,} bytes, the hub takes files up to {LARGEST:,}"
            return
        if (sort := sort_of(kind, relative_name)) is None:
            yield (
                f"none of what the folder of a {kind} holds ({uses(kind)}); move it out of the folder"
                + ("; the card of a data set has `configs`" if kind == "model" else "")
            )
            return
        secrets = dict[str, int]()
        for stream in sort.read(path):
            secrets = search.matches(stream) | secrets
        yield from (f"holds what looks like {secret} (line {line}); remove it" for secret, line in secrets.items())
    except DataError as error:
        yield f"{str(error).removeprefix(f'{path}: ')}; a file is what its name says, or it is not published"
    except OSError as error:
        yield f"cannot be read ({error.strerror})"


def _stamp(path: Path) -> Stamp:
    status = path.lstat()
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _head(folder: Path, root: Path) -> tuple[dict[str, object], list[str]]:
    """The head of a folder's card, and what it lacks."""
    if not (folder / CARD).is_file() or (folder / CARD).is_symlink():
        return {}, [f"{CARD} is missing: a card says what this is, and under which licence"]
    try:
        head = parse_yaml(_card_head(folder))
    except DataError as error:
        return {}, [f"{CARD}: its head is no YAML ({error})"]
    front = head if isinstance(head, dict) else {}
    licence = front.get("license")
    if not licence:
        return front, [f"{CARD}: its head names no license"]
    if licence == "other" and not front.get("license_name"):
        return front, [f"{CARD}: license is other, without a license_name; write under which terms this is published"]
    return front, [f"{CARD}: {why}" for why in _against_base(front, folder, root)]


def _against_base(head: Mapping[str, object], folder: Path, root: Path) -> Iterator[str]:
    """What speaks against the model that a card's head names as its base, or does not name."""
    instead = "name the model's id on the hub in params.yaml, or in the card of a copy (`paco fetch`)"
    bases, tags = head.get("base_model") or [], head.get("tags")
    if not bases and isinstance(tags, list) and "lora" in tags:
        yield f"its head names no base_model, without which nobody can use an adapter; {instead}"
    for base in map(str, bases if isinstance(bases, list) else [bases]):
        if not _ID.fullmatch(base) or (root / base).exists() or (folder / base).exists():
            yield f"base_model {base} is a folder of this machine, which others do not have; {instead}"


def _card_head(folder: Path) -> str:
    card = folder / CARD
    if not card.is_file() or card.is_symlink():
        return ""
    parts = card.read_bytes().decode(errors="replace").split("---", 2)
    return parts[1].strip() if len(parts) == 3 and not parts[0].strip() else ""


def upload_to_hub(upload: Upload, hub_id: str, *, private: bool) -> str:
    """Upload the files that were looked at, as they were then; the address of what is there afterwards.

    The token is the hub library's own: HF_TOKEN, or its login.

    Raises:
        DataError: when something speaks against it, a file has changed since, the id is none, or the hub refuses.
    """
    if upload.faults:
        raise DataError(f"{upload.folder}: not pushed: " + "; ".join(upload.reasons()))
    check_id(hub_id)
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        added = [
            _addition(upload.folder / name, name)
            if upload.card is None or name != CARD
            else CommitOperationAdd(name, upload.card)
            for name, _ in upload.files
        ]
        _unchanged(upload)
        api.create_repo(hub_id, repo_type=upload.kind, private=private, exist_ok=True)
        api.preupload_lfs_files(hub_id, added, repo_type=upload.kind)
        _unchanged(upload)  # nobody sees what was uploaded before the commit
        message = f"Upload {upload.folder.name} with paco"
        commit = api.create_commit(hub_id, added, commit_message=message, repo_type=upload.kind)
    except LocalTokenNotFoundError:
        raise DataError("the hub asks for a token: set HF_TOKEN, or log in with `hf auth login`") from None
    except HfHubHTTPError as error:
        raise DataError(f"{hub_id}: the hub refuses: {redacted(str(error).splitlines()[0])}") from None
    except DataError:
        raise
    except Exception as error:  # its clients of HTTP and of its store raise many types  # noqa: BLE001
        why = redacted(f"{type(error).__name__}: {error}".splitlines()[0])
        raise DataError(f"{hub_id}: the upload did not get through ({why}); push again") from None
    return str(commit.commit_url)


def _addition(path: Path, name: str) -> CommitOperationAdd:
    """A file of a commit. A small text is read now: the hub's library would read it at the commit, after our check."""
    from huggingface_hub import CommitOperationAdd

    small = path.stat().st_size <= IN_MEMORY and path.suffix not in BULK
    return CommitOperationAdd(name, path.read_bytes() if small else path)


def _unchanged(upload: Upload) -> None:
    """Raise DataError unless all files are those that were looked at."""
    for (name, _), stamp in zip(upload.files, upload.stamps, strict=True):
        path = upload.folder / name
        if not os.path.lexists(path) or _stamp(path) != stamp:
            raise DataError(f"{path}: it has changed since it was looked at; nothing was published, push again")


def check_id(hub_id: str) -> None:
    """Raise DataError unless it is ``owner/name``."""
    if not _ID.fullmatch(hub_id):
        raise DataError(f"{hub_id!r} is no id of a hub; expected OWNER/NAME")
