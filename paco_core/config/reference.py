"""Every parameter with its meaning, type, bounds and values: for `paco params`, the reference page and editors."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paco_core.config import profiles
from paco_core.config.execution import EXECUTION, places
from paco_core.config.params import Params
from paco_core.config.params_training import PolicyTraining
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.messages import meant

PAGE = Path("docs") / "reference" / "parameters.md"
SCHEMA = Path("docs") / "reference" / "params.schema.json"
MARK = "<!-- written by `paco params --write` from paco_core/config; change it there -->"
GENERAL = "general"  # keys of no section
SHARED = ("ChatParams", "PredictorParams", "EditPainter")  # sections that stand in several places, described once
TITLES = {
    "ChatParams": "chat models: every `endpoint`",
    "PredictorParams": "predictors: `vqascore` and `aesthetics`",
    "EditPainter": "each of `edits.painters`",
}
RECIPE = "policies.recipes.*."
COMPARED = ("storybook", "paper")
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A key, with ``*`` for names of the user's own; ``default`` is None where the key must be given."""

    key: str
    meaning: str
    values: str
    default: str | None

    @property
    def section(self) -> str:
        head, dot, _ = self.key.partition(".")
        return head if dot else GENERAL


def schema() -> dict[str, Any]:
    """The JSON schema of ``params.yaml`` and of a profile; no key is required, as in a profile."""
    whole = _schema_of_file()
    for part in (whole, *whole["$defs"].values()):
        part.pop("required", None)
        for found in part.get("properties", {}).values():
            found.pop("title", None)  # pydantic repeats the key there
            if "description" in found:
                found["description"] = _on_one_line(found["description"])
    whole["properties"][profiles.EXTENDS] = {"type": "string", "description": "profile that this one changes"}
    whole["title"] = "params.yaml"
    return whole


def _schema_of_file() -> dict[str, Any]:
    """As pydantic makes it of the code's models, with the parameters of how to run below ``execution``."""
    whole = Params.model_json_schema()
    defs = whole["$defs"]
    for place, key in places(Params).items():
        found = whole
        *sections, name = key.split(".")
        for section in sections:
            found = defs[_inner(found["properties"][section])[0]]
        moving = found["properties"].pop(name)
        target, above = _execution(whole, ""), place.split(".")[1:-1]
        for section in above:
            target = _execution(whole, section)
        target[place.rpartition(".")[2]] = moving
    return whole


def _execution(whole: dict[str, Any], section: str) -> dict[str, Any]:
    """The properties of ``execution``, or of a section in it, made where they are not there yet."""
    name = f"Execution{section.capitalize()}"
    if name not in whole["$defs"]:
        whole["$defs"][name] = {"type": "object", "additionalProperties": False, "properties": {}}
        holder = whole["properties"] if not section else _execution(whole, "")
        holder[section or EXECUTION] = {"$ref": f"#/$defs/{name}"}
    made: dict[str, Any] = whole["$defs"][name]["properties"]
    return made


def parameters() -> list[Parameter]:
    """Every parameter, in the order of the file: those of no section first, those of shared sections last."""
    whole = _schema_of_file()
    defs = whole["$defs"]
    found = [*_section(whole, "", defs), *(p for name in SHARED for p in _section(defs[name], f"{name}.", defs))]
    return sorted(found, key=lambda parameter: parameter.section != GENERAL)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _section(section: Tree, prefix: str, defs: Tree) -> Iterator[Parameter]:
    for name, found in section["properties"].items():
        key = f"{prefix}{name}"
        inner, star = _inner(found)
        if inner is None or inner in SHARED:
            default = _yaml(found["default"]) if "default" in found else None
            yield Parameter(key, _on_one_line(found.get("description", "")), _values(found), default)
        else:
            yield from _section(defs[inner], f"{key}.*." if star else f"{key}.", defs)


def _inner(found: Tree) -> tuple[str | None, bool]:
    """The section that a key holds, and whether it holds several by name."""
    for part in (found, *found.get("anyOf", ()), *found.get("allOf", ())):
        if "$ref" in part:
            return part["$ref"].rpartition("/")[2], False
    more = found.get("additionalProperties")
    return (_inner(more)[0], True) if isinstance(more, dict) else (None, False)


def _values(found: Tree) -> str:
    """Types, allowed values and bounds of a key, for people."""
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(_values(part) for part in found["anyOf"]))
    if chosen := found.get("enum", [found["const"]] if "const" in found else None):
        return ", ".join(f"`{value}`" for value in chosen)
    kind, more = found.get("type", "section"), found.get("additionalProperties")
    if kind == "array":
        least = f", at least {found['minItems']}" if found.get("minItems") else ""
        return f"list of {_values(found['items'])}{least}"
    if kind == "object":
        return f"mapping to {_values(more)}" if isinstance(more, dict) and more else "mapping"
    bounds = ", ".join(f"{text} {_bound(found[name])}" for name, text in BOUNDS.items() if name in found)
    return f"{'`null`' if kind == 'null' else kind} {bounds}".strip()


