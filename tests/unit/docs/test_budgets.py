"""Word budgets of the documentation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import budgets
import pytest

SETTINGS = """
[folders]
"docs" = 3
"docs/how-to" = 5
[pages]
"README.md" = 2
"docs/how-to/short.md" = 1
[generated]
pages = ["docs/cli.md"]
folders = ["docs/api"]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "budgets.toml"
    file.write_text(SETTINGS)
    for page in (
        "README.md",
        "docs/index.md",
        "docs/cli.md",
        "docs/api/a.md",
        "docs/how-to/long.md",
        "docs/how-to/short.md",
    ):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("one")
    return file


def test_words_are_counted_without_the_marks_of_markdown() -> None:
    assert budgets.count_words("# A page\n\n| a | `b c` |\n|---|---|\n- 95% of it *is* text\n") == 10


def test_a_page_has_its_own_budget_or_that_of_the_nearest_folder(settings: Path) -> None:
    table = tomllib.loads(settings.read_text())
    pages = ["docs/index.md", "docs/how-to/deep/long.md", "docs/how-to/short.md", "speed/README.md"]
    assert [budgets.budget_of(page, table) for page in pages] == [3, 5, 1, None]


def test_a_longer_page_is_a_warning_with_words_and_budget(settings: Path, tmp_path: Path) -> None:
    assert list(budgets.over_budget(tmp_path, settings)) == []
    for page in ("README.md", "docs/cli.md", "docs/api/a.md", "docs/how-to/long.md", "docs/how-to/short.md"):
        (tmp_path / page).write_text("one two three four five")
    pages = list(budgets.over_budget(tmp_path, settings))
    assert pages == [budgets.OverBudget("README.md", 5, 2), budgets.OverBudget("docs/how-to/short.md", 5, 1)]
    assert str(pages[0]) == "warning: README.md has 5 words, its budget is 2 (tools/docs/budgets.toml)"


def test_an_entry_without_a_page_is_an_error(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "docs/how-to/short.md").unlink()
    with pytest.raises(SystemExit, match=r"docs/how-to/short\.md does not exist"):
        list(budgets.over_budget(tmp_path, settings))


def test_the_table_of_this_project_names_pages_that_exist(repository: Path) -> None:
    assert all(page.words > page.budget for page in budgets.over_budget(repository))
