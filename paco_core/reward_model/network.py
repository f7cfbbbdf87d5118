"""A Qwen2.5-VL or Qwen3-VL with its processor, divided into the passes of a pairwise reward model.

Each image passes the frozen vision tower once, and its features are cached. Instruction and answer pass the language
model with these features. Only the positions that are read pass the head. Rows are padded at the right, so causal
attention needs no mask. Scored rows are padded to whole steps (:mod:`paco_core.reward_model.shapes`), so a score does
not depend on the other rows of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn import functional
from transformers import AutoConfig, AutoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize
from transformers.utils import logging as transformers_logging

from paco_core.io.decoding import MAX_RATIO, MAX_SIDE
from paco_core.io.files import DataError, read_json
from paco_core.io.imports import gc_paused
from paco_core.io.pictures import picture_digests
from paco_core.models.size import validate_layer_counts
from paco_core.models.tokens import validate_tokens
from paco_core.models.weights import load_model, reading
from paco_core.reward_model import quantised
from paco_core.reward_model.architectures import ARCHITECTURES
from paco_core.reward_model.instructions import chat
from paco_core.reward_model.passes import Passes, ReadPositions
from paco_core.reward_model.shapes import PATCH_STEP, READ_STEP, chunks, round_up
from paco_core.reward_model.vision import FeatureCache, Visual, attend_in_one_call, embed_patches_by_product
from paco_core.reward_model.yes_probability import Query, answer_tokens

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 2**28  # of an image after resizing; as in params.yaml
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")  # transformers 5 reads the second one first
PIXEL_KEYS = (
    "do_convert_rgb", "do_resize", "do_rescale", "do_normalize", "rescale_factor", "image_mean", "image_std",
    "resample", "patch_size", "temporal_patch_size", "merge_size",
)  # fmt: skip
PATCHES_AT_ONCE = 65_536  # patches through the vision tower in one pass


@dataclass(frozen=True)
class Prompt:
    """A tokenized instruction, including its images."""

    ids: torch.Tensor  # int64 (length,)
    positions: torch.Tensor  # int64 (3, length): time, height, width


@dataclass(frozen=True)
class TokenRow:
    """One sequence for the language model: a prompt, perhaps followed by an answer."""

    prompt: Prompt
    visuals: tuple[Visual, ...]
    answer: torch.Tensor | None = None  # int64 (n,)

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + (0 if self.answer is None else len(self.answer))


class Network:
    """Model and processor. Features of images are cached for its lifetime."""

    def __init__(self, model: Any, processor: Any, name: str) -> None:
        self.model, self.processor, self.name = model, processor, name
        self.architecture = ARCHITECTURES[model.config.model_type]
        self.yes_id, self.no_id = answer_tokens(processor.tokenizer, name)
        self.prompt = lru_cache(maxsize=8192)(self._prompt)
        self.features = FeatureCache()
        self.window = int(model.config.text_config.max_position_embeddings)  # tokens of a question and its answer
        self.encoded = self.reused = 0  # numbers of images that passed the vision tower, and of cache hits
        embed_patches_by_product(model.model.visual.patch_embed)
        if self.device.type != "cpu":
            attend_in_one_call(model.model.visual)
        self._read = ReadPositions(model.model.language_model.layers[-1].mlp)

    @classmethod
    @gc_paused()
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        pixels: tuple[int, int] | None = None,
        quantization: str | None = None,
    ) -> Network:
        """Load a folder (or hub id) of Qwen2.5-VL or Qwen3-VL.

        Args:
            pixels: minimum and maximum number of pixels of an image after resizing. None = the bounds of the folder.
            quantization: of the language model on a GPU (:mod:`paco_core.reward_model.quantised`).

        Raises:
            DataError: if the folder is missing or damaged, or its model is of another kind.
        """
        _disable_progress_bars()
        source = str(folder)
        if isinstance(folder, Path) and not (folder / "config.json").is_file():
            raise DataError(f"{folder}: there is no model (config.json is missing)")
        if isinstance(folder, Path) and not any(folder.glob("*.safetensors")):
            raise DataError(
                f"{folder}: its weights are not safetensors; other formats can run code when they are loaded"
            )
        with reading(folder / "config.json" if isinstance(folder, Path) else folder):
            if isinstance(folder, Path):
                validate_layer_counts(folder / "config.json")
            try:
                model_type = AutoConfig.from_pretrained(source).model_type
            except ValueError as error:  # a repository without config.json, or one that names no type
                raise DataError(f"{source}: there is no model ({str(error).splitlines()[0]})") from None
            if model_type not in ARCHITECTURES:
                expected = " or ".join(map(repr, ARCHITECTURES))
                raise DataError(f"{source}: its model type is {model_type!r}, but a reward model needs {expected}")
        quantization_options = quantised.reward_quantization(quantization, device)
        model = load_model(
            getattr(transformers, ARCHITECTURES[model_type].model_class),
            folder,
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
            **quantization_options,
        )
        if isinstance(folder, Path):
            _validate_files(folder)
        with reading(folder):
            processor = AutoProcessor.from_pretrained(source)
            _validate_sizes(model.config, processor.image_processor, source)
        _validate_processor(processor, model.config, source)
        bounds = processor.image_processor.size
        low, high = distinct_limits(*(pixels or (bounds.shortest_edge, bounds.longest_edge)))
        processor.image_processor.size = type(bounds)(shortest_edge=low, longest_edge=high)
        placed = model if quantization_options else model.to(device)
        return cls(placed.requires_grad_(False), processor, source)

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    def question(self, query: Query, answer: int = 1) -> Prompt:
        """Tokenize a query about one or two images, before its images are encoded.

        Args:
            answer: maximum number of tokens of the answer.

        Raises:
            DataError: if an image is too narrow, the instruction contains a special token, or there are more tokens
                than the window of the model.
        """
        prompt = self.prompt(query.instruction, tuple(self.grid(picture) for picture in query.pictures))
        if len(prompt.ids) + answer > self.window:
            raise DataError(
                f"the instruction, its images and the answer exceed the model's window of {self.window} tokens"
            )
        return prompt

    def _prompt(self, instruction: str, grids: tuple[tuple[int, int, int], ...]) -> Prompt:
        """Tokens and rotary positions of an instruction with images of these patch grids."""
        mark = self.processor.image_token
        validate_tokens(self.processor.tokenizer, instruction)
        parts = chat(self.processor, instruction, len(grids)).split(mark)
        if len(parts) != len(grids) + 1:
            raise DataError(f"the chat template contains {len(parts) - 1} tokens {mark} for {len(grids)} images")
        merge = self.processor.image_processor.merge_size**2
        fills = [mark * (t * h * w // merge) for t, h, w in grids]
        text = parts[0] + "".join(fill + part for fill, part in zip(fills, parts[1:], strict=True))
        ids = torch.tensor(self.processor.tokenizer(text)["input_ids"])
        is_image = (ids == self.model.config.image_token_id).int()
        positions, _ = self.model.model.get_rope_index(ids[None], is_image[None], image_grid_thw=torch.tensor(grids))
        return Prompt(ids, positions[:, 0])

    def grid(self, image: Image.Image) -> tuple[int, int, int]:
        """Patches (time, height, width) of an image, from its size only.

        Raises:
            DataError: if the image is too narrow.
        """
        if max(image.size) > MAX_RATIO * min(image.size):
            raise DataError(f"the longer side of an image is more than {MAX_RATIO} times its shorter side")
        image_processor = self.processor.image_processor
        patch, bounds = image_processor.patch_size, image_processor.size
        height, width = smart_resize(
            image.height, image.width, patch * image_processor.merge_size, bounds.shortest_edge, bounds.longest_edge
        )
        return 1, height // patch, width // patch

    def cached_features(
        self, images: Sequence[Image.Image], passes: Passes | None = None, at_once: int | None = None
    ) -> list[Visual]:
        """Vision features of images, without gradients. Each distinct image passes the tower once.

        They are cached in ``features``, as far as they fit. ``at_once``: number of images per pass, None = the fastest.
        """
        passes = passes or Passes(1)
        keys = picture_digests(images)
        features = {key: visual for key in set(keys) if (visual := self.features.get(key)) is not None}
        new = {key: image for key, image in zip(keys, images, strict=True) if key not in features}
        self.encoded += len(new)
        self.reused += len(keys) - len(new)
        limit = passes.share(len(new), at_once or self._pictures_at_once(list(new.values())))
        parts = chunks(list(new.items()), limit)
        encoded = passes.run(self._encode, [[image for _, image in part] for part in parts])
        for part, visuals in zip(parts, encoded, strict=True):
            for (key, _), visual in zip(part, visuals, strict=True):
                features[key] = self.features.put(key, visual)
        return [features[key] for key in keys]

    def differentiable_features(self, images: Sequence[Image.Image]) -> list[Visual]:
        """Vision features with gradients, for a trained tower. They are not cached."""
        keys = picture_digests(images)
        distinct = dict(zip(keys, images, strict=True))
        features = dict(zip(distinct, self._encode(list(distinct.values())), strict=True))
        return [features[key] for key in keys]

    def _pictures_at_once(self, images: Sequence[Image.Image]) -> int:
        size = self.processor.image_processor.size
        largest = max((image.width * image.height for image in images), default=1)
        bounded = min(max(largest, size.shortest_edge), size.longest_edge)
        return max(1, PATCHES_AT_ONCE * self.processor.image_processor.patch_size**2 // int(bounded))

    def _encode(self, images: Sequence[Image.Image]) -> list[Visual]:
        inputs = self.processor.image_processor(images=list(images), return_tensors="pt").to(self.device)
        patches, grids = inputs["pixel_values"], inputs["image_grid_thw"]
        spare = round_up(len(patches), PATCH_STEP) - len(patches)
        if spare:  # a black image that fills the last step
            merge = self.processor.image_processor.merge_size
            patches = functional.pad(patches, (0, 0, 0, spare))
            grids = torch.cat([grids, grids.new_tensor([[1, merge, spare // merge]])])
        features = self.architecture.features(self.model.model.get_image_features(patches, grids))
        return [
            Visual(tokens, (int(grid[0]), int(grid[1]), int(grid[2])))
            for tokens, grid in zip(features[: len(images)], grids.tolist(), strict=False)
        ]

    def states(
        self, rows: Sequence[TokenRow], row: torch.Tensor, position: torch.Tensor, length: int | None = None
    ) -> torch.Tensor:
        """Last hidden states (m, hidden) at (``row``, ``position``), int64 (m,) each.

        Rows are padded to ``length`` tokens, or to the longest row if None.
        """
        # With gradient checkpointing, layers run again after this block, where all positions would be computed.
        all_positions = torch.is_grad_enabled() and self.model.is_gradient_checkpointing
        with nullcontext() if all_positions else self._read.only(row, position):
            states: torch.Tensor = self._forward(rows, False, length).last_hidden_state
        return states[row, position]

    def prefill(self, rows: Sequence[TokenRow]) -> tuple[torch.Tensor, Any]:
        """Hidden states (rows, length, hidden) and key-value cache of rows of one length, for :meth:`step`."""
        output = self._forward(rows, True)
        return output.last_hidden_state, output.past_key_values

    def step(self, ids: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Hidden states (rows, 1, hidden) of one more token per row; ``ids`` and ``positions`` are int64 (rows,)."""
        core = self.model.model
        output = core.language_model(
            inputs_embeds=core.get_input_embeddings()(ids[:, None]),
            position_ids=positions[None, :, None].expand(3, -1, -1),
            past_key_values=cache,
            use_cache=True,
        )
        states: torch.Tensor = output.last_hidden_state
        return states

    def _forward(self, rows: Sequence[TokenRow], use_cache: bool, length: int | None = None) -> Any:
        longest = length or max(row.length for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        positions = torch.zeros(3, len(rows), longest, dtype=torch.int64)
        for number, row in enumerate(rows):
            length = len(row.prompt.ids)
            ids[number, :length] = row.prompt.ids
            positions[:, number, :length] = row.prompt.positions
            if row.answer is not None:
                ids[number, length : row.length] = row.answer
                after = int(row.prompt.positions.max()) + 1
                positions[:, number, length : row.length] = torch.arange(after, after + len(row.answer))
        ids, positions = ids.to(self.device), positions.to(self.device)
        core = self.model.model
        embedded = core.get_input_embeddings()(ids)
        features = torch.cat([visual.tokens.to(embedded) for row in rows for visual in row.visuals])
        inputs = self.architecture.language_inputs(features, embedded, ids == self.model.config.image_token_id)
        return core.language_model(**inputs, position_ids=positions, use_cache=use_cache)

    def first_logits(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        """Logits (rows, vocabulary), float32, of the first answer token. The rows have no answer."""
        length = round_up(max(row.length for row in rows))
        row, last = list(range(len(rows))), [row.length - 1 for row in rows]
        spare = [place for place in range(length) if place != last[0]][: round_up(len(rows), READ_STEP) - len(rows)]
        row_at = torch.tensor([*row, *[0] * len(spare)], device=self.device)
        position = torch.tensor([*last, *spare], device=self.device)
        states = self.states(rows, row_at, position, length)
        logits: torch.Tensor = self.model.lm_head(states)
        return logits[: len(rows)].float()


def distinct_limits(low: int, high: int) -> tuple[int, int]:
    """Minimum and maximum number of pixels of an image for ``smart_resize`` of transformers.

    With equal limits, ``smart_resize`` rounds some images to another size. For example, 96 x 96 px become 28 x 28 px
    instead of 56 x 56 px, because 96 / (96 / 56) is less than 56 in floating point. Limits that differ by two pixels
    prevent this error, and allow no other size, because sizes are multiples of a token.
    """
    return (max(1, low - 1), high + 1) if low == high else (low, high)


def _validate_sizes(config: Any, processor: Any, source: str) -> None:
    """Raise DataError if sizes that no tensor's shape limits would allocate too much memory per image."""
    bounds = {
        **{name: (getattr(config.vision_config, name), MAX_SIDE) for name in ARCHITECTURES[config.model_type].sizes},
        "patch_size": (processor.patch_size, MAX_SIDE), "merge_size": (processor.merge_size, MAX_SIDE),
        "min_pixels": (processor.size.shortest_edge, MOST_PIXELS),
        "max_pixels": (processor.size.longest_edge, MOST_PIXELS),
    }  # fmt: skip
    for name, (number, most) in bounds.items():
        if not isinstance(number, int | float) or not 0 < number <= most:
            raise DataError(f"{source}: its {name} is {number!r}, expected a number from 1 to {most:,}")


def _validate_files(folder: Path) -> None:
    """Raise DataError if a file of the processor is missing, or two files differ in a key."""
    for names in (("tokenizer.json", "vocab.json"), PROCESSOR_FILES):
        if not any((folder / name).is_file() for name in names):
            raise DataError(f"{folder}: {names[0]} is missing; copy it from the base of the weights")
    if all((folder / name).is_file() for name in PROCESSOR_FILES):
        with reading(folder):
            first, second = (read_json(folder / name) for name in PROCESSOR_FILES)
            second = second.get("image_processor", {})
            differing = [key for key in PIXEL_KEYS if key in first and key in second and first[key] != second[key]]
        if differing:
            key = differing[0]
            raise DataError(
                f"{folder}: {' and '.join(PROCESSOR_FILES)} differ in {key}: {first[key]!r} and {second[key]!r}; keep "
                "the value that the weights were trained with in both"
            )


def _validate_processor(processor: Any, config: Any, source: str) -> None:
    """Raise DataError if a setting of the processor does not match the model, which would change scores."""
    if not isinstance(processor.image_processor, Qwen2VLImageProcessor):
        class_name = type(processor.image_processor).__name__
        raise DataError(f"{source}: its image_processor_type is {class_name}, expected Qwen2VLImageProcessor")
    image_processor, vision, mark = processor.image_processor, config.vision_config, processor.image_token
    number = processor.tokenizer.convert_tokens_to_ids(mark)
    for name, value, expected in (
        ("preprocessor_config.json: patch_size", image_processor.patch_size, vision.patch_size),
        (
            "preprocessor_config.json: temporal_patch_size",
            image_processor.temporal_patch_size,
            vision.temporal_patch_size,
        ),
        ("preprocessor_config.json: merge_size", image_processor.merge_size, vision.spatial_merge_size),
        (f"tokenizer.json: the id of {mark}", number, config.image_token_id),
    ):
        if value != expected:
            raise DataError(f"{source}: {name} is {value!r}, but the model of config.json needs {expected!r}")
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    if processor.chat_template is None:
        raise DataError(f"{source}: chat_template.jinja is missing; copy it from Qwen2.5-VL, or from your trainer")
    words = "Are the two images consistent?"
    text = chat(processor, words)
    if text.count(mark) != 2 or words not in text:
        raise DataError(
            f"{source}: its chat template (chat_template.jinja) writes {mark} {text.count(mark)} times for two images "
            "and one question; replace it by the one of Qwen2.5-VL"
        )


def _disable_progress_bars() -> None:
    """Disable the progress bars of transformers, because paco prints separate ones."""
    transformers_logging.disable_progress_bar()
