"""The table of packages whose terms reach further than Apache's: computed from the pins that are installed here."""

from __future__ import annotations

import re
from importlib import metadata

from tests.support import REPOSITORY

PAGE = REPOSITORY / "THIRD_PARTY.md"
COPYLEFT = re.compile(r"\b[AL]?GPL|GNU |\bMPL|Mozilla Public|\bEPL|\bEUPL|\bCDDL|\bOSL|\bCC-BY-SA", re.IGNORECASE)
STATED = 100  # characters of a field that names a licence; longer ones quote it, and those that it bundles
SHORT = {"Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: str) -> set[str]:
    text = (REPOSITORY / lock).read_text()
    return {normal(name) for name in re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[[^]]*])?==", text, re.MULTILINE)}


def licence(name: str) -> str:
    """In the words of a package's metadata: the expression, the field, or the classifiers."""
    about = metadata.metadata(name)
    field = about.get("License-Expression") or about.get("License") or ""
    if field and len(field) < STATED and field != "UNKNOWN":
        return re.sub(r"\s*\|\s*", ", ", field)
    classifiers = [
        classifier.split(" :: ")[-1]
        for classifier in about.get_all("Classifier", [])
        if classifier.startswith("License ::")
    ]
    return ", ".join(SHORT.get(classifier, classifier) for classifier in classifiers) or field


def test_the_page_names_the_packages_with_far_reaching_terms() -> None:
    installed = {normal(distribution.metadata["Name"]) for distribution in metadata.distributions()}
    pins = pinned("locks/dev.txt") & installed
    assert len(pins) > 200, "the locks are read, and installed here"
    expected = {name: terms for name in pins if COPYLEFT.search(terms := licence(name))}
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (.+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(rows[1:]) == expected, "update the table of THIRD_PARTY.md"
    assert [name for name, _ in rows[1:]] == sorted(expected)


def test_scoring_needs_no_package_under_the_gpl_or_lgpl() -> None:
    installed = {normal(distribution.metadata["Name"]) for distribution in metadata.distributions()}
    scorer = pinned("locks/score.txt")
    assert {"numpy", "torch"} <= scorer
    assert [name for name in scorer & installed if re.search("GPL|GNU ", licence(name))] == []
