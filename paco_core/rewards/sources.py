"""Sources of rewards: served reward models, and models that several rewards share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import RewardTerm
from paco_core.config.references import model_at
from paco_core.io.files import DataError
from paco_core.rewards.needs import require_model

if TYPE_CHECKING:
    from paco_core.models.open_clip import OpenClip
    from paco_core.reward_model.yes_probability import PairScorer


@dataclass
class Sources:
    """Models that rewards use.

    Attributes:
        judges: scorers of pairs by the ``model`` of a term. None = the reward model of the project.
        clips: CLIP models by path and device.
    """

    judges: Mapping[str | None, PairScorer] = field(default_factory=dict)
    root: Path = Path()
    clips: dict[tuple[str, str], OpenClip] = field(default_factory=dict)

    def path(self, model: str) -> str:
        """The path of a folder of the project, or the name of a hub model.

        Raises:
            DataError: if the path does not exist.
        """
        return str(model_at(self.root, model, "model of a reward"))

    def judge(self, name: str, term: RewardTerm) -> PairScorer:
        """The reward model of a term."""
        if term.model not in self.judges:
            raise DataError(f"reward {name} needs a reward model; {term.model or 'none'} is not served here")
        return self.judges[term.model]

    def clip(self, name: str, term: RewardTerm) -> OpenClip:
        """The CLIP model of a term. Rewards with the same model and device share it."""
        from paco_core.models.open_clip import OpenClip

        key = self.path(require_model(name, term)), term.device
        if key not in self.clips:
            self.clips[key] = OpenClip(*key, half_on_gpu=True)
        return self.clips[key]
