"""Limits of the numbers of pairs, which can be validated before any picture is generated."""

from __future__ import annotations

from paco_core.io.files import DataError


def candidates_per_end(rule: str) -> int:
    """The number of candidates at each end of a ranking that a rule pairs with the reference."""
    return 2 if rule == "top2_bottom2" else 1


def validate_candidate_count(rule: str, candidates: int, place: str) -> None:
    """Raise DataError, with ``place`` in its message, if a ranking is too short for a rule."""
    needed = 2 * candidates_per_end(rule)
    if candidates < needed:
        raise DataError(f"{place}: the rule {rule} needs {needed} candidates, but the ranking has {candidates}")


def held_out_units(units: int, share: float, name: str) -> int:
    """The number of units that a share holds out; at least one if the share is not 0.

    Args:
        units: number of prompts or instances.
        name: name of the share in ``pairs``: benchmark or validation.

    Raises:
        DataError: if it would hold out all units although the share is below 1.
    """
    count = round(share * units)
    if share > 0:
        count = max(1, count)
    if share < 1 and count >= units:
        raise DataError(
            f"pairs.{name}_share={share}: {units} prompts or instances cannot be split; "
            "raise prompts.count and diverse_prompts.target"
        )
    return count


def validate_validation_pairs(pairs: int) -> None:
    """Raise DataError if there are no validation pairs for the training of a reward model."""
    if not pairs:
        raise DataError("there are no validation pairs; raise pairs.validation_share and run `dvc repro pairs`")
