"""Training of the pairwise reward: LoRA on the language model; the vision tower is frozen by default.

Features of a frozen tower are computed once per panel and cached as far as they fit. Only answer positions go through
the head. Examples of similar length share a batch. Several processes split each batch, with the same result. The order
of examples is a pure function of seed and epoch, so a resumed run continues as an uninterrupted one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from paco_core.data.pairs.limits import validate_validation_pairs
from paco_core.io.atomic import atomic
from paco_core.io.progress import Progress
from paco_core.reward_model import checkpoint, lora
from paco_core.reward_model.checkpoint import Best, TrainingProgress, reward_training_key
from paco_core.reward_model.evaluation import RewardEvaluation, accuracy_gain, better, evaluate, most_wrong
from paco_core.reward_model.examples import Example, validate_labels
from paco_core.reward_model.items import TokenizedExample, answer_module, tokenize_examples
from paco_core.reward_model.loss import example_weights
from paco_core.reward_model.network import Network
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.vision import FeatureCache
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.runtime.checkpoints import exclusive_training
from paco_core.training import fsdp2
from paco_core.training.checkpoint import validate_saving
from paco_core.training.log import LOG, write_log
from paco_core.training.optimizers import NotFinite
from paco_core.training.precision import choose_kernels
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates

if TYPE_CHECKING:
    from paco_core.config.params import RewardParams

POOL = 8  # batches that are sorted by length together: little padding, still shuffled


def epoch_batches(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once, in random order, in batches of ``size`` (one may be smaller) of similar length."""
    rng = random.Random(seed * 1_000_003 + epoch)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    pooled: list[int] = []
    for start in range(0, len(order), POOL * size):
        pooled += sorted(order[start : start + POOL * size], key=lambda number: lengths[number])
    batches = [pooled[start : start + size] for start in range(0, len(pooled), size)]
    rng.shuffle(batches)
    return batches


