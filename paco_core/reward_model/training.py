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

from paco_core.data.pairs.limits import refuse_unvalidated
from paco_core.io.atomic import atomic
from paco_core.io.progress import Progress
from paco_core.reward_model import checkpoint, lora
from paco_core.reward_model.checkpoint import Best, Progressed, training_key
from paco_core.reward_model.evaluation import RewardEvaluation, accuracy_gain, better, evaluate, most_wrong
from paco_core.reward_model.examples import Example, require_both_labels
from paco_core.reward_model.items import Item, answer_module, tokenise
from paco_core.reward_model.loss import shares
from paco_core.reward_model.network import Network
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.vision import FeatureCache
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.runtime.checkpoints import exclusive_training
from paco_core.training import fsdp2
from paco_core.training.checkpoint import try_to_save
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
    """Training cannot go on; the text names the step and the pairs of its batch."""


@dataclass(frozen=True)
class TrainingReport:
    """What a finished training came to."""

    steps: int
    pairs_per_second: float  # evaluation not counted; NaN when nothing was left to do
    before: RewardEvaluation
    after: RewardEvaluation  # of the best epoch, whose weights were kept
    best_epoch: int
    mistakes: list[tuple[Example, float]]  # the most wrong pairs and their scores, worst first
    gain: Mapping[str, float]  # :func:`~paco_core.reward_model.evaluation.accuracy_gain`

    def metrics(self) -> dict[str, float]:
        """What equal inputs give again: no speed."""
        own = {"steps": float(self.steps), "best_epoch": float(self.best_epoch)}
        return {**self.after.metrics(), **self.before.metrics("base."), **self.gain, **own}


OnMetrics = Callable[[Mapping[str, float], int], None]


