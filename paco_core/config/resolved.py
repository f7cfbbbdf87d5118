"""Resolved parameters: the values that a stage computes with, where they are not what ``params.yaml`` spells.

Such a value is a default, a shared number of ``policies.defaults`` in a recipe, a parameter of a round, or a property
of a section. A changed default, merge or property therefore changes a stage's key as an edited number does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

from paco_core.config.execution import execution_fields
from paco_core.config.params import Params
from paco_core.config.params_base import Section
from paco_core.config.params_policies import PolicyRecipe
from paco_core.config.params_training import PolicyTraining
from paco_core.io.files import digest

MISSING = object()
SHARED = "policies.defaults"


def resolved_values(params: Params, keys: Iterable[str]) -> dict[str, Any]:
    """The values of dotted keys, as JSON has them: key -> value, a section as a mapping of fields and properties.

    Parameters of ``execution`` do not count. A recipe has its own numbers, and those shared ones that ``keys`` name.

    Args:
        params: those of the stage (:func:`paco_core.runtime.rounds.params_of`).
        keys: of ``params.yaml``, as a stage of ``dvc.yaml`` declares them. Absent ones are left out.
    """
    keys = list(keys)
    shared = {name for key in keys for name in _shared_numbers(key)}
    values = {key: lookup(params, key) for key in keys}
    return {key: _plain(value, shared) for key, value in values.items() if value is not MISSING}


def resolved_section(section: Section) -> dict[str, Any]:
    """Fields and properties of a section without parameters of ``execution``, for keys of what is computed from it."""
    parts: dict[str, Any] = _plain(section, PolicyTraining.model_fields.keys())
    return parts


def unspelled(values: Mapping[str, Any], spelled: Mapping[str, Any]) -> dict[str, Any]:
    """Those of :func:`resolved_values` that the tree of ``params.yaml`` does not spell: dotted key -> value."""
    return {name: value for key, tree in values.items() for name, value in _differing(tree, lookup(spelled, key), key)}


def lookup(tree: Any, dotted: str) -> Any:
    """The value of a dotted key in sections and mappings; :data:`MISSING` where there is none."""
    for part in dotted.split("."):
        tree = tree.get(part, MISSING) if isinstance(tree, Mapping) else getattr(tree, part, MISSING)
        if tree is MISSING:
            return MISSING
    return tree


def _shared_numbers(key: str) -> Set[str]:
    if key == SHARED or SHARED.startswith(f"{key}."):
        return PolicyTraining.model_fields.keys()
    return {key.split(".")[2]} if key.startswith(f"{SHARED}.") else set()


def _plain(value: Any, shared: Set[str]) -> Any:
    """Sections as mappings of fields, without those of ``execution``, and properties; large properties by digest."""
    if isinstance(value, Section):
        return {name: _plain(part, shared) for name, part in _parts(value, shared).items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(part, shared) for name, part in value.items()}
    return [_plain(part, shared) for part in value] if isinstance(value, list | tuple) else value


def _parts(section: Section, shared: Set[str]) -> dict[str, Any]:
    kind = type(section)
    fields = kind.model_fields.keys() - execution_fields(kind)
    if isinstance(section, PolicyRecipe):
        fields &= section.model_fields_set | shared | (kind.model_fields.keys() - PolicyTraining.model_fields.keys())
    parts = {name: getattr(section, name) for name in kind.model_fields if name in fields}
    declared = kind.model_construct(**parts)
    for name in properties(kind):
        with suppress(AttributeError):  # it follows from a number that the stage does not declare
            value = _plain(getattr(declared, name), shared)
            parts[name] = digest(value, 16) if isinstance(value, dict) else value
    return parts


def properties(kind: type[Section]) -> list[str]:
    """Names of the properties of a section, those of pydantic left out."""
    bases = (base for base in kind.__mro__ if issubclass(base, Section))
    return sorted({name for base in bases for name, value in vars(base).items() if isinstance(value, property)})


def _differing(value: Any, spelled: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        below = spelled if isinstance(spelled, Mapping) else {}
        for name, part in value.items():
            yield from _differing(part, below.get(name, MISSING), f"{key}.{name}")
    elif isinstance(spelled, str) and spelled.startswith("~"):
        return  # a path, whose home folder differs between users
    elif value != spelled and not (value is None and spelled is MISSING):
        yield key, value
