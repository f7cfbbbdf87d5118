"""ViStoryBench's measures: likeness by known embeddings, what is asked, and the stage on stories of a small klein."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks.t2is_bench.sets import painted_sets, read_records, write_painted
from paco_core.benchmarks.vistory import AdherenceToShots, SimilarityByClip, estimate_stories
from paco_core.benchmarks.vistory_characters import IdentityByEvaluator
from paco_core.cli.exchange import export
from paco_core.config.params import load
from paco_core.data.records.characters import image_digests
from paco_core.data.records.records import PromptRecord, read_prompts
from paco_core.exchange.vistory import import_vistory
from paco_core.io import paths
from paco_core.io.files import read_json
from paco_core.io.pictures import read_image
from paco_core.models.open_clip import OpenClip
from paco_core.policies import base
from paco_core.reward_model.yes_probability import Query, Score
from paco_core.rewards.base import RewardBatch
from paco_core.runtime.context import StageContext
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.sampling.generation import generate_sizes
from paco_core.stages import vistory
from tests.support.grpo_toys import recipe
from tests.support.vistory_data import write_vistory

REPOSITORY = Path(__file__).parents[3]
ZOO = REPOSITORY / "data" / "zoo"


class Angles:
    """Embeds a picture as the direction that its red says, in degrees; 45 more where it is green."""

    def embed(self, images: Sequence[Image.Image]) -> np.ndarray:
        colours = [image.convert("RGB").getpixel((0, 0)) for image in images]
        degrees = np.deg2rad([red + (45 if green else 0) for red, green, _ in colours])  # type: ignore[misc]
        return np.stack([np.cos(degrees), np.sin(degrees)], axis=1)


def at(degrees: int, mirror: int = 0) -> Image.Image:
    """A picture in one direction, whose mirror image points elsewhere where ``mirror`` is 1."""
    image = Image.new("RGB", (8, 8), (degrees, 0, 0))
    image.putpixel((7, 0), (degrees, mirror, 0))
    return image


def record(*casts: str, pictures: dict[str, list[str]]) -> PromptRecord:
    """A story: of each shot who appears, a letter each; the reference pictures of each letter."""
    shots = [
        {"index": n, "setting": f"place {n}", "action": f"act {n}", "camera": f"view {n}", "characters": list(cast)}
        for n, cast in enumerate(casts)
    ]
    return PromptRecord.model_validate({
        "idx": "s", "prompt": "A story. " + " ".join(f"PANEL-{n}: x" for n, _ in enumerate(casts, 1)), "height": 8,
        "width": 8 * len(casts), "layout": f"1x{len(casts)}", "theme": "t", "category": "", "task_name": "",
        "criteria": {}, "story": "01", "language": "en", "shots": shots,
        "cast": {key: {"name": f"Name {key}", "pictures": names} for key, names in pictures.items()},
    })  # fmt: skip


def cos(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def test_likeness_is_averaged_by_character_as_published(tmp_path: Path) -> None:
    for name, picture in {"a0": at(0, 1), "a1": at(60), "b0": at(90)}.items():
        picture.save(tmp_path / f"{name}.png")
    story = record("A", "AB", "", "B", pictures={"A": ["a0.png", "a1.png"], "B": ["b0.png"], "C": []})
    scores = SimilarityByClip(Angles(), tmp_path).measure(RewardBatch([story], [[at(0), at(30), at(50), at(90)]]))
    values = {name: float(column[0]) for name, column in scores.items()}
    of_a, of_b = np.mean([cos(0), cos(60), cos(30), cos(30)]), np.mean([cos(60), cos(0)])
    assert values["identity_cross"] == pytest.approx((of_a + of_b) / 2)
    assert values["identity_self"] == pytest.approx((cos(30) + cos(60)) / 2)  # a pair of panels each
    # Panels at 0 and 30 degrees, the reference at 0, its mirror image at 45; the mirror image of b0 is like it.
    copied = [1 / (1 + math.exp((cos(45) - cos(0)) / 0.01)), 1 / (1 + math.exp((cos(15) - cos(30)) / 0.01))]
    assert values["copy_paste"] == pytest.approx((np.mean(copied) + 0.5) / 2)
    style = [cos(0), (cos(30) + cos(60)) / 2, cos(50), cos(0)]  # nobody is in the third: the first character's
    assert values["style_cross"] == pytest.approx(np.mean(style))
    apart = [abs(a - b) for a, b in combinations((0, 30, 50, 90), 2)]
    assert values["style_self"] == pytest.approx(np.mean([cos(degrees) for degrees in apart]))


def test_what_a_story_cannot_compare_is_unknown_and_not_zero(tmp_path: Path) -> None:
    story = record("A", "B", pictures={"A": [], "B": []})
    columns = SimilarityByClip(Angles(), tmp_path).measure(RewardBatch([story], [[at(0), at(60)]]))
    table = pd.DataFrame({"prompt_id": ["s"], **columns})
    assert set(estimate_stories(table, resamples=10)) == {"style_self"}


class Judge:
    def __init__(self, values: dict[str, float]) -> None:
        self.values, self.calls = values, list[Query]()

    def score(self, queries: Sequence[Query]) -> list[Score]:
        self.calls += queries
        values = [next(v for text, v in self.values.items() if text in query.instruction) for query in queries]
        return [Score(v, "no answer") if math.isnan(v) else Score(v) for v in values]


def test_each_panel_is_asked_about_its_own_shot() -> None:
    story = record("A", "AB", pictures={"A": [], "B": []})
    judge = Judge(
        {"Name A": 0.2, "Name B": 0.6, "setting": 0.5, "act 0": 0.1, "act 1": 0.3, "view 0": 1.0, "view": math.nan}
    )
    measure = AdherenceToShots(judge)
    panels = [at(0), at(60)]
    scores = {name: column[0] for name, column in measure.measure(RewardBatch([story], [panels])).items()}
    assert scores["setting"] == 0.5 and scores["action"] == pytest.approx(0.2)
    assert scores["character"] == pytest.approx((0.2 + (0.2 + 0.6) / 2) / 2) and math.isnan(scores["camera"])
    assert measure.causes == {"no answer": 1} and measure.count(story) == len(judge.calls) == 9
    for query in judge.calls:
        assert all(query.pictures[0] is panels[n] for n in (0, 1) if f"act {n}" in query.instruction)
    row = {"prompt_id": "s", "setting": 0.5, "action": 0.2, "camera": math.nan, "character": 0.3}
    assert estimate_stories(pd.DataFrame([row]), resamples=10)["adherence"].mean == pytest.approx((0.5 + 0.2 + 0.3) / 3)


def story_recipe() -> Any:
    terms = {"terms": {"darkness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    return recipe(
        family="flux2_klein", model=str(ZOO / "flux2_klein"), panels="one_by_one", predecessors=1, guidance=1.0,
        rewards=terms, train_size=128, eval_sizes=[128], max_sequence_length=48,
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported stories, painted by the zoo's klein in one and in two steps."""
    root = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(REPOSITORY / name, root)
    import_vistory(write_vistory(root / "published"), root / "data/external/vistory")
    records = read_prompts(root / "data/external/vistory/prompts_en.jsonl")
    policy = base.load_policy("flux2_klein", str(ZOO / "flux2_klein"), "cpu", "float32", task="sets")
    images: list[GeneratedImage] = []
    for phase, steps in ((BEFORE, 1), (AFTER, 2)):
        images += generate_sizes(policy, "klein", story_recipe(), records, when=phase, seeds=[0], steps=steps)
    write_painted(root / paths.T2IS, images)
    return root


