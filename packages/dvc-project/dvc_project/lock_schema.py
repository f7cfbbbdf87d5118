"""What DVC asks of a ``dvc.lock``: it refuses every other file, and says why in the words used here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA = "2.0"  # of DVC 2 and 3
_MD5S = ("md5", "etag", "checksum")


def fault(tree: Any) -> str | None:
    """The first thing that DVC would find wrong; None for a file that it takes."""
    if not isinstance(tree, Mapping):
        return "expected a dictionary"
    if "schema" not in tree:
        return "required key not provided, in schema"
    if tree["schema"] != SCHEMA:
        return "invalid schema version, in schema"
    stages = tree.get("stages", {})
    if not isinstance(stages, Mapping):
        return "expected a dictionary, in stages"
    found = (_fault_of(entry, f"stages -> {name}") for name, entry in stages.items())
    return next((text for text in found if text), None)


def _fault_of(entry: Any, where: str) -> str | None:
    if not isinstance(entry, Mapping):
        return f"expected a dictionary, in {where}"
    if not isinstance(entry.get("cmd"), str | list):
        return f"expected a str or a list, in {where} -> cmd"
    files = entry.get("params", {})
    if not isinstance(files, Mapping) or not all(isinstance(values, Mapping) for values in files.values()):
        return f"expected a dictionary, in {where} -> params"
    return _fault_in(entry.get("deps", []), f"{where} -> deps") or _fault_in(entry.get("outs", []), f"{where} -> outs")


def _fault_in(listed: Any, where: str) -> str | None:
    if not isinstance(listed, list):
        return f"expected a list, in {where}"
    for place, one in enumerate(listed):
        if not isinstance(one, Mapping) or not isinstance(one.get("path"), str):
            return f"required key not provided, in {where} -> {place} -> path"
        if wrong := next((key for key in _MD5S if not isinstance(one.get(key, ""), str)), None):
            return f"not a valid value, in {where} -> {place} -> {wrong}"
    return None
