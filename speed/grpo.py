"""PaCo-GRPO's epoch against a straightforward loop: passes counted, seconds timed, same models, same run.

    python -m speed.grpo --epochs 3 --samples 12

The straightforward loop does what public trainers do: batch 1, text encoded in sampling and again in training,
every picture decoded twice (once for the reward, once to be shown), pairs scored one by one after sampling, and
three passes a trained step (new, old, reference), the last one at beta 0. Its seconds are per sample, times the
samples of an epoch; both draw the same prompts at the same size with the same steps.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import cut
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.figures import Row
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.trainer import Trainer
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch, RewardFunction
from paco_core.rewards.registry import build_set
from paco_core.rewards.sources import Sources
from paco_core.runtime.process import prepare

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).with_suffix(".json")


class Counting:
    """Counts rows that pass the policy's parts, and pairs that the judge is asked."""

    def __init__(self, policy: Any) -> None:
        self.rows: Counter[str] = Counter()
        policy.transformer.register_forward_pre_hook(self._transformer, with_kwargs=True)
        policy.pipeline.text_encoder_2.register_forward_pre_hook(self._hook("encoded"))
        policy.vae.decoder.register_forward_pre_hook(self._hook("decoded"))

    def _transformer(self, _module: Any, _args: Any, kwargs: Any) -> None:
        kind = "trained" if torch.is_grad_enabled() else "without_gradient"
        self.rows[kind] += len(kwargs["hidden_states"])

    def _hook(self, name: str) -> Callable[[Any, Any], None]:
        def count(_module: Any, args: Any) -> None:
            self.rows[name] += len(args[0])

        return count


class CountingJudge:
    """A scorer in this process that counts what it is asked."""

    def __init__(self, scorer: Scorer, rows: Counter[str]) -> None:
        self.scorer, self.rows = scorer, rows

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.rows["asked"] += len(queries)
        return self.scorer.score(queries)


@dataclass(frozen=True)
class Seconds:
    """On the clock, and of the processor, which other work on the machine changes less."""

    wall: float
    processor: float

    def times(self, factor: float) -> Seconds:
        return Seconds(self.wall * factor, self.processor * factor)


class Clock:
    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        return Seconds(time.perf_counter() - self._wall, time.process_time() - self._processor)


class Timed(Trainer):
    """A trainer that remembers what each epoch counted."""

    counting: Counting

    def _epoch(self, epoch: int) -> tuple[Row, Row]:
        before, clock = Counter(self.counting.rows), Clock()
        row = super()._epoch(epoch)
        self.epoch_seconds = [*getattr(self, "epoch_seconds", []), clock.read()]
        self.epoch_rows = self.counting.rows - before
        return row


def records_of(params: Params, count: int) -> list[PromptRecord]:
    made = make_prompts(params.prompts.model_copy(update={"count": count}), (64, 64), ROOT)
    return list(made.records)


def ours(params: Params, judge: Scorer, records: list[PromptRecord], epochs: int) -> tuple[list[Seconds], Counter[str]]:
    """Seconds of each epoch, and what the last one counted."""
    recipe = params.policies.recipes["flux_t2is"]
    policy = base.load(recipe.family, str(ROOT / recipe.model), "cpu", "float32")
    counting = Counting(policy)
    rewards = build_set(recipe.rewards, Sources({None: CountingJudge(judge, counting.rows)}, ROOT))
    settings = params.policies.model_copy(
        update={"epochs": epochs, "eval_every": epochs + 1, "checkpoint_every": epochs}
    )
    short = recipe.model_copy(update={"eval_sizes": [recipe.train_size]})
    trainer = Timed(policy, settings, short, rewards, records[1:], records[:1], {})
    trainer.counting = counting
    with tempfile.TemporaryDirectory() as out:
        trainer.run(Path(out) / "policy", Path(out) / "checkpoints")
    return trainer.epoch_seconds, trainer.epoch_rows


