"""The folder that a name stands for, and a copy of it: the reward, a policy's adapter, or a registered version."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dvc_project.hashing import Workspace
from paco_core.config.params import PARAMS_FILE, load
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_text_file, write_text
from paco_core.io.messages import did_you_mean
from paco_core.io.targets import checked
from paco_core.operations.benchmarked_card import benchmarked_card
from paco_core.operations.promotion.champions import ALIASES, REWARD, Champions, adapter_of, bytes_of, out_of


def check_name(root: Path, name: str) -> None:
    """Raise DataError unless a name can have versions: ``reward``, or a recipe of ``params.yaml``."""
    names = [REWARD, *load(root / PARAMS_FILE).policies.recipes]
    if name not in names:
        raise DataError(f"nothing is called {name!r}; {did_you_mean(name, names)}choose one of: {', '.join(names)}")


@dataclass(frozen=True)
class NamedFolder:
    """The folder of a name.

    Attributes:
        folder: the folder; it may be missing.
        out: out of a stage that contains the folder; None for an alias and for any other folder.
        policy: recipe of the policy whose adapter the folder is; None for everything else.
        md5: DVC's md5 of that policy; None if it is not known.
    """

    folder: Path
    out: Path | None = None
    policy: str | None = None
    md5: str | None = None

    def benchmarked_card(self, root: Path, card: str) -> str:
        """The text of the folder's model card, with the benchmark result of the policy if there is one."""
        return card if self.policy is None else benchmarked_card(root, card, self.policy, self.md5)


def folder_of(root: Path, name: str) -> NamedFolder:
    """The folder of a name.

    Args:
        name: ``reward_merged``, ``reward_lora``, a policy's recipe, ``NAME@champion`` or ``NAME@challenger`` (of
            ``reward`` or a recipe), or any other folder.

    Raises:
        DataError: when no version has the alias, or nothing contains its bytes any more.
    """
    stem, _, alias = name.partition("@")
    if alias:
        if alias not in ALIASES:
            raise DataError(f"{name!r}: {did_you_mean(alias, ALIASES)}the aliases are {', '.join(ALIASES)}")
        version = Champions(root).at(stem, alias)
        if version is None:
            raise DataError(f"{stem} has no {alias}; `paco promote {stem}` makes one")
        if stem == REWARD:
            return NamedFolder(bytes_of(root, version))
        return NamedFolder(adapter_of(root, version), policy=stem, md5=version.md5)
    if name == paths.REWARD_LORA.name:
        return NamedFolder(root / paths.REWARD_LORA / "adapter", paths.REWARD_LORA)
    if name in (REWARD, paths.REWARD_MERGED.name):
        return NamedFolder(root / paths.REWARD_MERGED, paths.REWARD_MERGED)
    if (root / paths.POLICIES / name / "adapter").is_dir():
        out = out_of(name)
        return NamedFolder(root / out / "adapter", out, name, Workspace(root).md5(out.as_posix()))
    return NamedFolder(Path(name))


def meant_model(root: Path, name: str) -> str:
    """``did you mean 'NAME'?`` and a space, among the reward and the recipes; nothing where none is near."""
    recipes = load(root / PARAMS_FILE).policies.recipes if (root / PARAMS_FILE).is_file() else ()
    return did_you_mean(name.partition("@")[0], [REWARD, paths.REWARD_LORA.name, paths.REWARD_MERGED.name, *recipes])


def copy_named_files(root: Path, name: str, target: Path) -> int:
    """Copy what a name stands for to a new folder, as plain files; returns how many. Its card's code names that folder.

    Raises:
        DataError: when there is no such thing, or something is at ``target`` already, or a stage, DVC or git keeps its
            own there.
    """
    checked(target, "new folder")
    named_folder = folder_of(root, name)
    folder = named_folder.folder
    if not folder.is_dir():
        raise DataError(
            f"{name!r} is neither the reward, a trained recipe nor NAME@champion; "
            f"{meant_model(root, name)}see `paco champions`"
        )
    with atomic(target) as part:
        shutil.copytree(folder, part)  # what links point at: the copy outlives DVC's cache
        card = part / "README.md"
        if card.is_file():
            write_text(card, _renamed(named_folder.benchmarked_card(root, read_text_file(card)), name, target))
    return sum(path.is_file() for path in target.rglob("*"))


def _renamed(text: str, name: str, target: Path) -> str:
    """The text of a copied card, whose code loads the copy instead of the folder of the project."""
    stem = name.partition("@")[0]
    if stem in (REWARD, paths.REWARD_MERGED.name):
        place = paths.REWARD_MERGED
    else:
        place = (paths.REWARD_LORA if stem == paths.REWARD_LORA.name else out_of(stem)) / "adapter"
    for end in ("'", "/"):
        text = text.replace(f"'{place.as_posix()}{end}", f"'{target.as_posix()}{end}")
    return text
