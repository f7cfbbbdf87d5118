"""What `paco paint`, `paco edit` and the page do with a prompt: composed so that it fits, named where it is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoTokenizer

from paco_core.cli import main
from paco_core.config.params import load
from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records import prompt_text
from paco_core.data.records.records import write_prompts
from paco_core.io import paths
from paco_core.operations.asked import set_record
from paco_core.operations.play.about import about
from paco_core.operations.play.gallery import Gallery
from paco_core.storybook.prompts import storybook_prompts
from tests.support.small_project import lay_out

QUICK = ["--policy", "base", "--seeds", "1", "--steps", "1", "--size", "64", "--out", "out"]


@pytest.fixture
def project(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return lay_out(repository, tmp_path)


@pytest.mark.slow
def test_the_layout_is_printed_and_may_be_chosen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["paint", "a red cat", "--panels", "at night", "in the snow", "--layout", "2x1", *QUICK])
    assert "layout 2x1 (rows x columns)\n" in capsys.readouterr().out
    assert Image.open(project / "out/base-0.png").size == (32, 64)
    main(["paint", "a red cat", "--panels", "at night", "in the snow", *QUICK])
    said = "layout 1x2 (rows x columns), the default of 2 panels; --layout ROWSxCOLUMNS chooses another"
    assert said in capsys.readouterr().out
    whole = set_record("a red cat", list("abc"), 64, "3x1").prompt
    main(["paint", whole, *QUICK, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["layout"], found["cut"]) == ("3x1", None)
    width, height = Image.open(project / "out/base-0.png").size
    assert height == 3 * width


@pytest.mark.slow
def test_a_prompt_that_is_cut_is_named_with_what_is_lost(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    panels = [f"a {size} red cat with a scarf and a hat at night in the snow, flat style." for size in "abcd"]
    main(["paint", "a red cat", "--panels", *panels, *QUICK])
    text = capsys.readouterr().out
    main(["paint", "a red cat", "--panels", *panels, *QUICK, "--json"])
    found = json.loads(capsys.readouterr().out)
    cut = found["cut"]
    assert found["prompt"].endswith(cut["lost"]) and cut["tokens"] > cut["window"] == 40
    over = cut["tokens"] - cut["window"]
    assert f"the prompt is cut: {over} of {cut['tokens']} tokens are beyond max_sequence_length=40, not read: " in text
    assert cut["lost"] in text
    Image.new("RGB", (64, 64), "red").save(project / "cat.png")
    main(["edit", "cat.png", "Make the cat blue. " * 30, *QUICK, "--json"])
    cut = json.loads(capsys.readouterr().out)["cut"]
    assert cut["lost"].endswith("Make the cat blue.") and cut["tokens"] > cut["window"]


def test_prompts_of_the_project_fit_when_they_are_put_together_again(repository: Path, tmp_path: Path) -> None:
    """From its parts each is the prompt that it was, to the letter; from the record's theme and panels none is cut."""
    tokenizer = AutoTokenizer.from_pretrained(repository / "data/zoo/flux/tokenizer_2")
    made = storybook_prompts(200, 0)
    parts = [prompt_text.parse(one.prompt, one.layout) for one in made]
    texts = [[panel.text for panel in part.panels] for part in parts]
    for one, part, panels in zip(made, parts, texts, strict=True):
        assert set_record(part.theme, panels, 64).prompt == one.prompt, "to the letter"
    assert max(len(ids) for ids in tokenizer([one.prompt for one in made]).input_ids) <= 40
    composed = [set_record(one.theme, panels, 64).prompt for one, panels in zip(made, texts, strict=True)]
    assert max(len(ids) for ids in tokenizer(composed).input_ids) <= 40
    records = [storybook_record(one, 64, 64) for one in made]
    project = lay_out(repository, tmp_path)
    for folder in (paths.PROMPTS, paths.DIVERSE_PROMPTS):
        (project / folder).mkdir(parents=True, exist_ok=True)
        write_prompts(project / folder / "prompts.jsonl", records)
    examples = about(project, load(project / "params.yaml"), Gallery())["set_examples"]
    again = [set_record(one["theme"], one["panels"], 64) for one in examples]
    known = {record.theme: record.prompt for record in records}
    assert [record.prompt for record in again] == [known[one["name"]] for one in examples] and len(examples) == 4
