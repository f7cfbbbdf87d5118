"""A stage is named by its file, by dvc.yaml and by the documentation. No table beside them lists stages.

Code that needs a stage's name takes it from its out (``paths.GRIDS.name``) or from the declarations
(``paco_core.stages.declared``). Some names are English words, too: as a key of a record (a figure, a column, a section
of ``params.yaml``) a word is no stage; where it stands elsewhere, DIFFERENT says what it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.support import REPOSITORY

NAMES = set(yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"])
WORDS = {"annotations", "code", "edits", "grids", "pairs", "policies", "prompts", "rankings", "report"}
ROOMS = ("paco_core", "pipelines", "packages", "speed", "tools", "examples", "zoo")
#: tools/docs/ draws the pictures of docs/; the tests of a package are tests.
HOMES = ("paco_core/stages/", "paco_core/io/paths.py", "tools/docs/", "packages/dagster-dvc/tests/")
COLUMN, UNIT, PART = "a column of a table", "what is counted", "a subset of a public data set"
SECTION, TASK = "a section of params.yaml", "a task"
#: What a person reads, a sentence with "run `dvc repro rankings`", is no text that a program looks up.
TEXT = re.compile(r"(\w+)(?:@\S*)?|data/(\w+)(?:/\S*)?")
#: Different things of the same name, by file.
DIFFERENT = {
    "paco_core/benchmarks/edit_changes.py": {"edits": COLUMN},
    "paco_core/benchmarks/viescore.py": {"edits": COLUMN},
    "paco_core/cli/parser.py": {"code": "a verb"},
    "paco_core/cli/arguments.py": {
        "code": "a verb",
        "gedit": "a public format, GEdit-Bench",
        "vistory": "a public format, ViStoryBench",
    },
    "paco_core/cli/exchange.py": {
        "gedit": "a public format, GEdit-Bench",
        "vistory": "a public format, ViStoryBench",
    },
    "paco_core/cli/score.py": {"pairs": UNIT},
    "paco_core/cli/score_table.py": {"pairs": UNIT},
    "paco_core/config/params_data.py": {"report": "a value of pairs.leakage"},
    "paco_core/data/annotation/agreement.py": {"rankings": COLUMN},
    "paco_core/data/annotation/label_studio.py": {"annotations": "a key of Label Studio's files"},
    "paco_core/data/checks.py": {"report": "a value of pairs.leakage"},
    "paco_core/exchange/card.py": {"pairs": PART, "prompts": PART, "rankings": PART},
    "paco_core/config/params_policies.py": {"edits": TASK, "policies": SECTION},
    "paco_core/experiments/reproduction_report.py": {"report": "a file's name"},
    "paco_core/planning/refusals.py": {"edits": TASK}
    | dict.fromkeys(
        ("annotations", "diverse_prompts", "edit_prompts", "grids", "pairs", "policies", "prompts", "t2is"), SECTION
    ),
    "paco_core/policies/families.py": {"edits": TASK},
    "paco_core/report/judges.py": {"grids": "what a section shows", "prompts": UNIT},
    "paco_core/report/policies.py": {"policies": "a key of a benchmark's results", "prompts": UNIT},
    "paco_core/reward_model/checks.py": {"pairs": "a figure"},
    "paco_core/runtime/code/stage_code.py": {"code": "the stage itself, which is bookkeeping"},
    "tools/mutate.py": {"pairs": "a package"},
    "paco_core/tasks/edits.py": {"edits": TASK},
    "paco_core/tasks/preferences.py": {"annotations": "a place in an error"},
    "paco_core/tasks/sets.py": {"prompts": UNIT},
    "pipelines/paco_pipelines/defs/operations.py": {
        "policies": "part of the keys champion/policies and nightly/policies"
    },
    "pipelines/paco_pipelines/defs/schedules.py": {"policies": "part of the key nightly/policies"},
    "speed/gpu_trainer.py": {"edits": TASK},
    "zoo/check.py": {"edits": TASK},
}


def named(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each text that is a stage's name, an item's (``policies@flux_t2is``) or a path of its out."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))  # docstrings
        elif isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Constant) and key.value in NAMES]
            if len(keys) < 3:  # otherwise it is a table of stages
                left_out |= {id(key) for key in keys if key.value in WORDS}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in WORDS:
            left_out.add(id(node.slice))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            found = TEXT.fullmatch(node.value)
            if found and (name := found[1] or found[2]) in NAMES:
                yield node.lineno, name


def found() -> dict[str, list[tuple[int, str]]]:
    files = (path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py")))
    texts = {path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return {file: list(named(text)) for file, text in texts.items() if not file.startswith(HOMES)}


@pytest.mark.slow
def test_no_code_but_a_stages_own_file_names_it() -> None:
    wrong = [
        f"{file}:{line}: {name!r}"
        for file, places in found().items()
        for line, name in places
        if name not in DIFFERENT.get(file, {})
    ]
    assert not wrong, "take the name from its out (paco_core/io/paths.py) or from paco_core.stages.declared"


@pytest.mark.slow
def test_no_exception_is_out_of_date() -> None:
    places = {(file, name) for file, there in found().items() for _, name in there}
    assert {(file, name) for file, names in DIFFERENT.items() for name in names} - places == set()


def test_the_words_are_names_of_stages() -> None:
    assert WORDS <= NAMES and "reward_lora" not in WORDS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('DEVICES = {"reward_lora": 1}', ["reward_lora"]),
        ('TABLE = {"prompts": 1, "grids": 2, "pairs": 3}', ["prompts", "grids", "pairs"]),
        ('SERVED = ("policies", "t2is")', ["policies", "t2is"]),
        ('if stage == "report":\n    pass', ["report"]),
        ('label = "policies@flux_t2is"', ["policies"]),
        ('path = f"data/policies/{name}"', ["policies"]),
        ('path = "data/cot_labels/train.parquet"', ["cot_labels"]),
        ('raise DataError("no ranking; run `dvc repro rankings`")', []),
        ('metrics = {"prompts": 3}\nmetrics["pairs"]', []),
        ('"""prompts"""\n# grids', []),
    ],
)
def test_a_name_is_seen(source: str, names: list[str]) -> None:
    assert [name for _, name in named(source)] == names