def train(  # noqa: PLR0913 - what a training reads, writes and reports to
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
    say: Callable[[str], None] | None = None,
) -> TrainingReport:
    """Train an adapter and write it (``adapter/``, ``training_log.csv``) to ``out``.

    Each process that accelerate started calls this with the same arguments; the first one alone reports and writes.
    After each epoch the validation pairs are scored; the adapter kept is that of the epoch best by
    ``params.best``. A run that was killed goes on from its last checkpoint and ends with the same weights.

    Args:
        base: Qwen2.5-VL folder or hub id; ``params.base`` is what the adapter records as its base.
        checkpoints: where those of this training and of others like it lie, a folder an identity.
        code: digest of the code that trains; weights that other code made are not gone on with
            (:func:`~paco_core.reward_model.checkpoint.training_key` names all that counts).
        progress: advanced by the number of pairs trained on; its total is ``len(examples) * epochs``.

    Raises:
        DataError: when the base or a LoRA target is none, or the examples hold one label only.
        TrainingError: when a loss or gradient is not finite.
    """
    require_both_labels(examples, "training examples")
    refuse_unvalidated(len(validation))
    processes = Processes(params.device)
    network = Network.load(
        base,
        device=processes.device or params.device,
        dtype=params.dtype,
        pixels=(params.min_pixels, params.max_pixels),
    )
    network.features = FeatureCache(int(params.vision_cache_gb * 1e9), evict=False)
    digest = lora.base_digest(network.model)
    store = checkpoints / training_key(params, examples, validation, base, digest, code)
    run = _Run(network, examples, validation, params, out, digest, store, processes, on_metrics, progress)
    with exclusive_training(store) if processes.main else nullcontext():
        processes.barrier()  # the first process repairs the checkpoints before any process reads them
        return run.to_the_end(say or (lambda _line: None))


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
        self.items = tokenise(self.network, self.examples, swap=params.swap, newline=params.label_newline)
        batches = math.ceil(len(self.examples) / params.batch_size)
        self.total_steps = math.ceil(batches / params.accumulation) * params.epochs

    def to_the_end(self, say: Callable[[str], None]) -> TrainingReport:
        """Everything from the untrained base to the written adapter."""
        params = self.params
        choose_kernels(params.device, params.dtype)
        before = self._evaluate()
        say(f"base: accuracy {before.accuracy:.3f}, ROC-AUC {before.roc_auc:.3f} on {before.pairs} pairs")
        wrapped = lora.attach(
            self.network.model, params.lora, params.base, params.seed, trained_vision=self.trains_vision
        )
        if params.gradient_checkpointing:
            self.network.model.gradient_checkpointing_enable()
        weights = lora.tensors(wrapped)
        if self.processes.sharded:
            core = self.network.model.model.language_model
            fsdp2.shard(core, self.network.device, kept=core.get_input_embeddings().parameters())
        if self.processes.main:
            try_to_save(lambda folder: lora.save(wrapped, folder, self.base))
        optimizer = torch.optim.AdamW(weights.values(), lr=params.learning_rate, weight_decay=0.0)
        module = answer_module(self.network, wrapped, params.loss, params.alpha, trained_vision=self.trains_vision)
        updates = Updates(weights, optimizer, params.max_grad_norm, self.processes)
        done = checkpoint.restore(self.store, self.store.name, weights, updates)
        if done is None:
            done = Progressed()
            self._log_metrics(before.metrics("validation/"), 0)
        else:
            say(f"resuming after step {done.step} of {self.total_steps} ({done.epoch} of {params.epochs} epochs done)")
            self._advance(done.epoch * len(self.items), "")
        spent, trained = 0.0, 0
        while done.epoch < params.epochs:
            start = time.monotonic()
            trained += self._epoch(module, updates, weights, done)
            spent += time.monotonic() - start
            seen = self._end_epoch(weights, updates, done)
            say(f"epoch {done.epoch}: accuracy {seen.accuracy:.3f}, ROC-AUC {seen.roc_auc:.3f}")
        assert done.best is not None
        self._finish(wrapped, weights, done)
        after = done.best.seen
        mistakes = most_wrong(self.validation, after.scores)
        rate = trained / spent if trained else math.nan
        gain = accuracy_gain(before, after, self.validation)
        return TrainingReport(done.step, rate, before, after, done.best.epoch, mistakes, gain)

    def _epoch(
        self, module: torch.nn.Module, updates: Updates, weights: Mapping[str, torch.Tensor], done: Progressed
    ) -> int:
        """The optimiser steps that are left of the epoch; returns how many pairs they trained on."""
        params = self.params
        module.train()
        lengths = [item.length for item in self.items]
        batches = epoch_batches(lengths, params.batch_size, params.seed, done.epoch)
        groups = [batches[n : n + params.accumulation] for n in range(0, len(batches), params.accumulation)]
        before = sum(len(batch) for group in groups[: done.within] for batch in group)
        self._advance(before, "")
        for group in groups[done.within :]:
            rate = learning_rate_at(done.step, self.total_steps, params.learning_rate, params.warmup_share)
            for settings in updates.optimizer.param_groups:
                settings["lr"] = rate
            loss, norm = self._step(module, updates, group, done.step, done.epoch)
            done.step, done.within = done.step + 1, done.within + 1
            entry = {"step": done.step, "epoch": done.epoch + 1, "loss": loss, "gradient_norm": norm}
            done.log.append({**entry, "learning_rate": rate})
            self._advance(sum(map(len, group)), f"loss {loss:.3f}")
            if done.step % METRICS_EVERY == 0 or done.step == self.total_steps:
                self._log_metrics({f"train/{name}": value for name, value in done.log[-1].items()}, done.step)
            if done.step % params.checkpoint_every == 0 and done.within < len(groups):
                self._save(weights, updates, done)
        module.eval()
        return len(self.items) - before

    def _end_epoch(self, weights: Mapping[str, torch.Tensor], updates: Updates, done: Progressed) -> RewardEvaluation:
        """Evaluate, keep the weights where they are the best so far, and write a checkpoint."""
        done.epoch, done.within = done.epoch + 1, 0
        seen = self._evaluate()
        done.log[-1] |= _defined(seen.metrics("validation_"))
        self._log_metrics(seen.metrics("validation/"), done.step)
        if better(self.params.best, seen, done.best.seen if done.best else None):
            done.best = Best.from_evaluation(done.epoch, seen, weights)
        self._save(weights, updates, done)
        return seen

    def _item(self, number: int, epoch: int) -> Item:
        """An example as this epoch shows it: with ``swap``, half of the pairs the other way round, in turns."""
        item = self.items[number]
        return item.swapped() if self.params.swap and (number + epoch) % 2 else item

    def _step(
        self, module: torch.nn.Module, updates: Updates, group: Sequence[Sequence[int]], step: int, epoch: int
    ) -> tuple[float, float]:
        """One optimiser step over micro-batches; the gradient is that of the mean of their losses."""
        count, params = self.processes.world_size, self.params
        tokens = [[len(self.items[number].answer) for number in batch] for batch in group]
        weights, whole = shares(tokens, params.average)
        total = torch.zeros((), device=self.network.device)
        found = []
        updates.begin(single_pass=len(group) == count == 1)
        for place, batch in enumerate(group):
            mine = list(batch[self.processes.rank :: count])
            own = weights[place][self.processes.rank :: count] or [0.0]  # without a pair of its own it counts nothing
            mine = mine or list(batch[:1])
            losses = module([self._item(number, epoch) for number in mine])
            loss = (losses * losses.new_tensor(own)).sum() * (1 / whole)
            updates.backward(loss)
            total += loss.detach()
            found.append((mine, losses.detach()))
        mean = float(self.processes.all_reduce(total))
        if not math.isfinite(mean):  # the same in every process, so that all of them stop here
            self._stop("loss", self._not_finite(found), step)
        updates.finish()
        try:
            return mean, updates.step()
        except NotFinite:
            self._stop("gradient", [number for batch in group for number in batch], step)

    def _not_finite(self, found: Sequence[tuple[list[int], torch.Tensor]]) -> list[int]:
        """Which examples have a loss that is not finite, in any process."""
        own = [
            number
            for mine, losses in found
            for number, loss in zip(mine, losses.tolist(), strict=True)
            if not math.isfinite(loss)
        ]
        return sorted(set(self.processes.gather(own)))

    def _stop(self, what: str, numbers: Sequence[int], step: int) -> NoReturn:
        ids = ", ".join(self.examples[number].id for number in numbers)
        raise TrainingError(
            f"the {what} is not finite at step {step + 1} of {self.total_steps}; pairs: {ids}; "
            f"lower reward.learning_rate ({self.params.learning_rate}) or look at these pairs; "
            f"the last checkpoint is kept in {self.store}"
        )

    def _evaluate(self) -> RewardEvaluation:
        if self.trains_vision:
            self.network.features.clear()  # the tower has changed since
        return evaluate(_SharedScorer(Scorer.from_network(self.network), self.processes), self.validation)

    def _save(self, weights: Mapping[str, torch.Tensor], updates: Updates, done: Progressed) -> None:
        if self.processes.main:
            checkpoint.save(self.store, self.store.name, done, weights, updates.moments())

    def _advance(self, pairs: int, note: str) -> None:
        if self.progress is not None and pairs:
            self.progress.advance(pairs, note)

    def _log_metrics(self, values: Mapping[str, float], step: int) -> None:
        if self.on_metrics is not None and self.processes.main:
            self.on_metrics(_defined(values), step)

    def _finish(self, wrapped: Any, weights: Mapping[str, torch.Tensor], done: Progressed) -> None:
        """Write the best adapter and the log. The checkpoint stays: a kill may still come before DVC has the outs."""
        self.processes.barrier()
        if not self.processes.main:
            return
        assert done.best is not None
        done.best.put_back(weights)
        with atomic(self.out / ADAPTER, replace=True) as part:
            lora.save(wrapped, part, self.base)
        write_log(self.out / LOG, done.log)


