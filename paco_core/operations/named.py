"""The folder that a name stands for, and a copy of it: the reward, a policy's adapter, or a registered version."""

from __future__ import annotations

import shutil
from pathlib import Path

from paco_core.config.params import PARAMS_FILE, load
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, write_text
from paco_core.io.messages import meant
from paco_core.io.targets import checked
from paco_core.operations.promotion.champions import ALIASES, REWARD, Champions, adapter_of, bytes_of, out_of


def check_name(root: Path, name: str) -> None:
    """Raise DataError unless a name can have versions: ``reward``, or a recipe of ``params.yaml``."""
    known = [REWARD, *load(root / PARAMS_FILE).policies.recipes]
    if name not in known:
        raise DataError(f"nothing is called {name!r}; {meant(name, known)}choose one of: {', '.join(known)}")


def folder_of(root: Path, name: str) -> tuple[Path, Path | None]:
    """The folder of a name, and the out of a stage that it lies in.

    Args:
        name: ``reward_merged``, ``reward_lora``, a policy's recipe, ``NAME@champion`` or ``NAME@challenger`` (of
            ``reward`` or a recipe), or any other folder.

    Raises:
        DataError: when no version has the alias, or nothing holds its bytes any more.
    """
    stem, _, alias = name.partition("@")
    if alias:
        if alias not in ALIASES:
            raise DataError(f"{name!r}: {meant(alias, ALIASES)}the aliases are {', '.join(ALIASES)}")
        version = Champions(root).at(stem, alias)
        if version is None:
            raise DataError(f"{stem} has no {alias}; `paco promote {stem}` makes one")
        return (bytes_of(root, version) if stem == REWARD else adapter_of(root, version)), None
    if name == paths.REWARD_LORA.name:
        return root / paths.REWARD_LORA / "adapter", paths.REWARD_LORA
    if name in (REWARD, paths.REWARD_MERGED.name):
        return root / paths.REWARD_MERGED, paths.REWARD_MERGED
    if (root / paths.POLICIES / name / "adapter").is_dir():
        return root / out_of(name) / "adapter", out_of(name)
    return Path(name), None


def meant_model(root: Path, name: str) -> str:
    """``did you mean 'NAME'?`` and a space, among the reward and the recipes; nothing where none is near."""
    recipes = load(root / PARAMS_FILE).policies.recipes if (root / PARAMS_FILE).is_file() else ()
    return meant(name.partition("@")[0], [REWARD, paths.REWARD_LORA.name, paths.REWARD_MERGED.name, *recipes])


def fetch(root: Path, name: str, target: Path) -> int:
    """Copy what a name stands for to a new folder, as plain files; returns how many. Its card's code names that folder.

    Raises:
        DataError: when there is no such thing, or something is at ``target`` already, or a stage, DVC or git keeps its
            own there.
    """
    checked(target, "new folder")
    folder, _ = folder_of(root, name)
    if not folder.is_dir():
        raise DataError(
            f"{name!r} is neither the reward, a trained recipe nor NAME@champion; "
            f"{meant_model(root, name)}see `paco champions`"
        )
    with atomic(target) as part:
        shutil.copytree(folder, part)  # what links point at: the copy outlives DVC's cache
        _rename(part / "README.md", name, target)
    return sum(path.is_file() for path in target.rglob("*"))


def _rename(card: Path, name: str, target: Path) -> None:
    """Let the code of a copied card load the copy, and not the folder of the project that it was copied from."""
    stem = name.partition("@")[0]
    if stem in (REWARD, paths.REWARD_MERGED.name):
        place = paths.REWARD_MERGED
    else:
        place = (paths.REWARD_LORA if stem == paths.REWARD_LORA.name else out_of(stem)) / "adapter"
    if card.is_file():
        text = card.read_text(encoding="utf-8")
        for end in ("'", "/"):
            text = text.replace(f"'{place.as_posix()}{end}", f"'{target.as_posix()}{end}")
        write_text(card, text)
