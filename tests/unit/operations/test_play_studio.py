"""The models behind the page, with the real ones of the embedded world: what is painted, scored, kept and refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from paco_core.config.params import load
from paco_core.io.files import DataError
from paco_core.operations import asked, paint, painters
from paco_core.operations.play import studio as place
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Cancelled, Job
from paco_core.operations.play.studio import Studio, StudioOptions
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import Score
from paco_core.runtime import placement
from paco_core.tasks.sets import SETS
from tests.support.small_project import adapter, lay_out

pytestmark = pytest.mark.slow

PANELS = [f"a {size} red cat {where}, flat style." for size in ("small", "big") for where in ("at night", "in snow")]
OPTIONS = StudioOptions("flux_t2is", 1, 64, beside="base")
OPTIONS_BASE = StudioOptions("base", 1, 64, beside=None)


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    return lay_out(repository, tmp_path)


def studio(project: Path, judge: Path | None = None) -> Studio:
    if judge is not None:
        (project / "data/reward_merged").symlink_to(judge)
    params = load(project / "params.yaml")
    quick = {"t2is": params.t2is.model_copy(update={"steps": 2}), "gedit": params.gedit.model_copy(update={"steps": 2})}
    return Studio(project, params.model_copy(update=quick), Gallery())


def job(at_step: Callable[[Job], object] = lambda _job: None) -> Job:
    """A job, and what happens at each of its steps."""

    class Watched(Job):
        def advance(self, count: int = 1) -> None:
            super().advance(count)
            at_step(self)

    return Watched("0")


def pixels(made: Studio, row: dict[str, Any]) -> bytes:
    return made.gallery.image(row["picture"]).tobytes()


def test_before_training_base_paints_and_nothing_is_scored(project: Path) -> None:
    made, now = studio(project), job()
    found = made.paint("a red cat", PANELS, StudioOptions("base", 2, 64, beside="base"), now)
    assert found["judge"] is False and found["painters"] == [{"name": "base", "trained": False, "story": False}]
    assert [(row["trained"], row["seed"], row["score"], row["cause"]) for row in found["pictures"]] == [
        (False, 0, None, None), (False, 1, None, None),
    ]  # fmt: skip
    assert [len(row["panels"]) for row in found["pictures"]] == [4, 4] and found["columns"] == 2
    assert made.gallery.image(found["pictures"][0]["panels"][0]).size == (32, 32)
    assert (now.done, now.total) == (4, 4) and now.result == found
    with pytest.raises(DataError, match="not trained yet"):
        made.paint("a red cat", PANELS, OPTIONS, job())
    with pytest.raises(DataError, match="no reward model yet"):
        made.score([found["pictures"][0]["picture"]] * 2, None, True, job())


def test_base_and_trained_stand_side_by_side_each_with_a_score(project: Path, repository: Path) -> None:
    """One policy is loaded once, and base paints the same whether an adapter lies on it or not."""
    adapter(project)
    made, loads = studio(project, repository / "data/zoo/qwen2_5_vl"), list[str]()
    bare = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())
    doing = job(lambda now: loads.append(now.doing))
    both = made.paint("a red cat", PANELS, OPTIONS, doing)
    assert [row["trained"] for row in both["pictures"]] == [False, True] and set(loads) == {
        "painting by base",
        "painting by flux_t2is",
    }
    base, trained = both["pictures"]
    assert pixels(made, base) == pixels(made, bare["pictures"][0]) != pixels(made, trained)
    assert all(0 < row["score"] < 1 and row["cause"] is None for row in both["pictures"])
    again = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())
    assert again["pictures"] == bare["pictures"]
    by = painters.named(project, made.params, "flux_t2is", SETS)
    record = asked.set_record("a red cat", PANELS, 64)
    alone = paint.pictures(made.params, paint.load_policy(project, by), by, record, seeds=[0], side=64, steps=2)
    assert alone[0].image.tobytes() == pixels(made, trained), "as `paco paint` does"


def test_a_champion_stands_beside_the_current_policy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own adapter, from equal noise; base is the model without either."""
    champion = shutil.copytree(adapter(project, by=0.05), project / "champion")
    adapter(project)
    monkeypatch.setattr(painters, "Champions", lambda _root: SimpleNamespace(at=lambda *_name: "1"))
    monkeypatch.setattr(painters, "adapter_of", lambda _root, _version: champion)
    made = studio(project)
    found = made.paint("a red cat", PANELS, StudioOptions("flux_t2is", 2, 64, beside="flux_t2is@champion"), job())
    assert [one["name"] for one in found["painters"]] == ["flux_t2is@champion", "flux_t2is"]
    assert [(row["by"], row["seed"], row["trained"]) for row in found["pictures"]] == [
        ("flux_t2is@champion", 0, True), ("flux_t2is@champion", 1, True),
        ("flux_t2is", 0, True), ("flux_t2is", 1, True),
    ]  # fmt: skip
    alone = made.paint("a red cat", PANELS, StudioOptions("flux_t2is@champion", 1, 64, beside="base"), job())[
        "pictures"
    ]
    assert pixels(made, alone[1]) == pixels(made, found["pictures"][0]) != pixels(made, found["pictures"][2])
    assert pixels(made, alone[0]) == pixels(made, made.paint("a red cat", PANELS, OPTIONS, job())["pictures"][0])


