"""The text encoder of the small FLUX.2 [klein]: a Qwen3 with three trained layers; later layers are the identity.

The pipeline reads the hidden states after layers 9, 18 and 27. Training all layers would cost nine times as much and
teach nothing more about forty words. Therefore, the outputs of the later layers are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from paco_core.policies.flux2_parts import LAYERS
from zoo import edits, text

WIDTH = 96
TRAINED = 3  # layers
START, END = "<|im_start|>", "<|im_end|>"
#: The dialogue form of the released tokenizer, for one user's words.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
AROUND = 5  # tokens of the dialogue around a prompt
PAINT_LENGTH = text.MAX_LENGTH + AROUND
EDIT_LENGTH = 8 + AROUND
PANEL_LENGTH = 12 + AROUND  # of a panel of a story


def build_tokenizer(instructions: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """The storybook's words and those of the instructions, one token each, with the chat template."""
    words = text.words_of([*edits.instructions(), "user assistant", *instructions])
    tokenizer = text.build_tokenizer(words, PAINT_LENGTH)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_encoder(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained text encoder."""
    encoder = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=max(LAYERS),
            num_attention_heads=3, num_key_value_heads=1, head_dim=32, max_position_embeddings=512,
            tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            initializer_range=0.1,
        )
    )  # fmt: skip
    make_identity(encoder.model)
    return encoder


def make_identity(model: Any) -> None:
    """Let the layers of a language model after the trained ones return their input: their weights are 0."""
    for weight in _passing_on(model):
        torch.nn.init.zeros_(weight.requires_grad_(False))


def _passing_on(model: Any) -> Iterator[torch.nn.Parameter]:
    """Weights of the layers that are not trained."""
    for layer in model.layers[TRAINED:]:
        yield from layer.parameters()


def grow(encoder: Qwen3ForCausalLM, old_vocabulary: dict[str, int], new_vocabulary: dict[str, int]) -> None:
    """Prepare a loaded encoder for further training: one row per required word. Known words keep their rows."""
    rows = text.grown(encoder.get_input_embeddings().weight.detach(), old_vocabulary, new_vocabulary)
    encoder.set_input_embeddings(torch.nn.Embedding.from_pretrained(rows, freeze=False))
    encoder.tie_weights()
    encoder.config.vocab_size = len(new_vocabulary)
    for weight in _passing_on(encoder.model):
        weight.requires_grad_(False)


def tokenise(tokenizer: Any, prompts: list[str], length: int) -> Any:
    """Token ids and mask (batch, length) of prompts in their dialogue, as the pipeline pads them."""
    dialogues = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        for prompt in prompts
    ]
    return tokenizer(dialogues, return_tensors="pt", padding="max_length", truncation=True, max_length=length)


def read(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """States (batch, length, 3 * WIDTH), concatenated as in the pipeline, without the identity layers."""
    last, normed = last_states(encoder, ids, mask)
    return torch.cat([last, last, normed], dim=-1)


def last_states(
    encoder: Any, ids: torch.Tensor, mask: torch.Tensor, position_ids: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """States (batch, length, WIDTH) after the trained layers, and after the final norm, without the identity layers.

    Args:
        ids, mask, position_ids: (batch, length). Positions are 0, 1, 2 ... if None.
    """
    config = encoder.config
    config.num_hidden_layers = TRAINED + 1
    try:
        states = encoder.model(
            ids, attention_mask=mask, position_ids=position_ids, output_hidden_states=True, use_cache=False
        ).hidden_states
    finally:
        config.num_hidden_layers = max(LAYERS)
    return states[TRAINED], states[-1]
