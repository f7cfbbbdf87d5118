"""Ids and paths out of data files: what may become a name of a file, and what is refused where it is read."""

from __future__ import annotations

import string
from pathlib import Path, PureWindowsPath
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from paco_core.cli import exchange as command
from paco_core.data.pairs.imported_pairs import imported_pairs
from paco_core.data.pairs.pairs import COLUMNS
from paco_core.data.records.edit_records import FILE as EDITS
from paco_core.data.records.edit_records import read_edit_prompts
from paco_core.data.records.records import parse_ref, read_prompts
from paco_core.io.files import MAX_NAME, DataError, UniqueIds, checked_name, inside, write_json, write_jsonl
from paco_core.io.shards import encode_png, write_shard
from tests.support.dataset_world import records

ALLOWED = string.ascii_letters + string.digits + "_-."
BAD = ["../up", "a/b", "a\\b", ".hidden", "-rf", "", "a b", "a.", "nul", "COM1.txt", "a\0b", "²", "x" * (MAX_NAME + 1),
       "..", "~", "a:b"]  # fmt: skip


@given(st.text(max_size=MAX_NAME + 9) | st.text(ALLOWED, max_size=MAX_NAME + 9) | st.sampled_from(["con", "Aux.x"]))
def test_an_id_is_one_plain_part_of_a_path_on_every_system(name: str) -> None:
    try:
        checked_name(name)
    except DataError:
        assert not (name.isascii() and name.isalnum() and len(name) <= MAX_NAME) or PureWindowsPath(name).is_reserved()
        return
    assert len(name.encode()) <= MAX_NAME and set(name) <= set(ALLOWED) and name[0] not in ".-" and name[-1] != "."
    for path in (Path("/data") / name, PureWindowsPath("C:/data") / name):
        assert path.parent == type(path)(path.anchor) / "data" and path.name == name
    assert not PureWindowsPath(name).is_reserved()


