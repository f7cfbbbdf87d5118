"""The consistency of a served judge as a reward model of Flow-Factory.

With this folder and paco-rl on the Python path of the training:

    rewards:
      - name: consistency
        reward_model: flow_factory_reward.PacoConsistency
        judge: http://127.0.0.1:PORT            # of `paco serve up`
        prompts: data/train_metadata.jsonl      # T2IS records: layout and theme of each prompt
        device: cpu

Flow-Factory passes only the prompt and the image of a sample to a reward model, so layout and theme are read from the
record of the prompt. It does not support missing rewards: one NaN would make all advantages of the group NaN. Therefore
this reward model is groupwise. A sample without a score gets the mean of its group, which is an advantage of 0, as in
paco. The cause is logged and is in ``extra_info``. A group without any score stops the training.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flow_factory.rewards import GroupwiseRewardModel, RewardModelOutput
from scorer_service import by_prompt, find_record

from paco_core import Judge

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)


class PacoConsistency(GroupwiseRewardModel):
    """Mean P(Yes) over the pairs of panels of each image, 0 to 1.

    Args:
        config: the entry of ``rewards``; its further keys are ``judge`` and ``prompts``.
    """

    required_fields = ("prompt", "image")
    use_tensor_inputs = False

    def __init__(self, config: Any, accelerator: Any) -> None:
        super().__init__(config, accelerator)
        self.judge, self.records = Judge(config.judge), by_prompt(Path(config.prompts))

    @torch.no_grad()
    def __call__(self, prompt: list[str], image: list[Image]) -> RewardModelOutput:
        """Rewards (group,) of the images of one prompt. ``extra_info["causes"]``: causes of missing scores.

        Raises:
            DataError: if a prompt has no record, or an image cannot be divided into its layout.
            RuntimeError: if no image of the group could be scored.
        """
        records = [find_record(self.records, text) for text in prompt]
        layouts, themes = [record.layout for record in records], [record.theme for record in records]
        scores = self.judge.grid_scores(image, layouts, themes=themes)
        causes = Counter(str(score.cause) for score in scores if score.failed)
        counted = "; ".join(f"{count} x {cause}" for cause, count in causes.items())
        if causes.total() == len(scores):
            raise RuntimeError(f"none of {len(scores)} pictures of a group could be scored: {counted}")
        if causes:
            log.warning(
                "%d of %d pictures have no score and get their group's mean: %s", causes.total(), len(scores), counted
            )
        values = torch.tensor([score.value for score in scores], dtype=torch.float32)
        values = torch.where(values.isnan(), values.nanmean(), values)
        return RewardModelOutput(rewards=values, extra_info={"causes": [score.cause for score in scores]})
