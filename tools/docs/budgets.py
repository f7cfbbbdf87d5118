"""Word budgets of the documentation: compare each page with tools/docs/budgets.toml."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

BUDGETS = Path(__file__).with_name("budgets.toml")
#: A word contains a letter or a digit. The bars of a table and the marks of a list do not count.
WORD = re.compile(r"\S*\w\S*")


@dataclass(frozen=True)
class OverBudget:
    """A page that is longer than its budget."""

    page: str
    words: int
    budget: int

    def __str__(self) -> str:
        return f"warning: {self.page} has {self.words} words, its budget is {self.budget} (tools/docs/budgets.toml)"


def count_words(text: str) -> int:
    """The number of words of a page, with its tables and code blocks."""
    return len(WORD.findall(text))


def budget_of(page: str, budgets: dict[str, dict[str, int]]) -> int | None:
    """The budget of a page: its entry, else that of the nearest folder with one; None if there is none."""
    if page in budgets["pages"]:
        return budgets["pages"][page]
    folders = (str(parent) for parent in PurePosixPath(page).parents)
    return next((budgets["folders"][folder] for folder in folders if folder in budgets["folders"]), None)


def over_budget(root: Path, file: Path = BUDGETS) -> Iterator[OverBudget]:
    """The pages below ``root`` that are longer than their budget, in the order of their paths.

    Raises:
        SystemExit: an entry of ``file`` names a page or a folder that does not exist.
    """
    budgets = tomllib.loads(file.read_text())
    generated = budgets.pop("generated", {"pages": [], "folders": []})
    if missing := [name for names in budgets.values() for name in names if not (root / name).exists()]:
        raise SystemExit(f"{file.name}: {', '.join(missing)} does not exist; remove or rename the entry")
    pages = {*budgets["pages"], *(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))}
    for page in sorted(pages - set(generated["pages"])):
        if set(map(str, PurePosixPath(page).parents)) & set(generated["folders"]):
            continue
        budget, words = budget_of(page, budgets), count_words((root / page).read_text())
        if budget is not None and words > budget:
            yield OverBudget(page, words, budget)
