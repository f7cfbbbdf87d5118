"""Trains the pairwise reward: LoRA on the language model, the vision tower frozen.

Features of the frozen tower are computed once a panel and kept; only answer positions go through the
head; rows of similar length share a batch. One process or, started by accelerate, several: then each
batch is split among them.
"""

from __future__ import annotations

import csv
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import atomic, digest
from paco_core.progress import Progress
from paco_core.reward_model import checkpoint, lora
from paco_core.reward_model.batches import epoch_batches, learning_rate_at
from paco_core.reward_model.checkpoint import Progressed
from paco_core.reward_model.evaluation import Evaluation, evaluate
from paco_core.reward_model.examples import Example, require_both_labels
from paco_core.reward_model.loss import Answers, LossKind, answer_loss
from paco_core.reward_model.network import Network, Row
from paco_core.reward_model.scorer import Scorer

if TYPE_CHECKING:
    import torch

    from paco_core.params import RewardParams

ADAPTER, CHECKPOINT, LOG = "adapter", "checkpoint", "training_log.csv"
METRICS_EVERY = 10  # steps


class TrainingError(RuntimeError):
    """Training cannot go on; the text names the step and the pairs of its batch."""


@dataclass(frozen=True)
class TrainingReport:
    """What a finished training came to."""

    steps: int
    pairs_per_second: float  # in this process; evaluation not counted; NaN when nothing was left to do
    before: Evaluation
    after: Evaluation

    def metrics(self) -> dict[str, float]:
        own = {"steps": float(self.steps), "pairs_per_second": self.pairs_per_second}
        return {**self.after.metrics(), **self.before.metrics("base."), **own}


OnMetrics = Callable[[Mapping[str, float], int], None]


