"""Texts that a model will cut: `paco check` counts them as the models themselves do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from paco_core.config.params import Params, parse
from paco_core.models.tokens import note_texts, report_texts, token_counts
from paco_core.planning.cut_texts import cut_texts
from paco_core.planning.planned_prompts import plan_prompts_or_empty
from paco_core.policies.truncation import find_truncation_in_chat
from paco_core.policies.windows import CHATS, prompt_frame
from tests.support.tiny_pipelines import CHAT_TEMPLATE

RECIPE = "policies.recipes.flux_t2is"


def params(repository: Path, **changes: Any) -> Params:
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    tree["prompts"]["count"] = 32
    tree["diverse_prompts"]["target"] = 32
    tree["policies"]["recipes"]["flux_t2is"] |= changes
    return parse(tree)


def remarks(repository: Path, config: Params) -> list[str]:
    return [line for line in cut_texts(config, repository, plan_prompts_or_empty(config, repository)) if RECIPE in line]


def test_prompts_behind_the_window_of_a_reward_are_counted(repository: Path) -> None:
    config = params(repository)
    terms = config.policies.recipes["flux_t2is"].rewards.terms
    terms["clip_score"] = terms["clip_t"].model_copy()
    (line,) = remarks(repository, config)
    prompts = [record.prompt for record in plan_prompts_or_empty(config, repository).prompts]
    longest = max(token_counts(AutoTokenizer.from_pretrained(repository / "data/zoo/clip"), prompts))
    assert "clip_score: 32 of 32" in line and " 48 " in line and line.endswith(str(longest))


def test_prompts_behind_the_window_of_an_image_generator_are_counted(repository: Path) -> None:
    assert remarks(repository, params(repository)) == []
    (line,) = remarks(repository, params(repository, max_sequence_length=8))
    assert line.startswith(f"{RECIPE}: 32 of 32")


@pytest.mark.parametrize("pipeline", CHATS)
@pytest.mark.parametrize("thinks", [True, False])
def test_the_frame_of_a_chat_takes_as_many_tokens_as_its_dialogue(
    repository: Path, tmp_path: Path, pipeline: str, thinks: bool
) -> None:
    """Qwen3's template closes an empty thought unless ``enable_thinking`` is set; others know no thoughts."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(repository / "data/zoo/flux2_klein/tokenizer", folder)
    thought = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + thought * thinks)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, behind = prompt_frame(pipeline, folder)
    tokens = tokenizer(f"{before}a red cat{behind}", add_special_tokens=False).input_ids
    cut = find_truncation_in_chat(tokenizer, "a red cat", 3, thinking=CHATS[pipeline])
    assert cut is not None and len(tokens) == cut.tokens


def test_a_reader_warns_once_and_reports_how_many_of_how_many(caplog: pytest.LogCaptureFixture) -> None:
    report_texts(print)
    for texts in (["a b c", "a"], ["a b c d", "a", "a b c"], ["a b c d"]):
        note_texts("reader", texts, 2, lambda new: [len(text.split()) for text in new])
    assert len(caplog.records) == 1
    lines: list[str] = []
    assert report_texts(lines.append) == {
        "texts.reader.read": 3, "texts.reader.cut": 2, "texts.reader.longest": 4
    }  # fmt: skip
    assert len(lines) == 1 and "reader" in lines[0] and "2 of 3" in lines[0]
    assert report_texts(lines.append) == {} and len(lines) == 1, "counted for one stage"
