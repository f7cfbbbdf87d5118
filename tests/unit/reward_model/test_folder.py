"""What a merged folder says of itself, for the transformers that made it and for 4.57."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from paco_core.reward_model.merging import write_model
from paco_core.reward_model.network import Network
from tests.support import tiny_vlm


def test_the_settings_are_named_as_transformers_4_57_reads_them(tmp_path: Path) -> None:
    """It fails on a list of extra_special_tokens, and takes the sections of the rotary positions from rope_scaling."""
    base = tiny_vlm.build(tmp_path / "base")
    out = tmp_path / "out"
    write_model(Network.load(base), base, out)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert not isinstance(settings.get("extra_special_tokens"), list)
    text = json.loads((out / "config.json").read_text())["text_config"]
    assert text["rope_scaling"]["mrope_section"] == text["rope_parameters"]["mrope_section"]
    assert text["rope_theta"] == text["rope_parameters"]["rope_theta"] and "rope_theta" not in text["rope_scaling"]
    was, now = (AutoConfig.from_pretrained(folder).text_config.rope_parameters for folder in (base, out))
    assert was == now, "this version reads the same"
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (base, out))
    words = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Yes or No?<|im_end|>"
    assert before(words)["input_ids"] == after(words)["input_ids"]
    assert before.get_added_vocab() == after.get_added_vocab()