def train(
    base: str | Path,
    examples: Sequence[Example],
    validation: Sequence[Example],
    params: RewardParams,
    out: Path,
    *,
    on_metrics: OnMetrics | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> TrainingReport:
    """Train an adapter and write it (``adapter/``, ``training_log.csv``) to ``out``.

    A run that was killed goes on from its last whole epoch.

    Args:
        base: Qwen2.5-VL folder or hub id; ``params.base`` is what the adapter records as its base.
        progress: advanced by the number of pairs trained on; its total is ``len(examples) * epochs``.

    Raises:
        DataError: when the base or a LoRA target is none, or the examples hold one label only.
        TrainingError: when a loss or gradient is not finite.
    """
    from accelerate import Accelerator

    require_both_labels(examples, "training examples")
    accelerator = Accelerator(cpu=params.device == "cpu")
    network = Network.load(
        base,
        device=str(accelerator.device),
        dtype=params.dtype,
        pixels=(params.min_pixels, params.max_pixels),
    )
    run = _Run(
        network,
        examples,
        validation,
        params,
        out=out,
        accelerator=accelerator,
        on_metrics=on_metrics,
        progress=progress,
    )
    return run.to_the_end(say or (lambda _line: None))


def _answer_module(network: Network, wrapped: Any, kind: LossKind, alpha: float) -> Any:
    from torch import nn

    class AnswerLoss(nn.Module):
        """Loss of each row; one forward, so that distributed wrappers see every use of the weights."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapped = wrapped

        def forward(self, rows: Sequence[Row]) -> torch.Tensor:
            answers = answers_of(rows, network.device)
            states = network.states(rows)
            logits = network.model.lm_head(states[answers.row, answers.position])
            return answer_loss(logits, answers, kind, alpha)

    return AnswerLoss()


def answers_of(rows: Sequence[Row], device: torch.device) -> Answers:
    """Where the answer tokens of right-padded rows are predicted."""
    import torch

    tokens = [row.answer for row in rows]
    counts = torch.tensor([0 if answer is None else len(answer) for answer in tokens])
    starts = torch.tensor([len(row.prompt.ids) for row in rows])
    row = torch.repeat_interleave(torch.arange(len(rows)), counts)
    within = torch.cat([torch.arange(int(count)) for count in counts])
    target = torch.cat([answer for answer in tokens if answer is not None])
    answers = (row, starts[row] + within - 1, target, within == 0, counts[row])
    return Answers(*(part.to(device) for part in answers))


def answer_ids(network: Network, answer: str) -> torch.Tensor:
    """Tokens of an answer with the closing token, int64 (n,)."""
    import torch

    tokenizer = network.processor.tokenizer
    return torch.tensor([*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])


class _Run:
    """One training run: what is fixed, and one method a phase."""

    def __init__(
        self,
        network: Network,
        examples: Sequence[Example],
        validation: Sequence[Example],
        params: RewardParams,
        *,
        out: Path,
        accelerator: Any,
        on_metrics: OnMetrics | None,
        progress: Progress | None,
    ) -> None:
        self.network, self.examples, self.validation, self.params = network, examples, validation, params
        self.out, self.accelerator = out, accelerator
        self.on_metrics, self.progress = on_metrics, progress
        self.steps_per_epoch = math.ceil(math.ceil(len(examples) / params.batch_size) / params.accumulation)
        self.total_steps = self.steps_per_epoch * params.epochs

    def to_the_end(self, say: Callable[[str], None]) -> TrainingReport:
        """Everything from the untrained base to the written adapter."""
        import torch

        before = self._evaluate()
        say(f"base: accuracy {before.accuracy:.3f}, ROC-AUC {before.roc_auc:.3f} on {before.pairs} pairs")
        key = self._key()
        wrapped = lora.attach(self.network.model, self.params.lora, self.params.base, self.params.seed)
        if self.params.gradient_checkpointing:
            self.network.model.gradient_checkpointing_enable()
        weights = lora.tensors(wrapped)
        optimizer = torch.optim.AdamW(weights.values(), lr=self.params.learning_rate, weight_decay=0.0)
        module = _answer_module(self.network, wrapped, self.params.loss, self.params.alpha)
        module, optimizer = self.accelerator.prepare(module, optimizer)
        done = checkpoint.restore(self.out / CHECKPOINT, key, weights, optimizer.optimizer) or Progressed()
        if done.epoch:
            say(f"going on after epoch {done.epoch} of {self.params.epochs} (step {done.step})")
        self._advance(done.epoch * len(self.examples), "")
        rows = self._rows()
        spent, trained, after = 0.0, 0, before
        while done.epoch < self.params.epochs:
            start = time.monotonic()
            self._epoch(module, optimizer, rows, done)
            spent, trained = spent + time.monotonic() - start, trained + len(rows)
            after = self._evaluate()
            done.log[-1] |= _defined(after.metrics("validation_"))
            self._tell(after.metrics("validation/"), done.step)
            say(f"epoch {done.epoch}: accuracy {after.accuracy:.3f}, ROC-AUC {after.roc_auc:.3f}")
            if self.accelerator.is_main_process:
                checkpoint.save(self.out / CHECKPOINT, key, done, weights, optimizer.optimizer)
        if not trained:
            after = self._evaluate()
        self._finish(wrapped, done)
        return TrainingReport(done.step, trained / spent if trained else math.nan, before, after)

    def _rows(self) -> list[Row]:
        """Examples as rows; each distinct panel is encoded here, once."""
        visuals = self.network.look([image for example in self.examples for image in example.images])
        return [
            self.network.row(
                visuals[2 * number], visuals[2 * number + 1], example.instruction,
                answer_ids(self.network, example.answer),
            )
            for number, example in enumerate(self.examples)
        ]  # fmt: skip

    def _epoch(self, module: Any, optimizer: Any, rows: Sequence[Row], done: Progressed) -> None:
        """All optimiser steps of the next epoch."""
        params = self.params
        module.train()
        batches = epoch_batches([row.length for row in rows], params.batch_size, params.seed, done.epoch)
        for start in range(0, len(batches), params.accumulation):
            group = batches[start : start + params.accumulation]
            rate = learning_rate_at(done.step, self.total_steps, params.learning_rate, params.warmup_share)
            for settings in optimizer.param_groups:
                settings["lr"] = rate
            loss, norm = self._step(module, optimizer, rows, group, done.step)
            done.step += 1
            entry = {"step": done.step, "epoch": done.epoch + 1, "loss": loss, "gradient_norm": norm}
            done.log.append({**entry, "learning_rate": rate})
            self._advance(sum(map(len, group)), f"loss {loss:.3f}")
            if done.step % METRICS_EVERY == 0 or done.step == self.total_steps:
                self._tell({f"train/{name}": value for name, value in done.log[-1].items()}, done.step)
        done.epoch += 1
        module.eval()

    def _step(
        self, module: Any, optimizer: Any, rows: Sequence[Row], group: Sequence[Sequence[int]], step: int
    ) -> tuple[float, float]:
        """One optimiser step over micro-batches; the gradient is that of the mean over all their examples."""
        import torch

        accelerator, ranks = self.accelerator, self.accelerator.num_processes
        pairs = sum(map(len, group))
        total = torch.zeros((), device=accelerator.device)
        for place, batch in enumerate(group):
            mine = list(batch[accelerator.process_index :: ranks])
            share = 1.0 if mine else 0.0  # without a pair of its own a process takes part with weight 0
            mine = mine or list(batch[:1])
            with _sync(accelerator, module, place == len(group) - 1):
                losses = module([rows[number] for number in mine])
                self._require_finite(losses, mine, step)
                # Distributed wrappers average gradients over processes: each sum is scaled by their number.
                loss = losses.sum() * (share * ranks / pairs)
                accelerator.backward(loss)
            total += loss.detach()
        norm = accelerator.clip_grad_norm_(module.parameters(), self.params.max_grad_norm)
        if not bool(torch.isfinite(norm)):
            self._stop("gradient", [number for batch in group for number in batch], step)
        optimizer.step()
        optimizer.zero_grad()
        return float(accelerator.reduce(total, "mean")), float(norm)

    def _require_finite(self, losses: torch.Tensor, numbers: Sequence[int], step: int) -> None:
        import torch

        finite = torch.isfinite(losses).tolist()
        if not all(finite):
            self._stop("loss", [n for n, good in zip(numbers, finite, strict=True) if not good], step)

    def _stop(self, what: str, numbers: Sequence[int], step: int) -> None:
        ids = ", ".join(self.examples[number].id for number in numbers)
        raise TrainingError(
            f"the {what} is not finite at step {step + 1} of {self.total_steps}; pairs: {ids}; "
            f"lower reward.learning_rate ({self.params.learning_rate}) or look at these pairs; "
            f"the last whole epoch is kept in {self.out.name}/{CHECKPOINT}"
        )

    def _evaluate(self) -> Evaluation:
        return evaluate(Scorer.of(self.network), self.validation)

    def _advance(self, pairs: int, note: str) -> None:
        if self.progress is not None and pairs:
            self.progress.advance(pairs, note)

    def _tell(self, values: Mapping[str, float], step: int) -> None:
        if self.on_metrics is not None and self.accelerator.is_main_process:
            self.on_metrics(_defined(values), step)

    def _key(self) -> str:
        """What this run trains: parameters, examples, and the base's weights (a sample of them)."""
        weights = self.network.model.lm_head.weight[:16].float().cpu().numpy().tobytes()
        pairs = [(example.id, example.instruction, example.answer) for example in self.examples]
        sample = hashlib.md5(weights, usedforsecurity=False).hexdigest()
        return digest([self.params.model_dump(), pairs, sample], 32)

    def _finish(self, wrapped: Any, done: Progressed) -> None:
        """Write adapter and log; the checkpoint has served."""
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        with atomic(self.out / ADAPTER) as part:
            lora.save(wrapped, part)
        write_log(self.out / LOG, done.log)
        shutil.rmtree(self.out / CHECKPOINT, ignore_errors=True)


def _defined(values: Mapping[str, float]) -> dict[str, float]:
    """Without figures that are not defined (the ROC-AUC of one label, say)."""
    return {name: value for name, value in values.items() if not math.isnan(value)}


def write_log(path: Path, log: Sequence[Mapping[str, float]]) -> None:
    """The log as CSV, one row a step; the columns of the evaluation are filled at the end of each epoch."""
    columns = list(dict.fromkeys(name for row in log for name in row))
    with atomic(path) as part, part.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows(log)


def _sync(accelerator: Any, module: Any, last: bool) -> Any:
    """Gradients are exchanged with the last micro-batch of a step only."""
    from contextlib import nullcontext

    return nullcontext() if last else accelerator.no_sync(module)
