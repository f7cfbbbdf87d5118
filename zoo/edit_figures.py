"""What the recogniser sees in edits of unseen panels, by the editors of the zoo."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.policies.base import NoiseKey
from paco_core.storybook.editing import Edit, random_edit
from paco_core.storybook.recogniser import GoldEdit, Recogniser, gold_edit

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.policies.base import Policy, References

COUNT, SEED, STEPS, BATCH = 96, 9_500, 10, 32
SIZES = (64, 128)


def unseen_edits(count: int = COUNT, seed: int = SEED) -> list[Edit]:
    """Edits of any panel; the editors' training drew from families of their own."""
    rng = random.Random(f"unseen-edits-{seed}")
    return [random_edit(rng) for _ in range(count)]


def figures(
    policy: Policy, recogniser: Path, guidance: float, length: int, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """Means at each size: the edit was made and nothing else; it was made at all; share of other traits kept."""
    edits = unseen_edits()
    reader = Recogniser.from_pretrained(recogniser)
    found: dict[str, float] = {}
    for size in sizes:
        references = [edit.draw(size, SEED + n)[0] for n, edit in enumerate(edits)]
        painted = paint(policy, [edit.instruction for edit in edits], references, size, guidance, length)
        judged = judge(reader, edits, painted)
        for name in ("editing", "reached", "kept"):
            found[f"gold_{name}_{size}px"] = sum(getattr(one, name) for one in judged) / len(judged)
    return found


def judge(reader: Recogniser, edits: Sequence[Edit], painted: Sequence[Image]) -> list[GoldEdit]:
    """One judgement an edit."""
    both = zip(reader.read(painted), edits, strict=True)
    return [gold_edit(read, edit.before, edit.trait, str(getattr(edit.after, edit.trait))) for read, edit in both]


def paint(
    policy: Policy,
    instructions: Sequence[str],
    references: Sequence[References],
    size: int,
    guidance: float,
    length: int,
) -> list[Image]:
    """One edit an instruction by the ODE."""
    square = (size, size)
    encoded = policy.encode(instructions, length, references, [[square]] * len(references))
    sampling = Sampling.for_policy(policy, square, STEPS, guidance)
    painted: list[Image] = []
    for start in range(0, len(references), BATCH):
        rows = range(start, min(start + BATCH, len(references)))
        keys = [NoiseKey(f"edit-{row}", 0, SEED) for row in rows]
        painted += policy.decode(rollout(policy, encoded, rows, keys, sampling).latents, square)
    return painted