def context(root: Path, **changes: Any) -> StageContext:
    params = load(REPOSITORY / "params.yaml")
    values = {"source": "data/external/vistory", "clip": str(ZOO / "clip"), "bootstrap": 50, **changes}
    section = type(params.vistory).model_validate(params.vistory.model_dump() | values)
    return StageContext("vistory", None, root, params.model_copy(update={"vistory": section}), Mock(), None)


@pytest.mark.slow
def test_the_stage_measures_painted_stories(project: Path) -> None:
    stage_context = context(project, adherence={"model": str(ZOO / "qwen2_5_vl")})
    vistory.run(stage_context)
    results = read_json(project / paths.VISTORY / "results.json")
    assert list(results["methods"]) == ["klein.px128.before", "klein.px128.after"] and results["failed"] == {}
    assert all(value["groups"] == 2 for row in results["figures"].values() for value in row.values())
    sets = painted_sets(project / paths.T2IS, read_records(project / paths.T2IS, None))
    rows = OpenClip(ZOO / "clip").embed(sets[0].panels())
    table = pd.read_parquet(project / paths.VISTORY / "per_story.parquet")
    expected = np.mean([a @ b for a, b in combinations(rows, 2)])
    assert len(table) == 4 and table["style_self"][0] == pytest.approx(expected, abs=1e-6)
    panels = pd.read_parquet(project / paths.VISTORY / "per_panel.parquet")
    first = panels[(panels["method"] == "klein.px128.before") & (panels["prompt_id"] == "vistory-en-01")]
    people = [(2, "Cat"), (4, "Cat"), (1, "Big Brown Rabbit"), (2, "Big Brown Rabbit")]
    assert sorted(zip(first["panel"], first["character"], strict=True)) == sorted(people) and len(panels) == 2 * 7
    by_character = first.groupby("character")[["identity_clip", "identity_yes"]].mean().mean()
    story = table[(table["method"] == "klein.px128.before") & (table["prompt_id"] == "vistory-en-01")].iloc[0]
    assert by_character["identity_clip"] == pytest.approx(story["identity_cross"], abs=1e-6)
    assert by_character["identity_yes"] == pytest.approx(story["identity_yes"], abs=1e-6)


