"""Commands that need no model or store import none: each start would cost seconds and hundreds of megabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.support import provenance_world as world

HEAVY = ("torch", "mlflow", "sqlalchemy", "transformers", "diffusers", "dagster")
STATUS = """
import json, sys
from pathlib import Path
from paco_core.cli.status import status
text = status(Path(sys.argv[1])).champions
print(json.dumps([text, sorted(set(sys.argv[2:]) & sys.modules.keys())]))
"""
SKIPPED = """
import json, sys
from pathlib import Path
from unittest.mock import Mock
from contextlib import nullcontext
from paco_core.config.params import load
from paco_core.stages import stage_file
name, folder, params = sys.argv[1], Path(sys.argv[2]), load(Path(sys.argv[3]))
no_recipes = params.policies.model_copy(update={"recipes": {}})
params = params.model_copy(update={"world": "real", "policies": no_recipes})
writing = lambda _path: nullcontext(folder)
ctx = Mock(params=params, item="flux_t2is", round=None, read=lambda _path: folder, writing=writing)
stage_file(name).run(ctx)
assert ctx.skip.called or ctx.report.called
print(json.dumps(sorted(set(sys.argv[4:]) & sys.modules.keys())))
"""


def run(code: str, *arguments: str) -> object:
    """What a new process prints."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments, *HEAVY], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_a_status_without_registered_models_imports_no_mlflow(project: Path) -> None:
    world.make_whole(project)
    text, imported = run(STATUS, str(project))  # type: ignore[misc]
    assert "paco promote" in text and imported == []


@pytest.mark.parametrize("stage", ["vistory", "t2is_bench", "edit_reward", "t2is", "policies", "diverse_prompts"])
def test_a_stage_that_is_skipped_imports_no_model(tmp_path: Path, stage: str) -> None:
    (tmp_path / "skipped.json").write_text('{"reason": "nothing to do"}')
    (tmp_path / "prompts.jsonl").touch()
    assert run(SKIPPED, stage, str(tmp_path), str(REPOSITORY / "params.yaml")) == []
