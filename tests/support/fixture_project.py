"""A small finished project for tests of the report: real formats, drawn pictures, made-up training logs.

Nothing here is a result: scores are drawn from seeds, so that tests know what the page must show.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from paco_core.benchmarks import edit_rankings, rankings
from paco_core.benchmarks.paired_changes import compare_changes
from paco_core.benchmarks.published import CONSISTENCY_RANK, EDIT_REWARD
from paco_core.benchmarks.t2is_bench.sets import write_painted
from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records.records import PromptRecord, panel_ref
from paco_core.io import paths
from paco_core.io.files import write_json
from paco_core.io.shards import encode_png, write_shard
from paco_core.runtime.provenance.chain import Run
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.sampling.generation import save_samples
from paco_core.storybook.drawing import draw, tile
from paco_core.storybook.prompts import StorybookPrompt, answer, storybook_prompts, true_reasons
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel
from tests.support.fixture_edits import write_gedit

SEEDS = (0, 1, 2, 3)
EDITORS = ("kontext_edit", "qwen_edit")  # of params.yaml
MEASURES = {
    "consistency": (0.45, 0.8),
    "clip_t": (0.28, 0.29),
    "panel_diversity": (0.3, 0.22),
    "gold_consistency": (0.42, 0.74),
    "gold_following": (0.72, 0.76),
}


def records_of(prompts: list[StorybookPrompt]) -> list[PromptRecord]:
    """The prompts as T2IS records."""
    return [storybook_record(prompt, 64, 64) for prompt in prompts]


def strayed(panels: tuple[Panel, ...], rng: random.Random, chance: float) -> list[Panel]:
    """The panels of a set, some of which lost a shared trait."""
    strayed_panels = []
    for panel in panels:
        trait = rng.choice(list(SHARED_TRAITS))
        stray = rng.random() < chance
        strayed_panels.append(panel.with_trait(trait, rng.choice(VOCABULARY[trait])) if stray else panel)
    return strayed_panels


def grid(panels: list[Panel], size: int, rng: random.Random) -> Image.Image:
    return tile([draw(panel, size // 2, rng) for panel in panels], (2, 2))


def write_grids(root: Path, prompts: list[StorybookPrompt], size: int = 64) -> dict[str, list[Panel]]:
    """One shard of grids; returns what each grid shows."""
    rng = random.Random(1)
    rows, images, grid_panels = [], {}, {}
    for prompt in prompts:
        for seed in SEEDS:
            grid_id = f"{prompt.idx}-{seed}"
            grid_panels[grid_id] = strayed(prompt.panels, rng, 0.3)
            images[grid_id] = encode_png(grid(grid_panels[grid_id], size, rng))
            rows.append(
                {"id": grid_id, "prompt_id": prompt.idx, "seed": seed, "layout": "2x2", "height": size}
                | {"width": size, "md5": ""}
            )
    write_shard(root / paths.GRIDS / "shard-0", rows, images)
    return grid_panels


def write_pairs(root: Path, prompts: list[StorybookPrompt], grid_panels: dict[str, list[Panel]]) -> None:
    """Labelled pairs with reasons."""
    rows = []
    for prompt in prompts:
        for seed in SEEDS[1:]:
            first_id, second_id = f"{prompt.idx}-0", f"{prompt.idx}-{seed}"
            label, reasons = true_reasons(grid_panels[first_id][0], grid_panels[second_id][1])
            rows.append(
                {
                    "pair_id": f"{first_id}:{second_id}",
                    "prompt_id": prompt.idx,
                    "theme": prompt.theme,
                    "first": panel_ref(first_id, 0),
                    "second": panel_ref(second_id, 1),
                    "label": label,
                    "answer": answer(label, reasons),
                    "engine": "storybook",
                }
            )
    folder = root / paths.COT_LABELS
    folder.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(folder / "train.parquet", index=False)


def write_logs(root: Path) -> None:
    """Training logs of the judge and of the painter."""
    rng = np.random.default_rng(0)
    steps = np.arange(1, 201)
    log = pd.DataFrame({"step": steps, "epoch": (steps > 100) + 1})
    log["loss"] = 0.3 + 1.2 * np.exp(-steps / 40) + rng.normal(0, 0.04, 200)
    log["learning_rate"] = 1e-3 * (1 - steps / 200)
    log.loc[[99, 199], "validation_accuracy"] = [0.86, 0.93]
    log.loc[[99, 199], "validation_roc_auc"] = [0.93, 0.98]
    (root / paths.REWARD_LORA).mkdir(parents=True)
    log.to_csv(root / paths.REWARD_LORA / "training_log.csv", index=False)
    epochs = np.arange(41)
    log = pd.DataFrame({"epoch": epochs})
    log["reward/consistency"] = 0.45 + 0.4 * (1 - np.exp(-epochs / 15)) + rng.normal(0, 0.02, 41)
    log["reward/clip_t"] = 0.28 + 0.0005 * epochs + rng.normal(0, 0.003, 41)
    log["reward_ratio"] = log["reward/consistency"] / log["reward/clip_t"]
    log["panel_diversity"] = 0.3 - 0.002 * epochs + rng.normal(0, 0.005, 41)
    log.loc[0, log.columns[1:]] = np.nan
    for size, gain in ((64, 0.32), (192, 0.2)):
        rows = log.index[::10]
        log.loc[rows, f"eval/{size}/gold_consistency"] = 0.42 + gain * np.linspace(0, 1, len(rows))
    folder = root / paths.POLICIES / "flux_t2is"
    folder.mkdir(parents=True)
    log.to_csv(folder / "training_log.csv", index=False)


def write_ranking(root: Path) -> None:
    """Results of the ranking benchmark, computed from drawn scores."""
    rng = np.random.default_rng(3)
    panels, untied = ("a#0", "a#1", "a#2", "a#3"), (math.nan,) * 4
    instances = [
        rankings.HeldOutRanking(f"i{n}", f"p{n % 20}", "t", "r#0", panels, tuple(order), untied)
        for n, order in enumerate(rng.permutation(4).tolist() for _ in range(120))
    ]

    def judged(label: str, noise: float) -> rankings.CandidateScores:
        scores = []
        for instance in instances:
            truth = np.empty(4)
            truth[list(instance.ranking)] = [1.0, 0.66, 0.33, 0.0]
            scores.append(tuple(float(v) for v in truth + rng.normal(0, noise, 4)))
        return rankings.CandidateScores(label, scores)

    judgements = {
        "reward": judged("PaCo-Reward, trained here", 0.3),
        "base": judged("Its base, untrained", 1.2),
        "clip_i": judged("CLIP-I, cosine of two pictures", 0.8),
        "random": rankings.random_order("Random order", instances),
    }
    rivals = [("reward", name) for name in judgements if name != "reward"]
    result = rankings.evaluate_rankings(instances, judgements, rivals, resamples=200)
    published = [row.as_dict() for row in CONSISTENCY_RANK]
    (root / paths.CONSISTENCY_RANK).mkdir(parents=True)
    write_json(root / paths.CONSISTENCY_RANK / "results.json", {**result.as_dict(), "published": published})


def write_edits(root: Path) -> None:
    """Results of the editing benchmark, computed from drawn scores; CLIP sees pictures only."""
    rng, blank = np.random.default_rng(4), Image.new("RGB", (4, 4))
    pictures = (blank, blank, blank)
    cases = [
        edit_rankings.EditCase(f"{dimension} {n}", f"task{n % 4}", dimension, "edit it", f"g{n % 12}", lambda: pictures)
        for dimension in edit_rankings.DIMENSIONS
        for n in range(48)
    ]

    def judged(label: str, gain: float, *, blind: bool = False) -> rankings.CandidateScores:
        scores: list[tuple[float, ...]] = [(float(gain + rng.normal()), float(rng.normal())) for _ in cases]
        is_visible = [not blind or case.dimension == "consistency" for case in cases]
        return rankings.CandidateScores(
            label, [pair if can else (math.nan, math.nan) for pair, can in zip(scores, is_visible, strict=True)]
        )

    judgements = {
        "reward": judged("PaCo-Reward, trained here", 1.5),
        "base": judged("Its base, untrained", 0.3),
        "clip_i": judged("CLIP-I, cosine of two pictures", 1.0, blind=True),
        "random": rankings.random_order("Chance", cases),
    }
    rivals = [("reward", name) for name in judgements if name != "reward"]
    result = edit_rankings.evaluate_edits(cases, judgements, rivals, resamples=200)
    published = [row.as_dict() for row in EDIT_REWARD]
    (root / paths.EDIT_REWARD).mkdir(parents=True)
    write_json(root / paths.EDIT_REWARD / "results.json", {**result.as_dict(), "published": published})


def write_t2is(root: Path, prompts: list[StorybookPrompt]) -> None:
    """Pictures before and after, and their figures."""
    rng, noise = random.Random(5), np.random.default_rng(6)
    images, rows = [], []
    for record, prompt in zip(records_of(prompts), prompts, strict=True):
        for size in (64, 192):
            for phase in (BEFORE, AFTER):
                panels = strayed(prompt.panels, rng, 0.35 if phase == BEFORE else 0.08)
                images.append(GeneratedImage("flux_t2is", size, phase, record, 0, grid(panels, size, rng)))
                identity = {"policy": "flux_t2is", "size": size, "when": phase, "prompt_id": record.idx, "seed": 0}
                means = {name: ends[phase == AFTER] for name, ends in MEASURES.items()}
                rows.append(identity | {n: float(m + noise.normal(0, 0.05)) for n, m in means.items()})
    table = pd.DataFrame(rows)
    result = compare_changes(table, seeds=[0], steps=10, resamples=200)
    folder = root / paths.T2IS
    folder.mkdir(parents=True)
    write_json(folder / "results.json", result.as_dict())
    save_samples(folder / "samples", images, table, 6)
    table.to_parquet(folder / "per_prompt.parquet", index=False)
    write_painted(folder, images)


def write_project(root: Path) -> None:
    """Every out that the report reads."""
    prompts = storybook_prompts(8, seed=0)
    grid_panels = write_grids(root, prompts)
    write_pairs(root, prompts, grid_panels)
    write_logs(root)
    write_ranking(root)
    write_edits(root)
    write_t2is(root, storybook_prompts(8, seed=9))
    write_gedit(root, dict.fromkeys(EDITORS, (64, 128)))


def found_runs() -> dict[str, Run]:
    """Runs as their stages recorded them; one stage has none."""
    seconds = {
        "prompts": 1.6, "diverse_prompts": 7.4, "grids@0": 28.1, "grids@1": 27.7, "rankings": 2.2,
        "annotations": 4.1, "pairs": 2.4, "cot_labels": 2.6, "reward_lora": 93.4, "reward_merged": 11.8,
        "policies@flux_t2is": 251.3, "policies@kontext_edit": 92.1, "policies@qwen_edit": 120.4,
        "consistency_rank": 24.9, "edit_reward": 9.8, "t2is": 44.0, "gedit": 31.5,
    }  # fmt: skip
    pages = "http://127.0.0.1:5000/#/experiments/1/runs"
    return {label: Run(seconds=value, mlflow_url=f"{pages}/{label}") for label, value in seconds.items()}
