"""Bad input of a training ends with a message that names it, and before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paco_core.config.changes import changed
from paco_core.config.params import ParamsError, load
from paco_core.grpo.sizes import token_pixels
from paco_core.grpo.trainer import RunContext
from paco_core.io.files import DataError
from paco_core.rewards.aggregation import aggregate
from paco_core.storybook.prompts import storybook_prompts
from paco_core.tasks.training import train_recipe
from tests.support.fixture_project import records_of

RECIPE = "policies.recipes.flux_t2is"


@pytest.fixture
def made(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with prompts and a model's configuration; loading a model or starting a server is an error here."""
    for part, config in (("transformer", {}), ("vae", {"block_out_channels": [8, 8, 8, 8]})):
        (project / "data/zoo/flux" / part).mkdir(parents=True)
        (project / "data/zoo/flux" / part / "config.json").write_text(json.dumps(config))
    write_prompts(project, [record.model_dump() for record in records_of(storybook_prompts(40, seed=0))])

    def loaded(*_args: object, **_named: object) -> None:
        raise AssertionError("a model or a server was asked for")

    monkeypatch.setattr("paco_core.policies.base.load", loaded)
    monkeypatch.setattr("paco_core.grpo.recipe._lease", loaded)
    return project


def write_prompts(project: Path, rows: list[dict[str, Any]]) -> None:
    folder = project / "data" / "diverse_prompts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(project: Path, **changes: Any) -> None:
    params = changed(load(project / "params.yaml"), {key.replace("__", "."): value for key, value in changes.items()})
    out = project / "out"
    context = RunContext(
        root=project,
        out=out,
        final=Path("out"),
        checkpoints=out / "checkpoint",
        read=lambda path: project / path,
    )
    train_recipe(params, "flux_t2is", context)


def test_good_input_gets_as_far_as_the_model(made: Path) -> None:
    with pytest.raises(AssertionError, match="was asked for"):
        train(made)


@pytest.mark.parametrize("key", ["train_size", "eval_sizes"])
def test_a_size_that_tokens_do_not_divide(made: Path, key: str) -> None:
    value: Any = 72 if key == "train_size" else [64, 72]
    with pytest.raises(DataError, match=r"record \w+: a picture of 72 x 72 .* 16 px tokens .* the nearest .* 64 x 64"):
        train(made, **{f"{RECIPE}.{key}": value})


def test_a_records_own_size_that_tokens_do_not_divide(made: Path) -> None:
    write_prompts(made, [r.model_dump() | {"width": 72} for r in records_of(storybook_prompts(40, seed=0))])
    with pytest.raises(
        DataError, match="a picture of 64 x 72 does not divide into 16 px.*nearest that does is 64 x 64"
    ):
        train(made, **{f"{RECIPE}.record_size": "exact"})


def test_a_size_that_panels_do_not_divide(made: Path) -> None:
    write_prompts(made, [r.model_dump() for r in records_of(storybook_prompts(40, seed=0, layout="1x3"))])
    with pytest.raises(DataError, match=r"picture of 64 x 64 .* and 1x3 panels; the nearest that does is 64 x 48"):
        train(made, **{f"{RECIPE}.record_size": "ignore"})


def test_a_layout_whose_panels_are_no_whole_tokens(made: Path) -> None:
    """At 48 px a picture of 2x2 divides, one of 1x3 would be 24 px high."""
    wide = [r.model_dump() | {"width": 192} for r in records_of(storybook_prompts(40, seed=0, layout="1x3"))]
    write_prompts(made, [*(r.model_dump() for r in records_of(storybook_prompts(40, seed=0))), *wide])
    with pytest.raises(DataError, match=r"picture of 24 x 72 .* 16 px tokens and 1x3 panels; the nearest .* 32 x 96"):
        train(made, **{f"{RECIPE}.train_size": 48})


def test_what_a_configuration_says_of_tokens(made: Path) -> None:
    assert token_pixels(made / "data/zoo/flux") == 16 and token_pixels(made) is None
    assert token_pixels(made / "black-forest-labs/FLUX.1-dev") == 16, "of the hub, and not here yet"
    (made / "data/zoo/flux/vae/config.json").write_text(json.dumps({"temperal_downsample": [False, True, True]}))
    assert token_pixels(made / "data/zoo/flux") == 16


def test_rollout_batches_that_processes_cannot_share(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the model of a folder, and one of the hub, is loaded."""
    monkeypatch.setattr("paco_core.grpo.recipe.launched_processes", lambda: 7)
    monkeypatch.setattr("paco_core.grpo.recipe.model_at", lambda *_: None)
    for model in ("data/zoo/flux", "black-forest-labs/FLUX.1-dev"):
        with pytest.raises(DataError, match="rollout batches per epoch cannot be divided evenly among 7 processes"):
            train(made, **{f"{RECIPE}.model": model})


def test_an_empty_data_set_and_a_record_without_panels(made: Path) -> None:
    row = records_of(storybook_prompts(1, seed=0))[0].model_dump()
    write_prompts(made, [])
    with pytest.raises(DataError, match=r"prompts.jsonl: holds no prompt"):
        train(made)
    write_prompts(made, [row | {"prompt": "a cat on a mat"}])
    with pytest.raises(DataError, match=r"prompts.jsonl:1: record \w+: prompt marks 0 panels, its layout 2x2 has 4"):
        train(made)


def test_a_reward_that_does_not_exist(made: Path) -> None:
    terms = {"consistency": {"weight": 1.0}, "clipt": {"weight": 1.0}}
    with pytest.raises(ParamsError, match="reward 'clipt' is unknown; did you mean 'clip_t'"):
        train(made, **{f"{RECIPE}.rewards.terms": terms})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{RECIPE}.noise_steps": [3]}, "lie outside the schedule.*choose from 0..2"),
        ({f"{RECIPE}.train_steps": [2]}, r"train_steps \[2\] are not among the noise steps; choose from \[1\]"),
        ({"policies.defaults.group_size": 1}, "policies.defaults.group_size.*greater than or equal to 2"),
        ({"policies.defaults.updates_per_epoch": 3}, r"does not divide prompts_per_epoch=8; valid: \[1, 2, 4, 8\]"),
        ({f"{RECIPE}.rewards.terms": {}}, "rewards.terms"),
    ],
)
def test_numbers_that_cannot_work(made: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        train(made, **changes)


def test_rewards_that_an_aggregator_cannot_take_end_without_a_traceback() -> None:
    import numpy as np

    values = {"a": np.array([[-2.0, 1.0]])}
    with pytest.raises(DataError, match="log_tame needs rewards above -1.*a has minimum -2"):
        aggregate(values, {"a": 1.0}, "log_tame")
    with pytest.raises(DataError, match="geometric_mean needs positive rewards; a has minimum -2"):
        aggregate(values, {"a": 1.0}, "geometric_mean")
