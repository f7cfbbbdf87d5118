"""`paco annotate --pictures`: groups of images without a graph, and the files of their rankings for trainers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import datasets
import pandas as pd
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from PIL import Image
from starlette.testclient import TestClient

from paco_core.cli import annotate_images, main
from paco_core.cli.annotate import AnnotateOptions
from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation import imported
from paco_core.data.annotation.assignment import candidate_order
from paco_core.data.annotation.image_groups import ImageFiles, read_image_groups
from paco_core.data.annotation.preference_files import read_pairs
from paco_core.data.annotation.server import create_annotation_app
from paco_core.data.annotation.votes import Annotation, RankingTask
from paco_core.data.pairs.character_stories import add_stories
from paco_core.data.pairs.characters import CharacterPairs
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.rejected import Rejected
from tests.support.annotation_world import body_for


def fill(root: Path, **groups: int) -> Path:
    """Folders of so many different images, by name."""
    for group, (name, count) in enumerate(groups.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (32, 24), (40 * number, 60 * group, 90)).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three groups, outside of any project."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "images", cat=2, dog=3, fox=6)
    (tmp_path / "images/dog/prompt.txt").write_text("a dog, \u2603\n")
    return tmp_path / "images"


def groups(source: Path) -> tuple[pd.DataFrame, ImageFiles, Rejected]:
    rejected = Rejected()
    return *read_image_groups(source, rejected), rejected


def rank_all(folder: Path, annotators: int = 2) -> list[Annotation]:
    """The rankings of people who choose places in their order, by HTTP."""
    options = AnnotateOptions(annotators=annotators, overlap=annotators)
    with annotate_images._study(folder, create=True) as study:
        queue = study.queue(options)
        with TestClient(create_annotation_app(queue), base_url="http://127.0.0.1") as client:
            for annotator in queue.annotators:
                while (view := client.get(f"/a/{annotator.token}/view").json())["instance"]:
                    link = f"/a/{annotator.token}/pictures/{view['instance']}"
                    assert view["prompt"] in {"cat", "a dog, \u2603", "fox"}
                    assert client.get(f"{link}/0.png").status_code == 200
                    assert client.get(f"{link}/reference.png").status_code == 404
                    body = body_for(view, list(range(view["candidates"])))
                    client.post(f"/a/{annotator.token}/answers", json=body).raise_for_status()
        study.save()
        return [Annotation(a.instance_id, a.annotator, list(a.ranking or ()), [], False) for a in study.store.latest()]


def orders(rankings: list[Annotation]) -> dict[tuple[str, str], list[int]]:
    return {(vote.instance_id, vote.annotator): vote.ranking for vote in rankings}


def test_subfolders_are_groups(folder: Path) -> None:
    (folder / ".thumbs").mkdir()
    (folder / "cat/notes.md").write_text("no image")
    table, images, rejected = groups(folder)
    assert dict(zip(table["prompt"], map(len, table["candidates"]), strict=True)) == {
        "cat": 2,
        "a dog, \u2603": 3,
        "fox": 6,
    }
    assert not rejected and images.panel(table["candidates"][0][1]).getpixel((0, 0)) == (40, 0, 90)
    assert groups(folder)[0].equals(table)
    Image.new("RGB", (32, 24), "white").save(folder / "cat/1.png")
    changed = groups(folder)[0]
    assert set(table["instance_id"]) - set(changed["instance_id"]) == {table["instance_id"][0]}
    with pytest.raises(DataError, match=r"1\.png: it was changed"):
        images.panel(table["candidates"][0][1])


def test_a_table_groups_by_its_column(folder: Path) -> None:
    table = folder / "all.csv"
    rows = [("image", "prompt"), *((f"cat/{n}.png", "two cats") for n in (0, 1)), ("fox/0.png", "foxes"), ("", "foxes")]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([*rows, ("fox/none.png", "x"), ("fox/1.png", "x")])
    instances, _, rejected = groups(table)
    assert list(instances["prompt"]) == ["two cats"]
    assert [cause.split(":")[0] for _, cause in rejected] == ["record", "group", "group"]


def test_groups_that_cannot_be_ranked_are_left_out_with_their_reason(folder: Path) -> None:
    fill(folder, alone=1, many=7, same=2, broken=2)
    (folder / "same/1.png").write_bytes((folder / "same/0.png").read_bytes())
    (folder / "broken/1.png").write_bytes((folder / "broken/1.png").read_bytes()[:60])
    instances, _, rejected = groups(folder)
    assert len(instances) == 3
    assert {Path(place).name: cause.split()[1] for place, cause in rejected} == {
        "alone": "1", "many": "7", "same": str(folder / "same/1.png"), "broken": f"{folder / 'broken/1.png'}:",
    }  # fmt: skip


def test_a_folder_without_a_group_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("image prompt")
    for source, fault in (
        (tmp_path / "empty", "contains no group"),
        (tmp_path / "none", "no such folder"),
        (tmp_path / "a.txt", "expected a folder, or a table"),
        (fill(tmp_path / "single", cat=1), "1 images, expected 2 to 6"),
    ):
        with pytest.raises(DataError, match=fault):
            groups(source)


def test_people_rank_without_a_project_and_agreement_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rankings = rank_all(folder)
    assert len(rankings) == 6
    assert len((folder / "annotations/answers.jsonl").read_text().splitlines()) == 6
    main(["annotate", "status", "--pictures", str(folder), "--json"])
    status = json.loads(capsys.readouterr().out)
    assert (status["ranked"], status["rankings"], status["unsaved"]) == (3, 6, 0)
    assert status["agreement"]["shared_instances"] == 3
    (folder / "annotations/people.sqlite").unlink()
    main(["annotate", "save", "--pictures", str(folder)])
    assert "6 answers" in capsys.readouterr().out, "the store is rebuilt from the file"
    with pytest.raises(SystemExit):
        main(["annotate", "status", "--pictures", str(folder), "--round", "1"])


def task(folder: Path, file: Path) -> RankingTask:
    instances, images, _ = groups(folder)
    params = AnnotationsParams.model_validate({"source": "import", "file": str(file)}, strict=False)
    return RankingTask(instances, images, params)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "file"), [("pick-a-pic", "data/train-00000-of-00001.parquet"), ("jsonl", "pairs.jsonl")]
)
def test_import_of_exported_pairs_gives_the_same_rankings(folder: Path, tmp_path: Path, form: str, file: str) -> None:
    rankings = rank_all(folder)
    main(["annotate", "export", "--pictures", str(folder), "--format", form, "--folder", "out"])
    assert orders(imported.votes(task(folder, tmp_path / "out" / file)).rankings) == orders(rankings)


def test_incomplete_and_contradicting_pairs_are_rejected(folder: Path, tmp_path: Path) -> None:
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder), "--format", "jsonl", "--folder", "out"])
    rows = [row for _, row in read_jsonl(tmp_path / "out/pairs.jsonl")]
    dog = [row for row in rows if row["prompt"].startswith("a dog")]
    cyclic = [dog[0], dog[1], {**dog[2], "winner_id": dog[2]["loser_id"], "loser_id": dog[2]["winner_id"]}]
    for name, lines in {
        "lacking": dog[:2],
        "unknown": [{**dog[0], "instance_id": "none"}],
        "stranger": [{**dog[0], "winner_id": "a#0"}],
    }.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(DataError, match="none of its rankings"):
            imported.votes(task(folder, tmp_path / f"{name}.jsonl"))
    (tmp_path / "cyclic.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cyclic))
    rejected = Rejected()
    assert len(read_pairs(tmp_path / "cyclic.jsonl", groups(folder)[0], rejected)) + len(rejected) == 1


@pytest.fixture
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def trained_pairs(folder: Path) -> Iterator[tuple[tuple[Image.Image, ...], str]]:
    """(better image, worse image) and caption, as `preprocess_train` in train.py of Diffusion-DPO makes them."""
    examples = load_dataset(str(folder), split="train")[:]
    assert all(label in (0, 1) for label in examples["label_0"])  # train.py leaves other labels out
    columns = [[Image.open(io.BytesIO(data)).convert("RGB") for data in examples[name]] for name in ("jpg_0", "jpg_1")]
    for images, label, caption in zip(
        zip(*columns, strict=True), examples["label_0"], examples["caption"], strict=True
    ):
        yield images[::-1] if label == 0 else images, caption


def red_of(image: Image.Image) -> int:
    return int(image.convert("RGB").resize((1, 1)).tobytes()[0])


def test_diffusion_dpo_reads_better_and_worse_images(folder: Path, tmp_path: Path, datasets_cache: Path) -> None:
    rankings = orders(rank_all(folder, 1))
    main(["annotate", "export", "--pictures", str(folder), "--format", "pick-a-pic", "--folder", "pickapic"])
    table = pq.read_table(tmp_path / "pickapic/data/train-00000-of-00001.parquet").to_pandas()
    assert len(table) == 1 + 3 + 15
    instances, images, _ = groups(folder)
    ids = dict(zip(instances["prompt"], instances["instance_id"], strict=True))
    candidates = dict(zip(instances["instance_id"], instances["candidates"], strict=True))
    pairs = list(trained_pairs(tmp_path / "pickapic"))
    assert len(pairs) == len(table)
    for (better, worse), caption in pairs:
        (ranking,) = [order for (name, _), order in rankings.items() if name == ids[caption]]
        red = [red_of(images.panel(candidates[ids[caption]][position])) for position in ranking]
        places = [min(range(len(red)), key=lambda n: abs(red[n] - value)) for value in map(red_of, (better, worse))]
        assert places[0] < places[1]
    best = table["best_image_uid"]
    assert ((best == table["image_0_uid"]) == (table["label_0"] == 1)).all()
    assert ((best == table["image_1_uid"]) == (table["label_1"] == 1)).all()


def test_folders_have_equal_names_and_captions(folder: Path, tmp_path: Path) -> None:
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder), "--format", "folders", "--folder", "out"])
    winner, loser = ({path.name for path in (tmp_path / "out" / side).iterdir()} for side in ("winner", "loser"))
    assert winner == loser and len(winner) == 2 * 19
    assert (tmp_path / "out/winner/000000.png").read_bytes() != (tmp_path / "out/loser/000000.png").read_bytes()
    captions = {(tmp_path / "out/loser" / name).read_text() for name in loser if name.endswith(".txt")}
    assert captions == {"cat", "a dog, \u2603", "fox"}


def test_datasets_loads_one_row_per_pair_from_folders(folder: Path, tmp_path: Path, datasets_cache: Path) -> None:
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder), "--format", "folders", "--folder", "out"])
    rows = load_dataset("imagefolder", data_dir=str(tmp_path / "out"), split="train")
    assert len(rows) == 19
    for number, row in enumerate(rows):
        for side in ("winner", "loser"):
            with Image.open(tmp_path / f"out/{side}/{number:06d}.png") as image:
                assert row[side].tobytes() == image.tobytes()
        assert row["text"] == (tmp_path / f"out/winner/{number:06d}.txt").read_text()


def test_datasets_loads_json_lines_whose_paths_are_images(folder: Path, tmp_path: Path, datasets_cache: Path) -> None:
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder), "--format", "jsonl", "--folder", "out"])
    rows = load_dataset("json", data_files=str(tmp_path / "out/pairs.jsonl"), split="train")
    rows = rows.map(lambda row: {side: str(tmp_path / "out" / row[side]) for side in ("winner", "loser")})
    rows = rows.cast_column("winner", datasets.Image()).cast_column("loser", datasets.Image())
    assert len(rows) == 19 and set(rows["prompt"]) == {"cat", "a dog, \u2603", "fox"}
    assert all(row["winner"].tobytes() != row["loser"].tobytes() for row in rows)


def test_datasets_loads_the_tasks_of_label_studio(folder: Path, tmp_path: Path, datasets_cache: Path) -> None:
    """A task has `data`, and `predictions` with the results of the Ranker in `config.xml`."""
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder), "--folder", "out"])
    tasks = load_dataset("json", data_files=str(tmp_path / "out/tasks.json"), split="train")
    view = ElementTree.fromstring((tmp_path / "out/config.xml").read_text())
    tags = {tag.get("name"): (tag.tag, tag.get("toName"), tag.get("value")) for tag in view.iter() if tag.get("name")}
    for task in tasks:
        assert {value[1:] for _, _, value in tags.values() if value} <= set(task["data"])
        for item in task["data"]["candidates"]:
            (address,) = re.findall(r'src="/data/local-files/\?d=([^"]+)"', item["html"])
            assert (tmp_path / address).is_file(), "below the folder that contains the export"
        ((result,),) = (prediction["result"] for prediction in task["predictions"])
        assert tags[result["from_name"]] == ("Ranker", result["to_name"], None) and result["type"] == "ranker"
        assert tags[result["to_name"]][0] == "List"
        order = result["value"]["ranker"][result["from_name"]]
        assert sorted(order) == sorted(item["id"] for item in task["data"]["candidates"])


def test_tasks_of_label_studio_show_the_prompt(folder: Path, tmp_path: Path) -> None:
    rank_all(folder, 1)
    main(["annotate", "export", "--pictures", str(folder)])
    tasks = json.loads((tmp_path / "label-studio/tasks.json").read_text())
    assert {task["data"]["prompt"] for task in tasks} == {"cat", "a dog, \u2603", "fox"}
    assert all("reference" not in task["data"] and len(task["predictions"]) == 1 for task in tasks)
    assert 'value="$prompt"' in (tmp_path / "label-studio/config.xml").read_text()


def test_without_rankings_nothing_is_exported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_all(folder, 1)
    (folder / "annotations/people.sqlite").unlink()
    (folder / "annotations/answers.jsonl").unlink()
    for form in ("pick-a-pic", "folders", "jsonl"):
        with pytest.raises(SystemExit):
            main(["annotate", "export", "--pictures", str(folder), "--format", form])
    assert not (tmp_path / "jsonl").exists() and capsys.readouterr().err


@pytest.fixture
def with_characters(folder: Path) -> Path:
    """The group `dog` has two characters, with two images and one image."""
    for name, colours in (("Mia", ("red", "green")), ("Fox", ("blue",))):
        (folder / "dog/characters" / name).mkdir(parents=True)
        for colour in colours:
            Image.new("RGB", (20, 20), colour).save(folder / "dog/characters" / name / f"{colour}.png")
    return folder


def test_characters_of_a_group_are_next_to_its_candidates(with_characters: Path, folder: Path) -> None:
    before = groups(fill(folder.parent / "other", cat=2))[0]
    table, images, rejected = groups(folder)
    rows = {row["prompt"]: row for row in table.to_dict("records")}
    assert not rejected and set(rows) == {"cat", "a dog, \u2603", "fox"}, "the characters are no groups"
    assert rows["cat"]["reference"] == "" and rows["cat"]["instance_id"] == before["instance_id"][0]
    dog = rows["a dog, \u2603"]
    assert [(c.name, len(c.images)) for c in dog["characters"]] == [("Fox", 1), ("Mia", 2)]
    row = images.panel(dog["reference"])
    assert row.size == (60, 20) and [row.getpixel((x, 9)) for x in (9, 29, 49)] == [
        (0, 0, 255),
        (0, 128, 0),
        (255, 0, 0),
    ]
    Image.new("RGB", (20, 20), "white").save(folder / "dog/characters/Fox/blue.png")
    changed = groups(folder)[0]
    assert dog["instance_id"] not in set(changed["instance_id"])
    for number in range(3):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(folder / f"dog/characters/Fox/{number}.png")
    assert [Path(place).name for place, _ in groups(folder)[2]] == ["dog"]


def test_rankings_with_characters_train_the_reward_model(
    with_characters: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = AnnotateOptions(annotators=2, overlap=2)
    with annotate_images._study(folder, create=True) as study:
        queue = study.queue(options)
        with TestClient(create_annotation_app(queue), base_url="http://127.0.0.1") as client:
            for annotator in queue.annotators:
                while (view := client.get(f"/a/{annotator.token}/view").json())["instance"]:
                    has_characters = view["prompt"] is None
                    assert view["characters"] == (["Fox", "Mia"] if has_characters else [])
                    assert view["caption"] == ("a dog, \u2603" if has_characters else "")
                    link = f"/a/{annotator.token}/pictures/{view['instance']}/reference.png"
                    assert client.get(link).status_code == (200 if has_characters else 404)
                    order = candidate_order(annotator.token, view["instance"], view["candidates"])
                    places = [order.index(position) for position in range(view["candidates"])]
                    client.post(f"/a/{annotator.token}/answers", json=body_for(view, places)).raise_for_status()
        study.save()
    main(["annotate", "export", "--format", "characters", "--folder", "out", "--pictures", str(folder)])
    assert "1 groups" in capsys.readouterr().out
    characters = CharacterPairs()
    add_stories(characters, tmp_path / "out/stories.jsonl", {}, 0)
    assert Counter((case.character, case.kind) for case in characters.cases) == {
        (name, kind): 1 for name in ("Fox", "Mia") for kind in ("positive", "other_character")
    }
    (row,) = [story for _, story in read_jsonl(tmp_path / "out/stories.jsonl")]
    with Image.open(tmp_path / "out" / row["panels"][0]["image"]) as best, Image.open(folder / "dog/0.png") as first:
        assert best.tobytes() == first.tobytes(), "both annotators ranked the first candidate best"
    with pytest.raises(SystemExit):
        main(["annotate", "export", "--format", "characters", "--folder", "out", "--pictures", str(folder)])
