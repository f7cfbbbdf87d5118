"""Text encoders of every kind, and the pictures of diversification."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paco_core.data.prompts.embeddings import TextEncoder, embed_prompts, load_encoder
from paco_core.io.files import DataError
from tests.support.dataset_world import records


def tiny_sentences(folder: Path) -> Path:
    """A sentence-transformers model of a few thousand random weights."""
    parts = pytest.importorskip("sentence_transformers.models", reason="sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = sorted({word for r in records(40) for word in re.findall(r"\w+|[^\w\s]", r.theme + r.prompt)})
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder / "bert"
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    bert = parts.Transformer(str(folder / "bert"), max_seq_length=24)
    SentenceTransformer(modules=[bert, parts.Pooling(16)]).save(str(folder / "sentences"))
    return folder / "sentences"


@pytest.fixture(scope="module", params=["open_clip", "transformers", "sentence_transformers"])
def encoder(request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    models: dict[str, Callable[[], Path]] = {
        "open_clip": lambda: repository / "data/zoo/clip",
        "transformers": lambda: repository / "data/zoo/flux",
        "sentence_transformers": lambda: tiny_sentences(tmp_path_factory.mktemp("tiny")),
    }
    return load_encoder(request.param, models[request.param]())


def test_every_kind_gives_unit_rows_that_tell_texts_apart(encoder: TextEncoder) -> None:
    themes = [record.theme for record in records(12)]
    rows = encoder.encode(themes)
    assert rows.dtype == np.float32 and len(rows) == 12
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(encoder.encode(themes[:5]), rows[:5], atol=1e-4)
    assert len({row.tobytes() for row in rows}) == len(set(themes))


def test_long_prompts_go_by_theme_and_are_counted(encoder: TextEncoder) -> None:
    prompts = records(3)
    short = prompts[0].model_copy(update={"prompt": "a red cat"})
    long = prompts[1].model_copy(update={"prompt": "a red cat and " * 40})
    longest = prompts[2].model_copy(update={"prompt": "a red cat and " * 40, "theme": "a blue dog and " * 40})
    embedded = embed_prompts(encoder, [short, long, longest])
    assert (embedded.by_theme, embedded.cut_themes) == (2, 1)
    np.testing.assert_allclose(embedded.rows[:2], encoder.encode(["a red cat", prompts[1].theme]), atol=1e-4)
    themes = embed_prompts(encoder, [short, long], "theme")
    assert themes.by_theme == 2
    np.testing.assert_allclose(themes.rows[0], encoder.encode([short.theme])[0], atol=1e-4)


def test_a_damaged_model_names_the_record() -> None:
    class Broken:
        window = 10

        def lengths(self, texts: list[str]) -> list[int]:
            return [1] * len(texts)

        def encode(self, texts: list[str]) -> np.ndarray:
            return np.array([[1.0], [np.nan]], dtype=np.float32)

    prompts = records(2)
    with pytest.raises(DataError, match=f"record {prompts[1].idx}: its text embedding is not finite"):
        embed_prompts(Broken(), prompts)
