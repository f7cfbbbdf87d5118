"""Settings of a LoRA by PEFT: the alpha of each of its layers, or a refusal that names the setting.

They come from ``adapter_config.json``, or from the header of a file that diffusers wrote. A setting that changes what
the weights mean is used here or refused by name, also one of a newer version of PEFT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from pydantic import Field, ValidationError

from paco_core.io.files import DataError
from paco_core.io.validation import StrictModel, first_validation_error

#: Who trained it, on what and how; the weights mean the same whatever their values are.
NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
#: Values of a plain LoRA. Other initialisations (PiSSA, OLoRA, CorDA, LoftQ ...) change the base's weights, too.
PLAIN: dict[str, tuple[object, ...]] = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal")}

Rank = Annotated[int, Field(gt=0)]
Modules = str | list[str] | set[str] | None


class _PlainLora(StrictModel):
    """The settings that are used, with their types; PEFT itself takes "false" for true."""

    r: Rank | None = None
    lora_alpha: float | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool | None = None
    target_modules: Modules = None
    exclude_modules: Modules = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: Modules = None


class Settings:
    """Settings of one model's LoRA.

    Args:
        values: by PEFT's names.
        file: for errors.

    Raises:
        DataError: naming file and setting, when it is no plain LoRA's, or not of its type.
    """

    def __init__(self, values: Mapping[str, Any], file: Path) -> None:
        self.file = file
        if values.get("peft_type") not in ("LORA", None):
            raise DataError(f"{file}: peft_type is {values.get('peft_type')!r}; only LORA is read")
        extra = {name: value for name, value in values.items() if name not in NEUTRAL | _PlainLora.model_fields.keys()}
        if unsupported := [name for name, value in extra.items() if value and value not in PLAIN.get(name, ())]:
            details = ", ".join(f"{name}: {values[name]!r}"[:120] for name in sorted(unsupported))
            raise DataError(
                f"{file}: {details}: only a plain LoRA can be read, and this changes what its weights mean; merge it "
                "with PEFT, or train without it"
            )
        try:
            used = _PlainLora.model_validate(values).model_dump(exclude_none=True)
        except ValidationError as error:
            raise DataError(f"{file}: not the settings of a LoRA ({first_validation_error(error)})") from None
        try:
            self.config = LoraConfig(**used)
            self._patterns = [*self.config.rank_pattern, *self.config.alpha_pattern]
            for pattern in self._patterns:
                re.compile(pattern)
            self.targets("")
        except (TypeError, ValueError, re.error) as error:
            raise DataError(f"{file}: not the settings of a LoRA ({error})") from None

    def targets(self, layer: str) -> bool:
        """Whether they put a LoRA on a layer of this name."""
        return bool(self.config.target_modules and check_target_module_exists(self.config, layer))

    def alpha(self, layer: str, rank: int) -> float:
        """The plain alpha of a layer: its product B A is scaled by alpha / rank.

        Raises:
            DataError: when the settings give another rank than the tensors have.
        """
        config = self.config
        stated = config.rank_pattern.get(get_pattern_key(config.rank_pattern, layer), config.r)
        if stated != rank:
            raise DataError(f"{self.file}: {layer} has rank {stated} here, and its tensors have rank {rank}")
        alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, layer), config.lora_alpha)
        return alpha * math.sqrt(rank) if config.use_rslora else alpha

    def check(self, layers: Collection[str], model_layers: Iterable[str]) -> None:
        """Raise DataError unless the tensors are of the layers that the settings name, and of no others.

        Args:
            layers: that have tensors.
            model_layers: all linear layers of the model, by the same spelling.
        """
        if self.config.target_modules is not None:
            if extra := sorted(layer for layer in layers if not self.targets(layer)):
                raise DataError(f"{self.file}: target_modules does not name {extra[0]}, whose tensors are there")
            if missing := sorted(layer for layer in model_layers if layer not in layers and self.targets(layer)):
                raise DataError(
                    f"{self.file}: target_modules names {missing[0]}, whose tensors are missing"
                    + (f", as are those of {len(missing) - 1} other layers" if len(missing) > 1 else "")
                )
        for pattern in self._patterns:
            if not any(get_pattern_key([pattern], layer) == pattern for layer in layers):
                raise DataError(f"{self.file}: the pattern {pattern!r} matches none of its layers")
