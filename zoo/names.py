"""Names of the zoo's members, without the imports of their training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.config.registered import names_of
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean

#: Members whose weights are not in git: `paco zoo build` trains them.
NOT_IN_GIT = ("flux3_klein", "qwen_image_21")


def validate_names(members: Sequence[str]) -> None:
    """Raise DataError if a name is unknown."""
    names = names_of(str(Path(__file__).with_name("build.py")), "MEMBERS")
    if unknown := [member for member in members if member not in names]:
        raise DataError(
            f"the zoo has no member {unknown[0]!r}; {did_you_mean(unknown[0], names)}choose among {', '.join(names)}"
        )
