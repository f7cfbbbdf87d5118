"""Code digests of stages: they depend on what a program computes, and not on its formatting."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.runtime.code.closure import Code
from paco_core.runtime.code.source import SourceCache, parse_source
from paco_core.runtime.code.stage_code import StageCode, StageCodes

CODE = '''
"""A docstring."""
import os

def double(x: int, by=2) -> int:
    """Another."""
    return x * by  # a comment
'''


def digest(text: str) -> str:
    return parse_source(text.encode(), "a.py").digest


def test_comments_docstrings_and_layout_are_no_part_of_the_code_and_anything_that_runs_is() -> None:
    for before, after in (
        ("A docstring.", "Other words."),
        ('    """Another."""\n', ""),
        ("  # a comment", ""),
        ("x: int, by=2", "\n    x: int,\n    by=2,\n"),
        ("x * by", "(x * by)"),
        ("\nimport os\n", "\n\n\nimport os\n\n"),
    ):
        assert before in CODE and digest(CODE.replace(before, after)) == digest(CODE), before
    for before, after in (("x * by", "x / by"), ("by=2", "by=3"), ("double", "twice"), ("import os", "import sys")):
        assert before in CODE and digest(CODE.replace(before, after)) != digest(CODE), before


def test_a_file_without_code_has_no_digest_and_one_that_is_no_python_is_named() -> None:
    assert digest('"""Only words."""\n# and more\n') == ""
    with pytest.raises(DataError, match="broken.py:1"):
        parse_source(b"def (:", "broken.py")


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_late_imports_relative_ones_and_modules_named_in_commands_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        start="def f():\n    from lib import late\n    run(['python', '-m', 'lib.served'])\n",
        lib__late="from .near import x\n",
        lib__near="x = 1\n",
        lib__served="y = 2\n",
        lib__typing_only="z = 3\n",
        lib__idle="w = 4\n",
    )
    (tmp_path / "lib" / "__init__.py").write_text("FLAG = 1\n")
    (tmp_path / "lib" / "near.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib.typing_only import z\nx = 1\n"
    )
    assert Code(tmp_path).closure(["start"]).modules.keys() == {
        "start.py", "lib/__init__.py", "lib/late.py", "lib/near.py", "lib/served.py"
    }  # fmt: skip


def test_only_the_entries_of_a_registry_that_parameters_name_count(tmp_path: Path) -> None:
    write(tmp_path, start="TABLE = {'one': 'parts.one:build'}\n", parts__one="a = 1\n", parts__two="a = 2\n")
    before = Code(tmp_path).closure(["start"], {"one"}).modules
    assert before.keys() == {"start.py", "start.py#one", "parts/one.py"}
    (tmp_path / "start.py").write_text("TABLE = {'one': 'parts.one:build', 'two': 'parts.two:build'}\n")
    assert Code(tmp_path).closure(["start"], {"one", "x"}).modules == before
    assert {path: Code(tmp_path).digest(path) for path in before} == before
    assert Code(tmp_path).closure(["start"], {"x"}).modules.keys() == {*before, "start.py#two", "parts/two.py"}
    (tmp_path / "start.py").write_text("TABLE = {'one': 'parts.one:other'}\n")
    changed = Code(tmp_path).closure(["start"], {"one"}).modules
    assert {path for path in changed if changed[path] != before.get(path)} == {"start.py#one"}
    assert Code(tmp_path).digest("start.py#one") == "parts.one:other" and Code(tmp_path).digest("start.py#two") is None


def test_templates_that_a_module_names_count(tmp_path: Path) -> None:
    write(tmp_path, page="from pathlib import Path\nHERE = Path(__file__).parent / 'templates'\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text("<p>")
    before = Code(tmp_path).closure(["page"]).modules
    assert set(before) == {"page.py", "templates/page.html"}
    (tmp_path / "templates" / "page.html").write_text("<b>")
    assert Code(tmp_path).closure(["page"]).modules["templates/page.html"] != before["templates/page.html"]


def test_versions_of_libraries_that_compute_count_and_plumbing_does_not(tmp_path: Path) -> None:
    write(tmp_path, start="import json\nimport numpy.linalg\nimport PIL\nimport pydantic\nimport no_such_thing\n")
    libraries = Code(tmp_path).closure(["start"]).libraries
    import numpy as np

    assert libraries.keys() == {"numpy", "pillow"} and libraries["numpy"] == np.__version__


def test_a_reading_is_kept_and_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    root = write(tmp_path / "project", start="import helper\n", helper="a = 1\n")
    cache = tmp_path / "cache.json"
    first = Code(root, cache).closure(["start"])
    assert json.loads(cache.read_text())["sources"]
    assert Code(root, cache).closure(["start"]) == first
    (root / "helper.py").write_text("a = 2\n")
    assert Code(root, cache).closure(["start"]) != first
    cache.write_text("{")
    assert Code(root, cache).closure(["start"]).modules.keys() == first.modules.keys()


@pytest.mark.slow
def test_stages_depend_on_their_own_code_file_on_people_and_on_outs_of_stages(repository: Path) -> None:
    codes = StageCodes.present(repository)
    files = codes.files()
    for stage in codes.graph.values():
        if stage.group != "code":
            code_deps = [dep for dep in stage.deps if dep in files]
            assert code_deps == [f"data/code/{stage.group}{f'-{stage.item}' if stage.group == 'policies' else ''}.json"]
            assert f"paco_core/stages/{stage.group}.py" in files[code_deps[0]].modules
    outs = {out for stage in codes.graph.values() for out in stage.data}
    for stage in codes.graph.values():
        for dep in stage.deps:
            is_declared = dep == "data/people" or any(out == dep or out.startswith(f"{dep}/") for out in outs)
            assert is_declared or dep.startswith("data/code/"), f"{stage.name}: {dep}"


def test_a_policy_is_made_of_its_own_family_and_models(repository: Path) -> None:
    files = StageCodes.present(repository).files()
    flux, kontext, qwen = (files[f"data/code/policies-{n}.json"] for n in ("flux_t2is", "kontext_edit", "qwen_edit"))
    assert "paco_core/policies/qwen_image_edit.py" in qwen.modules
    assert not {"paco_core/policies/qwen_image_edit.py", "paco_core/rewards/ocr.py"} & flux.modules.keys()
    assert "paco_core/rewards/clip_t.py" in flux.modules and "paco_core/rewards/clip_t.py" not in kontext.modules
    assert set(flux.files) == {"data/zoo/flux", "data/zoo/clip", "data/zoo/recogniser"}
    assert set(kontext.files) == {"data/zoo/flux_kontext", "data/zoo/recogniser"}
    assert {"torch", "diffusers", "peft"} <= flux.libraries.keys()
    for name, stage in files.items():
        if "grids" in name or "prompts.json" in name or "pairs" in name:
            assert not [module for module in stage.modules if module.startswith("paco_core/policies/families")], name
    assert flux.resolved["policies.recipes.flux_t2is.record_size"] == "aspect"
    assert not any(name.startswith(("paco_core/runtime/tracking/", "paco_core/config/params")) for name in flux.modules)


def test_changes_are_named() -> None:
    before = StageCode({"a.py": "1", "b.py": "2"}, {"torch": "2.13.0"}, {"data/zoo/x": "m"}, {"k.lr": 1})
    after = StageCode({"a.py": "9", "c.py": "3"}, {"torch": "2.14.0"}, {"data/zoo/x": "n"}, {"k.lr": 2})
    assert after.changes(before) == [
        "a.py changed", "b.py is no longer used", "c.py is used now", "torch changed (2.13.0 to 2.14.0)",
        "data/zoo/x changed", "k.lr changed (1 to 2)",
    ]  # fmt: skip
    assert StageCode.from_text(after.text) == after and StageCode.from_text("{") == StageCode()
    assert after.digest != before.digest
    assert StageCode(before.modules, before.libraries).digest == before.digest


def test_readings_that_are_kept_by_many_at_once_are_kept_whole(tmp_path: Path) -> None:
    """Leases of a server in several threads ask for its code at the same time."""
    sources = [tmp_path / f"module_{number}.py" for number in range(40)]
    for number, file in enumerate(sources):
        file.write_text(f"value = {number}\n")
    cache_file = tmp_path / ".paco" / "code.json"

    def read_all(_number: int) -> None:
        cache = SourceCache(cache_file)
        for file in sources:
            cache.read(file, "package")
        cache._stored.clear()  # as where all begin together
        cache.save()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read_all, range(60)))
    assert len(SourceCache(cache_file)._stored) == len(sources)
    assert not list(cache_file.parent.glob("*.part"))
