"""What rewards are built from: served judges, and models that several rewards share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import RewardTerm
from paco_core.config.references import model_at
from paco_core.io.files import DataError
from paco_core.rewards.needs import need_model

if TYPE_CHECKING:
    from paco_core.models.open_clip import OpenClip
    from paco_core.reward_model.yes_probability import PairScorer


@dataclass
class Sources:
    """What rewards are built from: scorers of pairs, and the models that several of them look through.

    ``judges``: by the ``model`` of the term that asks; None is the project's own reward model.
    """

    judges: Mapping[str | None, PairScorer] = field(default_factory=dict)
    root: Path = Path()
    clips: dict[tuple[str, str], OpenClip] = field(default_factory=dict)

    def path(self, model: str) -> str:
        """A folder of the project as a path, a hub's model by its name.

        Raises:
            DataError: for a path where nothing is.
        """
        return str(model_at(self.root, model, "model of a reward"))

    def judge(self, name: str, term: RewardTerm) -> PairScorer:
        """The reward model that the term asks."""
        if term.model not in self.judges:
            raise DataError(f"reward {name} needs a reward model; {term.model or 'none'} is not served here")
        return self.judges[term.model]

    def clip(self, name: str, term: RewardTerm) -> OpenClip:
        """The term's CLIP, loaded once for all rewards that name it on the same device."""
        from paco_core.models.open_clip import OpenClip

        key = self.path(need_model(name, term)), term.device
        if key not in self.clips:
            self.clips[key] = OpenClip(*key, half_on_gpu=True)
        return self.clips[key]