def straightforward(
    params: Params, judge: Scorer, records: list[PromptRecord], samples: int
) -> tuple[Seconds, Counter[str]]:
    """Seconds for ``samples`` samples, and what was counted."""
    grpo, recipe = params.policies, params.policies.recipes["flux_t2is"]
    policy: Any = base.load(recipe.family, str(ROOT / recipe.model), "cpu", "float32")
    policy.add_adapter(grpo.lora, grpo.seed)
    counting = Counting(policy)
    asked = CountingJudge(judge, counting.rows)
    rewards: dict[str, RewardFunction] = build_set(recipe.rewards, Sources({None: asked}, ROOT))
    size = (recipe.train_size, recipe.train_size)
    sampling = Sampling.of(
        policy,
        size,
        recipe.sampling_steps,
        recipe.guidance,
        noise_steps=recipe.noise_steps,
        noise_level=recipe.noise_level,
        dynamics=recipe.dynamics,
    )
    dynamics = DYNAMICS[recipe.dynamics]
    optimizer = torch.optim.AdamW(list(policy.trainable().values()), lr=grpo.learning_rate)
    clock = Clock()
    kept = []
    for number in range(samples):
        record = records[number // grpo.group_size % len(records)]
        encoded = policy.encode([record.prompt], recipe.max_sequence_length)
        done = rollout(policy, encoded, [0], [NoiseKey(record.idx, number, 1)], sampling)
        picture = policy.decode(done.latents, size)[0]
        panels = cut(picture, record.layout)
        value = 0.0
        for name, reward in rewards.items():
            if name == "consistency":
                value += sum(_one_by_one(asked, record, panels)) / 6
            else:
                value += float(reward(RewardBatch([record], [panels], [picture]))[0])
        policy.decode(done.latents, size)
        kept.append((record, done.kept[0], value))
    mean = sum(value for *_, value in kept) / len(kept)
    optimizer.zero_grad()
    for record, step, value in kept:
        encoded = policy.encode([record.prompt], recipe.max_sequence_length)
        inputs = (step.before, sampling.steps[step.step].sigma, encoded.take([0]), recipe.guidance, size)
        with torch.no_grad():
            old = dynamics.transition(step.before, policy.velocity(*inputs), sampling.steps[step.step])
            with policy.using(None):
                policy.velocity(*inputs)
        new = dynamics.transition(step.before, policy.velocity(*inputs), sampling.steps[step.step])
        ratio = (dynamics.log_prob(step.after, new) - dynamics.log_prob(step.after, old)).exp()
        (-(value - mean) * ratio.sum() / len(kept)).backward()
    optimizer.step()
    return clock.read(), counting.rows


def _one_by_one(judge: CountingJudge, record: PromptRecord, panels: Sequence[Any]) -> list[float]:
    from itertools import combinations

    from paco_core.reward_model.instructions import render

    text = render("theme", theme=record.theme)
    return [judge.score([PairQuery(a, b, text)])[0].value for a, b in combinations(panels, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the trainer; the first one warms up")
    parser.add_argument("--samples", type=int, default=12, help="samples of the straightforward loop")
    parser.add_argument("--steps", type=int, help="sampling steps (default: those of params.yaml)")
    parser.add_argument("--apart", action="store_true", help="a starting noise for each sample, as in the paper")
    args = parser.parse_args()
    prepare(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    params = load(ROOT / PARAMS_FILE)
    recipe = params.policies.recipes["flux_t2is"]
    changes: dict[str, Any] = {"sampling_steps": args.steps} if args.steps else {}
    changes |= {"shared_noise": False} if args.apart else {}
    grpo = params.policies.model_copy(update={"recipes": {"flux_t2is": recipe.model_copy(update=changes)}})
    params = params.model_copy(update={"policies": grpo})
    judge = Scorer(ROOT / params.reward.base, min_pixels=params.reward.min_pixels, max_pixels=params.reward.max_pixels)
    records = records_of(params, 2 * grpo.prompts_per_epoch + 1)
    images = grpo.prompts_per_epoch * grpo.group_size
    slow, slow_rows = straightforward(params, judge, records[1:], args.samples)
    epochs, rows = ours(params, judge, records, args.epochs)
    own = min(epochs[1:] or epochs, key=lambda seconds: seconds.wall)
    other = slow.times(images / args.samples)
    names = ("without_gradient", "trained", "encoded", "decoded", "asked")
    result = {
        "samples_an_epoch": images,
        "sampling_steps": grpo.recipes["flux_t2is"].sampling_steps,
        "shared_noise": grpo.recipes["flux_t2is"].shared_noise,
        "threads": torch.get_num_threads(),
        "trainer": {**asdict(own), **{n: rows[n] / images for n in names}},
        "straightforward": {**asdict(other), **{n: slow_rows[n] / args.samples for n in names}},
        "times_faster": {"wall": other.wall / own.wall, "processor": other.processor / own.processor},
    }
    print(f"{'per sample':<28}{'trainer':>12}{'straightforward':>18}")
    labels = ("passes without gradient", "passes with backward", "texts encoded", "pictures decoded", "pairs asked")
    for label, name in zip(labels, names, strict=True):
        print(f"{label:<28}{rows[name] / images:>12.2f}{slow_rows[name] / args.samples:>18.2f}")
    print(f"{'seconds an epoch of ' + str(images):<28}{own.wall:>12.2f}{other.wall:>18.2f}")
    print(f"{'processor seconds':<28}{own.processor:>12.2f}{other.processor:>18.2f}")
    faster, cheaper = other.wall / own.wall, other.processor / own.processor
    print(f"{faster:.1f} times faster on {torch.get_num_threads()} threads, {cheaper:.1f} times less processor time")
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
