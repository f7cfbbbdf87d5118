"""Every importer on every kind of bad row: sound rows are taken, each other one is left out with place and cause.

The files are in the published layouts. A row is cut off, repeated, in a language that nobody asked for, about a picture
that is cut off, of another size, missing, or named by an absolute path.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks.public_files import read_edit_bench
from paco_core.benchmarks.t2is_bench.sets import sets_elsewhere
from paco_core.cli import exchange
from paco_core.config.params import PromptsParams
from paco_core.config.params_edits import EditingParams
from paco_core.data.annotation.imported import read_rankings
from paco_core.data.annotation.label_studio import read_export
from paco_core.data.pairs.editing import editing_pairs
from paco_core.data.prompts.edit_prompts import read_rows
from paco_core.data.prompts.prompts import imported, make_prompts
from paco_core.exchange.sharegpt import PairQuestion
from paco_core.io.files import DataError, write_json
from paco_core.io.rejected import Rejected

Row = dict[str, Any]
MARK = "<|im_end|>"  # of the chat template of Qwen
GOOD, CUT, MISSING, LARGE = "good.png", "cut.png", "missing.png", "large.png"


def picture(colour: str = "red", side: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def pictures(folder: Path) -> None:
    """What rows name: sound ones, one that is cut off after its head, and one of another size."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = io.BytesIO()
    Image.effect_noise((16, 16), 90).convert("RGB").save(noise, format="PNG")
    files = {GOOD: picture(), "other.png": picture("blue"), CUT: noise.getvalue()[:-40], LARGE: picture(side=24)}
    for name, content in files.items():
        (folder / name).write_bytes(content)


def json_lines(file: Path, rows: list[Row], cut: bool) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_text("\n".join([*lines, *([lines[0][:-9]] if cut else [])]) + "\n", encoding="utf-8")


def summary(kind: str, folder: Path, out: Path) -> tuple[int, list[tuple[str, str]]]:
    """Rows taken and rows left out, of an import that writes a folder."""
    exchange.bring(kind, folder, out)
    counts = json.loads((out / "summary.json").read_text())
    left_out = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    taken = next(counts[name] for name in ("edits", "benchmark", "train") if name in counts)
    return taken, [(row["place"], row["cause"]) for row in left_out]


# What each importer is given: two sound rows, then one with each damage that its format can have.


