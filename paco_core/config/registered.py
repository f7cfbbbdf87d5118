"""Names that ``params.yaml`` may give because a table of the library holds them.

The table is read from the source: importing it would load torch, and ``paco check`` starts fast. So a loss, a dynamics,
an aggregator or a model family is registered in one place, its table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from paco_core.io.messages import nearest

LIBRARY = Path(__file__).parents[1]
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:function, of the user's own


@cache
def names_of(file: str, table: str) -> tuple[str, ...]:
    """The keys of a dictionary as a module writes it down.

    Args:
        file: of the module, relative to the package, ``grpo/losses.py``, or absolute.

    Raises:
        LookupError: when the module has no such dictionary.
    """
    for node in ast.parse((LIBRARY / file).read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == table and isinstance(value, ast.Dict):
            return tuple(str(ast.literal_eval(key)) for key in value.keys if key is not None)
    raise LookupError(f"{file}: no dictionary {table}")


def registered(
    file: str, table: str, *more: str, functions: bool = False, removed: Mapping[str, str] | None = None
) -> AfterValidator:
    """Accept the names of a table, ``more`` that mean something else there, and ``module:function`` where allowed.

    Args:
        removed: names of earlier versions, with the text of the error: since when each is gone and what to use instead.
    """

    def check(value: str) -> str:
        if removed and value in removed:
            raise PydanticCustomError("removed", "{advice}", {"advice": removed[value]})
        names = (*names_of(file, table), *more)
        if value not in names and not (functions and FUNCTION.fullmatch(value)):
            shown = [*map(repr, names), *(["module:function"] if functions else [])]
            listed = " or ".join([", ".join(shown[:-1]), shown[-1]])
            near = nearest(value, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise PydanticCustomError("registered", "Input should be {listed}{hint}", {"listed": listed, "hint": hint})
        return value

    return AfterValidator(check)
