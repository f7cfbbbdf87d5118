"""What a card's head says of the model that was trained from: its id, and the licence that its own card states."""

from __future__ import annotations

from pathlib import Path

from dvc_project.yaml import parse_yaml
from paco_core.io.files import DataError, read_text

_FLUX = {
    "license": "other",
    "license_name": "flux-1-dev-non-commercial-license",
    "license_link": "https://huggingface.co/black-forest-labs/FLUX.1-dev/blob/main/LICENSE.md",
}
#: Of models on the hub, as their own cards state it.
HUB: dict[str, dict[str, str]] = {
    "black-forest-labs/FLUX.1-dev": _FLUX,
    "black-forest-labs/FLUX.1-Kontext-dev": _FLUX,
    "Qwen/Qwen-Image-Edit": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-Edit-2509": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-Edit-2511": {"license": "apache-2.0"},
    "Qwen/Qwen2.5-VL-7B-Instruct": {"license": "apache-2.0"},
}


def base_front(model: str, **more: str) -> dict[str, str]:
    """The base model in a card's head, with what else is said of it; nothing for a folder, which others do not have."""
    return {} if Path(model).is_dir() else {"base_model": model, **more}


def licence_front(model: str, root: Path) -> dict[str, str]:
    """The licence of what was trained from a model, which is the model's own, as a hub's card has it in its head.

    A model that is not known, and does not say, makes it ``other`` without a name: whoever publishes fills it in.
    """
    if model in HUB:
        return HUB[model]
    licence = licence_of(root / model)
    return {"license": "other" if licence == "unknown" else licence}


def licence_of(folder: Path) -> str:
    """The licence in the words of the card in a model's folder; ``unknown`` where there is none, as of a hub's model.

    Raises:
        DataError: when the card is not UTF-8, or its head is no YAML.
    """
    card = folder / "README.md"
    if card.is_file() and (parts := read_text(card).split("---"))[0] == "" and len(parts) > 2:
        try:
            head = parse_yaml(parts[1])
        except DataError as error:
            raise DataError(f"{card}: {error}") from None
        if isinstance(head, dict) and isinstance(head.get("license"), str):
            return str(head["license"])
    return "unknown"
