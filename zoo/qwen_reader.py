"""The text encoder of the small Qwen-Image-Edit: the lower half of the zoo's Qwen2.5-VL, with more words.

The pipeline drops the first 64 tokens of its dialogue, the opening in the released tokenizer. In this tokenizer, each
word of the opening is one token, so the pipeline drops the same text.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import QwenImageEditPipeline
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, DynamicCache, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from paco_core.io.files import read_json
from zoo import vlm
from zoo.text import grown, with_whole_words

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

LAYERS = 2  # of the language model: enough to bind words to one another


def template() -> tuple[str, int]:
    """The pipeline's dialogue around an instruction, and how many of its first tokens are dropped."""
    parts = ("scheduler", "vae", "text_encoder", "tokenizer", "processor", "transformer")
    empty = QwenImageEditPipeline(**dict.fromkeys(parts))
    return empty.prompt_template_encode, empty.prompt_template_encode_start_idx


def build_tokenizer(zoo_vlm: Path, instructions: Sequence[str]) -> Qwen2Tokenizer:
    """The tokenizer of the zoo's Qwen2.5-VL, with each word of the dialogue and the instructions as one token.

    Raises:
        ValueError: if the dialogue's opening does not have as many tokens as the pipeline drops.
    """
    learnt = read_json(zoo_vlm / "tokenizer.json")["model"]
    dialogue, dropped = template()
    opening = dialogue.split("<|vision_start|>")[0]
    plain = opening
    for token in vlm.SPECIAL_TOKENS:
        plain = plain.replace(token, "\0")
    texts = [*plain.split("\0"), *instructions, *(f" {text}" for text in instructions)]
    merges = [(first, second) for first, second in learnt["merges"]]
    tokenizer = vlm.tokenizer_of(*with_whole_words(learnt["vocab"], merges, texts))
    if (length := len(tokenizer(opening).input_ids)) != dropped:
        raise ValueError(f"the dialogue opens with {length} tokens, and the pipeline drops {dropped}")
    return tokenizer


def build_reader(zoo_vlm: Path, tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """The zoo's Qwen2.5-VL with fewer layers. New words get new embeddings."""
    teacher = Qwen2_5_VLForConditionalGeneration.from_pretrained(zoo_vlm)
    old_vocabulary = AutoTokenizer.from_pretrained(zoo_vlm).get_vocab()
    new_vocabulary = tokenizer.get_vocab()
    old, config = teacher.config, copy.deepcopy(teacher.config)
    text: Any = config.text_config
    text.num_hidden_layers, text.layer_types, text.vocab_size = LAYERS, text.layer_types[:LAYERS], len(new_vocabulary)
    names = {number: token for token, number in old_vocabulary.items()}
    for part, key in (
        *((config, f"{kind}_token_id") for kind in ("image", "video", "vision_start", "vision_end")),
        *((text, f"{kind}_token_id") for kind in ("bos", "eos", "pad")),
    ):
        setattr(part, key, new_vocabulary[names[getattr(old if part is config else old.text_config, key)]])
    reader = Qwen2_5_VLForConditionalGeneration(config)
    weights = {name: tensor for name, tensor in teacher.state_dict().items() if name in reader.state_dict()}
    for name in ("model.language_model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = grown(weights[name], old_vocabulary, new_vocabulary)
    reader.load_state_dict(weights)
    return reader.requires_grad_(False).eval()


class InstructionReader:
    """Fast text encoder of the pipeline for many images and instructions at once.

    All rows share the opening, which is read once.
    """

    def __init__(self, reader: Qwen2_5_VLForConditionalGeneration, tokenizer: Qwen2Tokenizer) -> None:
        self._reader: Any = reader
        self._tokenizer = tokenizer
        self._dialogue, self._dropped = template()
        self._token_ids: dict[str, list[int]] = {}
        self._cache = DynamicCache
        self._keys: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Visual tokens (n, 4, d) of images (n, 3, s, s) in -1..1, resized as in the processor."""
        arrays = ((pixels + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        images = [Image.fromarray(array) for array in arrays]
        processor = vlm.build_processor(self._tokenizer, Qwen2_5_VLProcessor)
        patches = processor.image_processor(images, return_tensors="pt").pixel_values
        grouped = patches.view(len(images), vlm.PATCHES_PER_PANEL, -1)
        return vlm.encode_panels(self._reader.model.visual, grouped)

    def read(self, instructions: Sequence[str], visual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """States (n, longest, d) after the dropped opening, and a mask that is 0 for padding."""
        rows = [self._ids(text) for text in instructions]
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
        core = self._reader.model
        is_image = ids == self._reader.config.image_token_id
        with torch.inference_mode():
            embedded = core.get_input_embeddings()(ids)
            embedded = embedded.masked_scatter(is_image.unsqueeze(-1), visual.to(embedded.dtype))
            # The pipeline names no token types, so the library numbers words and picture tokens alike.
            places = torch.arange(self._dropped, self._dropped + ids.shape[1])
            states = core.language_model(
                inputs_embeds=embedded,
                position_ids=places.expand(3, len(ids), -1),
                past_key_values=self._opened(len(ids)),
                use_cache=True,
            ).last_hidden_state
        return (states * mask.unsqueeze(-1)).clone(), mask

    def _opened(self, count: int) -> Any:
        """Keys and values of the opening for so many rows."""
        if self._keys is None:
            opening = self._dialogue.split("<|vision_start|>")[0]
            ids = torch.tensor([self._tokenizer(opening).input_ids])
            cache = self._reader.model.language_model(input_ids=ids, use_cache=True).past_key_values
            self._keys = [(layer.keys, layer.values) for layer in cache.layers]
        opened = self._cache()
        for number, (keys, values) in enumerate(self._keys):
            opened.update(keys.expand(count, -1, -1, -1), values.expand(count, -1, -1, -1), number)
        return opened

    def _ids(self, instruction: str) -> list[int]:
        if instruction not in self._token_ids:
            text = self._dialogue.format(instruction)
            text = text[text.index("<|vision_start|>") :]
            text = text.replace("<|image_pad|>", "<|image_pad|>" * vlm.TOKENS_PER_PANEL)
            self._token_ids[instruction] = self._tokenizer(text).input_ids
        return self._token_ids[instruction]
