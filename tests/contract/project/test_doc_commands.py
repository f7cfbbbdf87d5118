"""The commands of the documentation: each is run by a test or says why not, and each is one that its program accepts.

Blocks without a mark are run by tests/e2e/test_doc_runs.py.
"""

from __future__ import annotations

import re

import pytest

from tests.support import REPOSITORY
from tests.support.doc_commands import SHELL, Block, blocks, commands, inline, pages_of
from tests.support.doc_programs import CHECKS, MENTIONED, refusal

#: Where every command is run or says why not.
RUN = pages_of(REPOSITORY, "tutorial", "how-to")
PAGES = pages_of(REPOSITORY, "")
#: A file of this project that is named in a command.
FILE = re.compile(r"^(?:docs|packages|paco_core|pipelines|profiles|speed|tests|tools|zoo)/[\w/.-]+$")


@pytest.mark.parametrize("page", RUN)
def test_a_block_says_its_language_and_what_does_not_run_says_why(page: str) -> None:
    for block in blocks(REPOSITORY, page):
        assert block.language, f"{block.place}: write ```sh for commands, ```text for anything else"
        if block.language not in SHELL:
            assert block.mark is None, f"{block.place}: a mark above what is no command"
        elif block.mark is not None:
            kind, text = block.mark
            if kind == "runs":
                _runs(block, text)
            else:
                assert len(text.split()) > 2, f"{block.place}: say why it is not run"


def _runs(block: Block, file: str) -> None:
    """The named test is there, and speaks of the verb of each command of ours."""
    assert (REPOSITORY / file).is_file(), f"{block.place}: no test {file}"
    source = (REPOSITORY / file).read_text().replace("_", "")
    for program, *words in commands(block.script):
        if program == "paco":
            assert words[0].replace("-", "") in source, f"{block.place}: {file} does not speak of {words[0]}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_its_program_accepts(page: str) -> None:
    problems = []
    for block in blocks(REPOSITORY, page):
        for words in commands(block.script) if block.language in SHELL else ():
            if why := refusal(words):
                problems.append(f"{block.place}: {' '.join(words)}: {why}")
            missing = [word for word in words if FILE.match(word) and not (REPOSITORY / word).exists()]
            problems += [f"{block.place}: {word} does not exist" for word in missing]
    for place, code in inline(REPOSITORY, page):
        for words in commands(code) if code.split(" ")[0] in CHECKS else ():
            if (why := refusal(words)) and not MENTIONED.search(why):
                problems.append(f"{place}: {code}: {why}")
    assert problems == []


def test_what_no_program_accepts_is_found() -> None:
    assert "invalid choice: 'publish'" in str(refusal(["paco", "publish"]))
    assert "unrecognized arguments: --fast" in str(refusal(["dvc", "repro", "--fast"]))
    assert refusal(["dvc", "repro", "polices@flux_t2is"]) == "dvc.yaml has no stage polices@flux_t2is"
    assert "No such option" in str(refusal(["dagster", "schedule", "start", "--now", "nightly_reevaluation"]))
    assert "No such command" in str(refusal(["dg", "lanch"]))
    assert refusal(["make", "damo"]) == "the Makefile has no rule damo"
    assert refusal(["pip", "install", "paco-rl[gpus]"]) == "pyproject.toml has no extra gpus"
    assert refusal(["python", "-m", "paco_pipelines.web"]) == "no module paco_pipelines.web"
    assert "is no program" in str(refusal(["paccu"]))


def test_a_script_comes_apart_into_its_commands() -> None:
    script = """A=1 paco check  # it's cheap
words="b: 'c'"
dvc pull && git commit -m "a; b" \\
  x > out
source <(paco completion bash)
"""
    assert commands(script) == [
        ["paco", "check"], ["dvc", "pull"], ["git", "commit", "-m", "a; b", "x"], ["source"],
        ["paco", "completion", "bash"],
    ]  # fmt: skip