def test_an_adapter_that_was_trained_anew_is_loaded_anew(project: Path) -> None:
    adapter(project)
    made = studio(project)
    first = made.paint("a red cat", PANELS, OPTIONS, job())["pictures"]
    adapter(project, by=0.05)
    base, trained = made.paint("a red cat", PANELS, OPTIONS, job())["pictures"]
    assert pixels(made, base) == pixels(made, first[0]) and pixels(made, trained) != pixels(made, first[1])


def test_a_judge_that_was_trained_meanwhile_judges(project: Path, repository: Path) -> None:
    made = studio(project)
    before = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())
    shutil.copytree(repository / "data/zoo/qwen2_5_vl", project / "data/reward_merged")
    first = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())
    weights = project / "data/reward_merged/model.safetensors"
    tensors = {name: tensor * 1.05 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    second = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())
    scores = [found["pictures"][0]["score"] for found in (before, first, second)]
    assert scores[0] is None and scores[1] != scores[2]


def test_pictures_are_compared_two_by_two_with_reasons(project: Path, repository: Path) -> None:
    made, now = studio(project, repository / "data/zoo/qwen2_5_vl"), job()
    names = [made.gallery.add(Image.new("RGB", (56, 56), colour)) for colour in ("red", "green", "blue")]
    found = made.score(names, "a colour", True, now)
    assert [(row["first"], row["second"]) for row in found["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(0 <= row["score"] <= 1 and row["reasons"] for row in found["pairs"])
    assert found["mean"] == pytest.approx(sum(row["score"] for row in found["pairs"]) / 3)
    assert now.result is not None and len(now.result["pairs"]) == 3 and (now.done, now.total) == (6, 6)
    plain = made.score(names[:2], None, False, job())
    assert plain["pairs"][0]["reasons"] is None and plain["mean"] == plain["pairs"][0]["score"]


def test_what_could_not_be_judged_is_null_with_its_cause(
    project: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = studio(project, repository / "data/zoo/qwen2_5_vl")
    names = [made.gallery.add(Image.new("RGB", (56, 56), colour)) for colour in ("red", "green")]

    def fail(_self: Scorer, queries: Sequence[object], _on_batch: object = None) -> list[Score]:
        return [Score(math.nan, "the model's logits are not finite")] * len(queries)

    monkeypatch.setattr(Scorer, "score", fail)
    found = made.score(names, None, True, job())
    assert found["pairs"] == [
        {"first": 0, "second": 1, "score": None, "cause": "the model's logits are not finite", "reasons": None}
    ]
    assert found["mean"] is None
    (row,) = made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())["pictures"]
    assert (row["score"], row["cause"]) == (None, "the model's logits are not finite")


def test_a_picture_is_edited_at_its_own_size(project: Path, repository: Path) -> None:
    made = studio(project, repository / "data/zoo/qwen2_5_vl")
    name, before = made.gallery.add(Image.new("RGB", (70, 70), "red")), {path.name for path in project.rglob("*")}
    found = made.edit([name], "Make the cat blue.", StudioOptions("base", 1, None, beside="base"), job())
    (row,) = found["pictures"]
    assert (row["width"], row["height"], row["panels"]) == (64, 64, []) and 0 < row["score"] < 1
    assert found["references"] == [name]
    assert {path.name for path in project.rglob("*")} == before, "nothing is written"
    with pytest.raises(DataError, match="family flux_kontext changes one reference picture .* came with 2"):
        made.edit([name, name], "Make the cat blue.", StudioOptions("base", 1, None, beside=None), job())
    with pytest.raises(DataError, match="no longer kept"):
        made.edit(["0" * 20], "Make the cat blue.", StudioOptions("base", 1, None, beside="base"), job())


def test_painting_ends_within_a_step_when_it_is_cancelled_and_can_begin_again(project: Path) -> None:
    made = studio(project)
    now = job(lambda one: one.done == 1 and one.cancel())
    with pytest.raises(Cancelled):
        made.paint("a red cat", PANELS, StudioOptions("base", 8, 64, beside=None), now)
    assert now.done == 1 and now.result is not None and now.result["pictures"] == []
    assert len(made.paint("a red cat", PANELS, StudioOptions("base", 1, 64, beside=None), job())["pictures"]) == 1


def test_no_name_leads_to_a_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(project)
    monkeypatch.chdir(project)
    for name in ("data", str(folder), ".."):
        with pytest.raises(DataError, match="is no policy for sets"):
            studio(project).paint("a red cat", PANELS, StudioOptions(name, 1, 64, beside=None), job())


def test_a_gpu_is_taken_once_before_anything_is_loaded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever model comes first, and for both; one that is busy is said at once, and asked for again later."""
    made = studio(project)
    params = made.params
    reward = params.reward.model_copy(update={"device": "cuda"})
    made.params = params.model_copy(update={"reward": reward})
    asked, busy = list[str](), [True]
    stream = (project / "lease").open("wb")

    def take(device: str, count: int, _holder: str, _params: object, say: Callable[[str], object]) -> list[Any]:
        asked.append(device)
        if busy[0]:
            say("waiting for a GPU: GPU 0 has policies, process 7")
        return [stream] * count

    monkeypatch.setattr(placement, "take_gpus", take)
    monkeypatch.setattr(placement, "_PROCESS_GPU", placement._ProcessGpu())
    monkeypatch.setattr(place.paint, "load_judge", lambda _root, _params: None)
    with pytest.raises(DataError, match="no GPU is free now .*GPU 0 has policies, process 7"):
        made.score([], None, False, job())
    busy[0] = False
    for _ in range(2):
        with pytest.raises(DataError, match="no reward model yet"):
            made.score([], None, False, job())
    assert asked == ["cuda", "cuda"] and not stream.closed
    made.close()
    assert stream.closed


def test_a_painter_of_stories_is_named_so(project: Path) -> None:
    """Its panels are shown in one row, whatever their layout."""
    made = studio(project)
    klein = {"family": "flux2_klein", "model": "data/zoo/flux2_klein", "panels": "one_by_one", "guidance": 1.0}
    recipe = made.params.policies.recipes["flux_t2is"].model_copy(update=klein)
    policies = made.params.policies.model_copy(update={"recipes": {"flux_t2is": recipe}})
    made.params = made.params.model_copy(update={"policies": policies})
    shown = list[dict[str, Any] | None]()
    watched = job(lambda one: shown.append(one.result))
    found = made.paint("a red cat", PANELS, StudioOptions("base", 1, 128, beside=None), watched)
    assert found["painters"] == [{"name": "base", "trained": False, "story": True}]
    assert shown[0] is not None and shown[0]["painters"] == found["painters"] and shown[0]["pictures"] == []
    assert len(found["pictures"][0]["panels"]) == 4


def test_a_layout_that_was_chosen_is_painted_and_what_is_cut_is_named(project: Path) -> None:
    made = studio(project)
    options = StudioOptions("base", 1, 64, beside=None, layout="4x1")
    found = made.paint("a red cat", PANELS, options, job())
    (row,) = found["pictures"]
    assert (found["layout"], found["columns"], found["cut"]) == ("4x1", 1, None) and row["height"] == 4 * row["width"]
    longer = [f"{panel} a cat with a scarf and a hat" for panel in PANELS]
    cut = made.paint("a red cat", longer, StudioOptions("base", 1, 64, beside=None), job())["cut"]
    assert cut["of"] - cut["tokens"] == 40 and longer[-1].endswith(cut["lost"][-20:])
    assert made.paint("a red cat", PANELS, OPTIONS_BASE, job())["cut"] is None, "another prompt's cut is not shown"
