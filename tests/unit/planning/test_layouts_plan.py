"""The plan of prompts of several layouts, of stories and of edits with several references: the largest counts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.config import profiles
from paco_core.config.params import Params, parse
from paco_core.config.params_policies import PromptFiles
from paco_core.io.files import DataError
from paco_core.planning import costs
from paco_core.planning.device_memory import device_memory, painting_gb
from paco_core.planning.footprint import KNOWN
from paco_core.planning.foreseen import foresee
from paco_core.planning.plan import plan
from paco_core.tasks.sets import SETS
from tests.support.dataset_world import records

POLICY = "flux_t2is"  # by its stage's name: profiles/klein_48gb.yaml trains klein


def prompts(folder: Path, part: str, *layouts: str) -> str:
    """A file with eight prompts of each layout, by its path."""
    made = [
        record.model_copy(
            update={
                "idx": f"{part}-{record.idx}",
                "prompt": record.prompt.replace("grid layout", f"grid layout of a {part}", 1),
                "theme": f"{part}: {record.theme}",
            }
        )
        for layout in layouts
        for record in records(8, layout)
    ]
    file = folder / f"{part}.jsonl"
    file.write_text("".join(record.model_dump_json() + "\n" for record in made))
    return str(file)


def klein(repository: Path, folder: Path, train: str, test: str, **changes: Any) -> Params:
    """FLUX.2 [klein] on one GPU of 48 GB, trained and evaluated on prompts of other layouts."""
    params = profiles.read(repository, "klein_48gb")
    files = PromptFiles(train=prompts(folder, "train", *train.split()), test=prompts(folder, "test", *test.split()))
    rule = params.policies.recipes[POLICY].model_copy(update={"prompts": files, "eval_prompts": 8, **changes})
    params.policies.recipes[POLICY] = rule
    return params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "test", "changes"),
    [
        ("2x2", "1x2 3x3", {"eval_batch": 8}),
        ("2x2 3x3", "2x2", {"train_batch": 4, "rollout_batch": 16}),
        ("1x2", "2x3", {"panels": "one_by_one", "eval_batch": 16}),
        ("3x3", "2x2", {"panels": "one_by_one", "train_batch": 8, "rollout_batch": 16}),
    ],
)
def test_memory_is_near_what_the_largest_layout_allocates(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, train: str, test: str, changes: dict[str, Any]
) -> None:
    """Of the real sizes, on fake tensors; a story's last panel has four pictures beside it."""
    monkeypatch.syspath_prepend(str(repository))
    params = klein(repository, tmp_path, train, test, **changes)
    rows = importlib.import_module("speed.memory").compare(params, repository, [POLICY])
    assert [row["phase"] for row in rows] == ["training", "evaluation at 1024 px"]
    for row in rows:
        assert row["plan_gb"] == pytest.approx(row["peak_gb"], rel=0.15)


@pytest.mark.slow
def test_memory_is_near_what_an_edit_of_four_pictures_allocates(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(repository))
    params = editing(repository, tmp_path, 4)
    rows = importlib.import_module("speed.memory").compare(params, repository, [POLICY])
    for row in rows:
        assert row["plan_gb"] == pytest.approx(row["peak_gb"], rel=0.15)


def editing(repository: Path, folder: Path, references: int) -> Params:
    """The same model as an editor of your own pictures, so many a prompt."""
    tree, lines = profiles.resolve(repository, "klein_48gb"), []
    for row in range(4):
        names = [f"{row}-{number}.png" for number in range(references)]
        for number, name in enumerate(names):
            Image.new("RGB", (512, 512), (50 * number, 50 * row, 0)).save(folder / name)
        lines.append({"key": f"e{row}", "input_image": names, "instruction": "Make it red."})
    file = folder / "edits.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree["edit_prompts"] |= {"source": "file", "file": str(file), "count": None, "unseen": 2}
    tree["policies"]["recipes"][POLICY] |= {
        "task": "edits", "eval_prompts": 1, "prompts_per_epoch": 2, "train_batch": 4, "rollout_batch": 8,
        "rewards": {"terms": {"editing": {"weight": 1}}, "aggregator": "weighted_sum", "advantage_std": "group"},
    }  # fmt: skip
    return parse(tree)


