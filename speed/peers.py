"""paco next to plain diffusers, peft and transformers (:mod:`speed.peer_code`): CPU seconds of equal work.

    python -m speed.peers                           # 96 images of the storybook, the fastest of 3 rounds; a table
    python -m speed.peers --images 16 --rounds 1    # a few seconds

Both sides have the same weights, prompts, noise, batches and pairs, in one process with one thread. They take turns,
and the smallest time of each counts. The results of the first round are compared: if they differ by more than
:data:`TOLERANCES`, the script fails.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL.Image import Image

from paco_core.config import profiles
from paco_core.config.params import Params, PolicyRecipe, RewardParams
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.advantages import advantages
from paco_core.grpo.epochs import epoch_seed
from paco_core.grpo.prompt_split import PromptSplit, prompts_of_epoch
from paco_core.grpo.recipe import assemble
from paco_core.grpo.trainer import RunContext, Trainer
from paco_core.io.numbers import whole_number
from paco_core.policies.base import NoiseKey, load_recipe_policy
from paco_core.reward_model import lora
from paco_core.reward_model.examples import Example
from paco_core.reward_model.instructions import question
from paco_core.reward_model.items import answer_module, tokenize_examples
from paco_core.reward_model.loss import example_weights
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.training import epoch_batches
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import RewardBatch
from paco_core.runtime.process import prepare_process
from paco_core.storybook.prompts import answer, parse_storybook_prompt, true_reasons
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates
from speed.gpu_trainer import REWARDS, Darkness
from speed.peer_code import FlowGrpo, RewardModel

PROMPTS, BATCH = 8, 64
SIZE, PIXELS = 64, 56**2  # of an image's side, and of a panel as the reward model sees it
#: Largest differences of the results: levels of 255 of an image, shares of the change of the weights, probabilities.
TOLERANCES = {"pixels": 1.0, "weights": 0.05, "scores": 1e-4}
Result = TypeVar("Result")
Pairs = Sequence[tuple[Image, Image]]


def cpu(function: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of a call, and its result."""
    begun = time.process_time()
    result = function()
    return time.process_time() - begun, result


class Comparison:
    """The smallest times of both sides, and the differences of their first results."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self.differences: dict[str, dict[str, float]] = {}

    def add(self, name: str, peer: float, paco: float, differences: dict[str, float]) -> None:
        """Add the CPU seconds of one round."""
        fastest = self.seconds.get(name, (peer, paco))
        self.seconds[name] = min(peer, fastest[0]), min(paco, fastest[1])
        self.differences.setdefault(name, differences)

    def table(self) -> str:
        lines = ["| work | peer CPU s | paco CPU s | ratio | largest difference |", "|---|---:|---:|---:|---|"]
        for name, (peer, paco) in self.seconds.items():
            differences = ", ".join(f"{value:.2g} ({kind})" for kind, value in self.differences[name].items())
            lines.append(f"| {name} | {peer:.2f} | {paco:.2f} | {peer / paco:.2f} | {differences} |")
        return "\n".join(lines)

    def unequal(self) -> list[str]:
        """The works whose results differ by more than the tolerances."""
        return [
            f"{name}: {kind} differ by {value:g}, at most {TOLERANCES[kind]:g} is expected"
            for name, differences in self.differences.items()
            for kind, value in differences.items()
            if not value <= TOLERANCES[kind]
        ]


def relative_distance(
    first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float:
    """Distance of two trained adapters, as a share of the distance that the training moved them."""
    moved = sum(float(((first[name].detach() - start[name]) ** 2).sum()) for name in start)
    apart = sum(float(((first[name] - second[name]).detach() ** 2).sum()) for name in start)
    return (apart / moved) ** 0.5


def detached(parameters: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


class RecordedDarkness(Darkness):
    """The darkness of images, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[Image] = []

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        self.images += batch.whole
        return super().__call__(batch)


def darkness(images: Sequence[Image]) -> np.ndarray:
    """:class:`Darkness` for the peer: (images,)."""
    return np.array([1 - np.asarray(image, dtype=float).mean() / 255 for image in images])


