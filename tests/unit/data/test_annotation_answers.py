"""The file of answers that the graph reads: its bytes, when it is written, and that no answer is lost on the way."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dvc_project.hashing import Workspace
from paco_core import cli
from paco_core.cli import annotate
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore
from paco_core.io.files import DataError, read_yaml
from paco_core.planning import preflight
from paco_core.stages import declared
from tests.support.annotation_world import DEADLINE_S, STORE, Server, body_for, make_world, open_study

ANNOTATORS = ("annotator-1", "annotator-2", "annotator-10")


def answers(count: int = 12, seed: int = 0) -> list[AnnotatorAnswer]:
    """Answers as a study gives them, two revisions of some, in order of time."""
    rng, result = random.Random(seed), list[AnnotatorAnswer]()
    for n in range(count):
        order = tuple(rng.sample(range(4), 4))
        first = AnnotatorAnswer(ANNOTATORS[n % 3], f"i{n // 3}", 1, "ranked", tuple(rng.sample(range(4), 4)), order,
                                rng.random() * 9,
                                f"2026-01-01T00:00:{n:02d}+00:00")  # fmt: skip
        result.append(first)
        if n % 4 == 0:
            result.append(replace(first, revision=2, verdict="withdrawn", ranking=None, seconds=0.0))
    return result


def filled(path: Path, stored_answers: list[AnnotatorAnswer]) -> AnswerStore:
    store = AnswerStore(path, create=True)
    store.restore(stored_answers)
    return store


@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_equal_answers_give_equal_bytes_in_whatever_order_they_came(rng: random.Random, count: int) -> None:
    expected = answers(count)
    shuffled = rng.sample(expected, len(expected))
    assert answer_file.format_answers(shuffled) == answer_file.format_answers(expected)
    last = {(answer.annotator, answer.instance_id): answer for answer in expected}
    assert set(answer_file.latest_answers(shuffled)) == set(last.values())


def test_every_answer_comes_back_and_the_file_is_written_only_when_its_bytes_change(tmp_path: Path) -> None:
    store, file = filled(tmp_path / STORE, answers()), tmp_path / answer_file.FILE
    assert answer_file.count_unsaved(tmp_path, store.every()) == 15
    assert answer_file.save_answers(tmp_path, store) == 15 and answer_file.count_unsaved(tmp_path, store.every()) == 0
    assert set(answer_file.read_answers(tmp_path)) == set(answers()) == set(store.every())
    assert {a.token for a in store.annotators()}.isdisjoint(file.read_text()) and "token" not in file.read_text()
    before = file.stat()
    answer_file.save_answers(tmp_path, store)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    store.record(replace(answers()[2], revision=2, ranking=(3, 2, 1, 0)))
    assert answer_file.save_answers(tmp_path, store) == 16 and file.stat().st_ino != before.st_ino
    assert not list(file.parent.glob(".*.part"))


def test_skips_alone_write_no_file_and_go_with_the_first_answer(tmp_path: Path) -> None:
    """A page that was opened and looked at makes nothing stale."""
    skipped = replace(answers()[0], verdict="skipped", ranking=None)
    store = filled(tmp_path / STORE, [skipped])
    assert answer_file.save_answers(tmp_path, store) == 0 and answer_file.count_unsaved(tmp_path, store.every()) == 0
    assert not (tmp_path / answer_file.FILE).exists()
    store.record(replace(answers()[0], revision=2))
    assert answer_file.save_answers(tmp_path, store) == 2 and set(answer_file.read_answers(tmp_path)) == set(
        store.every()
    )


def test_answers_that_only_the_file_has_are_not_overwritten(tmp_path: Path) -> None:
    answer_file.save_answers(tmp_path, filled(tmp_path / "one.sqlite", answers(9)))
    text = (tmp_path / answer_file.FILE).read_text()
    other = filled(tmp_path / "other.sqlite", answers(6))
    with pytest.raises(DataError, match=r"answers\.jsonl contains 4 answers"):
        answer_file.save_answers(tmp_path, other)
    assert (tmp_path / answer_file.FILE).read_text() == text


def test_a_store_that_is_lost_is_made_again_from_the_file(tmp_path: Path) -> None:
    store = filled(tmp_path / STORE, answers())
    answer_file.save_answers(tmp_path, store)
    store.close()
    shutil.rmtree((tmp_path / STORE).parent)
    rebuilt = answer_file.open_store(tmp_path, tmp_path / STORE, print)
    assert set(rebuilt.every()) == set(answers())
    assert [annotator.name for annotator in rebuilt.annotators()] == list(ANNOTATORS)
    rebuilt.recruit(5)
    assert [annotator.name for annotator in rebuilt.annotators()][3:] == ["annotator-4", "annotator-5"]
    assert rebuilt.record(replace(answers()[2], revision=2)) and answer_file.save_answers(tmp_path, rebuilt) == 16
    assert len(list((tmp_path / STORE).parent.iterdir())) == 3, "the database and its log, no part"


def row(**changes: Any) -> dict[str, Any]:
    return json.loads(answer_file.format_answers(answers(1)[:1])) | changes


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (row(), "earlier line"),
        (row(ranking=[0, 1, 2]), "of 4 cand"),
        (row(shown=[0, 0, 1, 2]), "of 4 cand"),
        (row(verdict="skipped"), "verdict skipped"),
        (row(ranking=None), "verdict ranked"),
        (row(revision=0), "revision"),
        (row(seconds=-1), "seconds"),
        (row(token="x"), "token"),
        ({"a": 1}, "annotator"),
    ],
)
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: dict[str, Any], fault: str) -> None:
    file = tmp_path / answer_file.FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(row()) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=rf"answers\.jsonl:2: .*{fault}"):
        answer_file.read_answers(tmp_path)


@pytest.mark.slow
def test_the_page_saves_when_it_ends_or_after_a_kill_and_one_that_is_only_opened_changes_no_dependency(
    tmp_path: Path, repository: Path
) -> None:
    make_world(tmp_path)
    shutil.copy(repository / ".dvcignore", tmp_path / ".dvcignore")
    (tmp_path / answer_file.FILE.parent).mkdir()
    (tmp_path / answer_file.FILE.parent / "README.md").write_text("people")

    def session(count: int, ending: signal.Signals) -> None:
        server = Server(tmp_path).start()
        with httpx.Client(timeout=30) as client:
            for _ in range(count):
                view = client.get(f"{server.links[0]}/view").json()
                client.post(f"{server.links[0]}/answers", json=body_for(view, [0, 1, 2, 3])).raise_for_status()
        assert server.process is not None
        server.process.send_signal(ending)
        server.process.wait(DEADLINE_S)

    def digest() -> str | None:
        return Workspace(tmp_path).md5(answer_file.FILE.parent.as_posix())

    empty = digest()
    session(1, signal.SIGKILL)
    assert digest() == empty
    session(0, signal.SIGKILL)
    assert len(answer_file.read_answers(tmp_path)) == 1, "saved at the next start"
    session(2, signal.SIGTERM)
    assert len(answer_file.read_answers(tmp_path)) == 3 and (saved := digest()) != empty
    session(0, signal.SIGINT)
    assert digest() == saved
    shutil.copy(tmp_path / STORE, tmp_path / answer_file.FILE.with_suffix(".sqlite"))
    assert digest() == saved, "a database is no dependency wherever it lies"


@pytest.mark.slow
def test_the_commands_save_and_name_what_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faults_of_people() -> list[str]:
        problems = preflight.check_project(tmp_path, declared(tmp_path)).problems
        return [problem for problem in problems if problem.startswith("annotations.source people")]

    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["annotate", "save"])
    queue = open_study(tmp_path)
    view = queue.view(queue.annotators[0])
    assert view.instance is not None
    queue.answer(queue.annotators[0], view.instance, 1, "ranked", (0, 1, 2, 3), 1.0)
    cli.main(["annotate", "status"])
    assert "1 answers are not in data/people/answers.jsonl yet" in capsys.readouterr().out
    params = (tmp_path / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(params.replace("source: recogniser", "source: people", 1))
    assert len(faults_of_people()) == 1
    cli.main(["annotate", "save"])
    assert len(answer_file.read_answers(tmp_path)) == 1 and not faults_of_people()
    capsys.readouterr()
    cli.main(["annotate", "status"])
    assert "not in data/people" not in capsys.readouterr().out


def test_what_the_graph_reads_is_that_of_the_round_that_was_asked_about(tmp_path: Path) -> None:
    make_world(tmp_path)
    file = tmp_path / "params.yaml"
    tree = read_yaml(file)
    rounds = {"1": {"after": "data", "annotations": "people"}, "2": {"after": "data/rounds/1", "annotations": "judge"}}
    tree["rounds"]["items"] = rounds
    file.write_text(json.dumps(tree))
    with answer_file.open_store(tmp_path, tmp_path / STORE, print, create=True) as store:
        none, first, second = (annotate._saved(tmp_path, store, number) for number in (None, "1", "2"))
    assert first == f"0 answers in {answer_file.FILE}" and "'recogniser'" in none and "'judge'" in second


def test_git_keeps_the_answers_and_never_the_links(tmp_path: Path, repository: Path) -> None:
    """What is ignored goes with ``git clean -fdX``, what is not may be added by mistake."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "data").mkdir()
    for name in (".gitignore", "data/.gitignore"):
        shutil.copy(repository / name, tmp_path / name)
    places = [STORE, f"{STORE}-wal", str(answer_file.FILE.with_suffix(".sqlite")), str(answer_file.FILE)]
    command = ["git", "check-ignore", "--no-index", *places]
    ignored = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout.split()
    assert ignored == places[:3]
    text = (repository / "Makefile").read_text().partition("\nclean:")[2]
    assert "answers" not in text.replace("\t", " ").split() and "data" not in text.split()
