"""Callers of the reward model build equal tokens: training, RL, serving, benchmarks, the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from PIL import Image

from paco_core.benchmarks import edit_rankings, rankings
from paco_core.data.records.records import PromptRecord
from paco_core.reward_model.examples import Example
from paco_core.reward_model.instructions import question, render_instruction
from paco_core.reward_model.items import tokenize_examples
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency
from paco_core.serving.client import RewardClient
from paco_core.serving.engines.answers import Answerer, GenerationRequest, ModelAnswer, counter
from tests.support import reward_tiny, tiny_vlm
from tests.support.serving_fakes import NAME, served

THEME, EDIT = "a red cat in many places", "Change the colour of the cat to blue."
FIRST, SECOND = reward_tiny.picture(1), reward_tiny.picture(2)
Caller = Callable[[Scorer], object]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    scorer = Scorer(tiny_vlm.build(tmp_path_factory.mktemp("callers") / "tiny"))
    scorer.warm_up()  # its own questions are asked before any is noted
    return scorer


def library_ids(scorer: Scorer, instruction: str) -> list[int]:
    """Tokens by the processor's own chat template and image placeholders."""
    processor = scorer.network.processor
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": instruction}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = processor(text=[text], images=[FIRST, SECOND], return_tensors="pt")["input_ids"][0].tolist()
    return ids


def by_rl(scorer: Scorer) -> None:
    record = PromptRecord(
        idx="p", prompt="x", height=8, width=16, layout="1x2", theme=THEME, category="Story",
        task_name="Children Book", criteria={},
    )  # fmt: skip
    Consistency(scorer)(RewardBatch([record], [[FIRST, SECOND]]))


@contextmanager
def through_http(scorer: Scorer) -> Iterator[RewardClient]:
    answerer = Answerer(scorer)
    serving = served(answerer, answer_tokens=answerer.answer_tokens)  # type: ignore[arg-type]
    with serving as (url, _), RewardClient(url, NAME) as client:
        yield client


def by_serving(scorer: Scorer) -> None:
    with through_http(scorer) as client:
        client.score([PairQuery(FIRST, SECOND, render_instruction("theme", theme=THEME))])


class TwoPanels:
    def panel(self, ref: str) -> Image.Image:
        return FIRST if ref == "first" else SECOND


def by_ranking(template: str) -> Caller:
    instance = rankings.HeldOutRanking("i", "p", THEME, "first", ("second",) * 2, (0, 1), (math.nan,) * 2)
    return lambda scorer: rankings.score_rankings("x", scorer, [instance], TwoPanels(), template=template)


def by_edits(dimension: str) -> Caller:
    case = edit_rankings.EditCase("c", "t", dimension, EDIT, "g", lambda: (FIRST, SECOND, SECOND))
    return lambda scorer: edit_rankings.score_edits("x", scorer, [case])


def by_command(theme: str | None) -> Caller:
    return lambda scorer: scorer.score([PairQuery(FIRST, SECOND, question(theme))])


CALLERS: list[tuple[str, Caller, str]] = [
    ("RL", by_rl, render_instruction("theme", theme=THEME)),
    ("serving", by_serving, render_instruction("theme", theme=THEME)),
    ("rankings", by_ranking("theme"), render_instruction("theme", theme=THEME)),
    ("edits, following", by_edits("prompt_following"), render_instruction("edit_following", instruction=EDIT)),
    ("edits, consistency", by_edits("consistency"), render_instruction("edit_consistency", instruction=EDIT)),
    ("paco score", by_command(THEME), render_instruction("theme", theme=THEME)),
    ("paco score, plain", by_command(None), render_instruction("plain")),
]


@pytest.mark.parametrize(("caller", "instruction"), [c[1:] for c in CALLERS], ids=[c[0] for c in CALLERS])
def test_every_caller_asks_the_librarys_tokens(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch, caller: Caller, instruction: str
) -> None:
    token_ids: list[list[int]] = []
    logits = scorer.network.first_logits

    def noting(rows: Sequence[object]) -> torch.Tensor:
        token_ids.extend(row.prompt.ids.tolist() for row in rows)  # type: ignore[attr-defined]
        return logits(rows)  # type: ignore[arg-type]

    monkeypatch.setattr(scorer.network, "first_logits", noting)
    caller(scorer)
    assert len(token_ids) == 1
    assert token_ids[0] == library_ids(scorer, instruction)


def test_training_asks_the_same_tokens(scorer: Scorer) -> None:
    instruction = render_instruction("theme", theme=THEME)
    item = tokenize_examples(scorer.network, [Example("p", (FIRST, SECOND), instruction, "Yes. Both show a cat.")])[0]
    assert item.prompt.ids.tolist() == library_ids(scorer, instruction)
    usage = counter(scorer.network)(
        GenerationRequest(PairQuery(FIRST, SECOND, instruction)), ModelAnswer("", "stop", num_tokens=3)
    )
    assert (usage.prompt, usage.completion) == (len(library_ids(scorer, instruction)), 3)


def test_the_server_gives_the_score_of_the_process(scorer: Scorer) -> None:
    """Top log-probabilities over HTTP and logits in the process: one score, to the last digits of float32."""
    queries = [PairQuery(reward_tiny.picture(n), SECOND, render_instruction("theme", theme=THEME)) for n in range(4)]
    expected = [score.value for score in scorer.score(queries)]
    with through_http(scorer) as client:
        assert [score.value for score in client.score(queries)] == pytest.approx(expected, abs=1e-6)
        long, narrow = PairQuery(FIRST, SECOND, "é" * 16_000), PairQuery(Image.new("RGB", (2, 401)), SECOND, "?")
        scores = client.score([queries[0], long, queries[1], narrow])
        assert [score.failed for score in scores] == [False, True, False, True] and client.retries == 0
        assert "HTTP 400" in str(scores[1].cause) and "2 x 401" in str(scores[3].cause)
