"""Texts that a model will cut, known before anything runs.

Only tokenizers in folders of the project are read, and only prompts that exist already. A stage reports what a model
has cut (:func:`paco_core.models.tokens.report_texts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paco_core.data.records.records import split_panels
from paco_core.io.files import DataError, read_json
from paco_core.models.pipeline_index import read_index
from paco_core.planning.planned_prompts import candidates
from paco_core.policies.families import family_of
from paco_core.policies.windows import find_main_tokenizer, prompt_frame
from paco_core.rewards import registry
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe, RewardTerm
    from paco_core.data.records.records import PromptRecord
    from paco_core.tasks.base import PlannedPrompts


class _Reader(NamedTuple):
    """A model that reads texts.

    Attributes:
        key: its key in ``params.yaml``.
        tokenizer: file of its tokenizer.
        window: maximum number of tokens.
        frame: texts that are added before and after each text.
    """

    key: str
    tokenizer: Path
    window: int
    texts: Sequence[str]
    frame: tuple[str, str] = ("", "")


def cut_texts(params: Params, root: Path, planned: PlannedPrompts) -> list[str]:
    """A remark per model that will truncate texts, with their number and the length of the longest text."""
    lengths: dict[tuple[Path, tuple[str, str]], dict[str, int]] = {}
    remarks = []
    for reader in _readers(params, root, planned):
        if not reader.tokenizer.is_file():
            continue
        token_counts = lengths.setdefault((reader.tokenizer, reader.frame), {})
        token_counts |= _lengths(reader.tokenizer, reader.frame, set(reader.texts) - token_counts.keys())
        read = [token_counts[text] for text in dict.fromkeys(reader.texts)]
        if cut := sum(length > reader.window for length in read):
            remarks.append(
                f"{reader.key}: {cut} of {len(read)} texts are longer than the {reader.window} tokens that it reads "
                f"and will be cut; the longest has {max(read)}"
            )
    return remarks


def _lengths(file: Path, frame: tuple[str, str], texts: Iterable[str]) -> dict[str, int]:
    from tokenizers import Tokenizer  # noqa: PLC0415 - takes a quarter of a second

    tokenizer, (before, behind) = Tokenizer.from_file(str(file)), frame
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unique_texts = list(texts)
    framed = [f"{before}{text}{behind}" for text in unique_texts]
    encoded = tokenizer.encode_batch(framed, add_special_tokens=not any(frame))
    return {text: len(encoding.ids) for text, encoding in zip(unique_texts, encoded, strict=True)}


def _readers(params: Params, root: Path, planned: PlannedPrompts) -> Iterator[_Reader]:
    for name, recipe in params.policies.recipes.items():
        records = _records(params, recipe, planned, root)
        if records and recipe.panels == "together":
            yield from _generator(f"policies.recipes.{name}", recipe, root, [record.prompt for record in records])
        for term_name, term in recipe.rewards.terms.items():
            key, kind = f"policies.recipes.{name}.rewards.terms.{term_name}", registry.reward_kind(term_name, term)
            yield from _reward(key, kind, term, root, records)


def _records(params: Params, recipe: PolicyRecipe, planned: PlannedPrompts, root: Path) -> list[PromptRecord]:
    """The training and evaluation prompts of a recipe whose texts are known."""
    if task_of(recipe) is SETS:
        is_known = recipe.prompts is not None or params.prompts.engine != "openai"
    else:
        is_known = params.edit_prompts.source == "file"
    return [record for part in candidates(planned, recipe, root) for record in part] if is_known else []


def _generator(key: str, recipe: PolicyRecipe, root: Path, texts: Sequence[str]) -> Iterator[_Reader]:
    folder = root / recipe.model
    if (name := find_main_tokenizer(read_index(folder))) is not None:
        frame = prompt_frame(family_of(recipe.family).pipeline, folder / name)
        yield _Reader(key, folder / name / "tokenizer.json", recipe.max_sequence_length, texts, frame)


def _reward(key: str, kind: str, term: RewardTerm, root: Path, records: Sequence[PromptRecord]) -> Iterator[_Reader]:
    if kind not in ("clip_t", "clip_score", "pickscore") or term.model is None or not records:
        return
    folder = root / term.model
    texts = [text for record in records for text in (_panels(record) if kind == "clip_t" else [record.prompt])]
    file, keys = folder / "open_clip_config.json", ["model_cfg", "text_cfg", "context_length"]
    if kind == "pickscore":
        file, keys = folder / "config.json", ["text_config", "max_position_embeddings"]
    if file.is_file():
        yield _Reader(key, folder / "tokenizer.json", _nested(file, keys, 77), texts)


def _panels(record: PromptRecord) -> list[str]:
    try:
        return split_panels(record.prompt, record.layout)[1]
    except DataError:  # `paco check` reports it
        return []


def _nested(file: Path, keys: Sequence[str], default: int) -> int:
    """A number of a configuration, or the default of its library."""
    value = read_json(file)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) else default
