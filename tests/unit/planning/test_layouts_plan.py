"""The plan of prompts of several layouts, of stories and of edits with several references: the largest counts."""

from __future__ import annotations

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
from paco_core.planning.memory import benchmark_gb, training_memory, training_passes
from paco_core.planning.passes import pixels_per_pass, references_per_part
from paco_core.planning.plan import plan
from paco_core.planning.planned_prompts import plan_prompts, plan_prompts_or_empty, trained_on
from paco_core.planning.workload import Workload
from paco_core.tasks.sets import SETS
from tests.support.dataset_world import records

POLICY = "flux_t2is"  # by its stage's name: profiles/klein_48gb.yaml trains klein
SMALL = {"model": "data/zoo/flux2_klein", "max_sequence_length": 45, "train_size": 128, "eval_sizes": [256]}
KLEIN = "black-forest-labs/FLUX.2-klein-base-4B"


def prompts(folder: Path, part: str, *layouts: str) -> str:
    """A file with eight prompts of each layout, by its path."""
    copies = [
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
    file.write_text("".join(record.model_dump_json() + "\n" for record in copies))
    return str(file)


def klein(repository: Path, folder: Path, train: str, test: str, **changes: Any) -> Params:
    """The small FLUX.2 [klein] as if on a GPU, trained and evaluated on prompts of other layouts."""
    params = profiles.read(repository, "klein_48gb")
    files = PromptFiles(train=prompts(folder, "train", *train.split()), test=prompts(folder, "test", *test.split()))
    rule = params.policies.recipes[POLICY].model_copy(update={"prompts": files, "eval_prompts": 8, **SMALL, **changes})
    params.policies.recipes[POLICY] = rule
    return params


def test_evaluations_hold_the_layouts_that_they_paint(repository: Path, tmp_path: Path) -> None:
    """Prompts to test on may be of larger ones than those to train on, or the other way round."""
    peaks = {}
    for train, test in (("2x2", "2x2"), ("2x2", "3x3"), ("3x3", "2x2")):
        memory = training_memory(klein(repository, tmp_path, train, test, eval_batch=8), POLICY, repository)
        assert memory is not None
        peaks[train, test] = memory.phases_gb["training"], memory.phases_gb["evaluation at 256 px"]
    small, wide, trained = peaks.values()
    assert wide[0] == small[0] < trained[0] and trained[1] == small[1] < wide[1]


def test_a_benchmark_holds_the_largest_picture_that_it_paints(repository: Path, tmp_path: Path) -> None:
    def peak_gb(test: str, *, separately: bool = False, **changes: Any) -> float:
        params = klein(repository, tmp_path, "2x2", test, eval_sizes=[1024], **changes)
        t2is = params.t2is.model_copy(update={"separately": separately})
        return benchmark_gb(
            params.model_copy(update={"t2is": t2is}), SETS, plan_prompts(params, repository), repository
        )

    story = {"panels": "one_by_one"}
    assert peak_gb("2x2", **story) < peak_gb("2x2") < peak_gb("3x3")
    assert peak_gb("2x2", **story, separately=True) == peak_gb("2x2"), "each panel is also an image of the whole size"


def test_references_are_those_of_the_prompt_with_most(repository: Path, tmp_path: Path) -> None:
    tree, lines = profiles.resolve(repository, "klein_48gb"), []
    for row in range(4):
        names = [f"{row}-{number}.png" for number in range(1 + row)]
        for number, name in enumerate(names):
            Image.new("RGB", (512, 512), (50 * number, 50 * row, 0)).save(tmp_path / name)
        lines.append({"key": f"e{row}", "input_image": names, "instruction": "Make it red."})
    file = tmp_path / "edits.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree["edit_prompts"] |= {"source": "file", "file": str(file), "count": None, "unseen": 2}
    tree["policies"]["recipes"][POLICY] |= {
        "task": "edits", "eval_prompts": 1, "prompts_per_epoch": 2, "train_batch": 4, "rollout_batch": 8,
        "rewards": {"terms": {"editing": {"weight": 1}}, "aggregator": "weighted_sum", "advantage_std": "group"},
    }  # fmt: skip
    params = parse(tree)
    recipe, planned = params.policies.recipes[POLICY], plan_prompts_or_empty(params, repository)
    passes = training_passes(recipe, planned, repository)
    most = [max(run.references for run in phase) for phase in passes.values()]
    assert max(most) == 4 == max(len(edit.references) for edit in planned.edits)
    pixels = pixels_per_pass(recipe, planned.edits, 512, 16)
    assert pixels == 512 * 512 * (1 + sum(len(edit.references) for edit in planned.edits) / len(planned.edits))
    assert Workload.from_params(params, POLICY, planned.edits).questions_a_picture == 1 + 4, "with the largest edit"


def painter(repository: Path, task: str | None = None, **changes: Any) -> Params:
    """The paper's numbers for klein, as a painter or an editor."""
    tree = profiles.resolve(repository, "paper")
    recipes = tree["policies"]["recipes"]
    like = recipes["kontext_edit" if task == "edits" else "flux_t2is"]
    recipes["klein"] = {**like, "family": "flux2_klein", "task": task, "model": KLEIN, "guidance": 4.0, **changes}
    return parse(tree)


def test_the_work_of_a_story_is_that_of_its_panels(repository: Path) -> None:
    """Of 2x2 sets: four times the samples, whose passes have up to three panels beside their own."""
    at_once, one_by_one = painter(repository), painter(repository, panels="one_by_one")
    rule = one_by_one.policies.recipes["klein"]
    records_of_rule = trained_on(plan_prompts_or_empty(one_by_one, repository), rule, repository)
    assert {record.layout for record in records_of_rule} == {"2x2"}
    assert references_per_part(rule, records_of_rule)[0] == [0, 1, 2, 3]
    complete, panels = (Workload.from_params(params, "klein", records_of_rule) for params in (at_once, one_by_one))
    assert (panels.rollout_passes, panels.trained_passes) == (4 * complete.rollout_passes, 4 * complete.trained_passes)
    assert panels.micro_batches == 4 * complete.micro_batches and panels.images_an_epoch == complete.images_an_epoch
    training = training_passes(rule, plan_prompts_or_empty(one_by_one, repository), repository)["training"]
    assert [(run.size, run.references) for run in training] == [((256, 256), 3)] * 2
    small = painter(repository, panels="one_by_one", model="data/zoo/flux2_klein", max_sequence_length=45)
    text = plan(small, "klein", repository)
    assert "stories              4 panels each, one by one, each with at most 4 earlier panels as references" in text


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("flux_t2is", {"task": "edits"}, "task: FluxPipeline generates from text only"),
        ("flux_t2is", {"panels": "one_by_one"}, "flux_t2is: panels: one_by_one.*the family flux accepts no reference"),
        ("kontext_edit", {"panels": "one_by_one"}, "kontext_edit: panels: one_by_one.*flux_kontext only edits"),
        (
            "klein",
            {"panels": "one_by_one", "predecessors": 9},
            "klein: predecessors=9: .* accepts at most 4 reference images",
        ),
        ("klein", {"panels": "one_by_one", "train_size": 64}, "klein: record .*panels of 32 x 32 px"),
        ("kontext_edit", {"train_size": 392}, "392 x 392 px: each side must be a multiple of 16 px; .* is 384 x 384"),
    ],
)
def test_what_a_family_cannot_do_is_found_before_a_run(
    repository: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    params = painter(repository)
    params.policies.recipes[name] = params.policies.recipes[name].model_copy(update=changes)
    with pytest.raises(DataError, match=message):
        plan(params, name, repository)


def test_seconds_grow_with_what_is_painted(repository: Path, tmp_path: Path) -> None:
    """With the small models: 3x3 panels have 9/4 of the pixels, and panels one by one passes of their own."""
    params = profiles.read(repository, "storybook")

    def cost(layout: str, **changes: Any) -> tuple[float, float]:
        files = PromptFiles(train=prompts(tmp_path, "train", layout), test=prompts(tmp_path, "test", layout))
        rule = params.policies.recipes[POLICY].model_copy(update={"prompts": files, "eval_prompts": 8, **changes})
        recipes = {POLICY: rule}
        config = params.model_copy(update={"policies": params.policies.model_copy(update={"recipes": recipes})})
        takes = costs.training_cost(config, POLICY, repository).seconds, costs.benchmark_cost(config, SETS, repository)
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
    with pytest.raises(
        DataError, match=r"record test-\w+: an image of 120 x 120 px cannot be divided into .* 3x3 panels"
    ):
        plan(params, POLICY, repository)
