"""The licence that a model's own card states."""

from __future__ import annotations

from pathlib import Path

from dvc_project.yaml import parse_yaml
from paco_core.io.files import DataError


def licence_of(folder: Path) -> str:
    """The licence in the words of the card in a model's folder; ``unknown`` where there is none, as of a hub's model.

    Raises:
        DataError: when the card's head is no YAML.
    """
    card = folder / "README.md"
    if card.is_file() and (parts := card.read_text(encoding="utf-8").split("---"))[0] == "" and len(parts) > 2:
        try:
            head = parse_yaml(parts[1])
        except DataError as error:
            raise DataError(f"{card}: {error}") from None
        if isinstance(head, dict) and isinstance(head.get("license"), str):
            return str(head["license"])
    return "unknown"
