"""What the policy of step 0 painted: opponents that the aggregator ``win_rate`` compares samples with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.io.answer import plain
from paco_core.io.files import read_json, write_json
from paco_core.policies.base import NoiseKey

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.sampler import Sampler

START = "start"  # name of the second adapter: the policy as it was before training
FOLDER = "opponents"  # beside the checkpoints
Kept = dict[str, list[float | None]]  # reward -> scores of a prompt's opponents


class Opponents:
    """As many pictures of a prompt as a group has, by the policy before training, sampled as in training.

    A prompt's are painted in the first epoch that meets it, and their scores kept, a file an epoch: a batch is painted
    and kept as a whole, so that a run which goes on after a kill has the same scores, to the bit.

    Args:
        sampler: of the training; its policy holds the weights of step 0 when this is made.
        records: the training prompts.
    """

    def __init__(self, sampler: Sampler, recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> None:
        self.sampler, self.recipe, self.records = sampler, recipe, records
        self.folder = Path()
        self._scores: dict[str, Kept] | None = None  # by prompt; None until they are read
        sampler.policy.copy_adapter(START)  # made again by every start, so that no checkpoint holds it

    def keep_in(self, store: Path) -> None:
        """Keep scores in the folder of this training's checkpoints, and go on from those that are there."""
        self.folder, self._scores = store / FOLDER, None

    def of(self, prompts: Sequence[int], noise_steps: Sequence[int], epoch: int) -> dict[str, np.ndarray]:
        """Scores (P, G) by reward of the opponents of an epoch's prompts, NaN where one has none.

        Args:
            prompts: places in the records.
            noise_steps: those of the epoch.

        Raises:
            DataError: when a file of kept scores is no JSON.
        """
        if self._scores is None:
            self._scores = {}
            for file in sorted(self.folder.glob("*.json")):
                self._scores |= read_json(file)
        if missing := [row for row in prompts if self.records[row].idx not in self._scores]:
            self._scores |= self._painted(missing, noise_steps, epoch)
        each = [self._scores[self.records[row].idx] for row in prompts]
        return {name: np.array([kept[name] for kept in each], dtype=np.float64) for name in each[0]}

    def _painted(self, prompts: Sequence[int], noise_steps: Sequence[int], epoch: int) -> dict[str, Kept]:
        count = self.recipe.group_size
        rows = [row for row in prompts for _ in range(count)]
        seed = self.recipe.seed << 32  # of no epoch, whose numbers follow it
        keys = [NoiseKey(self.records[row].idx, i % count, seed) for i, row in enumerate(rows)]
        with self.sampler.policy.using(START):
            found = self.sampler.scores(rows, keys, noise_steps).rewards
        shaped = {name: values.reshape(len(prompts), count).tolist() for name, values in found.items()}
        new: dict[str, Kept] = {
            self.records[row].idx: plain({name: values[place] for name, values in shaped.items()})
            for place, row in enumerate(prompts)
        }
        if self.sampler.processes.main:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / f"{epoch + 1:05d}.json", new)
        return new
