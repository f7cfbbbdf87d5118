"""Figures that others published, for comparison by eye. They were measured on other data than ours.

Each row says where it comes from and is shown marked "published", never mixed with measured rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAPER = "PaCo-RL, arXiv 2512.04784"
MMRB2_PAPER = "MMRB2, arXiv 2512.16899"


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table; ``figures`` are keyed by this package's metric names."""

    model: str
    figures: Mapping[str, float]
    source: str = PAPER

    def as_dict(self) -> dict[str, Any]:
        """The row in ``results.json``."""
        return {"model": self.model, "source": self.source, "figures": dict(self.figures)}


def sources(rows: Sequence[PublishedRow]) -> str:
    """The sources of rows, each once."""
    return ", ".join(dict.fromkeys(row.source for row in rows))


def _ranking(model: str, accuracy: float, tau: float, rho: float, t1_b1: float) -> PublishedRow:
    # Published tau and rho were computed on index orderings, hence the names.
    return PublishedRow(model, {"accuracy": accuracy, "tau_paper": tau, "rho_paper": rho, "t1_b1": t1_b1})


#: ConsistencyRank: 3,136 human rankings of four FLUX.1-dev sub-figures.
CONSISTENCY_RANK: tuple[PublishedRow, ...] = (
    _ranking("Chance", 0.25, 0.0, 0.0, 0.25),
    _ranking("CLIP-I", 0.394, 0.178, 0.206, 0.475),
    _ranking("DreamSim", 0.403, 0.184, 0.214, 0.493),
    _ranking("Qwen2.5-VL-7B", 0.344, 0.118, 0.138, 0.401),
    _ranking("InternVL3.5-8B", 0.359, 0.149, 0.176, 0.420),
    _ranking("PaCo-Reward-7B-Fast", 0.441, 0.240, 0.278, 0.544),
    _ranking("PaCo-Reward-7B", 0.449, 0.250, 0.288, 0.557),
)


def _editing(model: str, following: float, consistency: float, overall: float) -> PublishedRow:
    figures = {"prompt_following": following, "consistency": consistency, "overall": overall}
    return PublishedRow(model, figures)


#: Names of the benchmarks of edits.
EDIT_REWARD_BENCH, MMRB2_BENCH = "EditReward-Bench", "MMRB2"
#: EditReward-Bench: strict accuracy, macro-averaged over task types.
EDIT_REWARD: tuple[PublishedRow, ...] = (
    _editing("Qwen2.5-VL-7B", 0.458, 0.325, 0.432),
    _editing("GPT-4.1", 0.673, 0.602, 0.705),
    _editing("GPT-5", 0.777, 0.669, 0.755),
    _editing("EditScore-7B", 0.592, 0.591, 0.659),
    _editing("EditScore-72B, mean of 4", 0.755, 0.735, 0.763),
    _editing("PaCo-Reward-7B-Fast", 0.748, 0.697, 0.728),
    _editing("PaCo-Reward-7B", 0.777, 0.709, 0.751),
)


def _mmrb2(model: str, overall: float) -> PublishedRow:
    return PublishedRow(model, {"overall": overall}, MMRB2_PAPER)


#: MMRB2, image editing: share of 1,000 pairs, each judged in both orders (README of its repository at 7ff0552).
MMRB2: tuple[PublishedRow, ...] = (
    _mmrb2("Qwen2.5-VL-7B", 0.571),
    _mmrb2("Qwen2.5-VL-72B", 0.646),
    _mmrb2("Qwen3-VL-8B", 0.617),
    _mmrb2("Qwen3-VL-32B", 0.673),
    _mmrb2("EditReward (Qwen2.5-VL-7B), one input image", 0.672),
    _mmrb2("GPT-4o", 0.650),
    _mmrb2("GPT-5", 0.738),
    _mmrb2("Gemini 3 Pro", 0.749),
)
EDIT_BENCHMARKS = {EDIT_REWARD_BENCH: EDIT_REWARD, MMRB2_BENCH: MMRB2}


def _ablation(model: str, aesthetics: float, following: float, consistency: float, hours: float) -> PublishedRow:
    figures = {"aesthetics": aesthetics, "following": following, "consistency": consistency, "hours": hours}
    return PublishedRow(model, figures)


#: Ablation of the FLUX.1-dev policy on T2IS-Bench, 8 x H100.
T2IS_ABLATION: tuple[PublishedRow, ...] = (
    _ablation("Full: trained at 512 px with log-tame", 0.555, 0.728, 0.493, 6.0),
    _ablation("Trained at 1024 px", 0.542, 0.698, 0.452, 12.0),
    _ablation("Without log-tame (panels collapse)", 0.471, 0.616, 0.557, 6.0),
)


def _sets(model: str, qwen: float, gemma: float) -> PublishedRow:
    return PublishedRow(model, {"average_qwen": qwen, "average_gemma": gemma})


#: T2IS-Bench, 596 prompts: 0.2 aesthetics + 0.3 alignment + 0.5 consistency, by the model that judged consistency.
T2IS_BENCH: tuple[PublishedRow, ...] = (
    _sets("FLUX.1-dev, one picture at a time", 0.490, 0.659),
    _sets("AutoT2IS", 0.515, 0.686),
    _sets("FLUX.1-dev with PaCo-GRPO", 0.576, 0.757),
    _sets("Seedream 4.0", 0.589, 0.758),
)


def _gedit(model: str, consistency: float, quality: float, overall: float) -> PublishedRow:
    return PublishedRow(model, {"sc": consistency, "pq": quality, "overall": overall})


#: GEdit-Bench, English, full set: semantic consistency, perceptual quality and sqrt(SC x PQ), 0 to 10, given by a
#: vision language model; mean of each task, then over the eleven.
GEDIT: tuple[PublishedRow, ...] = (
    _gedit("FLUX.1-Kontext-dev", 6.599, 6.873, 5.956),
    _gedit("FLUX.1-Kontext-dev with PaCo-GRPO", 7.033, 7.088, 6.469),
    _gedit("Qwen-Image-Edit", 7.642, 7.807, 7.223),
    _gedit("Qwen-Image-Edit with PaCo-GRPO", 7.693, 7.987, 7.325),
)
