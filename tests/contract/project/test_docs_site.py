"""The site of docs/: built strictly, whole by itself, and reached from its navigation."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import built
import pages
import pytest

TEXTS = {".md", ".py", ".toml", ".css", ".js", ".webp", ".png", ".svg", ".yaml", ".json", ".txt"}


def named(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from named(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from named(value)


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """What the site is made from."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("the site's packages are not installed: run `make docs` once")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in listed.split("\0"):
        file = repository / name
        if file.suffix in TEXTS and file.is_file() and not name.startswith(("tests/", "data/zoo/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / name)
    return tmp_path


def build(copy: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tools/docs/build.py"], cwd=copy, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_builds_and_a_broken_link_or_anchor_or_name_ends_it(copy: Path) -> None:
    done = build(copy)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (copy / "build/docs/reference/api/grpo.html").read_text().count("Flow-GRPO (arXiv 2505.05470)") > 0
    page = copy / "docs/reference/api/grpo.md"
    words = page.read_text()
    page.write_text(f"{words}\n[gone](../rewards.md#gone) and [none][paco_core.grpo.losses.gone]\n")
    done = build(copy)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout and "unresolved autoref" in done.stdout
    page.write_text(f"{words}\n[file](../../../no-such-file.yaml)\n")
    done = build(copy)
    assert done.returncode != 0
    assert "docs/reference/api/grpo.md:12: the link ../../../no-such-file.yaml leads to no file" in done.stderr


def test_the_navigation_names_every_page_once(repository: Path) -> None:
    nav = list(named(tomllib.loads((repository / "tools/docs/zensical.toml").read_text())["project"]["nav"]))
    known = {str(pages.site_path(path.relative_to(repository))) for path in (repository / "docs").rglob("*.md")}
    assert len(nav) == len(set(nav))
    assert known == {name for name in nav if not name.startswith("project/")}


def test_a_page_keeps_its_links_wherever_they_lead(tmp_path: Path) -> None:
    (tmp_path / "docs/how-to").mkdir(parents=True)
    (tmp_path / "README.md").write_text("[the site](docs/README.md)\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "docs/README.md").write_text("[read](how-to/a.md#part), [out](https://example.org/x.md), [top](#x)\n")
    (tmp_path / "docs/how-to/a.md").write_text(
        "see [the graph](../../dvc.yaml), [all](../../README.md)\n"
        '```python append-to="x.py"\n[kept](../dvc.yaml)\n```\n'
    )
    pages.lay_out(tmp_path, tmp_path / "out")
    assert (tmp_path / "out/index.md").read_text() == (tmp_path / "docs/README.md").read_text()
    assert (tmp_path / "out/how-to/a.md").read_text() == (
        "see [the graph](../source/dvc.yaml.md), [all](../project/overview.md)\n"
        '```python title="append to x.py"\n[kept](../dvc.yaml)\n```\n'
    )
    assert (tmp_path / "out/project/overview.md").read_text() == "[the site](../index.md)\n"
    assert "stages: {}" in (tmp_path / "out/source/dvc.yaml.md").read_text()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<img src="https://cdn.example/x.png">', "https://cdn.example/x.png: loaded from elsewhere"),
        ('<script src="//cdn.example/x.js"></script>', "//cdn.example/x.js: loaded from elsewhere"),
        ('<a href="gone.html">x</a>', "gone.html: no such file"),
        ('<a href="../outside.html">x</a>', "../outside.html: no such file in the site"),
        ('<a href="#gone">x</a>', "#gone: no such anchor"),
        ('<pre class="mermaid">flowchart</pre>', "Mermaid"),
        ('<p>```text after="here"</p>', "opens no code block"),
    ],
)
def test_a_built_page_with_a_fault_is_named(tmp_path: Path, text: str, fault: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "outside.html").write_text("")
    (site / "index.html").write_text('<h1 id="top">x</h1><a href="#top">x</a><a href="https://example.org">x</a>')
    assert built.faults(site) == []
    (site / "page.html").write_text(text)
    (found,) = built.faults(site)
    assert found.startswith("page.html: ") and fault in found


def test_a_style_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face{src:url(https://fonts.example/a.woff2)}")
    assert built.faults(tmp_path) == ["a.css: loads from https:"]
