"""PEFT's settings of an adapter: what each of its layers is scaled by, or a refusal that names the setting.

They come from ``adapter_config.json``, or from the header of a file that diffusers wrote. Settings that change what the
weights mean are either taken into account here or refused by name, those of newer versions of PEFT included.
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
from paco_core.io.validation import StrictModel, first_fault

#: Say who trained it, on what and how; the weights mean the same whatever their values are.
NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
SCALE = {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"}
TARGETS = {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}
#: How A and B were drawn; other ways (PiSSA, OLoRA, CorDA, LoftQ ...) also change the weights below them.
DRAWN = (True, False, None, "gaussian", "orthogonal")

Rank = Annotated[int, Field(gt=0)]
Modules = str | list[str] | set[str] | None


class _PlainLora(StrictModel):
    """The types of :data:`SCALE` and :data:`TARGETS`; PEFT itself takes "false" for true."""

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
        given: by PEFT's names.
        file: for errors.

    Raises:
        DataError: naming file and setting, when it is no plain LoRA's, or not of its type.
    """

    def __init__(self, given: Mapping[str, Any], file: Path) -> None:
        self.file = file
        if given.get("peft_type") not in ("LORA", None):
            raise DataError(f"{file}: peft_type is {given.get('peft_type')!r}; only LORA is read")
        drawn = given.get("init_lora_weights")
        known = NEUTRAL | SCALE | TARGETS | {"peft_type"}
        extra = [name for name, value in given.items() if name not in known and value and name != "init_lora_weights"]
        extra = [name for name in extra if not (name == "bias" and given[name] == "none")]
        extra += [] if drawn in DRAWN else ["init_lora_weights"]
        if extra:
            shown = ", ".join(f"{name}: {given[name]!r}"[:120] for name in sorted(extra))
            raise DataError(
                f"{file}: {shown}: only a plain LoRA can be read, and this changes what its weights mean; merge it "
                "with PEFT, or train without it"
            )
        try:
            _PlainLora.model_validate(given)
        except ValidationError as error:
            raise DataError(f"{file}: not the settings of a LoRA ({first_fault(error)})") from None
        try:
            self.config = LoraConfig(**{name: given[name] for name in SCALE | TARGETS if given.get(name) is not None})
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

    def check(self, layers: Collection[str], known: Iterable[str]) -> None:
        """Raise DataError unless the tensors are of the layers that the settings name, and of no others.

        Args:
            layers: that have tensors.
            known: all linear layers of the model, by the same spelling.
        """
        named = self.config.target_modules is not None
        if extra := sorted(layer for layer in layers if named and not self.targets(layer)):
            raise DataError(f"{self.file}: target_modules does not name {extra[0]}, whose tensors are there")
        if lacking := sorted(layer for layer in known if named and layer not in layers and self.targets(layer)):
            raise DataError(
                f"{self.file}: target_modules names {lacking[0]}, whose tensors are missing"
                + (f", as are those of {len(lacking) - 1} other layers" if len(lacking) > 1 else "")
            )
        for pattern in self._patterns:
            if not any(get_pattern_key([pattern], layer) == pattern for layer in layers):
                raise DataError(f"{self.file}: the pattern {pattern!r} matches none of its layers")
