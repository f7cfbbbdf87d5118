"""Reference of the parameters: meaning, type and values of each key, for `paco params`, the docs and editors."""

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
from paco_core.config.params_base import MAX_PORT
from paco_core.config.params_training import PolicyTraining
from paco_core.config.registered import FUNCTION_PATTERN
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean

PAGE = Path("docs") / "reference" / "parameters.md"
SCHEMA = Path("docs") / "reference" / "params.schema.json"
MARK = "<!-- written by `paco params --write` from paco_core/config; change it there -->"
GENERAL = "general"  # keys of no section
#: Sections that occur in several places, and the prefix of their keys. They are described once.
SHARED = {"ChatParams": "endpoint", "PredictorParams": "predictor", "EditPainter": "painter"}
DEFAULTS, RECIPE = "policies.defaults.", "policies.recipes.*."
REWARDS, TEST_REWARDS = f"{RECIPE}rewards.", f"{RECIPE}test_rewards."
COMPARED = ("storybook", "paper")
#: Tables with a default of each key in place of its values in profiles.
WITH_DEFAULTS = (RECIPE, REWARDS, *(f"{prefix}." for prefix in SHARED.values()))
INTROS = {
    f"{GENERAL}.": "Keys at the top level of the file.",
    "prompts.": "Prompts of the image sets.",
    "diverse_prompts.": "Selection of prompts that differ from each other.",
    "grids.": "Images that the annotator ranks.",
    "annotations.": "Rankings of the images.",
    "edit_prompts.": "Instructions and images for editing policies.",
    "edits.": "Edited images, as training data of the reward model.",
    "pairs.": "Labelled image pairs, and their split.",
    "cot_labels.": "Reasons for the label of each pair.",
    "reward.": "Training of the reward model. See [train a reward model](../how-to/train-reward-model.md).",
    "serving.": "Server of the reward model. See [serving](serving.md).",
    DEFAULTS: "Values that all recipes share. See [train a policy](../how-to/train-a-policy.md).",
    RECIPE: "Each entry of `policies.recipes` trains one policy. It can override every key of `policies.defaults`; "
    "`null` keeps the default.",
    REWARDS: "`test_rewards` has the same keys. Evaluations use it; if it is missing, they use `rewards`. "
    "See [rewards](rewards.md).",
    "consistency_rank.": "Benchmark of the reward model on rankings. See [benchmarks](benchmarks.md).",
    "edit_reward.": "Benchmark of the reward model on edits.",
    "t2is.": "Benchmark of the policies that generate sets.",
    "t2is_bench.": "T2IS-Bench on the images of the stage `t2is`. If a section is `null`, paco skips its metric.",
    "vistory.": "ViStoryBench on the stories of the stage `t2is`.",
    "gedit.": "Benchmark of the editing policies. If `viescore` is `null`, paco skips VIEScore.",
    "rounds.": "Repeated training of reward model and policy. See [rounds](../how-to/rounds.md).",
    "execution.": "Resources and limits. No result depends on them.",
    "endpoint.": "Keys of every section `endpoint`: a chat model.",
    "predictor.": "Keys of `vqascore` and `aesthetics` in `t2is_bench`.",
    "painter.": "Keys of each entry of `edits.painters`.",
}
#: Larger upper bounds only detect typing errors: the reference does not show them.
MAX_SHOWN = 1_000
MAX_CELL = 60  # characters of a mapping in a cell
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A key, with ``*`` for names that the user chooses; ``default`` is None if the key is required."""

    key: str
    meaning: str
    values: str
    default: str | None

    @property
    def section(self) -> str:
        head, dot, _ = self.key.partition(".")
        return head if dot else GENERAL

    @property
    def table(self) -> str:
        """The prefix of the keys in its table of the page."""
        prefixes = (prefix for prefix in (REWARDS, TEST_REWARDS, RECIPE, DEFAULTS) if self.key.startswith(prefix))
        return next(prefixes, f"{self.section}.")


def schema() -> dict[str, Any]:
    """The JSON schema of ``params.yaml`` and of a profile; no key is required, as in a profile."""
    root = _schema_of_file()
    for section in (root, *root["$defs"].values()):
        section.pop("required", None)
        for key_schema in section.get("properties", {}).values():
            key_schema.pop("title", None)  # pydantic repeats the key there
            if "description" in key_schema:
                key_schema["description"] = _on_one_line(key_schema["description"])
    root["properties"][profiles.EXTENDS] = {"type": "string", "description": "Profile that this profile changes."}
    root["title"] = "params.yaml"
    return root


def _schema_of_file() -> dict[str, Any]:
    """The schema that pydantic generates, with the parameters of how to run below ``execution``."""
    root = Params.model_json_schema()
    definitions = root["$defs"]
    for place, key in places(Params).items():
        section = root
        *names, last = key.split(".")
        for name in names:
            section = definitions[_section_name(section["properties"][name])[0]]
        key_schema = section["properties"].pop(last)
        target = _execution(root, "")
        for name in place.split(".")[1:-1]:
            target = _execution(root, name)
        target[place.rpartition(".")[2]] = key_schema
    return root


def _execution(root: dict[str, Any], section: str) -> dict[str, Any]:
    """The properties of ``execution``, or of a section in it. A missing section is added."""
    name = f"Execution{section.capitalize()}"
    if name not in root["$defs"]:
        root["$defs"][name] = {"type": "object", "additionalProperties": False, "properties": {}}
        parent = root["properties"] if not section else _execution(root, "")
        parent[section or EXECUTION] = {"$ref": f"#/$defs/{name}"}
    properties: dict[str, Any] = root["$defs"][name]["properties"]
    return properties


def parameters() -> list[Parameter]:
    """Every parameter, in the order of the file: those of no section first, those of shared sections last."""
    root = _schema_of_file()
    definitions = root["$defs"]
    rows = list(_section(root, "", definitions))
    for name, prefix in SHARED.items():
        rows += _section(definitions[name], f"{prefix}.", definitions)
    return sorted(rows, key=lambda parameter: parameter.section != GENERAL)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _section(section: Tree, prefix: str, definitions: Tree) -> Iterator[Parameter]:
    for name, key_schema in section["properties"].items():
        key = f"{prefix}{name}"
        inner, is_mapping = _section_name(key_schema)
        if inner is None or inner in SHARED:
            default = _yaml(key_schema["default"]) if "default" in key_schema else None
            meaning, values = _on_one_line(key_schema.get("description", "")), _type_text(key_schema)
            if "`null`" in meaning:  # the meaning explains it
                values = values.removesuffix(" or `null`")
            yield Parameter(key, meaning, values, default)
        else:
            yield from _section(definitions[inner], f"{key}.*." if is_mapping else f"{key}.", definitions)


def _section_name(key_schema: Tree) -> tuple[str | None, bool]:
    """The section in a key's schema, and whether the key maps names to such sections."""
    for part in (key_schema, *key_schema.get("anyOf", ()), *key_schema.get("allOf", ())):
        if "$ref" in part:
            return part["$ref"].rpartition("/")[2], False
    values = key_schema.get("additionalProperties")
    return (_section_name(values)[0], True) if isinstance(values, dict) else (None, False)