class Epochs:
    """Epochs of the recipe ``flux_t2is`` on both sides; the reward is an image's darkness."""

    def __init__(self, root: Path, params: Params, records: Sequence[PromptRecord], images: int, *, shared: bool):
        base = params.policies.recipe("flux_t2is")
        changes = {"rewards": REWARDS, "test_rewards": None, "hack_meter": None, "early_stop": None, "eval_prompts": 1}
        changes |= {"dtype": "float32"}  # `mixed` samples in bfloat16 on some processors, and the peer does not
        changes |= {"shared_noise": shared, "prompts_per_epoch": PROMPTS, "group_size": images // PROMPTS}
        self.recipe = PolicyRecipe.model_validate({**base.model_dump(), **changes, "eval_sizes": [SIZE]})
        self.records, self.reward = records[:-1], RecordedDarkness()
        policy = load_recipe_policy(self.recipe, root)
        split = PromptSplit(self.records, records[-1:])
        self.trainer: Trainer = assemble(self.recipe, policy, split, RunContext(rewards={"darkness": self.reward}))
        self.peer = FlowGrpo(root / self.recipe.model, self.recipe, policy.family_spec.lora_targets)
        with torch.no_grad():
            for name, parameter in self.trainer.learner.parameters.items():
                self.peer.parameters[name].copy_(parameter)
        self.start = detached(self.peer.parameters)

    def by_paco(self, epoch: int) -> list[Image]:
        """One epoch by paco's trainer; its images."""
        self.reward.images = []
        experience, wait_for_scores = self.trainer.epochs.gather(epoch)
        assert wait_for_scores is not None
        scores = wait_for_scores().rewards["darkness"].reshape(PROMPTS, -1)
        combined = aggregate({"darkness": scores}, {"darkness": 1.0}, self.recipe.rewards.aggregator)
        values = advantages(combined, self.recipe.rewards.advantage_std).values.reshape(-1)
        self.trainer.learner.learn(experience.with_advantages(values))
        return self.reward.images

    def round(self, epoch: int) -> tuple[float, float, dict[str, float], list[Image]]:
        """CPU seconds of the peer and of paco, their differences, and the images of paco."""
        recipe, policy = self.recipe, self.trainer.learner.policy
        prompts = prompts_of_epoch(len(self.records), PROMPTS, epoch, recipe.seed)
        seed, step = epoch_seed(recipe, epoch), recipe.noise_steps[0]
        keys = [(self.records[row].idx, image) for row in prompts for image in range(recipe.group_size)]
        size = (SIZE, SIZE)
        start = policy.noise(size, [NoiseKey(idx, -1 if recipe.shared_noise else image, seed) for idx, image in keys])
        noise = policy.noise(size, [NoiseKey(idx, image, seed, step) for idx, image in keys])
        texts = [self.records[row].prompt for row in prompts]
        peer_s, of_peer = cpu(lambda: self.peer.epoch(texts, start, noise, darkness))
        paco_s, of_paco = cpu(lambda: self.by_paco(epoch))
        levels = max(
            np.abs(np.asarray(a, int) - np.asarray(b, int)).max() for a, b in zip(of_peer, of_paco, strict=True)
        )
        weights = relative_distance(self.peer.parameters, self.trainer.learner.parameters, self.start)
        return peer_s, paco_s, {"pixels": float(levels), "weights": weights}, of_paco


class RewardTrainings:
    """Two epochs of supervised fine-tuning of the reward model on both sides; the loss is the mean over tokens."""

    def __init__(self, root: Path, params: RewardParams, examples: Sequence[Example]) -> None:
        self.params, self.examples = params, examples
        self.peer = RewardModel(root / params.base, PIXELS)
        self.peer_weights = self.peer.attach_lora(params.lora)
        self.network = Network.load(root / params.base, pixels=(PIXELS, PIXELS))
        wrapped = lora.attach_lora(self.network.model, params.lora, params.base, params.seed)
        self.weights = lora.lora_tensors(wrapped)
        self.start = detached(self.weights)
        self.module = answer_module(self.network, wrapped, "plain", 0.0).train()
        lengths = [item.length for item in tokenize_examples(self.network, examples)]
        self.batches = [b for epoch in range(2) for b in epoch_batches(lengths, params.batch_size, params.seed, epoch)]

    def by_peer(self) -> None:
        optimizer = self._optimizer(self.peer_weights)
        for batch in self.batches:
            chosen = [self.examples[number] for number in batch]
            loss = self.peer.loss(
                [example.images for example in chosen],
                [example.instruction for example in chosen],
                [example.answer for example in chosen],
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.peer_weights.values(), self.params.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

    def by_paco(self) -> None:
        self.network.features.clear()
        updates = Updates(
            self.weights, self._optimizer(self.weights), self.params.max_grad_norm, Processes(self.params.device)
        )
        items = tokenize_examples(self.network, self.examples)
        for batch in self.batches:
            shares, total = example_weights([[len(items[number].answer) for number in batch]], "token")
            updates.begin(single_pass=True)
            losses = self.module([items[number] for number in batch])
            updates.backward((losses * losses.new_tensor(shares[0])).sum() / total)
            updates.finish()
            updates.step()

    def _optimizer(self, weights: dict[str, torch.Tensor]) -> torch.optim.AdamW:
        return torch.optim.AdamW(weights.values(), lr=self.params.learning_rate, weight_decay=0.0)

    def round(self) -> tuple[float, float, dict[str, float]]:
        """CPU seconds of the peer and of paco from the same start, and their differences."""
        with torch.no_grad():
            for name, value in self.start.items():
                self.weights[name].copy_(value)
                self.peer_weights[name].copy_(value)
        peer_s, _ = cpu(self.by_peer)
        paco_s, _ = cpu(self.by_paco)
        return peer_s, paco_s, {"weights": relative_distance(self.peer_weights, self.weights, self.start)}


def scoring_round(
    peer: RewardModel, scorer: Scorer, pairs: Pairs, texts: Sequence[str], batch: int
) -> tuple[float, float, dict[str, float]]:
    """CPU seconds of the peer and of paco to score pairs, so many at once, and the largest difference."""
    places = [slice(start, start + batch) for start in range(0, len(pairs), batch)]
    scorer.network.features.clear()
    peer_s, of_peer = cpu(lambda: [score for part in places for score in peer.score(pairs[part], texts[part])])

    def by_paco() -> list[float]:
        values = []
        for part in places:
            queries = [PairQuery(*pair, text) for pair, text in zip(pairs[part], texts[part], strict=True)]
            values += [score.value for score in scorer.score(queries)]
        return values

    paco_s, of_paco = cpu(by_paco)
    return peer_s, paco_s, {"scores": float(np.abs(np.array(of_peer) - np.array(of_paco)).max())}


def examples_of(records: Sequence[PromptRecord], images: Sequence[Image]) -> list[Example]:
    """All pairs of panels of images, with the true answers about their prompts."""
    examples: list[Example] = []
    for record, image in zip(records, images, strict=True):
        panels = zip(split_grid(image, record.layout), parse_storybook_prompt(record.prompt), strict=True)
        for (first, a), (second, b) in combinations(panels, 2):
            text = answer(*true_reasons(a, b))
            examples.append(Example(str(len(examples)), (first, second), question(record.theme), text))
    return examples


def compare(images: int, rounds: int, root: Path) -> Comparison:
    """Measure and compare everything.

    Args:
        images: of an epoch, a multiple of twice :data:`PROMPTS`. All pairs of their panels are scored, and as many
            pairs as images are trained on.
    """
    params, result = profiles.read(root, "storybook"), Comparison()
    writing = params.prompts.model_copy(update={"count": PROMPTS * rounds + 1})
    records = make_prompts(writing, (SIZE, SIZE), root, lambda _count: None).records
    pictures: list[Image] = []
    for name, shared in (("epoch, noise shared by a group", True), ("epoch, noise of each image", False)):
        epochs = Epochs(root, params, records, images, shared=shared)
        for number in range(rounds):
            peer_s, paco_s, differences, of_paco = epochs.round(number)
            result.add(name, peer_s, paco_s, differences)
            if not number:
                pictures = of_paco
    prompts = prompts_of_epoch(len(records) - 1, PROMPTS, 0, epochs.recipe.seed)
    of_images = [records[row] for row in prompts for _ in range(images // PROMPTS)]
    examples = examples_of(of_images, pictures)
    training = RewardTrainings(root, params.reward, examples[:images])
    folder = root / params.reward.base
    peer, scorer = RewardModel(folder, PIXELS), Scorer(folder, min_pixels=PIXELS, max_pixels=PIXELS)
    scorer.warm_up()
    pairs, texts = [example.images for example in examples], [example.instruction for example in examples]
    for _ in range(rounds):
        result.add(f"training on {len(training.examples)} pairs, 2 epochs", *training.round())
        for batch in (1, BATCH):
            result.add(
                f"scores of {len(pairs)} pairs, {batch} at once", *scoring_round(peer, scorer, pairs, texts, batch)
            )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Raises:
        SystemExit: if results differ by more than the tolerances.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", type=whole_number(2 * PROMPTS), default=96, help=f"of an epoch, a multiple of {2 * PROMPTS}"
    )
    parser.add_argument("--rounds", type=whole_number(1), default=3)
    options = parser.parse_args(arguments)
    if options.images % (2 * PROMPTS):
        parser.error(f"--images {options.images}: expected a multiple of {2 * PROMPTS}")
    prepare_process(1)  # as a stage does
    torch.set_num_threads(1)
    result = compare(options.images, options.rounds, Path(__file__).resolve().parents[1])
    print(result.table())
    if unequal := result.unequal():
        raise SystemExit("\n".join(unequal))


if __name__ == "__main__":
    main()