def test_evaluations_hold_the_layouts_that_they_paint(repository: Path, tmp_path: Path) -> None:
    """Prompts to test on may be of larger ones than those to train on, or the other way round."""
    found = {}
    for train, test in (("2x2", "2x2"), ("2x2", "3x3"), ("3x3", "2x2")):
        held = device_memory(klein(repository, tmp_path, train, test, eval_batch=8), POLICY, repository)
        assert held is not None
        found[train, test] = held.phases["training"], held.phases["evaluation at 1024 px"]
    small, wide, trained = found.values()
    assert wide[0] == small[0] < trained[0] and trained[1] == small[1] < wide[1]


def painted_gb(params: Params, repository: Path) -> float:
    return painting_gb(params, SETS, foresee(params, repository), repository)


def test_a_benchmark_holds_the_largest_picture_that_it_paints(repository: Path, tmp_path: Path) -> None:
    """A batch has as many tokens whatever the layout, until one picture has more than a batch may have."""
    large = {"eval_sizes": [1024]}
    few, many = (painted_gb(klein(repository, tmp_path, "2x2", t, **large), repository) for t in ("2x2", "3x3"))
    found = KNOWN["black-forest-labs/FLUX.2-klein-base-4B"]
    assert many - few == pytest.approx(found.decoding_gb(1536, 1, 2) - found.decoding_gb(1024, 1, 2), rel=0.01)
    story = klein(repository, tmp_path, "2x2", "2x2", **large, panels="one_by_one")
    panels = painted_gb(story, repository)
    apart = story.model_copy(update={"t2is": story.t2is.model_copy(update={"separately": True})})
    assert painted_gb(apart, repository) == pytest.approx(few) and few > panels


def test_seconds_grow_with_what_is_painted(repository: Path, tmp_path: Path) -> None:
    """With the small models: 3x3 panels have 9/4 of the pixels, and panels one by one passes of their own."""
    params = profiles.read(repository, "storybook")

    def cost(layout: str, **changes: Any) -> tuple[float, float]:
        files = PromptFiles(train=prompts(tmp_path, "train", layout), test=prompts(tmp_path, "test", layout))
        rule = params.policies.recipes[POLICY].model_copy(update={"prompts": files, "eval_prompts": 8, **changes})
        recipes = {POLICY: rule}
        asked = params.model_copy(update={"policies": params.policies.model_copy(update={"recipes": recipes})})
        takes = costs.training_cost(asked, POLICY, repository).seconds, costs.benchmark_cost(asked, SETS, repository)
        assert takes[0] is not None and takes[1].seconds is not None
        return takes[0], takes[1].seconds

    small, large = cost("2x2"), cost("3x3")
    assert 1.4 < large[1] / small[1] < 2.25, "a share of a pass does not grow"
    assert large[0] > small[0]
    model = {"family": "flux2_klein", "model": "data/zoo/flux2_klein", "guidance": 1.0}
    assert cost("2x2", **model, panels="one_by_one")[1] > 1.5 * cost("2x2", **model)[1]


def test_a_layout_of_the_prompts_to_test_on_is_refused_before_a_run(repository: Path, tmp_path: Path) -> None:
    """Also one that no evaluation watches: the benchmark paints it."""
    params = klein(repository, tmp_path, "2x2", "2x2 3x3", eval_prompts=1, eval_sizes=[80], prompts_per_epoch=8)
    recipe = params.policies.recipes[POLICY]
    watched = SETS.split(recipe, lambda path: repository / path).unseen
    assert [record.layout for record in watched] == ["2x2"]
    with pytest.raises(DataError, match=r"record test-\w+: a picture of 120 x 120 does not divide into .* 3x3 panels"):
        plan(params, POLICY, repository)