def _type_text(key_schema: Tree, plural: str = "") -> str:
    """Type, allowed values and bounds of a key, for people.

    Args:
        plural: ending of the type's name, "s" for the type of a list's items.
    """
    if "anyOf" in key_schema:
        alternatives = [inner for part in key_schema["anyOf"] for inner in part.get("anyOf", [part])]
        parts = list(dict.fromkeys(_type_text(part, plural) for part in alternatives))
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    if choices := key_schema.get("enum", [key_schema["const"]] if "const" in key_schema else None):
        return ", ".join(f"`{value}`" for value in choices)
    if "$ref" in key_schema:
        shared = SHARED.get(key_schema["$ref"].rpartition("/")[2])
        return f"section{plural}" + (f" `{shared}`" if shared else "")
    if key_schema.get("pattern") == FUNCTION_PATTERN:
        return "`module:function`"
    return _basic_type_text(key_schema, plural)


def _basic_type_text(key_schema: Tree, plural: str) -> str:
    kind, values = key_schema.get("type"), key_schema.get("additionalProperties")
    if kind == "array":
        size = "non-empty " if key_schema.get("minItems") else ""
        return f"{size}list of {_type_text(key_schema['items'], 's')}"
    if kind == "object":
        return f"mapping of names to {_type_text(values, 's')}" if isinstance(values, dict) and values else "mapping"
    if kind in ("integer", "number"):
        return _number(key_schema, f"{kind}{plural}")
    return "`null`" if kind == "null" else f"{kind}{plural}"


