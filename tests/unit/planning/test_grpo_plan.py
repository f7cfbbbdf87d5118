"""The arithmetic, memory and cost of a training, and the numbers that cannot work."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.config import profiles
from paco_core.config.params import Params, parse
from paco_core.data.prompts.prompts import make_prompts
from paco_core.io.files import DataError
from paco_core.planning.passes import largest_image, pixels_per_pass
from paco_core.planning.plan import plan
from paco_core.planning.workload import Workload
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.sources import Sources
from tests.support.dataset_world import records
from tests.support.reward_batches import make_story, panels


def changed(params: Params, recipe: dict[str, Any] | None = None, **changes: Any) -> Params:
    """The parameters with other numbers, checked as the file would be."""
    tree = params.model_dump()
    tree["policies"]["defaults"].update(changes)
    tree["policies"]["recipes"]["flux_t2is"].update(recipe or {})
    return parse(tree)


def test_plan_counts_the_work(repository: Path, params: Params) -> None:
    numbers = {"epochs": 21, "eval_every": 10, "prompts_per_epoch": 8, "group_size": 16, "updates_per_epoch": 2}
    config = changed(params, rollout_batch=50, train_batch=30, **numbers)
    workload = Workload.from_params(config, "flux_t2is")
    assert (workload.images_an_epoch, workload.questions_a_picture, workload.rollout_batches) == (128, 6, 3)
    assert (workload.optimiser_steps, workload.evaluations, workload.untrained_passes) == (42, 4, 0)
    assert workload.micro_batches == 1  # of 4 passes: each group shares its trained step
    assert Workload.from_params(changed(config, {"shared_noise": False}), "flux_t2is").micro_batches == 3
    text = plan(config, "flux_t2is", repository)
    assert f"{21 * 128 * 6} scored pairs" in text and "GB per process" in text and "min on two cores" in text
    with pytest.raises(DataError, match="there are: flux_t2is"):
        plan(config, "flux_t2iss", repository)
    missing = config.model_dump()
    missing["prompts"] |= {"engine": "import", "source": "missing.jsonl", "layout": None}
    assert ", scored pairs unknown, " in plan(parse(missing), "flux_t2is", repository)


@pytest.mark.parametrize(
    ("changes", "recipe", "passes"),
    [
        ({}, {"sampling_steps": 10, "noise_steps": [1, 3, 5], "num_noise_steps": 2}, (2, 0)),
        ({"old_log_prob": "recomputed", "kl": {"beta": 0.1}}, {}, (1, 2)),
        ({"loss": "nft"}, {"dynamics": "ode", "noise_steps": []}, (4, 4)),
        ({"loss": "nft"}, {"train_steps": [0, 2]}, (2, 2)),
    ],
)
def test_passes_by_loss(
    params: Params, changes: dict[str, Any], recipe: dict[str, Any], passes: tuple[int, int]
) -> None:
    workload = Workload.from_params(changed(params, {**recipe, "shared_noise": False}, **changes), "flux_t2is")
    assert (workload.trained_passes, workload.untrained_passes) == tuple(workload.images_an_epoch * n for n in passes)


@pytest.mark.parametrize(
    ("loss", "trained", "untrained", "micro_batches"), [("dpo", 2 * 8 * 4, 2 * 8 * 4, 2 * 4), ("sft", 8 * 4, 0, 4)]
)
def test_ranked_pairs_are_counted(
    repository: Path, params: Params, loss: str, trained: int, untrained: int, micro_batches: int
) -> None:
    numbers = {"loss": loss, "epochs": 5, "prompts_per_epoch": 8, "updates_per_epoch": 2, "train_batch": 5}
    config = changed(params, {"dynamics": "ode", "noise_steps": []}, **numbers)
    workload = Workload.from_params(config, "flux_t2is")
    assert (workload.trained_passes, workload.untrained_passes, workload.micro_batches) == (
        trained,
        untrained,
        micro_batches,
    )
    assert (workload.images_an_epoch, workload.rollout_passes, workload.questions_a_picture) == (0, 0, 0)
    text = str(plan(config, "flux_t2is", repository))
    assert "pairs per epoch      8 of ranked images, one per prompt" in text
    assert f"{trained} passes with backward and {untrained} without" in text and f"loss {loss}" in text
    assert "sampling   " not in text and "in all               0 images, 0 scored pairs" in text


OFFLINE = {"loss": "dpo", "dynamics": "ode", "noise_steps": []}


@pytest.mark.parametrize(
    ("section", "key", "value", "policy", "message"),
    [
        ("annotations", "source", "none", "flux_t2is", r"the graph makes none \(annotations.source 'none'"),
        ("grids", "seeds", [0, 1], "kontext_edit", "the graph ranks no edits; name a folder of rankings"),
    ],
)
def test_a_loss_on_rankings_is_refused_where_there_will_be_none(
    repository: Path, params: Params, section: str, key: str, value: object, policy: str, message: str
) -> None:
    tree = changed(params).model_dump()
    tree["policies"]["recipes"][policy].update(OFFLINE)
    plan(parse(tree), "flux_t2is", repository)
    tree[section][key] = value
    with pytest.raises(DataError, match=message):
        plan(parse(tree), policy, repository)


def test_a_folder_of_rankings_without_a_pair_is_refused(tmp_path: Path, repository: Path, params: Params) -> None:
    config = changed(params, {**OFFLINE, "preferences": str(tmp_path)})
    with pytest.raises(DataError, match=r"rankings.jsonl: no such file"):
        plan(config, "flux_t2is", repository)
    prompt = make_prompts(params.prompts, (64, 64), repository).records[0].idx
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 64)).save(tmp_path / name)
    row = {"prompt_id": prompt, "pictures": ["a.png", "b.png"], "ranking": [0, 1]}
    lines = [json.dumps(row), json.dumps({**row, "ranking": [1, 0]})]
    (tmp_path / "rankings.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match="no prompt has a best and a worst picture in its rankings"):
        plan(config, "flux_t2is", repository)
    (tmp_path / "rankings.jsonl").write_text(lines[0])
    assert "loss dpo" in str(plan(config, "flux_t2is", repository))
    for name in ("a.png", "b.png"):
        Image.new("RGB", (256, 64)).save(tmp_path / name)
    assert "loss dpo" in str(plan(config, "flux_t2is", repository))
    with pytest.raises(DataError, match=f"prompt {prompt}: its best image a.png has 256 x 64 px"):
        exact = {**OFFLINE, "preferences": str(tmp_path), "record_size": "exact"}
        plan(changed(params, exact), "flux_t2is", repository)


def test_pairs_are_counted_by_layout(params: Params, repository: Path) -> None:
    tree = params.model_dump()
    tree["prompts"] |= {"layout": ["2x2", "1x3", "2x3", "2x4"], "count": 80}
    tree["diverse_prompts"]["target"] = None
    tree["policies"]["defaults"] |= {"prompts_per_epoch": 4, "eval_prompts": 16}
    config = parse(tree)
    by_layout = Workload.from_params(config, "flux_t2is").questions_by_layout
    assert by_layout == {"2x2": 6, "1x3": 3, "2x3": 15, "2x4": 28}
    assert Workload.from_params(config, "flux_t2is").questions_a_picture == 13
    trained = records(10, "1x3")
    assert Workload.from_params(config, "flux_t2is", trained).questions_by_layout == {"1x3": 3}
    text = str(plan(config, "flux_t2is", repository))
    assert re.search(r"distinct pairs \(1\d(\.\d+)? per image on average: ", text)
    assert all(f"{layout} {pairs}" in text for layout, pairs in by_layout.items())


def test_plan_counts_both_judges_and_a_rubrics_questions(repository: Path, params: Params) -> None:
    """Two judges ask six pairs each of a 2x2 set, a rubric one question of all its criteria."""
    rubric = {
        "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": None},
        "criteria": {"style": "one style", "identity": "one person"},
    }
    terms = {
        "consistency": {"weight": 1.0},
        "other": {"weight": 0.0, "reward": "consistency", "model": "data/zoo/qwen2_5_vl"},
        "rubric": {"weight": 1.0, "rubric": rubric},
    }
    rewards = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    tree = params.model_dump()
    tree["policies"]["recipes"]["flux_t2is"] |= {"rewards": rewards, "prompts_per_epoch": 8, "group_size": 16}
    config = parse(tree)
    workload = Workload.from_params(config, "flux_t2is")
    assert (workload.questions_a_picture, workload.rubric_questions) == (12, 1)
    text = str(plan(config, "flux_t2is", repository))
    assert "1536 distinct pairs (12 per image) and 128 questions of rubrics" in text


def test_plan_counts_the_queries_that_the_reward_characters_asks(params: Params) -> None:
    """Of each panel, about every image of every character; in the mean over stories of one layout."""
    stories = [
        make_story("Mia.", "Fox.", "Mia.", idx="a", Mia=["red", "blue"], Fox=["green"]),
        make_story("Bo.", "Bo.", "Bo.", idx="b", Bo=["red"]),
        make_story("Bo.", "Bo.", idx="c", Bo=["red", "blue", "white"]),
    ]
    terms = {"characters": {"weight": 1.0}, "consistency": {"weight": 1.0}}
    rewards = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    tree = params.model_dump()
    tree["policies"]["recipes"]["flux_t2is"] |= {"rewards": rewards}
    workload = Workload.from_params(parse(tree), "flux_t2is", stories)
    scored = list[PairQuery]()

    class Judge:
        def score(self, queries: Sequence[PairQuery]) -> list[Score]:
            scored.extend(queries)
            return [Score(0.5)] * len(queries)

    batch = RewardBatch(stories, [panels(record.grid[1]) for record in stories])
    for name, term in parse(tree).policies.recipes["flux_t2is"].rewards.terms.items():
        registry.build_reward(name, term, Sources({None: Judge()}))(batch)
    assert workload.questions_by_layout == {"1x3": 3 + (9 + 3) / 2, "1x2": 1 + 6}
    assert workload.questions_a_picture * len(stories) == pytest.approx(len(scored)) and len(scored) == 25


def test_passes_are_counted_over_the_largest_image_and_its_most_references(params: Params) -> None:
    rule = params.policies.recipe("flux_t2is").model_copy(update={"train_size": 512})
    equal, mixed = records(4), [*records(2), *records(2, "2x4")]
    assert largest_image(rule, equal, 512, 16) == largest_image(rule, [], 512, 16) == ((512, 512), 0)
    assert largest_image(rule, mixed, 512, 16) == ((512, 1024), 0)
    assert pixels_per_pass(rule, mixed, 512, 16) == 1.5 * 512 * 512, "work is that of the mean one"
    ignored = rule.model_copy(update={"record_size": "ignore"})
    assert largest_image(ignored, mixed, 512, 16) == ((512, 512), 0)


@pytest.mark.parametrize(
    ("changes", "recipe", "sampled", "trained"),  # each: passes a picture, passes a prompt
    [
        ({}, {}, (2, 2), (0, 1)),
        ({}, {"noise_steps": [0, 1, 2]}, (3, 1), (2, 1)),
        ({}, {"noise_steps": [0, 1, 2], "train_steps": [1, 2]}, (3, 1), (2, 0)),
        ({"loss": "nft"}, {"dynamics": "ode", "noise_steps": []}, (0, 4), (4, 0)),
    ],
)
def test_passes_that_a_group_shares(
    params: Params, changes: dict[str, Any], recipe: dict[str, Any], sampled: tuple[int, int], trained: tuple[int, int]
) -> None:
    config = changed(params, {**recipe, "shared_noise": True}, **changes)
    workload, prompts = (
        Workload.from_params(config, "flux_t2is"),
        config.policies.recipes["flux_t2is"].prompts_per_epoch,
    )
    assert workload.rollout_passes == sampled[0] * workload.images_an_epoch + sampled[1] * prompts
    assert workload.trained_passes == trained[0] * workload.images_an_epoch + trained[1] * prompts


@pytest.mark.parametrize(
    ("changes", "recipe", "message"),
    [
        ({}, {"train_size": 72}, "72 x 72 .* is 64 x 64"),
        ({}, {"eval_sizes": [64, 8]}, " 8 x 8 .*32 x 32"),
        ({}, {"eval_sizes": [64, 16]}, "panels of 8 x 8 px .*32 x 32"),
        ({"prompts_per_epoch": 200, "updates_per_epoch": 2}, {}, "only 184 training prompts; choose at most 184"),
        ({}, {"rewards": {"terms": {"editing": {"weight": 1}}, "aggregator": "rank", "advantage_std": "group"}},
         "reward editing does not fit this policy"),
    ],
)  # fmt: skip
def test_impossible_numbers_name_their_neighbours(
    repository: Path, params: Params, changes: dict[str, Any], recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan(changed(params, recipe, **changes), "flux_t2is", repository)


def test_the_papers_scale_is_estimated_without_its_weights(repository: Path) -> None:
    paper = profiles.read(repository, "paper")
    text = str(plan(paper, "flux_t2is", repository, processes=7))
    assert re.search(r"memory +about 3\d GB per process: weights 24, adapter, average and optimizer 5", text)
    assert "about 2.4 h on 7 x H200 (measured 2026-11-26)" in text
    assert re.search(r"7\.\d h on 7 x A100, .* \(estimated from the published throughput\)", text)
