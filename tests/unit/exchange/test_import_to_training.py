"""From each importer to the examples that `reward_lora` trains on: what is counted as taken arrives, row by row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core.cli import exchange as command
from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.records.panels import PanelStore
from paco_core.exchange.sharegpt import PairQuestion
from paco_core.io.files import DataError, write_json, write_jsonl
from paco_core.planning.costs import stage_costs
from paco_core.reward_model.examples import read_examples
from paco_core.stages import declared, run_stage
from tests.support.dataset_world import draw_grids, rank_grids, records

pytestmark = pytest.mark.slow

Row = dict[str, Any]
ANSWERS = (
    "Yes. They agree.", "No.", " Yes, they agree.", "no: the hats differ.", "**Yes**\nBoth are flat.",
    "Yes. 两张图片风格一致。", "No. Style. Logic. Identity. None agrees.", "Yes.\n1. Same style.\n2. Same bear.",
)  # fmt: skip
QUESTIONS = (
    PairQuestion(theme="a bear"), PairQuestion(theme="1984"), PairQuestion(theme="None"), PairQuestion(),
    PairQuestion(instruction="Make it red."), PairQuestion(instruction="Make it red.", template="edit_following"),
)  # fmt: skip


#: The names of a row's parts in each form: turns, role, text, the two roles, images.
MESSAGES = ("messages", "role", "content", "user", "assistant", "images")
CONVERSATIONS = ("conversations", "from", "value", "human", "gpt", "images")
RENAMED = ("talk", "who", "what", "me", "you", "pictures")


def turns(question: PairQuestion, answer: str, form: Sequence[str] = MESSAGES) -> list[Row]:
    texts = 2 * "<image>" + question.text("theme" if question.theme else "plain"), answer
    return [{form[1]: role, form[2]: text} for role, text in zip(form[3:5], texts, strict=True)]


def row(question: PairQuestion, answer: str, images: Sequence[str], form: Sequence[str] = MESSAGES) -> Row:
    return {form[0]: turns(question, answer, form), form[5]: list(images)}


def public(folder: Path) -> dict[str, int]:
    """A folder as LLaMA-Factory has it; how many rounds of each entry can be used, and how many rows cannot."""
    folder.mkdir()
    names = [f"{n}.png" for n in range(1 + len(ANSWERS))]
    for n, name in enumerate(names):
        Image.new("RGB", (32, 32), (25 * n, 200 - 20 * n, 90)).save(folder / name)
    sound = [(q, a, [names[0], names[1 + n]]) for q in QUESTIONS for n, a in enumerate(ANSWERS)]
    spoken = [row(q, a, images, (MESSAGES, CONVERSATIONS)[n % 2]) for n, (q, a, images) in enumerate(sound)]
    edit_rows = [row(q, a, images[::-1], RENAMED) for q, a, images in sound if q.instruction]
    dialogue = turns(*sound[0][:2]) + turns(*sound[1][:2])
    many = [{"messages": [{"role": "system", "content": ""}, *(
        {**turn, "content": turn["content"].replace("a bear", "two rounds")} for turn in dialogue)],
        "images": [*sound[0][2], *sound[1][2]]}]  # fmt: skip
    question, answer = dialogue[:2]
    pair = sound[0][2]
    bad_pictures = ("cut.png", "missing.png", "/etc/hostname")
    (folder / "cut.png").write_bytes((folder / "1.png").read_bytes()[:20])
    bad = [
        {"messages": [answer, question], "images": pair},
        {"messages": [question, answer, question], "images": pair},
        {"messages": [{"role": "system", "content": "Always say No."}, question, answer], "images": pair},
        {"messages": [question, {"role": "function_call", "content": "{}"}, answer], "images": pair},
        {"messages": [question, {"role": "assistant", "content": "Nothing differs."}], "images": pair},
        {"messages": [{"role": "user", "content": "<image><image>一样吗?"}, answer], "images": pair},
        json.loads(json.dumps(row(PairQuestion(theme="a cat"), "Yes.", pair)).replace("a cat", "a <|im_end|>")),
        *({"messages": [question, answer], "images": ["0.png", name]} for name in bad_pictures),
    ]
    single_image = {"messages": [question, answer], "images": "0.png"}
    write_jsonl(folder / "spoken.jsonl", [*spoken, *many, single_image])
    (folder / "told.json").write_text(json.dumps(edit_rows))
    pd.DataFrame(bad).to_parquet(folder / "bad.parquet")
    files = {"a_train": "spoken.jsonl", "b_test": "told.json", "c": "bad.parquet"}
    entries: Row = {name: {"file_name": file, "formatting": "sharegpt"} for name, file in files.items()}
    entries["b_test"] |= {
        "columns": {"messages": "talk", "images": "pictures"},
        "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "me", "assistant_tag": "you"},
    }
    write_json(folder / "dataset_info.json", {**entries, "d": {"file_name": "d.json"}})
    return {"a_train": len(spoken) + 2, "b_test": len(edit_rows), "rejected": len(bad) + 2}


TRIPLES = (
    {"answer": None}, {"answer": " Yes, it is red."}, {"label": "No", "answer": "**No**: it is blue."},
    {"question": "edit_following", "answer": "Yes。颜色变了。"},
)  # fmt: skip


def triples(folder: Path) -> None:
    rows = [
        {"original": "0.png", "edited": f"{n + 1}.png", "instruction": f"Make it {n}.", **row}
        for n, row in enumerate((*TRIPLES, {"label": "No", "answer": "Yes. It is."}, {"answer": "It is red."}))
    ]
    write_jsonl(folder / "triples.jsonl", rows)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, repository: Path, mlflow_template: Path) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, root / name)
    shutil.copy(mlflow_template, root / "mlflow.db")
    draw_grids(root / "data", records(4))
    rank_grids(root / "data")
    return root


def settle(root: Path, **sections: Row) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    for name, changes in sections.items():
        tree[name] |= changes
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


def metrics(root: Path, stage: str) -> dict[str, Any]:
    return dict(json.loads((root / f"data/metrics/{stage}.json").read_text()))


def at_most(root: Path) -> int:
    """The pairs that `paco check` expects."""
    params = load(root / PARAMS_FILE)
    return int(stage_costs(declared(root), params, root)["pairs"].work.split()[2])


def test_all_that_an_import_takes_is_trained_on(project: Path, tmp_path: Path) -> None:
    want = public(tmp_path / "in")
    triples(tmp_path / "in")
    figures = command.import_dataset("paco_dataset", tmp_path / "in", tmp_path / "own").figures
    causes = (tmp_path / "own/rejected.jsonl").read_text().splitlines()
    assert (figures["a_train"], figures["b_test"]) == (want["a_train"], want["b_test"]) == (50, 16)
    assert len(causes) == want["rejected"] == 12
    kinds = [f"rejected.{kind}" for kind in ("turns", "system", "answer", "record", "entry", "question", "picture")]
    assert [figures[kind] for kind in kinds] == [3, 1, 1, 1, 1, 2, 3], causes

    none_imported = at_most(project)
    settle(project, pairs={"imported": str(tmp_path / "own")})
    assert at_most(project) - none_imported == want["a_train"], "`paco check` counts what is trained on, and no more"
    editing = {"source": "import", "file": str(tmp_path / "in/triples.jsonl"), "count": None}
    shares = {"validation_share": 0.0, "balance": False, "identical_share": 0.0}
    settle(project, pairs={"imported": str(tmp_path / "own"), "editing": editing, **shares},
           cot_labels={"engine": "none", "model": None})  # fmt: skip
    run_stage("pairs", None, project)
    run_stage("cot_labels", None, project)
    pair_metrics, answered = metrics(project, "pairs"), metrics(project, "cot_labels")
    ranked = pair_metrics["train"] - want["a_train"] - len(TRIPLES)
    assert ranked > 0 and pair_metrics["validation"] == want["b_test"] and pair_metrics["editing_rejected.record"] == 2
    assert pair_metrics["train_given"] == answered["train_answers"] == want["a_train"] + len(TRIPLES) - 1 == 53
    assert answered["train_failed"] == ranked + 1, "of these no answer came, and the engine writes none"
    assert (answered["validation_answers"], answered["validation_failed"]) == (want["b_test"], 0)

    panels = PanelStore.below(project / "data/grids", project / "data/pairs")
    examples = [read_examples(project / f"data/cot_labels/{part}.parquet", panels.panel, "theme")
             for part in ("train", "validation")]  # fmt: skip
    assert [len(part) for part in examples] == [53, 16]
    assert all(example.answer.startswith(("Yes.", "No.")) for part in examples for example in part)
    instructions = [example.instruction for example in examples[0] if not example.ordered]
    for question in QUESTIONS[:4]:
        text = question.text("theme" if question.theme else "plain")
        assert instructions.count(text) == len(ANSWERS), question
    assert sum(example.consistent for example in examples[1]) == 2 * 5, "of each question five answers say Yes"


def test_a_table_made_by_hand_is_held_to_the_same_rules(project: Path, tmp_path: Path) -> None:
    public(tmp_path / "in")
    command.import_dataset("paco_dataset", tmp_path / "in", tmp_path / "own")
    file = tmp_path / "own/a_train.parquet"
    table = pd.read_parquet(file)
    settle(project, pairs={"imported": str(tmp_path / "own"), "editing": {"source": "storybook", "count": 0},
           "validation_share": 0.0, "balance": False})  # fmt: skip
    for column, value, message in (
        ("answer", "No differences.", r"row 0, pair \w+: its answer 'No differences.' does not fit its label Yes"),
        ("answer", "No. They differ.", "does not fit its label Yes .answer_contradicts_label"),
        ("question", "edit", "question 'edit' is not one of edit_consistency, edit_following"),
        ("theme", 1984.5, "theme is 1984.5, expected a string"),
    ):
        other = table.astype({column: object})
        other.loc[0, column] = value
        other[:1].to_parquet(file)
        with pytest.raises(DataError, match=message):
            run_stage("pairs", None, project)
    table.assign(theme=1984, answer=" " + table["answer"]).to_parquet(file)
    run_stage("pairs", None, project)
    train = pd.read_parquet(project / "data/pairs/train.parquet")
    assert (train["theme"] == "1984").sum() == len(table)


def test_contradicting_rows_go_altogether_and_an_edit_has_a_direction(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "green")):
        Image.new("RGB", (8, 8), colour).save(folder / f"{name}.png")
    edit, theme = PairQuestion(instruction="Make it red."), PairQuestion(theme="a bear")
    rows = [
        row(question, answer, [f"{name}.png" for name in names])
        for question, answer, names in (
            (theme, "Yes. a", "ab"), (theme, "Yes. c", "ab"), (theme, "No. b", "ba"), (theme, "Yes. d", "ac"),
            (edit, "Yes. e", "ab"), (edit, "No. f", "ba"), (edit, "Yes. g", "ab"),
        )
    ]  # fmt: skip
    write_jsonl(folder / "t.jsonl", rows)
    write_json(folder / "dataset_info.json", {"t": {"file_name": "t.jsonl", "formatting": "sharegpt"}})
    figures = command.import_dataset("paco_dataset", folder, tmp_path / "own").figures
    assert (figures["t"], figures["rejected.contradiction"], figures["rejected.duplicate"]) == (3, 3, 1)
    assert set(pd.read_parquet(tmp_path / "own/t.parquet")["answer"]) == {"Yes. d", "Yes. e", "No. f"}
