from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from safetensors import SafetensorError

from paco_core import files
from paco_core.files import DataError
from paco_core.lock import Lock


def test_an_interrupted_writer_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    files.write_json(target, {"a": 1})
    with pytest.raises(KeyboardInterrupt), files.atomic(target) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert files.read_json(target) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_what_a_killed_writer_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".out.part").mkdir()
    (tmp_path / ".out.part" / "stale").write_text("stale")
    with files.atomic(tmp_path / "out") as part:
        part.mkdir()
        (part / "fresh").write_text("fresh")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["fresh"]


@pytest.mark.parametrize(
    "told",
    [
        OSError(errno.ENOSPC, "Error writing bytes to file"),  # pyarrow, without a file name
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_error_that_names_the_out(tmp_path: Path, told: Exception) -> None:
    files.write_text(tmp_path / "out", "old")
    with pytest.raises(OSError, match="No space left on device") as raised, files.atomic(tmp_path / "out") as part:
        part.write_text("half")
        raise told
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
    with pytest.raises(OSError, match="denied"), files.atomic(tmp_path / "out"):
        raise OSError(errno.EACCES, "denied")


def test_a_stage_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing was written"), files.atomic(tmp_path / "out"):
        pass


def test_a_cut_off_line_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not valid JSON.*cut off"):
        list(files.read_jsonl(path))


def table(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"id": [f"i{n}" for n in range(40)], "number": range(40)}).to_parquet(path, index=False)
    return path


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), r"no readable Parquet file \(\d+ bytes, .*cut off"),
        (lambda path: path.write_bytes(path.read_bytes()[:3]), r"no readable Parquet file \(3 bytes, .*cut off"),
        (lambda path: path.write_bytes(b""), r"no readable Parquet file \(it is empty\)"),
        (lambda path: path.unlink(), "no such file"),
    ],
)
def test_a_damaged_table_says_which_file_and_what_makes_it_anew(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    made = table(tmp_path / "data/grids/shard-0/index.parquet")
    assert list(files.read_table(made, ["number"])) == ["number"] and len(files.read_table(made)) == 40
    damage(made)
    with pytest.raises(DataError, match=rf"data/grids/shard-0/index\.parquet: {said}.* run `dvc repro grids`"):
        files.read_table(made)
    brought = table(tmp_path / "brought.parquet")
    damage(brought)
    with pytest.raises(DataError, match=rf"brought\.parquet: {said}.* put a whole copy in its place"):
        files.read_table(brought)
    with pytest.raises(DataError, match="fetch it again"):
        files.read_table(brought, remedy="fetch it again")


def test_every_byte_of_a_table_may_be_wrong(tmp_path: Path) -> None:
    """pyarrow answers damage with a dozen types of error; each becomes one that names the file."""
    path = table(tmp_path / "data/rankings/instances.parquet")
    whole = path.read_bytes()
    for place in range(4, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            files.read_table(path)
        except DataError as error:
            assert "instances.parquet" in str(error) and "dvc repro rankings" in str(error)


def test_nan_is_refused_in_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_the_digest_ignores_key_order() -> None:
    assert files.digest({"a": 1, "b": 2}) == files.digest({"b": 2, "a": 1}) != files.digest({"a": 2, "b": 1})


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


def test_the_recorded_md5_comes_from_the_lock(tmp_path: Path) -> None:
    assert Lock.read(tmp_path).md5_of("data/a") is None
    (tmp_path / "dvc.lock").write_text("stages:\n  a:\n    outs:\n    - path: data/a\n      md5: abc.dir\n")
    assert Lock.read(tmp_path).md5_of("data/a") == "abc.dir"


def test_yaml_is_read_as_dvc_reads_it(tmp_path: Path) -> None:
    """YAML 1.2, and a key that stands there twice is no silent winner."""
    tree = files.parse_yaml("a: 1e-05\nb: yes\nc: 012\nd: [on, ~]")
    assert tree == {"a": 1e-5, "b": "yes", "c": 12, "d": ["on", None]}
    (tmp_path / "twice.yaml").write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(DataError, match=r'twice\.yaml: not valid YAML \(line 3: found duplicate key "a"'):
        files.read_yaml(tmp_path / "twice.yaml")
    with pytest.raises(DataError, match=r"not valid YAML \(line 2: did not find expected"):
        files.parse_yaml("a: [1\nb: 2")
    with pytest.raises(DataError, match=r"unexpected ':'; a text with a colon inside brackets needs quotes\)"):
        files.parse_yaml("a: [http://127.0.0.1:80]")
    with pytest.raises(DataError, match="not valid YAML .*control characters are not allowed"):
        files.parse_yaml("a: \0")
    with pytest.raises(DataError, match="no such file"):
        files.read_yaml(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(DataError, match="expected a mapping, found list"):
        files.read_yaml(tmp_path / "list.yaml")


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
    with safe_open(files_[0], "pt") as found:
        assert found.metadata() == notes
    assert all(torch.equal(load_file(files_[0])[name], tensors[name]) for name in tensors)
    save_file(tensors, files_[1])  # without notes
    before = files_[1].read_bytes()
    files.settle_safetensors(files_[1])
    assert files_[1].read_bytes() == before
