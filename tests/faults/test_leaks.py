"""Secrets in a folder that is to be published, in every kind of file it may hold: `paco push` refuses each by name."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import save

from paco_core.io import secret_search
from paco_core.operations import packed_text
from paco_core.operations.publish import upload_of
from tests.faults.verdicts import Ledger

CARD = "---\nlicense: apache-2.0\n---\n\n# A card\n"
DATA_CARD = CARD.replace("---\n\n", "configs: []\n---\n\n")
OWN_SECRET = "correct-horse-battery"
HEX = "0123456789abcdef"
#: Written in two parts each, so that no scanner takes this file for a leak.
SECRETS = [
    "hf_" + "aB3" * 11 + "x", "gh" + "p_" + "aB3" * 12, "github_" + "pat_" + "1A" * 11 + "_" + "b" * 59,
    "gl" + "pat-" + "x1Y" * 7, "AKIA" + "IOSFODNN7EXAMPLE", "sk-" + "proj-" + "aB3" * 10, "AI" + "za" + "Sy0" * 12,
    "xo" + "xb-123456789012-abcdef", "sk_" + "live_" + "a1B2" * 6, "npm" + "_" + "a1B2" * 9,
    "py" + "pi-AgEIcHlwaS5vcmc" + "C" * 50, "123456789:A" + "A" + "x" * 33,
    "eyJ" + "hbGciOiJIUzI1.eyJ" + "a" * 20 + "." + "b" * 40,
    "-----BEGIN " + "OPENSSH PRIVATE KEY-----", "-----BEGIN " + "PRIVATE KEY-----",
    "aws_secret_access_" + "key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "WANDB_API_" + "KEY=" + HEX * 2 + HEX[:8],
    "DB_PASS" + "WORD=swordfish", '"pass' + 'word": "swordfish"', "pass" + "word: hunter2x",
    "machine h login me pass" + "word swordfish",
    "url = https://x-access-token:" + "swordfish@github.com/a/b", "postgresql://me:" + "swordfish@db/x",
    "https://" + HEX * 2 + "@github.com/a", "Authoriz" + "ation: Bearer abcdefgh1234",
    "https://s3/x?X-Amz-Signa" + "ture=" + HEX * 4, OWN_SECRET,
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN_TOKEN", OWN_SECRET)
    monkeypatch.setattr(secret_search, "CHUNK", 1000)  # so that a secret lies across two of them
    monkeypatch.setattr(secret_search, "OVERLAP", 600)


def picture(secret: str = "") -> bytes:
    buffer, info = io.BytesIO(), PngInfo()
    info.add_itxt("Comment", secret, zip=True) if secret else None
    Image.new("RGB", (4, 4)).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def table(*cells: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(cells)}), buffer, compression="zstd")
    return buffer.getvalue()


def described(secret: str) -> bytes:
    buffer, field = io.BytesIO(), pa.field("a", pa.string_view(), metadata={"note": secret})
    pq.write_table(pa.table([pa.array(["x"], pa.string_view())], pa.schema([field])), buffer)
    return buffer.getvalue()


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def profile(secret: str) -> bytes:
    """A picture with a profile as ImageMagick writes it: hexadecimal digits, in a compressed text."""
    digits = secret.encode().hex()
    lines = "\n".join(digits[start : start + 72] for start in range(0, len(digits), 72))
    return picture(f"\nexif\n{len(secret):8}\n{lines}\n")


def damaged(secret: str) -> bytes:
    """A packed text whose checksum is wrong: a reader may show it all the same."""
    chunk = b"zTXtnote\0\0" + zlib.compress(secret.encode())[:-1] + b"\0"
    chunk_bytes = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    return picture()[:33] + chunk_bytes + picture()[33:]


def data_url(secret: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture(secret)).decode()}"


PADDING = "Neither a key nor a password. " * 50
PLACES: dict[str, tuple[str, Callable[[str], bytes]]] = {
    "the card": ("README.md", lambda s: f"{CARD}{s}\n".encode()),
    "a merge of a vocabulary": ("merges.txt", lambda s: f"a b\n{s}\n".encode()),
    "escapes of JSON": ("config.json", lambda s: f'{{"a": "{escaped(s)}"}}'.encode()),
    "metadata of weights": ("model.safetensors", lambda s: save({"w": numpy.zeros(2000, numpy.float32)}, {"note": s})),
    "a packed text of a picture": ("golden/a.png", picture),
    "a profile of a picture": ("golden/a.png", profile),
    "a damaged text of a picture": ("golden/a.png", damaged),
    "UTF-16 in EXIF": ("golden/a.png", lambda s: picture() + b"UNICODE\0" + f"{s:12}".encode("utf-16-le")),
    "JSON in JSON": ("a.jsonl", lambda s: json.dumps({"a": json.dumps({"b": f"{{{s}}}"})}).encode()),
    "a quoted cell of CSV": ("a.csv", lambda s: ('a,b\n1,"{' + s.replace('"', '""') + '}"\n').encode()),
    "gzip in a cell of Parquet": ("a.parquet", lambda s: table(gzip.compress(s.encode()))),
    "a data URL in a cell of Parquet": ("a.parquet", lambda s: table(data_url(s))),
    "a line of JSON Lines": ("a.jsonl", lambda s: "\n".join(map(json.dumps, (PADDING, f"first\n{s}"))).encode()),
    "a cell of Parquet": ("a.parquet", lambda s: table(PADDING, s)),
    "a picture in a cell of Parquet": ("a.parquet", lambda s: table({"bytes": picture(s)})),
    "metadata of a column of Parquet": ("a.parquet", described),
}  # fmt: skip


def folder(place: Path, name: str, data: bytes) -> Path:
    """A folder with a card that may be published, and one more file."""
    of_data = name.endswith((".jsonl", ".csv", ".parquet"))
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / "README.md").write_text(DATA_CARD if of_data else CARD)
    (place / name).write_bytes(data)
    return place


def against(place: Path) -> Sequence[str]:
    return upload_of(place.parent, str(place)).faults


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_found_wherever_it_is(tmp_path: Path, ledger: Ledger, place: str) -> None:
    name, hold = PLACES[place]
    with ledger.row("secret to be published", place) as row:
        clean = against(folder(tmp_path / "clean", name, hold("Nothing to hide here.")))
        row.judge("none", ("wrong", f"refused: {clean}") if clean else None)
        for number, secret in enumerate(SECRETS):
            faults = against(folder(tmp_path / str(number), name, hold(secret)))
            missed = not any(fault.startswith(f"{name}: holds what looks like") for fault in faults)
            is_repeated = any(secret in fault for fault in faults)
            row.judge(
                f"secret {number}",
                ("wrong", f"{secret!r} would be published") if missed else None,
                ("wrong", f"the refusal repeats {secret!r}") if is_repeated else None,
            )


def test_the_key_of_an_endpoint_is_found_whatever_its_variable_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_SCORER", "hunter2-hunter2")
    place = folder(tmp_path / "a", "a.csv", b"a\nhunter2-hunter2\n")
    assert against(place) == []
    (tmp_path / "params.yaml").write_text("policies: {recipes: {a: {http: {api_key_env: THEIR_SCORER}}}}")
    assert ["THEIR_SCORER" in fault for fault in against(place)] == [True]


def test_small_cells_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search reads the end of the last block again: one search per cell took 100 times as long."""
    monkeypatch.setattr(secret_search, "CHUNK", 1 << 20)
    searched: list[int] = []
    monkeypatch.setattr(secret_search.Search, "_places", lambda _self, text: searched.append(len(text)) or ())
    secret_search.Search({}).matches(b"a cell of a table\n" for _ in range(100_000))
    assert sum(map(bool, searched)) == 2


