"""Registered names: values of ``params.yaml`` that are the keys of a table of the library.

A loss, a dynamics, an aggregator or a model family is registered in one place, its table. The table is read from the
source code, because an import would load torch, and ``paco check`` must start fast.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import AfterValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from paco_core.io.messages import nearest

LIBRARY = Path(__file__).parents[1]
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:function, a custom function
FUNCTION_PATTERN = f"^{FUNCTION.pattern}$"


@cache
def names_of(file: str, table: str) -> tuple[str, ...]:
    """The keys of a dictionary literal in the source code of a module.

    Args:
        file: of the module, relative to the package (``grpo/losses.py``), or absolute.

    Raises:
        LookupError: when the module has no such dictionary.
    """
    for node in ast.parse((LIBRARY / file).read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == table and isinstance(value, ast.Dict):
            return tuple(str(ast.literal_eval(key)) for key in value.keys if key is not None)
    raise LookupError(f"{file}: no dictionary {table}")


@dataclass(frozen=True, slots=True)
class RegisteredNames(AfterValidator):
    """The validator of :func:`registered`, which also lists the names in the JSON schema."""

    file: str
    table: str
    extra: tuple[str, ...]
    functions: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (*names_of(self.file, self.table), *self.extra)

    def __get_pydantic_json_schema__(
        self, inner: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        names = {"type": "string", "enum": list(self.names)}
        return {"anyOf": [names, {"type": "string", "pattern": FUNCTION_PATTERN}]} if self.functions else names


def registered(
    file: str, table: str, *extra: str, functions: bool = False, removed: Mapping[str, str] | None = None
) -> RegisteredNames:
    """A validator that accepts the names of a table.

    Args:
        file: of the module with the table, relative to the package.
        extra: names to accept that are not in the table.
        functions: accept ``module:function``, too.
        removed: names of earlier versions, with the text of the error: the version that removed it and what to use.
    """

    def validate(value: str) -> str:
        if removed and value in removed:
            raise PydanticCustomError("removed", "{advice}", {"advice": removed[value]})
        names = (*names_of(file, table), *extra)
        if value not in names and not (functions and FUNCTION.fullmatch(value)):
            choices = [*map(repr, names), *(["module:function"] if functions else [])]
            choices_text = " or ".join([", ".join(choices[:-1]), choices[-1]])
            near = nearest(value, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise PydanticCustomError(
                "registered", "Input should be {listed}{hint}", {"listed": choices_text, "hint": hint}
            )
        return value

    return RegisteredNames(validate, file, table, extra, functions)