def t2is(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    made = make_prompts(PromptsParams(engine="storybook", count=2, layout="2x2", seed=0), (32, 32)).records
    rows = [record.model_dump() for record in made]
    damaged: dict[str, Row] = {
        "repeated": rows[0],
        "of another size": rows[0] | {"idx": "a", "height": 1 << 20},
        "of another language": rows[0] | {"idx": "b", "category": "故事"},
        "with a mark": rows[0] | {"idx": "m", "theme": f"a cat {MARK}"},
        "absolute": rows[0] | {"idx": "/etc/passwd"},
    }
    json_lines(root / "t2is.jsonl", [*rows, *(damaged[name] for name in bad if name in damaged)], "cut off" in bad)
    found = imported(root / "t2is.jsonl", ("2x2",), None)
    return len(found.records), list(found.rejected)


def edit_prompts(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    pictures(root)
    sound = {"key": "a", "instruction": "Make it blue.", "input_image": GOOD, "instruction_language": "en"}
    rows = [sound, sound | {"key": "b", "instruction": "把它变成蓝色", "instruction_language": "cn"}]
    damaged: dict[str, Row] = {
        "repeated": {},
        "picture cut off": {"key": "d", "input_image": CUT},
        "picture missing": {"key": "e", "input_image": MISSING},
        "absolute": {"key": "f", "input_image": "/etc/hostname"},
        "with a mark": {"key": "m", "instruction": f"Make it {MARK}."},
    }
    json_lines(root / "edits.jsonl", [*rows, *(sound | damaged[n] for n in bad if n in damaged)], "cut off" in bad)
    found = read_rows(root / "edits.jsonl")
    return len(found.records), list(found.rejected)


def triples(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    pictures(root)
    sound = {"original": GOOD, "edited": "other.png", "instruction": "Make it blue."}
    rows = [sound, sound | {"instruction": "把它变成蓝色"}]
    damaged: dict[str, Row] = {
        "repeated": {},
        "picture cut off": {"edited": CUT},
        "picture missing": {"original": MISSING},
        "absolute": {"edited": "/etc/hostname"},
        "with a mark": {"answer": f"Yes. It is.{MARK}"},
    }
    json_lines(root / "t.jsonl", [*rows, *(sound | damaged[name] for name in bad if name in damaged)], "cut off" in bad)
    found = editing_pairs(EditingParams(source="import", count=None, file="t.jsonl"), root)
    return len(found.pairs), list(found.rejected)


def paco_dataset(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    pictures(root / "in")

    def row(images: list[str], theme: str = "a cat") -> Row:
        asked = "<image><image>" + PairQuestion(theme=theme).text("theme")
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Yes. Alike."}]
        return {"messages": turns, "images": images}

    rows = [row([GOOD, "other.png"]), row([GOOD, "other.png"], "一只猫")]
    damaged = {
        "repeated": row(["other.png", GOOD]),
        "of another language": {**row([GOOD, LARGE]), "messages": [{"role": "user", "content": "<image><image>一样吗?"},
                                                                   {"role": "assistant", "content": "Yes."}]},
        "picture cut off": row([GOOD, CUT]),
        "picture missing": row([GOOD, MISSING]),
        "absolute": row([GOOD, "/etc/hostname"]),
        "with a mark": json.loads(json.dumps(row([GOOD, "other.png"])).replace("a cat", f"a cat {MARK}")),
    }  # fmt: skip
    json_lines(root / "in/train.jsonl", [*rows, *(damaged[n] for n in bad if n in damaged)], "cut off" in bad)
    write_json(root / "in/dataset_info.json", {"paco_train": {"file_name": "train.jsonl", "formatting": "sharegpt"}})
    return summary("paco_dataset", root / "in", root / "out")


def rank_bench(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    pictures(root / "in/images/p")
    pictures(root / "in/images/q")
    sound = {"folder": "p", "ref_image": GOOD, "comp_images": [GOOD, "other.png"], "rank_images": ["other.png", GOOD]}

    def candidate(name: str) -> Row:
        return {"comp_images": [GOOD, name], "rank_images": [name, GOOD]}

    damaged: dict[str, Row] = {
        "repeated": {},
        "picture cut off": candidate(CUT),
        "picture missing": candidate(MISSING),
        "of another size": candidate(LARGE),
        "absolute": candidate("/etc/hostname"),
        "of another language": {"folder": "猫"},
        "with a mark": {"folder": "m"},
    }
    rows = [sound, sound | {"folder": "q"}, *(sound | damaged[name] for name in bad if name in damaged)]
    json_lines(root / "in/consistency_full_rank.jsonl", rows, "cut off" in bad)
    prompts = [{"idx": "p", "prompt": "a cat"}, {"idx": "q", "prompt": "一只猫"}, {"idx": "m", "prompt": MARK}]
    json_lines(root / "in/prompt_data.jsonl", prompts, False)
    return summary("rank_bench", root / "in", root / "out")


def gedit(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    def row(key: str, **changes: Any) -> Row:
        shared = {"instruction": "Make it blue.", "instruction_language": "en"}
        return {"key": key, **shared, "input_image": {"bytes": picture(), "path": None}} | changes

    damaged = {
        "repeated": row("a"),
        "of another language": row("c", instruction_language="fr"),
        "picture cut off": row("d", input_image={"bytes": picture()[:40], "path": None}),
        "picture missing": row("e", input_image={"bytes": b"", "path": None}),
        "absolute": row("/etc/passwd"),
        "with a mark": row("m", instruction=f"Make it {MARK}."),
    }
    rows = [row("a"), row("b", instruction="把它变成蓝色", instruction_language="cn")]
    (root / "in").mkdir()
    pd.DataFrame([*rows, *(damaged[n] for n in bad if n in damaged)]).to_parquet(root / "in/train.parquet")
    return summary("gedit", root / "in", root / "out")


def edit_bench(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    def stored(data: bytes | None, path: str | None = None) -> Row:
        return {"bytes": data, "path": path}

    def row(key: str, **changes: Any) -> Row:
        two = [stored(picture("blue")), stored(picture("green"))]
        return {
            "key": [key, "x"], "instruction": "Make it blue.", "input_image": stored(picture()), "output_images": two,
            "task_type": "color_alter", "dimension": "overall",
        } | changes  # fmt: skip

    damaged = {
        "repeated": row("a"),
        "of another language": row("c", dimension="总体"),
        "picture cut off": row("d", input_image=stored(picture()[:40])),
        "picture missing": row("e", input_image=stored(None, MISSING)),
        "absolute": row("f", input_image=stored(None, "/etc/hostname")),
        "with a mark": row("m", instruction=f"Make it {MARK}."),
    }
    rows = [row("a"), row("b", instruction="把它变成蓝色"), *(damaged[name] for name in bad if name in damaged)]
    (root / "in").mkdir()
    pd.DataFrame(rows).to_parquet(root / "in/data.parquet")
    cases, rejected = read_edit_bench(root / "in")
    return len(cases), list(rejected)


def rankings(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    sound = {"instance_id": "i", "annotator": "ann", "ranking": [1, 0, 2]}
    damaged: dict[str, Row] = {
        "repeated": {},
        "of another size": {"annotator": "b", "ranking": [1, 0, 2, 3]},
        "of another language": {"annotator": "c", "instance_id": "猫"},
    }
    rows = [sound, sound | {"annotator": "安"}, *(sound | damaged[name] for name in bad if name in damaged)]
    json_lines(root / "r.jsonl", rows, "cut off" in bad)
    rejected = Rejected()
    return len(list(read_rankings(root / "r.jsonl", {"i": 3, "j": 3}, rejected))), list(rejected)


def label_studio(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    def task(instance: str, who: str, order: list[str]) -> Row:
        value = {"value": {"ranker": {"ranking": order}}}
        return {"data": {"instance_id": instance}, "annotations": [{"completed_by": who, "result": [value]}]}

    damaged = {
        "of another size": task("i", "b", ["0", "1", "2", "3"]),
        "of another language": task("猫", "c", ["0", "1", "2"]),
    }
    rows = [task("i", "ann", ["1", "0", "2"]), task("j", "安", ["1", "0", "2"])]
    write_json(root / "export.json", [*rows, *(damaged[name] for name in bad if name in damaged)])
    rejected = Rejected()
    return len(read_export(root / "export.json", {"i": 3, "j": 3}, rejected).rankings), list(rejected)


def painted_elsewhere(root: Path, bad: list[str]) -> tuple[int, list[tuple[str, str]]]:
    params = PromptsParams(engine="storybook", count=2 + len(bad), layout="2x2", seed=0)
    records = make_prompts(params, (32, 32)).records
    pictures(root / "in")
    wrong = {"picture cut off": CUT, "of another size": LARGE, "picture missing": None}
    for record, damage in zip(records, [None, None, *bad], strict=True):
        for number in range(1, 5):
            name = wrong.get(damage or "", GOOD) if number == 4 else GOOD
            if name is not None:
                (root / "in" / f"{record.idx}_{number}.png").write_bytes((root / "in" / name).read_bytes())
    rejected = Rejected()
    return len(sets_elsewhere("others", root / "in", records, rejected)), list(rejected)


@dataclass(frozen=True)
class Importer:
    run: Callable[[Path, list[str]], tuple[int, list[tuple[str, str]]]]
    damages: dict[str, str]  # what is wrong with a row -> kind of its cause


ONE_PICTURE = {
    "repeated": "duplicate", "picture cut off": "picture", "picture missing": "picture", "absolute": "picture",
}  # fmt: skip
LANGUAGE, LINE, MARKED = {"of another language": "record"}, {"cut off": "line"}, {"with a mark": "record"}
IMPORTERS = {
    "T2IS records": Importer(
        t2is,
        {"repeated": "record", "of another size": "record", **LANGUAGE, "absolute": "record", **LINE, **MARKED},
    ),
    "editing prompts": Importer(edit_prompts, ONE_PICTURE | LINE | MARKED),
    "editing triples": Importer(triples, ONE_PICTURE | LINE | MARKED),
    "PaCo-Dataset": Importer(
        paco_dataset, ONE_PICTURE | {"of another language": "question", "with a mark": "question"} | LINE
    ),
    "ConsistencyRank-Bench": Importer(
        rank_bench,
        ONE_PICTURE | {"of another size": "picture", "of another language": "prompt", "with a mark": "prompt"} | LINE,
    ),
    "GEdit-Bench": Importer(gedit, ONE_PICTURE | LANGUAGE | MARKED | {"absolute": "record"}),
    "EditReward-Bench": Importer(edit_bench, ONE_PICTURE | LANGUAGE | MARKED),
    "rankings": Importer(
        rankings, {"repeated": "duplicate", "of another size": "ranking", "of another language": "instance", **LINE}
    ),
    "Label Studio": Importer(label_studio, {"of another size": "ranking", "of another language": "instance"}),
    "T2IS-Bench, painted elsewhere": Importer(
        painted_elsewhere, {"picture cut off": "picture", "of another size": "picture", "picture missing": "set"}
    ),
}


@pytest.mark.parametrize("name", IMPORTERS)
def test_bad_rows_are_counted_with_place_and_cause_and_the_sound_ones_are_taken(name: str, tmp_path: Path) -> None:
    importer = IMPORTERS[name]
    taken, left_out = importer.run(tmp_path, list(importer.damages))
    assert taken == 2
    assert sorted(cause.split(":")[0] for _, cause in left_out) == sorted(importer.damages.values())
    assert all(place for place, _ in left_out) and len({place for place, _ in left_out}) == len(left_out)
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


@pytest.mark.parametrize(
    ("name", "damage"), [(name, damage) for name, importer in IMPORTERS.items() for damage in importer.damages]
)
def test_each_kind_of_bad_row_alone(name: str, damage: str, tmp_path: Path) -> None:
    taken, ((place, cause),) = IMPORTERS[name].run(tmp_path, [damage])
    assert taken == 2 and place and cause.split(":")[0] == IMPORTERS[name].damages[damage]


@pytest.mark.parametrize("kind", ["gedit", "paco_dataset", "rank_bench"])
def test_an_import_that_can_use_nothing_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        exchange.bring(kind, tmp_path / "none", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
