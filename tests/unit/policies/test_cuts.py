"""A prompt that is cut is named by its id and counted, by one function, whoever paints."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from paco_core.policies import flux
from paco_core.policies.cuts import Cut, of_records, read_part, report
from paco_core.policies.pipeline_cuts import cut_prompts
from tests.support.dataset_world import records
from tests.support.tiny import tiny_flux


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux"))


def test_cut_prompts_are_counted_and_the_first_ids_reported() -> None:
    said: list[str] = []
    assert report({}, said.append) == {"cut_prompts": 0} and said == []
    cuts = {f"p{n}": Cut(50 + n, 40, "at night") for n in range(7)}
    assert report(cuts, said.append) == {"cut_prompts": 7}
    assert "p0, p1, p2, p3, p4 and 2 more" in said[0] and "'at night'" in said[0]


def test_a_policy_and_its_plain_pipeline_name_the_same(model: Path) -> None:
    """Grids are painted by a pipeline of any class, which says nothing; and a finished one is not even encoded."""
    given = records(4)
    policy = flux.FluxPolicy.load(str(model), "cpu", "float32")
    for window in (8, 40):
        policy.encode([record.prompt for record in given], window)
        assert cut_prompts(model, given, window) == of_records(policy.cut, given)
    assert len(cut_prompts(model, given, 8)) == 4


@pytest.mark.parametrize("text", ["把狗变成红色😀，戴上蓝色的帽子。", "An unbelievably blue café 😀 naïve hat"])
def test_what_is_read_of_an_instruction_is_whole_tokens_and_whole_characters(repository: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(repository / "data/zoo/qwen_image_edit/tokenizer")
    ids = tokenizer(text).input_ids
    for window in range(1, len(ids)):
        read = read_part(tokenizer, text, window)
        tokens = tokenizer(read).input_ids
        assert text.startswith(read) and tokens == ids[: len(tokens)]
        assert window - 4 < len(tokens) <= window, "no more is given up than one character takes"
    assert read_part(tokenizer, text, len(ids)) == text