def test_characters_are_compared_with_each_of_their_images_in_the_panels_of_their_shots(tmp_path: Path) -> None:
    for name, picture in {"a0": at(0, 1), "a1": at(60), "b0": at(90)}.items():
        picture.save(tmp_path / f"{name}.png")
    story = record("A", "AB", "", pictures={"A": ["a0.png", "a1.png"], "B": ["b0.png"], "C": []})
    judge = Judge({"Name A": 0.2, "Name B": 0.6})
    measure = IdentityByEvaluator(judge, tmp_path)
    panels = [at(0), at(30), at(50)]
    assert measure.measure(RewardBatch([story], [panels]))["identity_yes"][0] == pytest.approx((0.2 + 0.6) / 2)
    assert measure.count(story) == len(judge.calls) == 5
    assert {query.pictures[1].tobytes() for query in judge.calls} == {panel.tobytes() for panel in panels[:2]}
    assert measure.panels == [
        {(0, "A"): pytest.approx(0.2), (1, "A"): pytest.approx(0.2), (1, "B"): pytest.approx(0.6)}
    ]
    nobody = record("", "", pictures={"A": ["a0.png"]})
    assert math.isnan(measure.measure(RewardBatch([nobody], [panels[:2]]))["identity_yes"][0])


def test_painted_stories_lie_where_the_public_evaluation_reads_them(project: Path, tmp_path: Path) -> None:
    export(project, "vistory", tmp_path / "outputs", "other")
    assert (tmp_path / "outputs/klein/px128-before-seed0").is_dir()
    (run,) = (tmp_path / "outputs/klein/px128-after-seed0/en").iterdir()
    datetime.strptime(run.name, "%Y%m%d-%H%M%S")  # or raises
    import_vistory(tmp_path / "outputs/dataset", tmp_path / "again")
    before, after = (
        read_prompts(folder / "prompts_en.jsonl") for folder in (project / "data/external/vistory", tmp_path / "again")
    )
    for first, second in zip(before, after, strict=True):
        assert (first.prompt, first.theme) == (second.prompt, second.theme) and first.characters
        assert image_digests(first.characters) == image_digests(second.characters)
    shots = {story.name: sorted(path.name for path in (story / "shots").iterdir()) for story in run.iterdir()}
    assert shots == {"01": [f"{n:02d}.png" for n in range(1, 5)], "02": [f"{n:02d}.png" for n in range(1, 4)]}
    sets = painted_sets(project / paths.T2IS, read_records(project / paths.T2IS, None))
    (story_set,) = (
        candidate
        for candidate in sets
        if candidate.method == "klein.px128.after" and candidate.record.idx == "vistory-en-01"
    )
    assert read_image(run / "01/shots/02.png").tobytes() == story_set.panels()[1].tobytes()
