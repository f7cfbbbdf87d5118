from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dvc_project.lockfile import Lock
from paco_core.config.params import ParamsError, load, parse
from paco_core.io import files
from paco_core.io.files import DataError
from paco_core.runtime.code.inputs import present_inputs


def test_a_cut_off_line_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        list(files.read_jsonl(path))


def table(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"id": [f"i{n}" for n in range(40)], "number": range(40)}).to_parquet(path, index=False)
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_table_says_which_file_and_what_makes_it_anew(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    table_path, other = table(tmp_path / "data/grids/shard-0/index.parquet"), table(tmp_path / "other.parquet")
    assert (
        list(files.read_table(table_path, ["number"])) == ["number"]
        and len(files.read_table(table_path, require=("id",))) == 40
    )
    assert len(files.read_table(table_path, require=("id",)).columns) == 2
    for options in ({"require": ("id", "candidates")}, {"columns": ["id", "candidates"]}):
        with pytest.raises(DataError, match=r"column 'candidates' .*dvc repro grids"):
            files.read_table(table_path, **options)  # type: ignore[arg-type]
    for path, remedy in ((table_path, "dvc repro grids"), (other, "replace it")):
        damage(path)
        with pytest.raises(DataError, match=rf"{path.name}: .*{remedy}"):
            files.read_table(path)
    with pytest.raises(DataError, match="fetch it again"):
        files.read_table(other, remedy="fetch it again")


def test_every_byte_of_a_table_may_be_wrong(tmp_path: Path) -> None:
    """pyarrow answers damage with a dozen types of error; each becomes one that names the file."""
    path = table(tmp_path / "data/rankings/instances.parquet")
    data = path.read_bytes()
    for place in range(4, len(data), 29):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            files.read_table(path)
        except DataError as error:
            assert "instances.parquet" in str(error) and "dvc repro rankings" in str(error)


def test_the_digest_ignores_key_order(tmp_path: Path) -> None:
    assert files.digest({"a": 1, "b": 2}) == files.digest({"b": 2, "a": 1}) != files.digest({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_the_folder_digest_sees_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = files.folder_digest(folder)
    (folder / "a").write_text("2")
    second = files.folder_digest(folder)
    (folder / "a").rename(folder / "b")
    assert len({first, second, files.folder_digest(folder)}) == 3
    with pytest.raises(DataError, match="empty"):
        files.folder_digest(tmp_path / "none")


def test_yaml_is_read_as_dvc_reads_it(tmp_path: Path) -> None:
    """YAML 1.2, and a key that stands there twice is no silent winner."""
    tree = files.parse_yaml("a: 1e-05\nb: yes\nc: 012\nd: [on, ~]")
    assert tree == {"a": 1e-5, "b": "yes", "c": 12, "d": ["on", None]}
    (tmp_path / "twice.yaml").write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(DataError, match=r'twice\.yaml: .*line 3: .*"a"'):
        files.read_yaml(tmp_path / "twice.yaml")
    for text in ("a: [1\nb: 2", "a: \0", "- 1\n"):
        (tmp_path / "broken.yaml").write_text(text)
        with pytest.raises(DataError, match=r"broken\.yaml: "):
            files.read_yaml(tmp_path / "broken.yaml")


def test_the_metadata_of_weights_is_sorted_and_the_tensors_stay(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    notes = {f"note {n}": "é" * n for n in range(8)}  # eight keys: written sorted once in 40,320 times
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2)}
    files_ = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for path in files_:
        save_file(tensors, path, metadata=dict(sorted(notes.items(), reverse=path is files_[0])))
        files.settle_safetensors(path)
    assert files_[0].read_bytes() == files_[1].read_bytes()
    with safe_open(files_[0], "pt") as weights:
        assert weights.metadata() == notes
    assert all(torch.equal(load_file(files_[0])[name], tensors[name]) for name in tensors)
    save_file(tensors, files_[1])  # without notes
    before = files_[1].read_bytes()
    files.settle_safetensors(files_[1])
    assert files_[1].read_bytes() == before


def bomb(line: str) -> str:
    """Nine aliases a line to what the line before holds: a billion values in ten lines."""
    first, *later_names = "abcdefghij"
    lines = [f"{first}: &{first} {line}"]
    lines += [f"{name}: &{name} " + line.format(*[f"*{chr(ord(name) - 1)}"] * 9) for name in later_names]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (bomb("[{}, {}, {}, {}, {}, {}, {}, {}, {}]").replace("{}", "1"), "line 5"),
        ("a0: &a0 {x: 1}\n" + "\n".join(
            f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)
        ), "line 5"),
        ("a: &a [1, *a]", "line 1"),
        ("a: " + "[" * 100_000, "line 1"),
        ("\n".join(" " * n + "a:" for n in range(1500)), "line 101"),
        ("a: " + "9" * 5000, "5000 digits"),
        ("a: 2024-13-45", "month"),
    ],
)  # fmt: skip
def test_yaml_that_cannot_be_built_is_refused_before_it_is(tmp_path: Path, text: str, place: str) -> None:
    """Each of these took minutes, or the process with it, or came as an error without the file's name."""
    (tmp_path / "params.yaml").write_text(text)
    for read, error in ((files.read_yaml, DataError), (load, ParamsError)):
        with pytest.raises(error, match=rf"params\.yaml: .*{place}"):
            read(tmp_path / "params.yaml")


def test_aliases_as_people_use_them_are_read() -> None:
    tree = files.parse_yaml("base: &b {x: [1, 2], y: &y 3}\nown: {<<: *b, y: *y}\nsame: *b\n")
    assert tree == {"base": {"x": [1, 2], "y": 3}, "own": {"x": [1, 2], "y": 3}, "same": {"x": [1, 2], "y": 3}}
    with pytest.raises(ParamsError, match="params.yaml: keys must be str"):
        parse(files.parse_yaml("? [a, b]\n: 1"))


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "\xff"])
def test_json_that_cannot_be_read_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    for read, place in ((files.read_json, ""), (lambda path: list(files.read_jsonl(path)), ":1")):
        with pytest.raises(DataError, match=rf"a\.json{place}: "):
            read(tmp_path / "a.json")
        with pytest.raises(DataError, match="a folder"):
            read(tmp_path)


@pytest.mark.parametrize(
    "text", ["stages: [1]", "stages: {a: {outs: 3}}", "stages: {a: {outs: [{md5: x}]}}",
             "stages: {a: {params: {params.yaml: [1]}}}"]
)  # fmt: skip
def test_a_lock_or_graph_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\n{text}")
    with pytest.raises(DataError, match=r"dvc\.lock: "):
        Lock.read(tmp_path)
    for graph, place in (("stages: [1]", "stages"), ("stages: {a: {cmd: x, deps: 3}}", r"stages\.a\.deps")):
        (tmp_path / "dvc.yaml").write_text(graph)
        with pytest.raises(DataError, match=rf"dvc\.yaml: {place}"):
            present_inputs(tmp_path, "a")
