"""Keys of ``params.yaml`` in the documentation: each exists, and a reader can see its section."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.config.reference import schema
from tests.support import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if path.name != "parameters.md"),  # generated
    *sorted((REPOSITORY / "profiles").glob("*.md")),
]
DATED = REPOSITORY / "docs" / "results"  # they describe the commit that they name
KEY = re.compile(r"[a-z_]\w*(\.[\w*<>-]+)+")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


Schema = dict[str, Any]


def parts_of(node: Schema) -> list[Schema]:
    """The schemas that a value may follow: itself, alternatives and referenced sections."""
    nodes = [node, *(part for key in ("anyOf", "allOf", "oneOf") for part in node.get(key, ()))]
    return [SCHEMA["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part for part in nodes]


def exists(key: Sequence[str], node: Schema) -> bool:
    """Whether a value of ``node`` may have this key; ``*`` and ``<name>`` stand for any name of the user."""
    if not key:
        return True
    head, *tail = key
    for part in parts_of(node):
        if head in part.get("properties", {}):
            return exists(tail, part["properties"][head])
        extra = part.get("additionalProperties")
        if isinstance(extra, dict) and exists(tail, extra):
            return True
        if part.get("type") == "object" and "properties" not in part and (extra is True or extra is None):
            return True  # free values, for example the options of a request
        if part.get("type") == "array" and exists(key, part.get("items", {})):
            return True
        if part is not node and part.get("anyOf") and exists(key, part):
            return True
    return False


def keys_below(node: Schema, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key; ``*`` is a name that the user chooses."""
    for part in parts_of(node):
        for name, value in part.get("properties", {}).items():
            yield (*above, name)
            yield from keys_below(value, (*above, name))
        if isinstance(inner := part.get("additionalProperties"), dict):
            yield from keys_below(inner, (*above, "*"))
        if isinstance(inner := part.get("items"), dict):
            yield from keys_below(inner, above)


SCHEMA = schema()
SECTIONS = set(SCHEMA["properties"])
#: A key that is no section -> the sections that have it, as a page may write them.
OWNERS: dict[str, set[str]] = {}
for *owner, key in keys_below(SCHEMA):
    if owner and key not in SECTIONS:
        OWNERS.setdefault(key, set()).add(".".join(owner).removesuffix(".*"))
TAGS = {"reward.endpoint"}  # of runs in MLflow
FILES = (".jsonl", ".json", ".yaml", ".md", ".py", ".csv", ".parquet", ".html", ".toml")


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def mentioned_keys(text: str) -> Iterator[str]:
    """Dotted keys in code font and in commands (``-S policies.defaults.epochs=2``)."""
    for span in SPAN.findall(prose(text)):
        for match in KEY.finditer(span.split("=")[0].split(": ")[0].rstrip(":")):
            if match.group() == span.split("=")[0].split(": ")[0].rstrip(":"):
                yield match.group()
    for _, _, body in BLOCK.findall(text):
        yield from re.findall(r"-S ['\"]?\+?([a-z_]\w*(?:\.[\w-]+)+)=", body)


def yaml_keys(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield (*above, str(name))
            yield from yaml_keys(value, (*above, str(name)))


def yaml_blocks(text: str) -> Iterator[tuple[str, ...]]:
    """The keys of YAML blocks that are parts of ``params.yaml``."""
    for _, language, body in BLOCK.findall(text):
        if language in ("yaml", "yml"):
            try:
                tree = yaml.safe_load(body)
            except yaml.YAMLError:  # an extract with ellipses
                continue
            if isinstance(tree, dict) and set(tree) <= SECTIONS | {"extends"} and "_target_" not in body:
                yield from yaml_keys(tree)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_key_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    mentioned = {key for key in mentioned_keys(text) if key.split(".")[0] in SECTIONS and not key.endswith(FILES)}
    wrong = {key for key in mentioned - TAGS if not exists(key.split("."), SCHEMA)}
    wrong |= {".".join(key) for key in yaml_blocks(text) if key[0] != "extends" and not exists(key, SCHEMA)}
    assert wrong == set()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if DATED not in page.parents], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_a_key_is_shown_with_its_section(page: Path) -> None:
    text = page.read_text()
    qualified = {part for key in mentioned_keys(text) for part in key.split(".")}
    qualified |= {part for key in yaml_blocks(text) for part in key}
    bare = {match.group(1) for span in SPAN.findall(prose(text)) if (match := re.fullmatch(r"([a-z]\w*):( .*)?", span))}
    bare |= {span for span in SPAN.findall(prose(text)) if "_" in span}
    unclear = {key for key in bare & OWNERS.keys() if not any(f"`{owner}" in text for owner in OWNERS[key])}
    assert unclear - qualified == set()