def _bound(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) or (abs(number) < 1000 and number % 1) else f"{number:,.0f}"


def _yaml(value: Any) -> str:
    """A value as it is written in the file, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _at(tree: Any, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(names in the place of ``*``, value) of a key in a profile; nothing where it is left out."""
    if not parts:
        yield "", _yaml(json.loads(json.dumps(profiles.plain(tree))))  # without the types that keep how it was written
    elif isinstance(tree, dict):
        for name in tree if parts[0] == "*" else [n for n in tree if n == parts[0]]:
            for names, value in _at(tree[name], parts[1:]):
                yield (f"{name}.{names}".rstrip(".") if parts[0] == "*" else names), value


def _to_the_last_star(key: str) -> list[str]:
    head, star, _ = key.rpartition("*")
    return f"{head}{star}".split(".") if star else key.split(".")


def value(tree: Any, parameter: Parameter) -> str:
    """What a profile says of a parameter: one value, or each by name; in brackets the default where it says nothing."""
    found = dict(_at(tree, parameter.key.split(".")))
    if not found:
        return "" if parameter.default is None else f"({parameter.default})"
    everyone = {names for names, _ in _at(tree, _to_the_last_star(parameter.key))}
    if len(set(found.values())) == 1 and set(found) == everyone:
        return next(iter(found.values()))
    return "; ".join(f"{name}: {text}" for name, text in found.items())


def markdown(root: Path) -> str:
    """The tables of the reference page.

    Raises:
        ParamsError: when a profile that is compared cannot be read.
    """
    trees = [profiles.resolve(root, name) for name in COMPARED]
    lines, section = list[str](), ""
    for parameter in parameters():
        if parameter.section != section:
            section = parameter.section
            title = TITLES.get(section, section)
            lines += ["", f"## {title}", "", *_head(section in SHARED)]
        key = parameter.key.partition(".")[2] if section in SHARED else parameter.key
        cells = [f"`{key}`", parameter.meaning, parameter.values]
        if section in SHARED:
            cells.append("" if parameter.default is None else f"{parameter.default}")
        else:
            first, second = (value(tree, parameter) for tree in trees)
            if not (first or second) and _inherited(parameter.key):
                continue
            cells += [first, "" if second == first else second]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip()


def _inherited(key: str) -> bool:
    """Whether a recipe has a key from the defaults, but where it sets it itself."""
    return key.startswith(RECIPE) and key.removeprefix(RECIPE).partition(".")[0] in PolicyTraining.model_fields


def _head(shared: bool) -> list[str]:
    columns = ["key", "meaning", "values", *(["default"] if shared else COMPARED)]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def text(root: Path, patterns: Sequence[str]) -> Answer:
    """Parameters whose keys match, with meaning and values, for a terminal.

    Args:
        patterns: keys, beginnings or last names of keys, or shell patterns (``policies.*.noise_level``); a recipe's
            name may stand where the key has a star; none = all.

    Raises:
        DataError: when nothing matches.
    """
    trees = {name: profiles.resolve(root, name) for name in COMPARED}
    lines, figures = list[str](), list[dict[str, Any]]()
    for parameter in parameters():
        if patterns and not any(_matches(parameter.key, pattern) for pattern in patterns):
            continue
        lines += [parameter.key, f"    {parameter.meaning}", f"    {parameter.values}"]
        by_profile = {name: value(tree, parameter) for name, tree in trees.items()}
        lines += [f"    {name}: {given}" for name, given in by_profile.items() if given]
        figures.append({**to_jsonable(parameter), "profiles": by_profile})
    if not lines:
        names = sorted({name for parameter in parameters() for name in (parameter.key, parameter.key.split(".")[-1])})
        hints = "".join(meant(pattern, names) for pattern in patterns)
        raise DataError(f"no parameter matches {', '.join(patterns)}; {hints}`paco params` lists all of them")
    return Answer("\n".join(lines), figures)


def _matches(key: str, pattern: str) -> bool:
    parts, asked = key.split("."), pattern.split(".")
    begins = len(asked) <= len(parts) and all(one in ("*", two) for one, two in zip(parts, asked, strict=False))
    return begins or parts[-1] == pattern or fnmatch.fnmatchcase(key, pattern)


def page(root: Path) -> str:
    """The reference page with its tables as they are now.

    Raises:
        DataError: when the page has lost its mark.
    """
    before, mark, _ = (root / PAGE).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise DataError(f"{PAGE}: the mark {MARK!r} is missing")
    return f"{before}{MARK}\n\n{markdown(root)}\n"


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def write(root: Path) -> list[Path]:
    """Write the reference page and the JSON schema; returns both paths."""
    for path, content in ((PAGE, page(root)), (SCHEMA, schema_text())):
        with atomic(root / path) as part:
            part.write_text(content, encoding="utf-8")
    return [PAGE, SCHEMA]
