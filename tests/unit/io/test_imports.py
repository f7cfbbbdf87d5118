"""What a stage pays before it begins: which libraries it imports, and how often the collector walks through them."""

from __future__ import annotations

import gc
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from paco_core.data.grids.text_to_image import TextToImage
from paco_core.io.imports import rarely_collected, uncollected
from tests.support.stage_modules import imported_by

HEAVY = {
    "accelerate", "diffusers", "matplotlib", "mlflow", "open_clip", "peft", "scipy", "sqlalchemy", "torch",
    "transformers",
}  # fmt: skip
#: Stages that look at no picture with a model: their modules import no library that takes long.
LIGHT = ("prompts", "edit_prompts", "rankings", "pairs", "annotations")
#: Imports stages, then runs the one that needs no library, and says what is loaded.
RUN = """
import importlib, json, sys
from pathlib import Path
from paco_core.stages import run_stage
for name in sys.argv[1:]:
    importlib.import_module(name)
run_stage("prompts", None, Path.cwd())
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def walks() -> Iterator[list[int]]:
    """The generation of each collection that takes place."""
    seen: list[int] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(watch)
    yield seen
    gc.callbacks.remove(watch)


@pytest.mark.slow
def test_no_library_is_imported_that_a_stage_does_not_need(project: Path) -> None:
    modules = set(imported_by(*LIGHT)) - {"paco_core.reward_model.scorer"}  # only the rankings of a round import it
    done = subprocess.run([sys.executable, "-c", RUN, *sorted(modules)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) & HEAVY == set()
    assert (project / "data/prompts/prompts.jsonl").is_file()
    with sqlite3.connect(project / "mlflow.db") as store:
        assert store.execute("select name, status from runs").fetchall() == [("prompts/storybook/seed0", "FINISHED")]


@pytest.mark.slow
def test_what_is_made_meanwhile_is_walked_through_neither_then_nor_as_young(walks: list[int]) -> None:
    with uncollected():
        with uncollected():
            made = [[number] for number in range(50_000)]
        more = [[number] for number in range(50_000)]
        assert walks == [], "the end of an inner block collects nothing either"
    assert gc.isenabled()
    assert gc.get_count()[0] < 1000 and made[7] == more[7]
    young = {id(thing) for generation in (0, 1) for thing in gc.get_objects(generation)}
    assert not young & {id(thing) for thing in made + more}
    gc.collect()
    assert walks[-1] == 2, "the collector works as before"


def test_the_collector_works_again_after_a_failed_load() -> None:
    @uncollected()
    def load() -> None:
        assert not gc.isenabled()
        raise OSError("no model there")

    with pytest.raises(OSError, match="no model there"):
        load()
    assert gc.isenabled()


def test_a_process_ends_without_a_walk_through_what_it_imported() -> None:
    ending = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > len(made)))
from paco_core.io.imports import rarely_collected, uncollected
with uncollected():
    made = [[number] for number in range(1000)]
"""
    done = subprocess.run([sys.executable, "-c", ending], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_a_loader_can_be_sent_to_another_process() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(TextToImage.load)).__qualname__ == "TextToImage.load"


def test_a_stage_is_looked_through_rarely_and_what_follows_as_usual(walks: list[int]) -> None:
    usual = gc.get_threshold()
    with rarely_collected():
        walks.clear()
        kept = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
        assert walks == [] and gc.isenabled() and len(kept) == 50_000
        kept += [[] for _ in range(200_000)]
        assert walks != [], "what a stage computes is garbage some day"
    assert gc.get_threshold() == usual
