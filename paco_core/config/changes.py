"""Parameters changed by hand, ``key=value``, for one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dvc_project.yaml import parse_yaml
from paco_core.config.execution import put
from paco_core.config.params import Params, parse
from paco_core.io.files import DataError


def changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as dotted keys and values, read as YAML.

    Raises:
        DataError: when one has no ``=``, or a value that is no YAML.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise DataError(f"--set {text!r}: expected key=value, as in reward.epochs=1")
        try:
            found[key] = parse_yaml(value)
        except DataError as error:
            raise DataError(f"--set {text!r}: {error}") from None
    return found


def changed(params: Params, changes: Mapping[str, Any]) -> Params:
    """Parameters with dotted keys changed, checked as the file would be.

    Raises:
        ParamsError: naming an unknown key or invalid value.
    """
    tree = params.model_dump(mode="json")
    for key, value in changes.items():
        put(tree, key, value)
    return parse(tree)