def learning_rate_at(step: int, total: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the share of steps, then a cosine to zero; ``step`` counts from 0."""
    warmup = round(total * warmup_share)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


ADAPTER = "adapter"
METRICS_EVERY = 10  # steps


class TrainingError(RuntimeError):
    """The training cannot continue. The message contains the step and the pairs of its batch."""


@dataclass(frozen=True)
class TrainingReport:
    """Results of a finished training."""

    steps: int
    pairs_per_second: float  # without evaluation; NaN if no step was left
    before: RewardEvaluation
    after: RewardEvaluation  # of the best epoch, whose weights were kept
    best_epoch: int
    mistakes: list[tuple[Example, float]]  # the most wrong pairs and their scores, worst first
    gain: Mapping[str, float]  # :func:`~paco_core.reward_model.evaluation.accuracy_gain`

    def metrics(self) -> dict[str, float]:
        """The reproducible metrics, without speed."""
        training = {"steps": float(self.steps), "best_epoch": float(self.best_epoch)}
        return {**self.after.metrics(), **self.before.metrics("base."), **self.gain, **training}


OnMetrics = Callable[[Mapping[str, float], int], None]


def train_reward_model(  # noqa: PLR0913 - inputs, outputs and callbacks of a training
    base: str | Path,
    examples: Sequence[Example],
    validation: Sequence[Example],
    params: RewardParams,
    out: Path,
    checkpoints: Path,
    code: str,
    *,
    on_metrics: OnMetrics | None = None,
    progress: Progress | None = None,
    log: Callable[[str], None] | None = None,
) -> TrainingReport:
    """Train an adapter and write it (``adapter/``, ``training_log.csv``) to ``out``.

    Each process that accelerate launched calls this function with the same arguments. Only the first process logs and
    writes. After each epoch, the validation pairs are scored. The adapter of the best epoch by ``params.best`` is kept.
    A killed run resumes from its last checkpoint and ends with the same weights.

    Args:
        base: folder or hub id of a Qwen2.5-VL or Qwen3-VL. The adapter records ``params.base`` as its base.
        out: folder of the results.
        checkpoints: folder of the checkpoints, with one folder per training key
            (:func:`~paco_core.reward_model.checkpoint.reward_training_key`).
        code: digest of the training code. Checkpoints of other code are not resumed.
        on_metrics: is called with metrics and the optimizer step.
        progress: advanced by the number of trained pairs. Its total is ``len(examples) * epochs``.
        log: is called with lines of text.

    Raises:
        DataError: if the base or a LoRA target is invalid, or the examples have only one label.
        TrainingError: if a loss or gradient is not finite.
    """
    validate_labels(examples, "training examples")
    validate_validation_pairs(len(validation))
    processes = Processes(params.device)
    network = Network.load(
        base,
        device=processes.device or params.device,
        dtype=params.dtype,
        pixels=(params.min_pixels, params.max_pixels),
    )
    network.features = FeatureCache(int(params.vision_cache_gb * 1e9), evict=False)
    digest = lora.base_digest(network.model)
    store = checkpoints / reward_training_key(params, examples, validation, base, digest, code)
    run = _Run(network, examples, validation, params, out, digest, store, processes, on_metrics, progress)
    with exclusive_training(store) if processes.main else nullcontext():
        processes.barrier()  # the first process repairs the checkpoints before any process reads them
        return run.run(log or (lambda _line: None))


@dataclass
class _Run:
    """One training run: its inputs as of :func:`train`, and one method per phase."""

    network: Network
    examples: Sequence[Example]
    validation: Sequence[Example]
    params: RewardParams
    out: Path
    base: str  # :func:`.lora.base_digest` of the network
    store: Path  # of the checkpoints; its name is the key of the training
    processes: Processes
    on_metrics: OnMetrics | None
    progress: Progress | None

    def __post_init__(self) -> None:
        params = self.params
        self.trains_vision = params.vision == "lora"
        self.items = tokenize_examples(self.network, self.examples, swap=params.swap, newline=params.label_newline)
        batches = math.ceil(len(self.examples) / params.batch_size)
        self.total_steps = math.ceil(batches / params.accumulation) * params.epochs

    def run(self, log: Callable[[str], None]) -> TrainingReport:
        """Train from the base to the written adapter."""
        params = self.params
        choose_kernels(params.device, params.dtype)
        before = self._evaluate()
        log(f"base: accuracy {before.accuracy:.3f}, ROC-AUC {before.roc_auc:.3f} on {before.pairs} pairs")
        wrapped = lora.attach_lora(
            self.network.model, params.lora, params.base, params.seed, trained_vision=self.trains_vision
        )
        if params.gradient_checkpointing:
            self.network.model.gradient_checkpointing_enable()
        weights = lora.lora_tensors(wrapped)
        if self.processes.sharded:
            core = self.network.model.model.language_model
            fsdp2.shard(core, self.network.device, unsharded=core.get_input_embeddings().parameters())
        if self.processes.main:
            validate_saving(lambda folder: lora.save_lora(wrapped, folder, self.base))
        optimizer = torch.optim.AdamW(weights.values(), lr=params.learning_rate, weight_decay=0.0)
        module = answer_module(self.network, wrapped, params.loss, params.alpha, trained_vision=self.trains_vision)
        updates = Updates(weights, optimizer, params.max_grad_norm, self.processes)
        progress = checkpoint.restore_reward_checkpoint(self.store, self.store.name, weights, updates)
        if progress is None:
            progress = TrainingProgress()
            self._log_metrics(before.metrics("validation/"), 0)
        else:
            log(
                f"resuming after step {progress.step} of {self.total_steps} "
                f"({progress.epoch} of {params.epochs} epochs done)"
            )
            self._advance(progress.epoch * len(self.items), "")
        spent, trained = 0.0, 0
        while progress.epoch < params.epochs:
            start = time.monotonic()
            trained += self._epoch(module, updates, weights, progress)
            spent += time.monotonic() - start
            evaluation = self._end_epoch(weights, updates, progress)
            log(f"epoch {progress.epoch}: accuracy {evaluation.accuracy:.3f}, ROC-AUC {evaluation.roc_auc:.3f}")
        assert progress.best is not None
        self._finish(wrapped, weights, progress)
        after = progress.best.evaluation
        mistakes = most_wrong(self.validation, after.scores)
        rate = trained / spent if trained else math.nan
        gain = accuracy_gain(before, after, self.validation)
        return TrainingReport(progress.step, rate, before, after, progress.best.epoch, mistakes, gain)

    def _epoch(
        self, module: torch.nn.Module, updates: Updates, weights: Mapping[str, torch.Tensor], progress: TrainingProgress
    ) -> int:
        """Run the remaining optimizer steps of the epoch. Returns the number of trained pairs."""
        params = self.params
        module.train()
        lengths = [item.length for item in self.items]
        batches = epoch_batches(lengths, params.batch_size, params.seed, progress.epoch)
        groups = [batches[n : n + params.accumulation] for n in range(0, len(batches), params.accumulation)]
        before = sum(len(batch) for group in groups[: progress.epoch_step] for batch in group)
        self._advance(before, "")
        for group in groups[progress.epoch_step :]:
            rate = learning_rate_at(progress.step, self.total_steps, params.learning_rate, params.warmup_share)
            for settings in updates.optimizer.param_groups:
                settings["lr"] = rate
            loss, norm = self._step(module, updates, group, progress.step, progress.epoch)
            progress.step, progress.epoch_step = progress.step + 1, progress.epoch_step + 1
            entry = {"step": progress.step, "epoch": progress.epoch + 1, "loss": loss, "gradient_norm": norm}
            progress.log.append({**entry, "learning_rate": rate})
            self._advance(sum(map(len, group)), f"loss {loss:.3f}")
            if progress.step % METRICS_EVERY == 0 or progress.step == self.total_steps:
                self._log_metrics({f"train/{name}": value for name, value in progress.log[-1].items()}, progress.step)
            if progress.step % params.checkpoint_every == 0 and progress.epoch_step < len(groups):
                self._save(weights, updates, progress)
        module.eval()
        return len(self.items) - before

    def _end_epoch(
        self, weights: Mapping[str, torch.Tensor], updates: Updates, progress: TrainingProgress
    ) -> RewardEvaluation:
        """Evaluate, keep the weights if they are the best so far, and write a checkpoint."""
        progress.epoch, progress.epoch_step = progress.epoch + 1, 0
        evaluation = self._evaluate()
        progress.log[-1] |= _defined(evaluation.metrics("validation_"))
        self._log_metrics(evaluation.metrics("validation/"), progress.step)
        if better(self.params.best, evaluation, progress.best.evaluation if progress.best else None):
            progress.best = Best.from_evaluation(progress.epoch, evaluation, weights)
        self._save(weights, updates, progress)
        return evaluation

    def _item(self, number: int, epoch: int) -> TokenizedExample:
        """An example of this epoch. With ``swap``, half of the pairs are swapped, alternating by epoch."""
        item = self.items[number]
        return item.swapped() if self.params.swap and (number + epoch) % 2 else item

    def _step(
        self, module: torch.nn.Module, updates: Updates, group: Sequence[Sequence[int]], step: int, epoch: int
    ) -> tuple[float, float]:
        """One optimizer step over micro-batches. The gradient is that of the mean of their losses."""
        count, params = self.processes.world_size, self.params
        tokens = [[len(self.items[number].answer) for number in batch] for batch in group]
        weights, weight_sum = example_weights(tokens, params.average)
        total = torch.zeros((), device=self.network.device)
        losses_by_batch = []
        updates.begin(single_pass=len(group) == count == 1)
        for place, batch in enumerate(group):
            numbers = list(batch[self.processes.rank :: count])
            loss_weights = weights[place][self.processes.rank :: count] or [
                0.0
            ]  # without a pair in this process, a dummy pair has weight 0
            numbers = numbers or list(batch[:1])
            losses = module([self._item(number, epoch) for number in numbers])
            loss = (losses * losses.new_tensor(loss_weights)).sum() * (1 / weight_sum)
            updates.backward(loss)
            total += loss.detach()
            losses_by_batch.append((numbers, losses.detach()))
        mean = float(self.processes.all_reduce(total))
        if not math.isfinite(mean):  # equal in every process, so all processes stop
            self._stop("loss", self._not_finite(losses_by_batch), step)
        updates.finish()
        try:
            return mean, updates.step()
        except NotFinite:
            self._stop("gradient", [number for batch in group for number in batch], step)

    def _not_finite(self, losses_by_batch: Sequence[tuple[list[int], torch.Tensor]]) -> list[int]:
        """The examples whose loss is not finite, in any process."""
        numbers = [
            number
            for batch, losses in losses_by_batch
            for number, loss in zip(batch, losses.tolist(), strict=True)
            if not math.isfinite(loss)
        ]
        return sorted(set(self.processes.gather(numbers)))

    def _stop(self, quantity: str, numbers: Sequence[int], step: int) -> NoReturn:
        ids = ", ".join(self.examples[number].id for number in numbers)
        raise TrainingError(
            f"the {quantity} is not finite at step {step + 1} of {self.total_steps}; pairs: {ids}; "
            f"lower reward.learning_rate ({self.params.learning_rate}) or look at these pairs; "
            f"the last checkpoint is kept in {self.store}"
        )

    def _evaluate(self) -> RewardEvaluation:
        if self.trains_vision:
            self.network.features.clear()  # the tower has changed
        return evaluate(_SharedScorer(Scorer.from_network(self.network), self.processes), self.validation)

    def _save(self, weights: Mapping[str, torch.Tensor], updates: Updates, progress: TrainingProgress) -> None:
        if self.processes.main:
            checkpoint.save_reward_checkpoint(self.store, self.store.name, progress, weights, updates.moments())

    def _advance(self, pairs: int, note: str) -> None:
        if self.progress is not None and pairs:
            self.progress.advance(pairs, note)

    def _log_metrics(self, values: Mapping[str, float], step: int) -> None:
        if self.on_metrics is not None and self.processes.main:
            self.on_metrics(_defined(values), step)

    def _finish(self, wrapped: Any, weights: Mapping[str, torch.Tensor], progress: TrainingProgress) -> None:
        """Write the best adapter and the log. The checkpoint stays until DVC has saved the outs."""
        self.processes.barrier()
        if not self.processes.main:
            return
        assert progress.best is not None
        progress.best.restore(weights)
        with atomic(self.out / ADAPTER, replace=True) as part:
            lora.save_lora(wrapped, part, self.base)
        write_log(self.out / LOG, progress.log)


class _SharedScorer:
    """Each process scores its share of the queries. Every process gets all scores."""

    def __init__(self, scorer: Scorer, processes: Processes) -> None:
        self.scorer, self.processes = scorer, processes
        if processes.sharded:
            scorer.passes = Passes(1)  # passes gather weights from all processes, so they must run in order

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        count, rank = self.processes.world_size, self.processes.rank
        if count == 1:
            return self.scorer.score(queries)
        self._run_dummy_passes(queries)
        scores = enumerate(self.scorer.score(queries[rank::count]))
        rows = self.processes.gather([(rank + count * index, score.value, score.cause) for index, score in scores])
        return [Score(value, cause) for _, value, cause in sorted(rows, key=lambda row: row[0])]

    def _run_dummy_passes(self, queries: Sequence[PairQuery]) -> None:
        """Run dummy passes: FSDP needs the same number of passes on each rank."""
        if not self.processes.sharded:
            return
        self.scorer.warm_up()
        passes = self.processes.gather(
            [self.scorer.passes_of(queries[self.processes.rank :: self.processes.world_size])]
        )
        readable = next((query for query in queries if self.scorer.validation_error(query) is None), None)
        for _ in range(max(passes) - passes[self.processes.rank]):
            assert readable is not None
            self.scorer.first_logits([readable])


def _defined(values: Mapping[str, float]) -> dict[str, float]:
    """Only the defined metrics. For example, the ROC-AUC of a single label is not defined."""
    return {name: value for name, value in values.items() if not math.isnan(value)}