def test_what_cannot_name_a_file_or_is_another_id_on_a_disk_that_ignores_case_is_refused() -> None:
    for name in BAD:
        with pytest.raises(DataError):
            checked_name(name)
    assert checked_name("x" * MAX_NAME)
    names = UniqueIds()
    for line, name in enumerate(("cat-1", "cat-2"), start=1):
        names.add(name, line)
    for name, earlier in (("cat-1", "line 1"), ("CAT-2", "line 2 as cat-2")):
        with pytest.raises(DataError, match=f"{name} .*{earlier}"):
            names.add(name, 3)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file, and links that stay in it and that lead out of it."""
    root = tmp_path_factory.mktemp("places")
    (root / "secret.png").write_bytes(b"secret")
    folder = root / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/a.png").write_bytes(b"a")
    (folder / "same.png").symlink_to(folder / "deep/a.png")
    (folder / "out.png").symlink_to(root / "secret.png")
    (folder / "up").symlink_to(root)
    (folder / "round").symlink_to(folder / "round")
    return folder


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "/etc/passwd", "out.png", "up/secret.png", "round", "a\0b", "x" * 300, "a/" * 3000, "\ud800", "",
     None, 3],
)  # fmt: skip
def test_a_path_that_leads_out_of_its_folder_is_refused(places: Path, name: object) -> None:
    with pytest.raises(DataError):
        inside(places, name)
    assert inside(places, "deep/a.png").read_bytes() == inside(places, "same.png").read_bytes() == b"a"
    assert not inside(places, "deep/none.png").exists() and not inside(places, "deep/a.png/x").exists()


PARTS = st.sampled_from(["..", ".", "", "deep", "up", "out.png", "same.png", "a.png", "/", "round", "\0", "é", "~"])


@given(st.lists(PARTS | st.text(max_size=5), max_size=6).map("/".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_reaches_what_lies_outside(places: Path, name: str) -> None:
    try:
        path = inside(places, name)
    except DataError:
        return
    assert path.resolve().is_relative_to(places.resolve())


# --- each reader at the border ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"idx": "../../../outside"}, "idx"), ({"idx": "FIRST"}, "idx FIRST .* line 1 as first"), ({"idx": []}, "idx"),
        ({"layout": "9999x9999"}, "layout"), ({"layout": "٣x٣"}, "layout"), ({"height": 10**9}, "height"),
    ],
)  # fmt: skip
def test_a_prompt_that_can_be_no_file_or_picture_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    first, second = (record.model_dump() for record in records(2))
    write_jsonl(tmp_path / "prompts.jsonl", [first | {"idx": "first"}, second | change])
    with pytest.raises(DataError, match=rf"prompts\.jsonl:2: {key}"):
        read_prompts(tmp_path / "prompts.jsonl")
    edit = second | {"layout": "1x1", "reference": "r", "part": "train"} | change
    write_jsonl(tmp_path / EDITS, [edit | {"idx": "first"}, edit])
    with pytest.raises(DataError, match=rf"edits\.jsonl:[12]: {key}"):
        read_edit_prompts(tmp_path)


@pytest.mark.parametrize("text", ['{"idx": ' + "9" * 5000 + "}", '{"idx": ' + "[" * 100_000 + "}", "{}"])
def test_a_line_that_json_or_a_record_cannot_be_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(text + "\n")
    with pytest.raises(DataError, match=r"prompts\.jsonl:1: "):
        read_prompts(tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("ref", ["g#²", "g#" + "9" * 5000, "g#-1", "#"])
def test_a_panel_number_is_a_number(ref: str) -> None:
    with pytest.raises(DataError):
        parse_ref(ref)


@pytest.mark.parametrize(
    ("names", "file", "part"),
    [
        (["paco_a-b", "paco_a_b"], "rows.json", "a_b.parquet"),
        (["paco_benchmark"], "rows.json", "rankings"),
        (["paco_"], "rows.json", "''"),
        (["paco_train"], "../rows.json", "../rows.json"),
        (["paco_train"], 3, "3"),
    ],
)
def test_a_registered_file_that_would_be_lost_or_lie_elsewhere_is_refused(
    tmp_path: Path, names: list[str], file: object, part: str
) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "in/rows.json", tmp_path / "rows.json"):
        path.write_text("[]")
    write_json(tmp_path / "in/dataset_info.json", {n: {"file_name": file, "formatting": "sharegpt"} for n in names})
    with pytest.raises(DataError, match=f"dataset_info.json: .*{names[-1]}: .*{part}"):
        command.import_dataset("paco_dataset", tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def pairs_folder(root: Path, **changes: Any) -> Path:
    row = dict.fromkeys(COLUMNS) | {"pair_id": "a", "prompt_id": "p", "first": "x#0", "second": "y#0", "label": "Yes"}
    (root / "pictures").mkdir(parents=True)
    pictures = {name: encode_png(Image.new("RGB", (8, 8), colour)) for name, colour in (("x", "red"), ("y", "blue"))}
    shared = {"prompt_id": "p", "seed": 0, "layout": "1x1", "md5": "0"}
    write_shard(root / "pictures", [{"id": name, **shared} for name in pictures], pictures)
    pd.DataFrame([row, {**row, "pair_id": "b", **changes}]).to_parquet(root / "train.parquet")
    return root


@pytest.mark.parametrize(
    "changes",
    [{"pair_id": "../b"}, {"pair_id": "A"}, {"prompt_id": "a/b"}, {"first": "z#0"}, {"second": None}, {"label": "No?"}],
)
def test_an_imported_pair_that_cannot_be_one_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"train\.parquet: row 1, pair {changes.get('pair_id', 'b')}: "):
        imported_pairs(pairs_folder(tmp_path / "in", **changes))


def test_of_imported_pictures_the_shard_alone_is_taken(tmp_path: Path) -> None:
    folder = pairs_folder(tmp_path / "in")
    (tmp_path / "secret").write_text("secret")
    (folder / "pictures/more").symlink_to(tmp_path / "secret")
    imported_pairs(folder).write(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").rglob("*")}
    assert {"images.tar", "index.parquet"} <= names and "more" not in names
