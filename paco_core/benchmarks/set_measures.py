"""Measures of a painted set that are no training reward: panel diversity and the gold metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np

    from paco_core.storybook.recogniser import Reading, Recogniser


class PanelDiversity:
    """How different the panels of a set are, 0 = one picture four times: the sign of a collapsed policy."""

    name = "panel_diversity"

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        import numpy as np

        from paco_core.grpo.scoring import panel_diversity

        return np.array([panel_diversity(panels) for panels in batch.panels], dtype=np.float64)


class Gold:
    """What the recogniser sees, against each other (consistency) and against the prompt (following)."""

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser

    def read(self, batch: RewardBatch) -> list[list[Reading]]:
        """Readings of every panel, one list a set; one forward over all of them."""
        readings = iter(self.recogniser.read([panel for panels in batch.panels for panel in panels]))
        return [[next(readings) for _ in panels] for panels in batch.panels]

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """``gold_consistency`` and ``gold_following`` of each set, (N,) each."""
        import numpy as np

        from paco_core.storybook.prompts import parse_prompt
        from paco_core.storybook.recogniser import gold_consistency, gold_following

        sets = self.read(batch)
        asked = [parse_prompt(record.prompt) for record in batch.records]
        return {
            "gold_consistency": np.array([gold_consistency(readings) for readings in sets], dtype=np.float64),
            "gold_following": np.array(
                [gold_following(readings, panels) for readings, panels in zip(sets, asked, strict=True)],
                dtype=np.float64,
            ),
        }
