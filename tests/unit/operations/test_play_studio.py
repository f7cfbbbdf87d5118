"""The models behind the page, with the real ones of the embedded world: what is painted, scored, kept and refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from paco_core.config.params import load
from paco_core.io.files import DataError
from paco_core.io.shards import encode_png
from paco_core.operations import paint, painters, prompt_records
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Job
from paco_core.operations.play.studio import Studio, StudioOptions
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import Score
from paco_core.sampling.origin import read_origins
from paco_core.tasks.sets import SETS
from tests.support.small_project import adapter, lay_out

pytestmark = pytest.mark.slow

PANELS = [
    f"a {size} red cat {setting}, flat style." for size in ("small", "big") for setting in ("at night", "in snow")
]
OPTIONS = StudioOptions("flux_t2is", 1, 64, compare_with="base")
OPTIONS_BASE = StudioOptions("base", 1, 64, compare_with=None)


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    return lay_out(repository, tmp_path)


def studio(project: Path, judge: Path | None = None) -> Studio:
    if judge is not None:
        (project / "data/reward_merged").symlink_to(judge)
    params = load(project / "params.yaml")
    quick = {"t2is": params.t2is.model_copy(update={"steps": 2}), "gedit": params.gedit.model_copy(update={"steps": 2})}
    return Studio(project, params.model_copy(update=quick), Gallery())


def job() -> Job:
    return Job("0")


def pixels(app: Studio, row: dict[str, Any]) -> bytes:
    return app.gallery.image(row["picture"]).tobytes()


def test_before_training_base_paints_and_nothing_is_scored(project: Path, tmp_path: Path) -> None:
    app, now = studio(project), job()
    result = app.paint("a red cat", PANELS, StudioOptions("base", 2, 64, compare_with="base"), now)
    assert result["judge"] is False and result["painters"] == [{"name": "base", "trained": False, "story": False}]
    assert [(row["trained"], row["seed"], row["score"], row["cause"]) for row in result["pictures"]] == [
        (False, 0, None, None), (False, 1, None, None),
    ]  # fmt: skip
    assert [len(row["panels"]) for row in result["pictures"]] == [4, 4] and result["columns"] == 2
    assert app.gallery.image(result["pictures"][0]["panels"][0]).size == (32, 32)
    assert (now.done, now.total) == (4, 4) and now.result == result
    (tmp_path / "panel.png").write_bytes(app.gallery.png(result["pictures"][1]["panels"][2]))
    (origin,) = read_origins(tmp_path / "panel.png")
    assert (origin.models.policy, origin.seed, origin.panel, origin.width) == ("base", 1, 2, 32)
    with pytest.raises(DataError, match="flux_t2is"):
        app.paint("a red cat", PANELS, OPTIONS, job())
    with pytest.raises(DataError):
        app.score([result["pictures"][0]["picture"]] * 2, None, True, job())


def test_base_and_trained_stand_side_by_side_each_with_a_score(project: Path, repository: Path) -> None:
    """One policy is loaded once, and base paints the same whether an adapter lies on it or not."""
    adapter(project)
    app = studio(project, repository / "data/zoo/qwen2_5_vl")
    bare = app.paint("a red cat", PANELS, OPTIONS_BASE, job())
    result = app.paint("a red cat", PANELS, OPTIONS, job())
    base, trained = result["pictures"]
    assert [row["trained"] for row in result["pictures"]] == [False, True]
    assert pixels(app, base) == pixels(app, bare["pictures"][0]) != pixels(app, trained)
    assert all(0 < row["score"] < 1 and row["cause"] is None for row in result["pictures"])
    assert app.paint("a red cat", PANELS, OPTIONS_BASE, job())["pictures"] == bare["pictures"]
    by = painters.resolve_policy(project, app.params, "flux_t2is", SETS)
    record = prompt_records.set_record("a red cat", PANELS, 64)
    images = paint.generate_seed_images(
        app.params, paint.load_painter_policy(project, by), by, record, seeds=[0], side=64, steps=2
    )
    assert images[0].image.tobytes() == pixels(app, trained), "as `paco paint` does"
    adapter(project, by=0.05)
    base_again, anew = app.paint("a red cat", PANELS, OPTIONS, job())["pictures"]
    assert pixels(app, base_again) == pixels(app, base) and pixels(app, anew) != pixels(app, trained)


def test_a_judge_that_was_trained_meanwhile_judges(project: Path, repository: Path) -> None:
    shutil.copytree(repository / "data/zoo/qwen2_5_vl", project / "data/reward_merged")
    app = studio(project)
    first = app.paint("a red cat", PANELS, OPTIONS_BASE, job())["pictures"]
    weights = project / "data/reward_merged/model.safetensors"
    tensors = {name: tensor * 1.05 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    assert app.paint("a red cat", PANELS, OPTIONS_BASE, job())["pictures"][0]["score"] != first[0]["score"]


def test_pictures_are_compared_two_by_two_with_reasons(project: Path, repository: Path) -> None:
    app = studio(project, repository / "data/zoo/qwen2_5_vl")
    names = [app.gallery.add(Image.new("RGB", (56, 56), colour)) for colour in ("red", "green", "blue")]
    result = app.score(names, "a colour", True, job())
    assert [(row["first"], row["second"]) for row in result["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(0 <= row["score"] <= 1 and row["reasons"] for row in result["pairs"])
    assert result["mean"] == pytest.approx(sum(row["score"] for row in result["pairs"]) / 3)
    plain = app.score(names[:2], None, False, job())
    assert plain["pairs"][0]["reasons"] is None and plain["mean"] == plain["pairs"][0]["score"]


def test_what_could_not_be_judged_is_null_with_its_cause(
    project: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = studio(project, repository / "data/zoo/qwen2_5_vl")
    names = [app.gallery.add(Image.new("RGB", (56, 56), colour)) for colour in ("red", "green")]

    def fail(_self: Scorer, queries: Sequence[object], _on_batch: object = None) -> list[Score]:
        return [Score(math.nan, "the model's logits are not finite")] * len(queries)

    monkeypatch.setattr(Scorer, "score", fail)
    result = app.score(names, None, True, job())
    assert result["pairs"] == [
        {"first": 0, "second": 1, "score": None, "cause": "the model's logits are not finite", "reasons": None}
    ]
    assert result["mean"] is None
    (row,) = app.paint("a red cat", PANELS, OPTIONS_BASE, job())["pictures"]
    assert (row["score"], row["cause"]) == (None, "the model's logits are not finite")


def test_a_picture_is_edited_at_its_own_size(project: Path, repository: Path) -> None:
    app = studio(project, repository / "data/zoo/qwen2_5_vl")
    name, before = app.gallery.add(Image.new("RGB", (70, 70), "red")), {path.name for path in project.rglob("*")}
    result = app.edit([name], "Make the cat blue.", StudioOptions("base", 1, None, compare_with="base"), job())
    (row,) = result["pictures"]
    assert (row["width"], row["height"], row["panels"]) == (64, 64, []) and 0 < row["score"] < 1
    assert result["references"] == [name]
    quiet = Studio(project, app.params, Gallery(), metadata=False)
    name_there = quiet.gallery.add(app.gallery.image(name))
    edit = quiet.edit([name_there], "Make the cat blue.", StudioOptions("base", 1, None, compare_with="base"), job())
    assert quiet.gallery.png(edit["pictures"][0]["picture"]) == encode_png(app.gallery.image(row["picture"]))
    assert {path.name for path in project.rglob("*")} == before, "nothing is written"
    for names in ([name, name], ["0" * 20]):
        with pytest.raises(DataError):
            app.edit(names, "Make the cat blue.", StudioOptions("base", 1, None, compare_with=None), job())


def test_no_name_leads_to_a_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(project)
    monkeypatch.chdir(project)
    for name in ("data", str(folder), ".."):
        with pytest.raises(DataError):
            studio(project).paint("a red cat", PANELS, StudioOptions(name, 1, 64, compare_with=None), job())
