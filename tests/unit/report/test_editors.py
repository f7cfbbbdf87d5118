"""The page's part about editing policies: made-up figures, drawn pictures, published rows marked."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dvc_project.lockfile import Lock
from paco_core.benchmarks.published import GEDIT
from paco_core.config.params import Params, parse
from paco_core.report import page
from tests.support.fixture_edits import NUM_SAMPLES, write_gedit

SIZES = {"kontext_edit": (64, 128), "my_edit": (48,)}


@pytest.fixture(scope="module")
def params(repository: Path) -> Params:
    """The project's policies, of the editors one of its own and another one of 48 px."""
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    recipes = tree["policies"]["recipes"]
    mine = recipes["kontext_edit"] | {"eval_sizes": [48], "train_size": 48}
    tree["policies"]["recipes"] = {**{name: recipes[name] for name in ("flux_t2is", "kontext_edit")}, "my_edit": mine}
    return parse(tree)


def test_edits_stand_beside_their_pictures_and_instructions(params: Params, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "dvc.yaml").write_bytes((repository / "dvc.yaml").read_bytes())
    (tmp_path / "params.yaml").write_bytes((repository / "params.yaml").read_bytes())
    records = write_gedit(tmp_path, SIZES)
    report = page.build(tmp_path, params, Lock.read(tmp_path), {})
    assert [m.what for m in report.missing if "edit" in m.path and "reward" not in m.path] == []
    section = report.html.partition('<section id="editor">')[2].partition("</section>")[0]
    assert (
        all(record.prompt in section for record in records[:NUM_SAMPLES]) and records[NUM_SAMPLES].prompt not in section
    )
    for name, sizes in SIZES.items():
        for size in sizes:
            assert section.count(f"<figcaption>{size} px</figcaption>") == NUM_SAMPLES
            key = f"gedit.policies.{name}.{size}.gold_editing"
            assert report.figures.values[f"{key}.after.mean"] == pytest.approx(0.5, abs=0.05)
        row = next(row for row in report.headline if (row.model, row.metric) == (name, "gold_editing"))
        key = f"gedit.policies.{name}.{max(sizes)}.gold_editing"
        ends = ("before.mean", "after.mean", "change.mean", "change.low", "change.high")
        assert (row.before, row.after, row.change, row.low, row.high) == tuple(
            report.figures.values[f"{key}.{end}"] for end in ends
        )
    assert section.count('<span class="tag">published</span>') == len(GEDIT) and "6.469" in section
    assert report.curves["my_edit.reference_distance"]["distance from the reference"][0] == (1.0, 0.2)
