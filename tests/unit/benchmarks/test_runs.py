"""The benchmarks as wholes: equal questions asked once, equal noise before and after, honest checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import checks, consistency_rank, paired_changes, t2is
from paco_core.benchmarks.consistency_rank import HeldOutRanking
from paco_core.benchmarks.ranking_metrics import METRICS, rank_metrics
from paco_core.benchmarks.set_measures import PanelDiversity
from paco_core.benchmarks.unseen_prompts import unseen_prompts
from paco_core.config.params import LoraParams, Params, load
from paco_core.io.contact_sheet import GAP, LINE, READABLE
from paco_core.io.files import DataError, write_json
from paco_core.painting import paint as painting
from paco_core.painting.painted import AFTER, BEFORE, Painted
from paco_core.policies.flux import FluxPolicy
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch
from paco_core.storybook.prompts import storybook_prompts
from tests.support import REPOSITORY
from tests.support.fixture_project import records_of
from tests.support.tiny import TEXT_LENGTH, tiny_flux

ORDERS = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]


def instance(number: int, prompt: str, reference: str, ranking: tuple[int, ...]) -> HeldOutRanking:
    return HeldOutRanking(
        f"i{number}", prompt, "a theme", reference, ("c#0", "c#1", "c#2", "c#3"), ranking, (math.nan,) * 4
    )


class Greys:
    """Panels whose shade is their number."""

    def panel(self, ref: str) -> Image.Image:
        return Image.new("RGB", (4, 4), (10 * int(ref[-1]),) * 3)


class Counting:
    """Prefers dark second pictures; remembers what it was asked."""

    def __init__(self, broken_shade: int | None = None) -> None:
        self.asked: list[tuple[int, int, str]] = []
        self.broken_shade = broken_shade

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        found = []
        for query in queries:
            first, second = (image.getpixel((0, 0))[0] for image in (query.first, query.second))
            self.asked.append((first, second, query.instruction))
            broken = second == self.broken_shade
            found.append(Score(math.nan, "no answer") if broken else Score(1 - second / 100))
        return found


def test_the_best_above_the_worst_counts_ties_as_wrong_and_leaves_out_what_the_annotator_ties() -> None:
    scored = [
        dataclasses.replace(instance(n, f"p{n}", "r#9", (1, 0, 2, 3)), scores=scores)
        for n, scores in enumerate([(1.0, 3.0, 0.0, 0.0), (1.0, 3.0, 0.0, 0.0), (1.0,) * 4, (1.0, 3.0, 0.0, 0.0)] * 3)
    ]
    given = [(0.0, 0.9, 0.0, 0.1), (0.0, 0.5, 0.0, 0.5), (0.0, 0.9, 0.0, 0.1), (math.nan,) * 4] * 3
    found = consistency_rank.best_above_worst(consistency_rank.Judgement("x", given), scored)
    assert (found.mean, found.count, found.missing, found.method) == (0.5, 6, 3, "wilson")


def test_a_pair_is_asked_once_however_many_instances_share_it() -> None:
    scorer = Counting()
    instances = [instance(n, "p", "r#9", order) for n, order in enumerate(ORDERS)]
    judged = consistency_rank.judge_pairs("x", scorer, instances, Greys(), template="theme")
    assert len(scorer.asked) == len(set(scorer.asked)) == 4 == consistency_rank.count_questions(instances)
    assert judged.scores == [(1.0, 0.9, 0.8, 0.7)] * 3
    assert all("a theme" in text for _, _, text in scorer.asked)


def test_failed_scores_are_counted_and_never_zero() -> None:
    instances = [instance(n, f"p{n}", "r#9", (0, 1, 2, 3)) for n in range(3)]
    good = consistency_rank.judge_pairs("good", Counting(), instances, Greys(), template="plain")
    bad = consistency_rank.judge_pairs("bad", Counting(20), instances, Greys(), template="plain")
    assert bad.causes == {"no answer": 1} and math.isnan(bad.scores[0][2])
    result = consistency_rank.evaluate(instances, {"good": good, "bad": bad}, [("good", "bad")], resamples=50)
    assert result.estimates["good"]["accuracy"].mean == 1.0
    assert result.unscorable("bad") == 3 and math.isnan(result.estimates["bad"]["accuracy"].mean)
    assert result.as_dict()["methods"]["bad"]["metrics"]["accuracy"]["mean"] is None
    assert result.metrics()["bad.unscorable_share"] == 1.0


def test_means_and_differences_by_hand() -> None:
    instances = [instance(0, "p0", "r#9", (0, 1, 2, 3)), instance(1, "p1", "r#9", (3, 2, 1, 0))]
    judged = {
        "reward": consistency_rank.Judgement("r", [(4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0)]),
        "base": consistency_rank.Judgement("b", [(4.0, 3.0, 2.0, 1.0)] * 2),
    }
    result = consistency_rank.evaluate(instances, judged, [("reward", "base")], resamples=50)
    figures = result.metrics()
    assert figures["reward.accuracy"] == 1.0 and figures["base.accuracy"] == 0.5
    assert figures["reward_minus_base.accuracy"] == 0.5 and figures["reward_minus_base.tau"] == pytest.approx(1.0)
    table = result.table()
    assert len(table) == 4 and set(table["method"]) == {"reward", "base"}


def test_chance_is_the_mean_over_all_orders() -> None:
    untied, tied = instance(0, "p", "r#9", (0, 1, 2, 3)), instance(1, "q", "r#9", (2, 0, 1, 3))
    tied = dataclasses.replace(tied, scores=(0.5, 0.5, 0.9, 0.1))
    result = consistency_rank.evaluate(
        [untied, tied], {"random": consistency_rank.chance("r", [untied, tied])}, [], resamples=20
    )
    for position, found in enumerate((untied, tied)):
        orders = [rank_metrics(scores, found.ranking, found.scores) for scores in permutations((1.0, 2.0, 3.0, 4.0))]
        for metric in METRICS:
            expected = math.fsum(getattr(order, metric) for order in orders) / len(orders)
            assert getattr(result.per_instance["random"][position], metric) == pytest.approx(expected, abs=1e-12)
    assert result.estimates["random"]["accuracy"].mean == pytest.approx((1 / 4 + 3 / 8) / 2)
    assert result.unscorable("random") == 0


def benchmark_file(path: Path, **changes: object) -> Path:
    rows = [
        {"instance_id": f"i{n}", "prompt_id": f"p{n % 4}", "theme": "t", "reference": "r#0"}
        | {"candidates": ["a#0", "a#1", "a#2", "a#3"], "ranking": [0, 1, 2, 3], "scores": [math.nan] * 4}
        | changes
        for n in range(20)
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_held_out_rankings_are_read_and_sampled_repeatably(tmp_path: Path) -> None:
    path = benchmark_file(tmp_path / "benchmark.parquet")
    assert len(consistency_rank.read_instances(path)) == 20
    some = consistency_rank.read_instances(path, 5, seed=1)
    assert some == consistency_rank.read_instances(path, 5, seed=1) and len(some) == 5
    assert some != consistency_rank.read_instances(path, 5, seed=2)


def test_bad_rankings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data/pairs/benchmark.parquet"
    path.parent.mkdir(parents=True)
    with pytest.raises(DataError, match="dvc repro pairs"):
        consistency_rank.read_instances(path)
    with pytest.raises(DataError, match="instance i0: ranking"):
        consistency_rank.read_instances(benchmark_file(path, ranking=[0, 1, 1, 3]))
    pd.read_parquet(path).drop(columns="theme").to_parquet(path)
    with pytest.raises(DataError, match="column 'theme'"):
        consistency_rank.read_instances(path)
    benchmark_file(path)
    pd.read_parquet(path).iloc[:0].to_parquet(path)
    with pytest.raises(DataError, match="benchmark_share"):
        consistency_rank.read_instances(path)


def test_unseen_prompts_share_neither_id_nor_theme_with_training() -> None:
    records = records_of(storybook_prompts(30, seed=0))
    twin = records[0].model_copy(update={"idx": "twin"})
    trained = {record.idx for record in records[:20]}
    unseen = unseen_prompts([*records, twin], trained, 8, seed=0)
    assert len(unseen) == 8 and not trained & {r.idx for r in unseen} and twin not in unseen
    assert unseen == unseen_prompts([*reversed(records), twin], trained, 8, seed=0)
    with pytest.raises(DataError, match="none is left"):
        unseen_prompts(records, {r.idx for r in records}, 8, seed=0)


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux"))


def test_before_and_after_differ_by_the_adapter_alone(policy_folder: Path, tmp_path: Path) -> None:
    import torch

    trained = FluxPolicy.load(str(policy_folder), "cpu", "float32")
    trained.add_adapter(LoraParams(rank=2, alpha=4, targets=["to_q", "to_v"]), seed=0)
    records = records_of(storybook_prompts(2, seed=0))

    params: Params = load(REPOSITORY / "params.yaml")
    recipe = params.policies.recipes["flux_t2is"].model_copy(
        update={"eval_sizes": [32, 64], "max_sequence_length": TEXT_LENGTH}
    )

    def paint() -> dict[tuple[str, int, str, int], bytes]:
        fresh = FluxPolicy.load(str(policy_folder), "cpu", "float32")
        painted = painting.before_and_after(fresh, "p", recipe, tmp_path / "adapter", records, seeds=[0, 1], steps=2)
        return {(p.when, p.size, p.record.idx, p.seed): p.image.tobytes() for p in painted}

    with pytest.raises(DataError, match="dvc repro policies@p"):
        paint()
    trained.save_adapter(tmp_path / "adapter")  # untouched: its second factor is zero
    same = paint()
    assert len(same) == 2 * 2 * 2 * 2 and len(set(same.values())) == 8
    assert all(same[(BEFORE, *key[1:])] == pixels for key, pixels in same.items())
    with torch.no_grad():
        for parameter in trained.trainable().values():
            parameter.add_(0.5)
    (tmp_path / "adapter").rename(tmp_path / "old")
    trained.save_adapter(tmp_path / "adapter")
    changed = paint()
    for key, pixels in changed.items():
        assert (pixels == same[key]) == (key[0] == BEFORE)


def painted_table(change: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ease = rng.normal(0.5, 0.2, size=(12, 2))
    rows = [
        {"policy": "p", "size": size, "when": when, "prompt_id": f"q{n}", "seed": seed}
        | {"gold_consistency": ease[n, seed] + (change if when == AFTER else 0.0)}
        | {"gold_following": 0.7 - (0.02 if when == AFTER else 0.0)}
        for size in (64, 128)
        for when in (BEFORE, AFTER)
        for n in range(12)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


def test_changes_are_paired_picture_by_picture() -> None:
    result = paired_changes.summarise(painted_table(0.2), seeds=[0, 1], steps=4, resamples=100)
    figures = result.metrics()
    key = "p.px64.gold_consistency.change"
    assert figures[key] == pytest.approx(0.2)
    assert figures[f"{key}_low"] == pytest.approx(0.2) == figures[f"{key}_high"]
    shuffled = painted_table(0.2).sample(frac=1.0, random_state=0)
    assert paired_changes.summarise(shuffled, seeds=[0, 1], steps=4, resamples=100).metrics() == pytest.approx(figures)
    assert result.as_dict()["policies"]["p"]["128"]["gold_following"]["change"]["mean"] == pytest.approx(-0.02)


def test_prompts_of_several_layouts_have_figures_of_each() -> None:
    table, how = painted_table(0.0), {"seeds": [0, 1], "steps": 4, "resamples": 100}
    wide = {f"q{n}" for n in range(4)}
    table.loc[(table["when"] == AFTER) & table["prompt_id"].isin(wide), "gold_consistency"] += 0.3
    whole = paired_changes.summarise(table, **how)  # type: ignore[arg-type]
    layouts = {f"q{n}": "1x3" if f"q{n}" in wide else "2x2" for n in range(12)}
    found = paired_changes.with_layouts(whole, table, layouts, **how)
    figures = found.metrics()
    assert figures["p.px64.gold_consistency.change"] == pytest.approx(0.1)
    assert figures["p.px64.gold_consistency.1x3.change"] == pytest.approx(0.3)
    assert figures["p.px64.gold_consistency.2x2.change"] == pytest.approx(0.0)
    assert {name: figures[name] for name in whole.metrics()} == pytest.approx(whole.metrics(), nan_ok=True)
    tree = found.as_dict()["layouts"]
    assert {layout: part["prompts"] for layout, part in tree.items()} == {"1x3": 4, "2x2": 8}
    alone = paired_changes.with_layouts(whole, table, dict.fromkeys(layouts, "2x2"), **how)
    assert alone == whole and "layouts" not in alone.as_dict()


def test_each_layout_is_painted_with_panels_of_one_size(policy_folder: Path) -> None:
    mixed = [records_of(storybook_prompts(1, seed=0, layout=layout))[0] for layout in ("2x2", "1x3")]
    mixed[1] = mixed[1].model_copy(update={"width": 192})  # square panels
    params = load(REPOSITORY / "params.yaml")
    changes = {"eval_sizes": [32], "max_sequence_length": TEXT_LENGTH}
    recipe = params.policies.recipes["flux_t2is"].model_copy(update=changes)
    policy = FluxPolicy.load(str(policy_folder), "cpu", "float32")
    painted = painting.paint_sizes(policy, "p", recipe, mixed, when=BEFORE, seeds=[0], steps=2)
    assert {(p.record.layout, p.image.size, len(p.panels)) for p in painted} == {
        ("2x2", (32, 32), 4),
        ("1x3", (48, 16), 3),
    }


def test_a_picture_without_its_partner_is_an_error() -> None:
    with pytest.raises(ValueError, match="one picture before and one after"):
        paired_changes.summarise(painted_table(0.1).iloc[:-1], seeds=[0, 1], steps=4)
    table = painted_table(0.1)
    with pytest.raises(ValueError, match="one picture before and one after"):
        paired_changes.summarise(table[table["when"] == BEFORE], seeds=[0, 1], steps=4)


def test_measures_see_the_panels_of_each_picture() -> None:
    record = records_of(storybook_prompts(1, seed=0))[0]
    plain, mixed = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "white")
    mixed.paste((0, 0, 0), (0, 0, 4, 4))
    painted = [Painted("p", 8, BEFORE, record, seed, image) for seed, image in enumerate((plain, mixed))]
    table = t2is.measure(painted, [PanelDiversity()])
    assert table["panel_diversity"].tolist() == [0.0, 0.5]  # 3 of 6 pairs are black against white
    assert PanelDiversity()(RewardBatch([record], [painted[0].panels])).tolist() == [0.0]


def test_samples_are_kept_with_their_figures(tmp_path: Path) -> None:
    record = records_of(storybook_prompts(1, seed=0))[0]
    painted = [
        Painted("p", 8, when, record, seed, Image.new("RGB", (8, 8), (when == AFTER and "red") or "blue"))
        for when in (BEFORE, AFTER)
        for seed in (0, 1)
    ]
    table = t2is.measure(painted, [PanelDiversity()])
    painting.save_samples(tmp_path, painted, table, 4)
    from paco_core.io.files import read_json

    entries = read_json(tmp_path / "samples.json")
    assert [entry["when"] for entry in entries] == [BEFORE, AFTER]
    for entry in entries:
        assert entry["panel_diversity"] == 0.0 and entry["theme"] == record.theme
        assert Image.open(tmp_path / entry["file"]).size == (8, 8)
    sheet = painting.side_by_side(painted, 8)
    head = sheet.height - 2 * (READABLE + 2 * LINE) - GAP  # the prompt, then twice a picture and two lines
    assert head >= LINE and sheet.width == 2 * READABLE + GAP
    assert sheet.getpixel((0, head)) == (0, 0, 255) and sheet.getpixel((0, sheet.height - 2 * LINE - 1)) == (255, 0, 0)


def test_checks_pass_and_fail_with_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "t2is.json"
    write_json(path, paired_changes.summarise(painted_table(0.2), seeds=[0, 1], steps=4, resamples=100).metrics())
    assert checks.policy_gains_consistency(path, "p", 64, 64).passed
    assert checks.policy_still_follows_prompts(path, "p", 64).passed
    write_json(path, paired_changes.summarise(painted_table(0.1), seeds=[0, 1], steps=4, resamples=100).metrics())
    weak = checks.policy_gains_consistency(path, "p", 64, 64)
    assert not weak.passed and "0.100" in weak.description and "0.15" in weak.description
    assert checks.policy_gains_consistency(path, "p", 64, 128).passed
    assert not checks.policy_gains_consistency(path, "p", 64, 256).passed


@pytest.mark.parametrize(
    ("gain", "low", "passed"), [(0.2, 0.1, True), (0.2, -0.1, False), (0.05, 0.01, False), (None, None, False)]
)
def test_ranking_check(tmp_path: Path, gain: float | None, low: float | None, passed: bool) -> None:
    figures = {
        "instances": 9, "base.accuracy": 0.3, "reward.accuracy": 0.5, "reward.unscorable_share": 0.0,
        "reward_minus_base.accuracy": gain, "reward_minus_base.accuracy_low": low,
    }  # fmt: skip
    write_json(tmp_path / "m.json", figures)
    assert checks.reward_ranks_better_than_base(tmp_path / "m.json").passed is passed
    assert checks.every_ranking_was_scored(tmp_path / "m.json").passed
    write_json(tmp_path / "m.json", figures | {"base.unscorable_share": 0.25})
    failed = checks.every_ranking_was_scored(tmp_path / "m.json")
    assert not failed.passed and "base on 0.250" in failed.description


def test_report_check(tmp_path: Path) -> None:
    write_json(tmp_path / "m.json", {"missing": []})
    assert checks.report_is_complete(tmp_path / "m.json").passed
    gap = {"what": "the grids", "path": "data/grids", "make": "dvc repro grids"}
    write_json(tmp_path / "m.json", {"missing": [gap]})
    failed = checks.report_is_complete(tmp_path / "m.json")
    assert not failed.passed and "dvc repro grids" in failed.description
