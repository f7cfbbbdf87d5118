"""Whatever a stage opens is in its record: a dep, a file or model that its parameters name, or its code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvc_project.paths import overlap
from dvc_project.project import stages_of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

#: What describes the project and its runs. None of it is data: parameters are recorded by value.
OF_EVERY_STAGE = (
    "params.yaml",
    "dvc.yaml",
    "dvc.lock",
    ".dvcignore",
    ".gitignore",
    "mlflow.db",
    "data/runs",
    "data/code",
)


@pytest.fixture(scope="module")
def opened(smoke: Path) -> dict[str, set[str]]:
    """Files below the project that were opened while each stage ran."""
    files = sorted((smoke.parent / "traced/files").glob("*.json"))
    return {file.stem: set(json.loads(file.read_text())) for file in files}


def test_whatever_a_stage_opened_is_in_its_record(smoke: Path, opened: dict[str, set[str]]) -> None:
    stages = {label: stage for label, stage in stages_of(smoke).items() if stage.group != "code"}
    assert opened.keys() == stages.keys()
    assert "data/grids/shard-0/index.parquet" in opened["rankings"]
    assert "data/zoo/flux/transformer/diffusion_pytorch_model.safetensors" in opened["policies@flux_t2is"]
    unrecorded: dict[str, list[str]] = {}
    for label, stage in stages.items():
        made_of = next(json.loads((smoke / dep).read_text()) for dep in stage.deps if dep.startswith("data/code/"))
        recorded = [*stage.deps, *made_of["files"], *(out.path for out in stage.outs), *OF_EVERY_STAGE]
        for path in opened[label]:
            is_code = path.endswith((".py", ".pyc")) or path in made_of["modules"]
            if not is_code and not any(
                overlap(path, recorded_path) or path.startswith(f"{recorded_path}-") for recorded_path in recorded
            ):
                unrecorded.setdefault(label, []).append(path)
    assert unrecorded == {}
