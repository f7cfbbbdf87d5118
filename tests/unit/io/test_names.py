"""Ids and paths out of data files: what may become a name of a file, and what is refused where it is read."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from paco_core.benchmarks.public_files import read_edit_bench
from paco_core.cli import exchange as command
from paco_core.config.params_edits import EditingParams
from paco_core.data.pairs.editing import editing_pairs
from paco_core.data.pairs.imported_pairs import imported_pairs
from paco_core.data.pairs.pairs import COLUMNS
from paco_core.data.prompts.edit_prompts import read_rows
from paco_core.data.records.edit_records import FILE as EDITS
from paco_core.data.records.edit_records import read_edit_prompts
from paco_core.data.records.records import parse_ref, read_prompts, write_prompts
from paco_core.exchange import rank_bench
from paco_core.io.files import MAX_NAME, DataError, UniqueIds, checked_name, inside, write_json, write_jsonl
from paco_core.io.shards import encode_png, write_shard
from paco_core.painting.paint import save_samples
from paco_core.painting.painted import Painted
from tests.support.dataset_world import records

ALLOWED = string.ascii_letters + string.digits + "_-."
BAD = ["../up", "a/b", "/etc/passwd", "a\\b", ".hidden", "-rf", "", " ", "a b", "a.", "nul", "COM1.txt", "a\0b",
       "a\nb", "é", "²", "x" * (MAX_NAME + 1), "..", ".", "~", "a:b", "$HOME", "a\u202eb"]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_name_a_file_is_no_id(name: str) -> None:
    with pytest.raises(DataError, match="cannot be an id"):
        checked_name(name)


@given(st.text(max_size=MAX_NAME + 9) | st.text(ALLOWED, max_size=MAX_NAME + 9) | st.sampled_from(["con", "Aux.x"]))
def test_an_id_is_one_plain_part_of_a_path_on_every_system(name: str) -> None:
    try:
        checked_name(name)
    except DataError:
        return
    assert len(name.encode()) <= MAX_NAME and set(name) <= set(ALLOWED) and name[0] not in ".-" and name[-1] != "."
    for path in (Path("/data") / name, PureWindowsPath("C:/data") / name):
        assert path.parent == type(path)(path.anchor) / "data" and path.name == name
    assert not PureWindowsPath(name).is_reserved()


@pytest.mark.slow
@given(st.text(string.ascii_letters + string.digits, min_size=1, max_size=32).filter(lambda n: n.isdigit()))
def test_numbers_and_digests_are_ids(name: str) -> None:
    assert checked_name(name) == name and checked_name(f"theme-{name}_0.{name}") == f"theme-{name}_0.{name}"


def test_ids_that_differ_in_case_only_are_one_file_on_many_disks() -> None:
    names = UniqueIds()
    names.add("cat-1", 1)
    names.add("cat-2", 2)
    with pytest.raises(DataError, match="^cat-1 is already on line 1$"):
        names.add("cat-1", 3)
    with pytest.raises(DataError, match="CAT-2 is already on line 2 as cat-2"):
        names.add("CAT-2", 4)


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
    ["../secret.png", "deep/../../secret.png", "/etc/passwd", "out.png", "up/secret.png", "round", "a\0b", "x" * 300,
     "a/" * 3000, "\ud800", "", None, 3, ["a.png"]],
)  # fmt: skip
def test_a_path_that_leads_out_of_its_folder_is_refused(places: Path, name: object) -> None:
    with pytest.raises(DataError, match="leads out of|not a usable path|not a file name"):
        inside(places, name)


def test_a_path_below_its_folder_is_found_and_one_that_is_missing_is_the_callers_matter(places: Path) -> None:
    assert inside(places, "deep/a.png").read_bytes() == inside(places, "same.png").read_bytes() == b"a"
    assert not inside(places, "deep/none.png").exists() and not inside(places, "deep/a.png/x").exists()


PARTS = st.sampled_from(["..", ".", "", "deep", "up", "out.png", "same.png", "a.png", "/", "round", "\0", "é", "~"])


@given(st.lists(PARTS | st.text(max_size=5), max_size=6).map("/".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_reaches_what_lies_outside(places: Path, name: str) -> None:
    try:
        found = inside(places, name)
    except DataError:
        return
    assert found.resolve().is_relative_to(places.resolve())


# --- each reader at the border ---------------------------------------------------------------------------


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [record.model_dump() for record in records(2)]


@pytest.mark.parametrize("idx", ["../../../outside", "/tmp/x", ".x", "a/b"])
def test_prompts_and_editing_prompts_with_such_an_id_are_refused_with_their_line(
    tmp_path: Path, rows: list[dict[str, Any]], idx: str
) -> None:
    write_jsonl(tmp_path / "prompts.jsonl", [rows[0], {**rows[1], "idx": idx}])
    with pytest.raises(DataError, match=r"prompts\.jsonl:2: idx: .*cannot be an id"):
        read_prompts(tmp_path / "prompts.jsonl")
    edit = {**rows[1], "layout": "1x1", "idx": idx, "reference": "r", "part": "train"}
    write_jsonl(tmp_path / EDITS, [edit])
    with pytest.raises(DataError, match=r"edits\.jsonl:1: idx: .*cannot be an id"):
        read_edit_prompts(tmp_path)


def test_prompts_that_differ_in_case_only_are_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    write_jsonl(tmp_path / "prompts.jsonl", [{**rows[0], "idx": "cat"}, {**rows[1], "idx": "Cat"}])
    with pytest.raises(DataError, match=r"prompts\.jsonl:2: idx Cat is already on line 1 as cat"):
        read_prompts(tmp_path / "prompts.jsonl")


@pytest.mark.parametrize(
    "change", [{"layout": "9999x9999"}, {"layout": "٣x٣"}, {"height": 10**9}, {"width": 10**30}, {"layout": "0x2"}]
)
def test_a_size_that_no_picture_has_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], change: dict[str, Any]
) -> None:
    write_jsonl(tmp_path / "prompts.jsonl", [{**rows[0], **change}])
    with pytest.raises(DataError, match=rf"prompts\.jsonl:1: {next(iter(change))}"):
        read_prompts(tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("ref", ["g#²", "g#٣", "g#" + "9" * 5000, "g#-1", "g#", "#"])
def test_a_panel_number_is_a_number(ref: str) -> None:
    with pytest.raises(DataError, match="not a panel reference"):
        parse_ref(ref)


def test_an_edit_row_reads_no_picture_elsewhere_and_gives_no_path_as_id(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for path in (tmp_path / "secret.png", folder / "a.png"):
        Image.new("RGB", (16, 16)).save(path)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    base = {"instruction": "Make it red."}
    pictures = ["a.png", "../secret.png", str(tmp_path / "secret.png"), "link.png"]
    given = [{**base, "key": f"k{n}", "input_image": name} for n, name in enumerate(pictures)]
    given += [{**base, "key": "../k", "input_image": "a.png"}, {**base, "key": "K0", "input_image": "a.png"}]
    write_jsonl(folder / "rows.jsonl", given)
    found = read_rows(folder / "rows.jsonl")
    assert [record.idx for record in found.records] == ["k0"]
    causes = [cause for _, cause in found.rejected]
    assert found.rejected.figures() == {"rejected.picture": 3, "rejected.record": 1, "rejected.duplicate": 1}
    assert all("leads out" in cause for cause in causes[:3])
    triple = {"original": "a.png", "edited": "a.png", "instruction": "Make it red."}
    write_jsonl(folder / "triples.jsonl", [triple, *({**triple, "edited": name} for name in pictures[1:])])
    pairs = editing_pairs(EditingParams(source="import", count=None, file="triples.jsonl"), folder)
    assert len(pairs.pairs) == 1 and [cause.split(":")[0] for _, cause in pairs.rejected] == ["picture"] * 3


def test_a_benchmarks_prompt_that_is_a_path_is_counted_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "images/p").mkdir(parents=True)
    for name in ("0_0", "0_1", "1_1"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"images/p/{name}.png")
    names = {"ref_image": "0_0.png", "comp_images": ["0_1.png", "1_1.png"], "rank_images": ["1_1.png", "0_1.png"]}
    prompt = {"prompt": "a cat", "theme": "cats"}
    ids = ["p", "../images/p", "P", ["p"], None]
    write_jsonl(tmp_path / rank_bench.PROMPTS, [{**prompt, "idx": idx} for idx in ids])
    write_jsonl(tmp_path / rank_bench.RANKS, [{**names, "folder": folder} for folder in ids])
    found = rank_bench.read(tmp_path)
    assert list(found.prompts) == ["p"] and len(found.table) == 1
    told = [place.rpartition("/")[2] for place, _ in found.rejected]
    assert told == [f"{file}:{line}" for file in (rank_bench.PROMPTS, rank_bench.RANKS) for line in (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("names", "file", "said"),
    [
        (["paco_a-b", "paco_a_b"], "rows.json", "paco_a_b: its pairs and paco_a-b would be in one file, a_b.parquet"),
        (["paco_benchmark"], "rows.json", "paco_benchmark: its pairs and the rankings of an import would be in one"),
        (["paco_"], "rows.json", "paco_: '' cannot be an id"),
        (["paco_" + "x" * 300], "rows.json", "cannot be an id"),
        (["paco_train"], "../rows.json", "paco_train: '../rows.json' leads out of"),
        (["paco_train"], 3, "paco_train: 3 is not a file name"),
    ],
)
def test_a_registered_file_that_would_be_lost_or_lie_elsewhere_is_refused(
    tmp_path: Path, names: list[str], file: object, said: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rows.json").write_text("[]")
    write_json(folder / "dataset_info.json", {n: {"file_name": file, "formatting": "sharegpt"} for n in names})
    with pytest.raises(DataError, match=f"dataset_info.json: .*{said}"):
        command.bring("paco_dataset", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def pairs_folder(root: Path, **changes: Any) -> Path:
    row = dict.fromkeys(COLUMNS) | {"pair_id": "a", "prompt_id": "p", "first": "x#0", "second": "y#0", "label": "Yes"}
    (root / "pictures").mkdir(parents=True)
    pictures = {name: encode_png(Image.new("RGB", (8, 8), colour)) for name, colour in (("x", "red"), ("y", "blue"))}
    own = {"prompt_id": "p", "seed": 0, "layout": "1x1", "md5": "0"}
    write_shard(root / "pictures", [{"id": name, **own} for name in pictures], pictures)
    pd.DataFrame([row, {**row, "pair_id": "b", **changes}]).to_parquet(root / "train.parquet")
    return root


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pair_id": "../b"}, "'../b' cannot be an id"),
        ({"pair_id": None}, "None cannot be an id"),
        ({"pair_id": "A"}, "its pair_id already occurs"),
        ({"prompt_id": "a/b"}, "'a/b' cannot be an id"),
        ({"first": "z#0"}, "its first picture z#0 is not in pictures/index.parquet"),
        ({"second": None}, "not a panel reference"),
        ({"label": "Maybe"}, "label 'Maybe' is neither Yes nor No"),
    ],
)
def test_an_imported_pair_that_cannot_be_one_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"train\.parquet: row 1, pair .*{said}.* import it again"):
        imported_pairs(pairs_folder(tmp_path / "in", **changes))


def test_of_imported_pictures_the_shard_alone_is_taken(tmp_path: Path) -> None:
    folder = pairs_folder(tmp_path / "in")
    (tmp_path / "secret").write_text("secret")
    (folder / "pictures/more").symlink_to(tmp_path / "secret")
    imported_pairs(folder).write(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.*")) == ["images.tar", "index.parquet"]
    assert not list((tmp_path / "out").rglob("more"))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": None}, {"instruction": None}, {"output_images": None}, {"input_image": None},
        {"input_image": {"bytes": None, "path": ".."}}, {"input_image": {"bytes": None, "path": "link.png"}},
    ],
)  # fmt: skip
def test_a_row_of_the_editing_benchmark_that_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    def stored() -> dict[str, Any]:
        return {"bytes": encode_png(Image.new("RGB", (8, 8))), "path": None}

    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    row = {"key": ["a", "b"], "instruction": "Make it red.", "input_image": stored(), "task_type": "t",
           "output_images": [stored(), stored()], "dimension": "overall"}  # fmt: skip
    pd.DataFrame([row, {**row, **changes}]).to_parquet(folder / "rows.parquet")
    cases, rejected = read_edit_bench(folder)
    ((place, _),) = rejected
    assert len(cases) == 1 and place.endswith("rows.parquet: row 1")


def test_samples_are_kept_below_their_folder(tmp_path: Path) -> None:
    """What an id may be at most still makes one file, right where it belongs."""
    record = records(1)[0].model_copy(update={"idx": "x" * MAX_NAME})
    image = Image.new("RGB", (8, 8))
    painted = [Painted("policy", 8, when, record, 7, image) for when in ("before", "after")]
    save_samples(tmp_path, painted, pd.DataFrame({"gold": [0.0, 1.0]}), 1, lambda _record: [image])
    (reference,) = (tmp_path / "reference").iterdir()
    assert len(list((tmp_path / "policy/8").iterdir())) == 2 and reference.stem == record.idx


def test_ids_of_the_embedded_world_can_be_read_again(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", records(8))
    assert read_prompts(tmp_path / "prompts.jsonl") == records(8)


@pytest.mark.parametrize(
    "text", ['{"idx": ' + "9" * 5000 + "}", '{"idx": ' + "[" * 100_000 + "}", '{"idx": "\\ud800"}', "{}", '{"idx": []}']
)
@pytest.mark.parametrize("read", [read_prompts, lambda path: read_edit_prompts(path.parent)])
def test_a_line_that_json_or_a_record_cannot_be_is_one_clear_error(
    tmp_path: Path, read: Callable[[Path], object], text: str
) -> None:
    for name in ("prompts.jsonl", EDITS):
        (tmp_path / name).write_text(text + "\n")
    with pytest.raises(DataError, match=r"(prompts|edits)\.jsonl:1: "):
        read(tmp_path / "prompts.jsonl")
