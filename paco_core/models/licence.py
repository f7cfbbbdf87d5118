"""Front matter of model cards: id and licence of the base model."""

from __future__ import annotations

from pathlib import Path

from dvc_project.yaml import parse_yaml
from paco_core.io.files import DataError, read_text_file

_FLUX = {
    "license": "other",
    "license_name": "flux-1-dev-non-commercial-license",
    "license_link": "https://huggingface.co/black-forest-labs/FLUX.1-dev/blob/main/LICENSE.md",
}
_FLUX3 = {
    "license": "other",
    "license_name": "flux-kommunity-license",
    "license_link": "https://huggingface.co/black-forest-labs/flux-3-image-klein/blob/main/LICENSE.md",
}
#: Licences of hub models, from their cards.
HUB: dict[str, dict[str, str]] = {
    "black-forest-labs/FLUX.1-dev": _FLUX,
    "black-forest-labs/FLUX.1-Kontext-dev": _FLUX,
    "black-forest-labs/FLUX.2-klein-4B": {"license": "apache-2.0"},
    "black-forest-labs/FLUX.2-klein-base-4B": {"license": "apache-2.0"},
    "black-forest-labs/flux-3-image-klein": _FLUX3,
    "black-forest-labs/flux-3-image-klein-base": _FLUX3,
    "Tongyi-MAI/Z-Image": {"license": "apache-2.0"},
    "Tongyi-MAI/Z-Image-Turbo": {"license": "apache-2.0"},
    "Qwen/Qwen-Image": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-Edit": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-Edit-2509": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-Edit-2511": {"license": "apache-2.0"},
    "Qwen/Qwen-Image-2.1": {
        "license": "other",
        "license_name": "qwen-research",
        "license_link": "https://huggingface.co/Qwen/Qwen-Image-2.1/blob/main/LICENSE",
    },
    "Qwen/Qwen2.5-VL-7B-Instruct": {"license": "apache-2.0"},
    "Qwen/Qwen3-VL-4B-Instruct": {"license": "apache-2.0"},
    "Qwen/Qwen3-VL-8B-Instruct": {"license": "apache-2.0"},
}


def base_front(model: str, **fields: str) -> dict[str, str]:
    """The base model and further ``fields`` in a card's front matter. Empty for a local folder."""
    return {} if Path(model).is_dir() else {"base_model": model, **fields}


def licence_front(model: str, root: Path) -> dict[str, str]:
    """The licence of a model in the format of a card's front matter. It also applies to derived models.

    If the licence is unknown, it is ``other`` without a name, which the publisher must add.
    """
    if model in HUB:
        return HUB[model]
    licence = licence_of(root / model)
    return {"license": "other" if licence == "unknown" else licence}


def licence_name(model: str, root: Path) -> str:
    """The name of a model's licence, or its identifier if it has no other name. It also applies to derived models."""
    front = licence_front(model, root)
    return front.get("license_name", front["license"])


def licence_of(folder: Path) -> str:
    """The licence in the card of a model's folder. ``unknown`` if there is none, as for a hub id.

    Raises:
        DataError: if the card is not UTF-8, or its front matter is not YAML.
    """
    card = folder / "README.md"
    if card.is_file() and (parts := read_text_file(card).split("---"))[0] == "" and len(parts) > 2:
        try:
            head = parse_yaml(parts[1])
        except DataError as error:
            raise DataError(f"{card}: {error}") from None
        if isinstance(head, dict) and isinstance(head.get("license"), str):
            return str(head["license"])
    return "unknown"
