"""A prompt that is cut is named by its id and counted, by one function, whoever paints."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from paco_core.policies import flux
from paco_core.policies.pipeline_truncation import find_truncated_prompts
from paco_core.policies.truncation import Truncation, log_truncations, truncate_prompt, truncations_by_id
from tests.support.dataset_world import records
from tests.support.tiny import tiny_flux


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux"))


def test_cut_prompts_are_counted_and_the_first_ids_reported() -> None:
    lines: list[str] = []
    assert log_truncations({}, lines.append) == {"cut_prompts": 0} and lines == []
    cuts = {f"p{n}": Truncation(50 + n, 40, "at night") for n in range(7)}
    assert log_truncations(cuts, lines.append) == {"cut_prompts": 7}
    assert "p0, p1, p2, p3, p4 and 2 more" in lines[0] and "'at night'" in lines[0]


def test_a_policy_and_its_plain_pipeline_name_the_same(model: Path) -> None:
    """Grids are painted by a pipeline of any class, which says nothing; and a finished one is not even encoded."""
    prompts = records(4)
    policy = flux.FluxPolicy.load(str(model), "cpu", "float32")
    for window in (8, 40):
        policy.encode([record.prompt for record in prompts], window)
        assert find_truncated_prompts(model, prompts, window) == truncations_by_id(policy.truncations, prompts)
    assert len(find_truncated_prompts(model, prompts, 8)) == 4


@pytest.mark.parametrize("text", ["把狗变成红色😀，戴上蓝色的帽子。", "An unbelievably blue café 😀 naïve hat"])
def test_what_is_read_of_an_instruction_is_whole_tokens_and_whole_characters(repository: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(repository / "data/zoo/qwen_image_edit/tokenizer")
    ids = tokenizer(text).input_ids
    for window in range(1, len(ids)):
        read = truncate_prompt(tokenizer, text, window)
        tokens = tokenizer(read).input_ids
        assert text.startswith(read) and tokens == ids[: len(tokens)]
        assert window - 4 < len(tokens) <= window, "no more is given up than one character takes"
    assert truncate_prompt(tokenizer, text, len(ids)) == text