def test_a_text_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_text, "LONGEST", 1 << 20)
    (fault,) = against(folder(tmp_path / "a", "golden/a.png", picture() + gzip.compress(bytes(2 << 20))))
    assert fault.startswith("golden/a.png: ") and "packed" in fault


FOREIGN: dict[str, bytes] = {
    ".env": b"x", ".git/config": b"x", "golden/.png": picture(), "notes": b"x", "A.TXT": b"x", "run.py": b"x",
    "kaggle.json": b"{}", "model.PT": b"x", "model.bin": b"x", "a.parquet.bak": b"x",
    "config.json": b"\x80\x04K\x01.", "model.safetensors": b"\x80\x04K\x01.", "golden/a.png": b"DB_HOST=x",
    "empty.safetensors": b"", "tokenizer.json": '{"a": 1}'.encode("utf-16"), "merges.txt": b"a\0b",
}  # fmt: skip


def test_what_a_folder_does_not_hold_is_refused_by_name(tmp_path: Path, ledger: Ledger) -> None:
    with ledger.row("foreign file to be published", "paco push") as row:
        for number, (name, data) in enumerate(FOREIGN.items()):
            faults = against(folder(tmp_path / str(number), name, data))
            is_reported = any(fault.split(":")[0] in (name, name.split("/")[0]) for fault in faults)
            row.judge(name, None if is_reported else ("wrong", f"would be published; {faults}"))
        linked = folder(tmp_path / "linked", "config.json", b"{}")
        (tmp_path / ".env").write_text("x")
        (linked / "merges.txt").symlink_to(tmp_path / ".env")
        (linked / "golden").symlink_to(tmp_path)
        link_faults = [fault for fault in against(linked) if "a link" in fault]
        row.judge("links", None if len(link_faults) == 2 else ("wrong", f"{link_faults}"))


@pytest.mark.parametrize(
    "harmless",
    [
        '{"password": 151643, "secret": 123456, "token": 151644, "://": 1358, "tokenizer_class": "Qwen2TokenizerFast"}',
        f'{{"md5": "{HEX * 2}", "token_sha256": "{HEX * 4}", "a": "data:image/png;base64,{"iVBORw0KGgoAAA+/" * 200}"}}',
        '{"text": "A sign with the password: open sesame. https://host:80/x@y, git@github.com:a/b, ssh://git@h/x"}',
        '{"text": "a risk-adjusted-long-running-desk-organiser, pad_token = processor.tokenizer.eos_token2"}',
    ],
)
def test_what_is_no_secret_passes(tmp_path: Path, harmless: str) -> None:
    assert against(folder(tmp_path / "a", "config.json", harmless.encode())) == []