class _SharedScorer:
    """Each process scores its share of the queries; all of them get all scores."""

    def __init__(self, scorer: Scorer, processes: Processes) -> None:
        self.scorer, self.processes = scorer, processes
        if processes.sharded:
            scorer.passes = Passes(1)  # each pass gathers weights from all processes: one after the other, in order

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        count, own = self.processes.world_size, self.processes.rank
        if count == 1:
            return self.scorer.score(queries)
        self._idle(queries)
        mine = enumerate(self.scorer.score(queries[own::count]))
        found = self.processes.gather([(own + count * place, score.value, score.cause) for place, score in mine])
        return [Score(value, cause) for _, value, cause in sorted(found, key=lambda row: row[0])]

    def _idle(self, queries: Sequence[PairQuery]) -> None:
        """Run the passes that other processes have more than this one, where each takes all of them."""
        if not self.processes.sharded:
            return
        self.scorer.warm_up()
        passes = self.processes.gather(
            [self.scorer.passes_of(queries[self.processes.rank :: self.processes.world_size])]
        )
        readable = next((query for query in queries if self.scorer.fault(query) is None), None)
        for _ in range(max(passes) - passes[self.processes.rank]):
            assert readable is not None
            self.scorer.first_logits([readable])


def _defined(values: Mapping[str, float]) -> dict[str, float]:
    """Without figures that are not defined (the ROC-AUC of one label, say)."""
    return {name: value for name, value in values.items() if not math.isnan(value)}
