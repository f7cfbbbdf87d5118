"""Parameter overrides of one command, ``key=value``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dvc_project.yaml import parse_yaml
from paco_core.config.execution import put
from paco_core.config.params import Params, parse
from paco_core.io.files import DataError


def changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` texts into dotted keys and YAML values.

    Raises:
        DataError: when a text has no ``=``, or its value is not YAML.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise DataError(f"--set {text!r}: expected key=value, as in reward.epochs=1")
        try:
            changes[key] = parse_yaml(value)
        except DataError as error:
            raise DataError(f"--set {text!r}: {error}") from None
    return changes


def changed(params: Params, changes: Mapping[str, Any]) -> Params:
    """Parameters with changed dotted keys, validated like a file.

    Raises:
        ParamsError: for an unknown key or an invalid value.
    """
    tree = params.model_dump(mode="json")
    for key, value in changes.items():
        put(tree, key, value)
    return parse(tree)
