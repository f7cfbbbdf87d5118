"""Numbers that no pairs can be made with, known before a picture is painted."""

from __future__ import annotations

from paco_core.io.files import DataError


def each_end(rule: str) -> int:
    """How many candidates at either end of a ranking a rule pairs with the reference."""
    return 2 if rule == "top2_bottom2" else 1


def refuse_few_candidates(rule: str, candidates: int, place: str) -> None:
    """Raise DataError naming ``place`` when a ranking is too short for a rule."""
    needed = 2 * each_end(rule)
    if candidates < needed:
        raise DataError(f"{place}: rule {rule} needs {needed} candidates, it has {candidates}")


def held_out_units(units: int, share: float, name: str) -> int:
    """How many of so many prompts or instances a share holds out: at least one where it is not 0.

    Args:
        name: of the share in ``pairs``: benchmark or validation.

    Raises:
        DataError: when it would hold out all of them, although it is below 1.
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


def refuse_unvalidated(pairs: int) -> None:
    """Raise DataError when a reward that is to be trained has no pair to validate on."""
    if not pairs:
        raise DataError("no validation pair: raise pairs.validation_share and run `dvc repro pairs`")
