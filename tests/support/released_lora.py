"""Adapters as the released PaCo-GRPO trainer keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

from paco_core.adapters import reader


def as_released(policy: Any, folder: Path) -> Path:
    """The trained adapter as the released trainer keeps it: PEFT's files, and the adapter `old` beside them."""
    state = get_peft_model_state_dict(policy.transformer)
    config = policy.transformer.peft_config["default"].to_dict()
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    for place in (folder, folder / "old"):
        place.mkdir(parents=True)
        save_file({f"base_model.model.{key}": value for key, value in state.items()}, place / reader.WEIGHTS)
        (place / reader.CONFIG).write_text(json.dumps({**config, "peft_type": "LORA", "task_type": None}))
    return folder
