"""Tables from outside: a text stays the text that stands there, and what is written back stays as it came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from paco_core.data import tables
from paco_core.data.separated import guarded, read_separated, unguarded
from paco_core.io.files import DataError, read_json, read_jsonl
from paco_core.io.rejected import Rejected

WORDS = ["None", "NA", "null", "nan", "1984", "0017", "12345678901234567890", "1e5", "TRUE", " a ", "'Tis"]


def column(file: Path, name: str, *require: str) -> list[str | None]:
    return tables.text_column(tables.open_table(file, require or (name,)), name, file)


def test_no_type_is_guessed_in_any_format(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{word},\n" for word in WORDS))
    (tmp_path / "t.tsv").write_text("a\tb\n" + "".join(f"{word}\t\n" for word in WORDS))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"a": word}) + "\n" for word in WORDS))
    parquet.write_table(pa.table({"a": WORDS, "b": pa.nulls(len(WORDS))}), tmp_path / "t.parquet")
    for suffix in ("csv", "tsv", "jsonl", "parquet"):
        file = tmp_path / f"t.{suffix}"
        assert column(file, "a") == WORDS, suffix
        assert [row["a"] for _, row in tables.read_rows(file, Rejected(), ["a"])] == WORDS
    for suffix in ("csv", "tsv", "parquet"):
        assert column(tmp_path / f"t.{suffix}", "b") == [None] * len(WORDS), "an empty cell is no value"


def test_an_integer_is_its_digits_and_any_other_value_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": 17}\n{"id": "17"}\n{"id": 12345678901234567890}\n{"id": null}\n{}\n')
    assert column(tmp_path / "t.jsonl", "id") == ["17", "17", "12345678901234567890", None, None]
    parquet.write_table(pa.table({"id": pa.array([1984, None])}), tmp_path / "t.parquet")
    assert column(tmp_path / "t.parquet", "id") == ["1984", None], "pandas made 1984.0 of it"
    for value, spelled in ((1984.0, "1984.0"), (True, "True"), ([1], r"\[1\]"), (b"x", "b'x'")):
        parquet.write_table(pa.table({"id": [value]}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=f"t.parquet: row 0: id is {spelled}, expected a string"):
            column(tmp_path / "t.parquet", "id")


@pytest.mark.parametrize(
    "text",
    [
        "first,second,id\r\na,b,0017\r\n",
        "\ufefffirst;second;note\r\na;b;\"x; y\"\r\nc;d;1,5",
        'second,"first",id,id\nb,"a",1,"1"\n\nd,"c ""q""","two\nlines",2\n',
        "sep=;\r\nfirst;second\r\na,1;b,2\r\n",
        "first\tsecond\na\tb\n",
        "first,second\ra,b\r",
        "first,second,\na,b,\nc,d,",
        "first,second,n\na,b,-5\nc,d,+1.5e3\ne,f,-12%\n",
    ],
)  # fmt: skip
def test_a_csv_is_written_back_to_the_byte(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(text.encode())
    table = tables.open_table(file, ("first", "second"))
    table.write(file, {})
    assert file.read_bytes().decode() == text.replace("\n\n", "\n"), "lines without text are left out"
    table.write(tmp_path / "out.csv", {"score": [0.5] * len(table), "why": ['a "b"; c,\td'] * len(table)})
    reread = tables.open_table(tmp_path / "out.csv", ("first", "second", "score", "why"))
    assert reread.values("first") == table.values("first") and reread.values("score") == ["0.5"] * len(table)
    assert reread.values("why") == ['a "b"; c,\td'] * len(table)
    reread.write(tmp_path / "out.csv", {"score": [0.25] * len(table), "why": [None] * len(table)})
    last = tables.open_table(tmp_path / "out.csv", ("first", "score"))
    assert list(last.columns) == list(reread.columns) and last.values("score") == ["0.25"] * len(table)
    assert last.values("second") == table.values("second") and last.values("why") == [None] * len(table)


cells = st.text(st.sampled_from("ab=+-@'\",;\t\r\n 1.%\u4e2d"), max_size=6)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(cells)
def test_a_guarded_text_comes_back_and_no_spreadsheet_runs_it(text: str) -> None:
    assert unguarded(guarded(text)) == text
    assert not guarded(text).startswith(("=", "@", "\t", "\r", "\n"))
    if guarded(text).startswith(("+", "-")):
        float(text.removesuffix("%").replace(",", "."))


def test_a_formula_from_outside_is_written_as_text_and_read_as_it_was(tmp_path: Path) -> None:
    file, out = tmp_path / "t.csv", tmp_path / "out.csv"
    theme = '=HYPERLINK("http://x";"y")'
    file.write_text(f'first,theme,n,@h\na,"{theme.replace(chr(34), chr(34) * 2)}",-5,1\nb,\'=x,+49 30 1,-0.5\n')
    table = tables.open_table(file, ("first",))
    assert table.values("theme") == [theme, "=x"], "an apostrophe before a formula is the spreadsheet's"
    table.write(out, {"reasons": ["-- no", "+1"], "score": [-1.0, 0.5]})
    spelled = [record.cells for record in read_separated(out).records]
    assert spelled[0][1:] == ["\"'" + theme.replace('"', '""') + '"', "-5", "1", "'-- no", "-1.0"]
    assert spelled[1][1:] == ["'=x", "'+49 30 1", "-0.5", "+1", "0.5"], "numbers stay numbers"
    reread = tables.open_table(out, ("first", "@h"))
    assert reread.values("theme") == table.values("theme") and reread.values("reasons") == ["-- no", "+1"]


def test_json_lines_are_written_back_to_the_byte(tmp_path: Path) -> None:
    file, out = tmp_path / "t.jsonl", tmp_path / "out.jsonl"
    lines = ['{"a":"0017","n":1.10,"big":12345678901234567890123}', '{ "a" : "\\u00e9\u2028" }  ']
    file.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    table = tables.open_table(file, ("a",))
    table.write(out, {"score": [0.5, float("nan")], "cause": [None, "x"]})
    first, second = out.read_bytes().decode().split("\r\n")
    assert first == "\ufeff" + lines[0][:-1] + ', "score": 0.5, "cause": null}'
    assert second == '{ "a" : "\\u00e9\u2028", "score": null, "cause": "x"}  '
    tables.open_table(out, ("a",)).write(out, {"score": [1.0, 1.0]})
    assert [row["score"] for _, row in read_jsonl(out)] == [1.0, 1.0]


def test_parquet_keeps_types_and_metadata(tmp_path: Path) -> None:
    schema = pa.schema(
        [("a", pa.dictionary(pa.int8(), pa.string())), ("n", pa.int32()), ("l", pa.list_(pa.int8())), ("n", pa.int8())],
        metadata={b"huggingface": b"{}"},
    )
    rows = [pa.array(["x", "1984"]).dictionary_encode(), [1, None], [[1], None], [1, 2]]
    original = pa.Table.from_arrays(
        [pa.array(c).cast(f.type) for c, f in zip(rows, schema, strict=True)], schema=schema
    )
    parquet.write_table(original, tmp_path / "t.parquet")
    table = tables.open_table(tmp_path / "t.parquet", ("a",))
    assert table.values("a") == ["x", "1984"]
    table.write(tmp_path / "out.parquet", {"score": [0.5, float("nan")], "cause": [None, "x"]})
    out = parquet.ParquetFile(tmp_path / "out.parquet").read()
    assert out.select(range(4)).equals(original) and out.schema.metadata == schema.metadata
    assert out.column("score").to_pylist() == [0.5, None] and out.column("cause").to_pylist() == [None, "x"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "first,second\na,b\n".encode("utf-16"), "t.csv: UTF-16 text"),
        ("t.csv", "first,second\na,b\n".encode("utf-16-le"), "t.csv: .*UTF-16"),
        ("t.csv", "first,second\nä,b\n".encode("latin-1"), "t.csv: .*at byte 13"),
        ("t.csv", b"first,second\na,b,c\n", "t.csv:2: 3 cells"),
        ("t.csv", b'first,second\n"a\nb",c\nd\n', "t.csv:4: 1 cells"),
        ("t.csv", b'first,second\na,b\n"c,d\n', "t.csv:3: "),
        ("t.csv", b'first,second\n"a"x,b\n', "t.csv:2: "),
        ("t.csv", b"first,second,first\na,b,c\n", "t.csv: column first"),
        ("t.csv", b"one;two\na;b\n", "t.csv: column first, second is missing; it has one, two"),
        ("t.csv", b"", "t.csv: "),
        ("t.jsonl", b'{"first": "a", "first": "b"}', "t.jsonl:1: key 'first'"),
        ("t.jsonl", b"first,second\n", "t.jsonl:1: "),
        ("t.xlsx", b"PK", "'.xlsx'"),
        ("t.parquet", b"PAR1", "t.parquet: "),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_cause(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        column(tmp_path / name, "first", "first", "second")


def test_records_that_cannot_be_read_are_counted_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n1,"x\ny"\n2\n3,z\n')
    rows = list(tables.read_rows(tmp_path / "t.csv", rejected := Rejected(), ["a"]))
    assert [(place.rpartition(":")[2], row) for place, row in rows] == [
        ("2", {"a": "1", "b": "x\ny"}), ("5", {"a": "3", "b": "z"}),
    ]  # fmt: skip
    assert rejected.rows == [(f"{tmp_path}/t.csv:4", "line: 1 cells, the header has 2")]
    for content in ('[{"a": 1}, 2]', '\ufeff{"a": 1}\n2\n'):
        (tmp_path / "t.json").write_text(content)
        rows = list(tables.read_rows(tmp_path / "t.json", rejected := Rejected(), ["a"]))
        assert [row for _, row in rows] == [{"a": 1}] and len(rejected) == 1
    (tmp_path / "bom.json").write_text("\ufeff{}")
    assert read_json(tmp_path / "bom.json") == {}


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("[2, 0, 1]", [2, 0, 1]), ("2 0 1", [2, 0, 1]), ("2;0;1", [2, 0, 1]), ("2,0,1", [2, 0, 1]),
        ([2, 0], [2, 0]), (["2", "0"], [2, 0]), ("0.5 null 1", [0.5, None, 1]), ("best", "best"), ("", ""), (7, 7),
    ],
)  # fmt: skip
def test_lists_of_numbers_in_a_cell(spelled: Any, expected: Any) -> None:
    assert tables.parse_numbers(spelled) == expected


def test_numbers_are_finite_and_spelled_with_a_point() -> None:
    assert [tables.parse_number(value, "score") for value in (1, "0.5", " 1e-3 ", -2.0)] == [1.0, 0.5, 0.001, -2.0]
    for wrong in ("0,5", "nan", "inf", float("inf"), True, None, "high", "1_0", 10**400, [1]):
        with pytest.raises(DataError, match="score .* is not a finite number"):
            tables.parse_number(wrong, "score")
