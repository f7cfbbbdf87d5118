"""`paco_core.Judge`: the numbers of the graph and of `paco score`, from pictures in any form, here or on a server."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paco_core import Judge
from paco_core.benchmarks import rankings as bench
from paco_core.cli import main
from paco_core.config.params import load
from paco_core.data.records.panels import PanelStore
from paco_core.data.records.records import PromptRecord
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.shards import encode_png
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency
from paco_core.serving.protocol import ServingError
from tests.support import reward_tiny, tiny_vlm
from tests.support.reward_project import fill, fill_benchmark
from tests.support.serving_fakes import FakeModel, Scripted, panel, reply, served, true_score

pytestmark = pytest.mark.slow

THEME = "the same style"


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a reward model, and four pictures beside it."""
    tiny_vlm.build(project / paths.REWARD_MERGED)
    for number in range(4):
        reward_tiny.picture(number).save(project / f"{number}.png")
    monkeypatch.chdir(project)
    return project


def pictures(folder: Path) -> list[str]:
    return [str(folder / f"{number}.png") for number in range(4)]


def test_the_judge_and_the_command_score_alike(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = files = pictures(folder)
    judge = Judge()
    main(["score", first, second, "--theme", THEME, "--reasons", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert judge.score(first, second, theme=THEME) == result["score"]
    assert judge.explain(first, second, theme=THEME) == result["reasons"]
    main(["score", *files, "--json"])
    result = json.loads(capsys.readouterr().out)
    matrix = judge.matrix(files)
    np.testing.assert_array_equal(matrix, np.array(result["scores"], dtype=float))
    assert judge.consistency(files) == result["mean"] and matrix.shape == (4, 4)
    assert np.isnan(np.diag(matrix)).all() and (matrix[1, 3] == matrix[3, 1] == judge.score(files[1], files[3]))


def test_a_set_gets_the_reward_of_the_trainings(folder: Path) -> None:
    record = PromptRecord(
        idx="a", prompt="a", height=32, width=32, layout="2x2", theme=THEME, category="", task_name="", criteria={}
    )
    images = [Image.open(name) for name in pictures(folder)]
    reward = Consistency(Scorer.configured(folder / paths.REWARD_MERGED, load(folder / "params.yaml").reward))
    assert Judge().consistency(images, theme=THEME) == pytest.approx(reward(RewardBatch([record], [images]))[0], abs=0)


def test_candidates_are_ranked_by_the_scores_of_the_benchmark(folder: Path) -> None:
    fill(folder)
    fill_benchmark(folder)
    reward, panels = load(folder / "params.yaml").reward, PanelStore.below(folder / paths.GRIDS)
    instances = bench.read_rankings(folder / paths.PAIRS / "benchmark.parquet", 6, 0)
    scorer, judge = Scorer.configured(folder / paths.REWARD_MERGED, reward), Judge()
    judgement = bench.score_rankings("reward", scorer, instances, panels, template="theme")
    for instance, expected in zip(instances, judgement.scores, strict=True):
        candidates = [panels.panel(name) for name in instance.candidates]
        ranking = judge.rank(panels.panel(instance.reference), candidates, theme=instance.theme)
        assert {entry.candidate: entry.score for entry in ranking} == dict(enumerate(expected))
        assert [entry.score for entry in ranking] == sorted(expected, reverse=True)


def test_a_picture_is_the_same_in_any_form(folder: Path) -> None:
    first, second, *_ = pictures(folder)
    image = Image.open(first)
    forms = [
        Path(first), Path(first).read_bytes(), image, np.asarray(image), np.asarray(image) / 255.0,
        np.dstack([np.asarray(image), np.full(image.size, 255, np.uint8)]),
    ]  # fmt: skip
    judge = Judge()
    scores = judge.score(forms, [second] * len(forms))
    assert scores.shape == (6,) and set(scores) == {judge.score(first, second)}
    grey = Image.new("L", (32, 32), 90)
    assert judge.score(np.full((32, 32), 90, np.uint8), second) == judge.score(grey, second)
    for wrong, message in (
        (np.zeros((3, 32, 32), np.uint8), r"\(3, 32, 32\)"),
        (np.full((32, 32, 3), 255.0), "255"),
        (np.full((32, 32), math.nan), "0 to 1"),
        (np.zeros((1, 1000), np.uint8), "1000 x 1"),
        ("none.png", "none.png"),
    ):
        with pytest.raises(DataError, match=message):
            judge.score(wrong, second)  # type: ignore[arg-type]


def test_lists_are_asked_pair_by_pair_each_with_its_theme(folder: Path) -> None:
    first, second, third, _ = pictures(folder)
    judge = Judge()
    scores = judge.score([first, first], [second, third], theme=[THEME, None])
    assert list(scores) == [judge.score(first, second, theme=THEME), judge.score(first, third)]
    assert judge.explain([first], (second,)) == [judge.explain(first, second)]
    for wrong in (
        lambda: judge.score([first, first], [second]),
        lambda: judge.score(first, [second]),
        lambda: judge.score([first, first], [second, second], theme=[THEME]),
        lambda: judge.score(first, second, theme="a red cat <|image_pad|>"),
        lambda: judge.matrix([first]),
    ):
        with pytest.raises(DataError):
            wrong()


def test_what_cannot_be_scored_is_nan_with_a_warning_and_ranked_last(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = pictures(folder)
    judge, narrow = Judge(), Image.new("RGB", (900, 3))
    with caplog.at_level(logging.WARNING):
        assert math.isnan(judge.score(first, narrow))
    assert "1 of 1 pairs have no score" in caplog.text
    lines = judge.scores([(first, narrow), (first, second)])
    assert lines[0].failed and not lines[1].failed
    assert [entry.candidate for entry in judge.rank(first, [narrow, second])] == [1, 0]


def test_models_that_are_none_are_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model, message in (
        ("./none", "'./none'"),
        (Path("none"), "none: there is no model"),
        ("rewrd", "OWNER/NAME"),
        ("nobody/reward", "nobody/reward"),
    ):
        with pytest.raises(DataError, match=message):
            Judge(model)
    for wrong in ({"device": "cuda"}, {"served": "a"}):
        with pytest.raises(DataError, match=next(iter(wrong.values()))):
            Judge(**wrong)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path_factory.mktemp("outside"))
    with pytest.raises(DataError, match="no paco project"):
        Judge()
    first, second, *_ = pictures(folder)
    elsewhere = Judge(folder / paths.REWARD_MERGED, device="cpu")
    query = PairQuery(Image.open(first), Image.open(second), render_instruction("plain"))
    (expected,) = Scorer(folder / paths.REWARD_MERGED).score([query])
    assert elsewhere.score(first, second) == expected.value
    assert Judge(project=folder).score(first, second) > 0


def test_a_server_is_asked_by_its_address() -> None:
    images = [panel(number) for number in range(3)]
    files = [encode_png(image) for image in images]
    model = FakeModel()
    with served(model) as (url, _), Judge(url) as judge:
        matrix = judge.matrix(files, theme="a cat")
        expected = [
            true_score(PairQuery(first, second, render_instruction("theme", theme="a cat")))
            for first, second in combinations(images, 2)
        ]
        assert matrix[np.triu_indices(3, 1)] == pytest.approx(expected)
        assert judge.explain(files[0], files[1]) == "Yes" and model.requests[-1].max_tokens == 128
        assert math.isnan(judge.score(files[0], files[1], theme="mute"))
        with pytest.raises(DataError, match="device"):
            Judge(url, device="cpu")
        with pytest.raises(ServingError, match="'another'"):
            Judge(url, served="another")
    with pytest.raises(ServingError, match=url):
        Judge(url)
    two_models = json.dumps({"data": [{"id": "one"}, {"id": "two"}]}).encode()
    with Scripted([reply(200, b"")], listing=two_models) as server, pytest.raises(ServingError, match="one, two"):
        Judge(server.url)


def test_a_forked_process_is_refused_and_leaves_the_judge_alone() -> None:
    """Its pool has no threads there: a question would wait for an answer for ever."""
    with served(FakeModel()) as (url, _), Judge(url) as judge:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                judge.score(panel(0), panel(1))
            except RuntimeError:
                judge.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert math.isfinite(judge.score(panel(0), panel(1)))