def _number(key_schema: Tree, kind: str) -> str:
    """The type of a number with its bounds. Bounds that only detect typing errors are left out."""
    low, high, above = (key_schema.get(bound) for bound in ("minimum", "maximum", "exclusiveMinimum"))
    if high is not None and high > MAX_SHOWN and high != MAX_PORT:
        high = None
    if low is not None and low < -MAX_SHOWN:
        low = None
    if low is not None:
        return f"{kind} from {low:g}" if high is None else f"{kind} {low:g} to {high:,g}"
    if high is None:
        return kind if above is None else f"positive {kind}" if above == 0 else f"{kind} above {above:g}"
    return f"{kind} above {above:g} to {high:g}"


def _yaml(value: Any) -> str:
    """A value as it is written in the file, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _values_by_name(tree: Any, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(names in the place of ``*``, value) of a key in a profile; nothing if the profile leaves the key out."""
    if not parts:
        yield "", _yaml(json.loads(json.dumps(profiles.plain(tree))))  # without ruamel's types
    elif isinstance(tree, dict):
        for name in tree if parts[0] == "*" else [n for n in tree if n == parts[0]]:
            for names, value in _values_by_name(tree[name], parts[1:]):
                yield (f"{name}.{names}".rstrip(".") if parts[0] == "*" else names), value


def _to_the_last_star(key: str) -> list[str]:
    head, star, _ = key.rpartition("*")
    return f"{head}{star}".split(".") if star else key.split(".")


def value(tree: Any, parameter: Parameter) -> str:
    """The value of a parameter in a profile, or the value of each name; the default is in brackets."""
    by_name = dict(_values_by_name(tree, parameter.key.split(".")))
    if not by_name:
        return "" if parameter.default is None else f"({parameter.default})"
    all_names = {names for names, _ in _values_by_name(tree, _to_the_last_star(parameter.key))}
    if len(set(by_name.values())) == 1 and set(by_name) == all_names:
        return next(iter(by_name.values()))
    return "; ".join(f"{name}: {text}" for name, text in by_name.items())


def markdown(root: Path) -> str:
    """The tables of the reference page.

    Raises:
        ParamsError: when a profile that is compared cannot be read.
    """
    trees = [profiles.resolve(root, name) for name in COMPARED]
    lines, table = list[str](), ""
    for parameter in parameters():
        if parameter.table == TEST_REWARDS or _is_override(parameter.key):
            continue
        if parameter.table != table:
            table = parameter.table
            columns = ["key", "meaning", "type", *(["default"] if table in WITH_DEFAULTS else COMPARED)]
            lines += ["", f"## {table.removesuffix('.')}", "", INTROS[table], ""]
            lines += ["|" + "|".join(columns) + "|", "|" + "---|" * len(columns)]
        if table in WITH_DEFAULTS:
            key = parameter.key.removeprefix(table)
            values = ["required" if parameter.default is None else parameter.default]
        else:
            key, (first, second) = parameter.key, (_cell(value(tree, parameter)) for tree in trees)
            values = [first, "" if second == first else second]
        cells = [f"`{key}`", parameter.meaning, parameter.values, *values]
        lines.append("|" + "|".join(cell.replace("|", "\\|") for cell in cells) + "|")
    return "\n".join(lines).strip()


def _is_override(key: str) -> bool:
    """Whether a key of a recipe overrides a key of ``policies.defaults``."""
    return key.startswith(RECIPE) and key.removeprefix(RECIPE).partition(".")[0] in PolicyTraining.model_fields


def _cell(text: str) -> str:
    return "see the profile" if "{" in text and len(text) > MAX_CELL else text


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
        lines += [f"    {name}: {value_text}" for name, value_text in by_profile.items() if value_text]
        figures.append({**to_jsonable(parameter), "profiles": by_profile})
    if not lines:
        names = sorted({name for parameter in parameters() for name in (parameter.key, parameter.key.split(".")[-1])})
        hints = "".join(did_you_mean(pattern, names) for pattern in patterns)
        raise DataError(f"no parameter matches {', '.join(patterns)}; {hints}`paco params` lists all of them")
    return Answer("\n".join(lines), figures)


def _matches(key: str, pattern: str) -> bool:
    parts, pattern_parts = key.split("."), pattern.split(".")
    begins = len(pattern_parts) <= len(parts) and all(
        part in ("*", two) for part, two in zip(parts, pattern_parts, strict=False)
    )
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


def write_parameter_docs(root: Path) -> list[Path]:
    """Write the reference page and the JSON schema; returns both paths."""
    for path, content in ((PAGE, page(root)), (SCHEMA, schema_text())):
        with atomic(root / path) as part:
            part.write_text(content, encoding="utf-8")
    return [PAGE, SCHEMA]
