"""The site of docs/: built strictly, whole by itself, and reached from its navigation."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest

TEXTS = {".md", ".py", ".toml", ".css", ".js", ".webp", ".png", ".svg", ".yaml", ".json", ".txt"}


def page_paths(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from page_paths(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from page_paths(value)


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """What the site is made from."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("the site's packages are not installed: run `make docs` once")
    git_files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in git_files.split("\0"):
        file = repository / name
        if file.suffix in TEXTS and file.is_file() and not name.startswith(("tests/", "data/zoo/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / name)
    return tmp_path


def build(copy: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tools/docs/build.py"], cwd=copy, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_builds_and_a_broken_link_or_anchor_or_name_ends_it(copy: Path) -> None:
    result = build(copy)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert (copy / "build/docs/reference/api/grpo.html").read_text().count("Flow-GRPO (arXiv 2505.05470)") > 0
    page = copy / "docs/reference/api/grpo.md"
    words = page.read_text()
    page.write_text(f"{words}\n[gone](../rewards.md#gone) and [none][paco_core.grpo.losses.gone]\n")
    result = build(copy)
    assert result.returncode != 0
    assert "anchor does not exist" in result.stdout and "unresolved autoref" in result.stdout
    page.write_text(f"{words}\n[file](../../../no-such-file.yaml)\n")
    line = len(words.splitlines()) + 2
    result = build(copy)
    assert result.returncode != 0
    assert f"docs/reference/api/grpo.md:{line}: the link ../../../no-such-file.yaml leads to no file" in result.stderr


def test_the_navigation_names_every_page_once(repository: Path) -> None:
    nav = list(page_paths(tomllib.loads((repository / "tools/docs/zensical.toml").read_text())["project"]["nav"]))
    pages_on_disk = {str(pages.site_path(path.relative_to(repository))) for path in (repository / "docs").rglob("*.md")}
    assert len(nav) == len(set(nav))
    assert pages_on_disk == {name for name in nav if not name.startswith("project/")}
