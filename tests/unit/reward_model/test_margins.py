"""Margins tell another model from rounding, in each number format."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from paco_core.reward_model.golden import MERGED, SERVED, Bounds, compare_margins, margin, served_bounds

YES, NO = 3, 5


def test_margins_are_log_odds_between_certain_answers() -> None:
    assert margin(0.5) == 0.0 and margin(0.9) == pytest.approx(math.log(9)) == -margin(0.1)
    assert margin(1.0) == margin(0.99995) == pytest.approx(-margin(0.0)) and math.isnan(margin(math.nan))


def test_both_bounds_hold_or_neither_run_is_believed() -> None:
    bounds = Bounds(worst=1.0, mean=0.3)
    half = [0.5] * 4
    assert compare_margins(half, half, bounds).holds
    agreement = compare_margins(half, [0.7, 0.5, 0.5, 0.5], bounds)
    assert (
        agreement.holds
        and agreement.worst == pytest.approx(margin(0.7))
        and agreement.mean == pytest.approx(margin(0.7) / 4)
    )
    assert not compare_margins(half, [0.8, 0.5, 0.5, 0.5], bounds).holds  # 1.39 apart
    assert not compare_margins(half, [0.6] * 4, bounds).holds  # 0.41 on average
    assert not compare_margins(half, [math.nan, 0.5, 0.5, 0.5], bounds).holds


def test_a_format_that_is_half_precision_anywhere_has_its_bounds() -> None:
    assert served_bounds("float32") == served_bounds("float32", "float32") == SERVED["float32"]
    assert served_bounds("float32", "bfloat16") == served_bounds("auto", "float32") == SERVED["bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bounds_of_a_merge_tell_rounding_from_a_lost_adapter(dtype: str) -> None:
    """A random tower whose logits reach those of trained ones (about 30), where bfloat16 steps by 0.125."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "vocab_size": 512}
    model = Qwen2ForCausalLM(Qwen2Config(num_attention_heads=4, num_key_value_heads=2, **sizes)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(25)
    wrapped = get_peft_model(
        model.to(getattr(torch, dtype)), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    )
    for layer in (part for part in wrapped.modules() if hasattr(part, "lora_A") and hasattr(part, "base_layer")):
        a, b = (getattr(layer, name)["default"].weight for name in ("lora_A", "lora_B"))
        a.data, b.data = a.data.float(), torch.randn(b.shape)
        share = float(layer.base_layer.weight.float().norm() / layer.get_delta_weight("default").float().norm())
        b.data *= 0.2 * share
    ids = torch.randint(0, 512, (32, 24))

    def scores() -> list[float]:
        with torch.no_grad():
            logits = wrapped(ids).logits[:, -1].double()
        return list(torch.sigmoid((logits[:, YES] - logits[:, NO]) / 4))  # few of them are certain

    together = scores()
    with wrapped.disable_adapter():
        without = scores()
    wrapped = wrapped.merge_and_unload()
    assert compare_margins(together, scores(), MERGED[dtype]).holds
    assert not compare_margins(together, without, MERGED[dtype]).holds
