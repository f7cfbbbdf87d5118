"""LoRA adapter of the pairwise reward model, trained with the weighted answer loss, or a published one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params, RewardParams
    from paco_core.reward_model.evaluation import RewardEvaluation
    from paco_core.reward_model.examples import Example
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.launch import Rank
    from paco_core.runtime.preview import Preview

PUBLISHED_BASE = "Qwen/Qwen2.5-VL-7B-Instruct"  # of PaCo-Reward-7B, whose training the paper measured


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb

    reward = params.reward
    if reward.source != "train":
        return Cost(f"published weights, {reward.source}", seconds=None)
    a_step = reward.batch_size * reward.accumulation
    steps = reward.epochs * max(1, amounts.pairs(params, root) // a_step)
    seconds = amounts.seconds(params, steps * reward.batch_size * amounts.CPU_SECONDS["reward_pair"])
    return Cost(
        f"about {steps} optimiser steps of {a_step} pairs",
        BASE_GB + 2.5 * model_gb(root, reward.base),
        seconds,
        reward.device,
        "published: 16 h on 2 x A100" if seconds is None and reward.base == PUBLISHED_BASE else "",
    )


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The rows of the training log that measured the held-out pairs, newest first."""
    import pandas as pd

    file = data / paths.REWARD_LORA.name / "training_log.csv"
    if not file.is_file():
        return {}  # published weights
    log = pd.read_csv(file)
    measured = [name for name in log.columns if name.startswith("validation_")]
    rows = log.dropna(subset=measured, how="all")[["step", "epoch", *measured]]
    return {"validations": Table(rows.iloc[::-1])}


def _unread(params: Params) -> tuple[str, ...]:
    """Without pairs, a published adapter is copied, and a merged model is not loaded. Neither needs the base."""
    from paco_core.planning import amounts

    return () if params.reward.source == "train" or amounts.has_pairs(params) else ("reward.base",)


STAGE = Stage(
    seed=lambda params, _item: params.reward.seed,
    device=lambda params: params.reward.device,
    processes=lambda params: params.reward.processes if params.reward.source == "train" else 1,
    advice="lower reward.batch_size and raise reward.accumulation, or set reward.gradient_checkpointing",
    unread=_unread,
    cost=_cost,
    headline=(("accuracy",), ("base.accuracy",), ("roc_auc",), ("calibration_error",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.reward_model.checks:reward_beats_base",
            "Training lifted held-out accuracy by more than its error; blocks only where it lowered it",
            paths.metrics_file(paths.REWARD_LORA.name),
        ),
    ),
)


def assist(rank: Rank) -> None:
    """Run training on ranks other than the first, without reporting."""
    from paco_core.config.references import model_at
    from paco_core.reward_model.training import train_reward_model
    from paco_core.runtime import checkpoints

    params = rank.params.reward
    if params.source != "train":
        return
    examples, validation = _examples(rank.read, params, "train", "validation")
    train_reward_model(
        model_at(rank.root, params.base, "reward.base"),
        examples,
        validation,
        params,
        rank.root / rank.place(paths.REWARD_LORA),
        checkpoints.stage_folder(rank.root, rank.label),
        rank.code.digest,
    )


def run(ctx: StageContext) -> None:
    if ctx.params.reward.source == "train":
        _train(ctx, *_examples(ctx.read, ctx.params.reward, "train", "validation"))
    else:
        _published(ctx, *_examples(ctx.read, ctx.params.reward, "validation"))


def _examples(read: Callable[[Path], Path], params: RewardParams, *parts: str) -> list[list[Example]]:
    from paco_core.data.records.panels import PanelStore
    from paco_core.reward_model.examples import read_examples

    labels = read(paths.COT_LABELS)
    panel = PanelStore.below(read(paths.GRIDS), read(paths.PAIRS)).panel
    needed = params.source == "train"
    return [
        read_examples(labels / f"{part}.parquet", panel, params.template, params.answers, none_allowed=not needed)
        for part in parts
    ]


def _train(ctx: StageContext, examples: list[Example], validation: list[Example]) -> None:
    from paco_core.config.references import model_at
    from paco_core.io.files import write_text
    from paco_core.models.licence import licence_front
    from paco_core.reward_model.model_card import adapter_card
    from paco_core.reward_model.training import train_reward_model
    from paco_core.runtime import checkpoints
    from paco_core.training.log import LOG

    params = ctx.params.reward
    total = len(examples) * params.epochs
    with ctx.writing(paths.REWARD_LORA) as out, ctx.progress(total, "pairs") as progress:
        out.mkdir()
        report = train_reward_model(
            model_at(ctx.root, params.base, "reward.base"),
            examples,
            validation,
            params,
            out,
            checkpoints.stage_folder(ctx.root, ctx.label),
            ctx.code.digest,
            on_metrics=lambda values, step: ctx.tracker.metrics({**values, "samples_seen": progress.completed}, step),
            progress=progress,
            log=ctx.log,
        )
        card = adapter_card(
            params,
            (ctx.place(paths.REWARD_LORA) / "adapter").as_posix(),
            licence_front(params.base, ctx.root),
            out / LOG,
        )
        write_text(out / "adapter" / "README.md", card)
    _show(ctx, report.after, report.mistakes)
    ctx.tracker.metrics({f"{ctx.name}/pairs_per_second": report.pairs_per_second})
    ctx.report(report.metrics(), pairs_trained_on=len(examples), pairs_per_second=report.pairs_per_second)


def _published(ctx: StageContext, validation: list[Example]) -> None:
    """Nothing is trained: the published weights are looked at on the validation pairs, beside their base.

    Where there are no such pairs, nothing is loaded and no figure of theirs is reported.
    """
    from paco_core.reward_model.evaluation import accuracy_gain, most_wrong
    from paco_core.reward_model.published import copy_adapter, evaluate_published

    params = ctx.params.reward
    ctx.log(f"{params.source} {params.weights}, nothing is trained")
    with ctx.writing(paths.REWARD_LORA) as part:
        adapter = copy_adapter(ctx.root, params, part)
        if validation:
            before, after = evaluate_published(ctx.root, params, adapter, validation, log=ctx.log)
    if not validation:
        ctx.log("reward_lora: there are no validation pairs: the published weights are not validated here")
        return ctx.report({"steps": 0.0}, validated="no: there are no validation pairs")
    _show(ctx, after, most_wrong(validation, after.scores))
    gain = accuracy_gain(before, after, validation)
    ctx.report({**after.metrics(), **before.metrics("base."), **gain, "steps": 0.0})


def _show(ctx: StageContext, evaluation: RewardEvaluation, mistakes: list[tuple[Example, float]]) -> None:
    """The confusion table and the most wrong pairs, for people."""
    from paco_core.io.contact_sheet import tile_images
    from paco_core.reward_model.evaluation import draw_mistake

    ctx.tracker.text(evaluation.confusion(), "validation/confusion.md")
    pictures = [draw_mistake(example, score) for example, score in mistakes]
    for place, picture in enumerate(pictures):
        ctx.tracker.image(picture, "most_wrong", place)
    if pictures:
        ctx.image(tile_images(pictures, 2), "most_wrong_pairs")
