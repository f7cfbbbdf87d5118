"""Painting sets: several panels in one picture that belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.data.records import prompt_text
from paco_core.data.records.records import read_prompts
from paco_core.grpo.prompt_split import PromptSplit, hold_out
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.tasks.base import Read, Success, Task

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import Params
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Reading, Recogniser


class Sets(Task):
    """Prompts of T2IS kind, rewarded for the consistency of their panels."""

    name, benchmark, prompts, given = "sets", "t2is", paths.DIVERSE_PROMPTS, "panels"
    gold = Success("gold_consistency", guard="gold_following", follows="gold_following")
    judged = Success("consistency", guard="clip_t")
    group, cases, drawn = "prompt_id", "prompts", "prompts"

    def layout(self, params: Params) -> str:
        return params.prompts.layout

    def split(self, params: Params, read: Read) -> tuple[PromptSplit, None]:
        path = read(self.prompts) / "prompts.jsonl"
        records = read_prompts(path, lambda record: prompt_text.parse(record.prompt, record.layout))
        return hold_out(records, params.policies.eval_prompts, params.policies.seed), None

    def refuse_too_few(self, params: Params) -> None:
        grpo = params.policies
        held, prompts = grpo.eval_prompts, params.diverse_prompts.target or params.prompts.count
        if held + grpo.prompts_per_epoch > prompts:
            raise DataError(
                f"prompts_per_epoch={grpo.prompts_per_epoch} and eval_prompts={held} need "
                f"{held + grpo.prompts_per_epoch} prompts, diverse_prompts gives {prompts}; choose prompts_per_epoch "
                f"up to {max(1, prompts - held)}, or raise diverse_prompts.target"
            )

    def gold_measure(self, recogniser: Recogniser) -> SetGold:
        return SetGold(recogniser)

    def seen(self, read: Read) -> set[str]:
        return {record.idx for record in read_prompts(read(self.prompts) / "prompts.jsonl")}


class SetGold:
    """What the recogniser sees in panels, against each other (consistency) and against the prompt (following)."""

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """``gold_consistency`` and ``gold_following`` of each set, (N,) each; one forward over all panels."""
        import numpy as np

        from paco_core.storybook.prompts import parse_prompt
        from paco_core.storybook.recogniser import gold_consistency, gold_following

        readings = iter(self.recogniser.read([panel for panels in batch.panels for panel in panels]))
        sets: list[list[Reading]] = [[next(readings) for _ in panels] for panels in batch.panels]
        asked = [parse_prompt(record.prompt) for record in batch.records]
        following = [gold_following(found, panels) for found, panels in zip(sets, asked, strict=True)]
        return {
            "gold_consistency": np.array([gold_consistency(found) for found in sets], dtype=np.float64),
            "gold_following": np.array(following, dtype=np.float64),
        }


SETS = Sets()
