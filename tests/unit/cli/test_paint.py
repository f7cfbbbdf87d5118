"""`paco paint` and `paco edit` in a project with the embedded models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoTokenizer

from paco_core.cli import main
from paco_core.config.params import load
from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records import prompt_text
from paco_core.data.records.records import write_prompts
from paco_core.io import paths
from paco_core.io.contact_sheet import GAP, LINE, READABLE
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest, read_image
from paco_core.operations.paint import load_painter_policy
from paco_core.operations.painters import painter
from paco_core.operations.play.about import about
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.prompt_records import set_record
from paco_core.sampling.origin import read_origins
from paco_core.storybook.prompts import storybook_prompts
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from tests.support import tiny_vlm
from tests.support.small_project import adapter, lay_out

PANELS = [
    f"a {size} red cat {place}, flat style." for size in ("small", "big") for place in ("at night", "in the snow")
]


@pytest.fixture
def project(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return lay_out(repository, tmp_path)


@pytest.mark.slow
def test_a_theme_and_panels_are_painted_before_and_after(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter(project)
    quick = ["--seeds", "2", "--steps", "2", "--size", "64"]
    main(["paint", "a red cat", "--panels", *PANELS, *quick, "--compare", "--json"])
    output = json.loads(capsys.readouterr().out)
    assert [(row["by"], row["seed"]) for row in output["pictures"]] == [
        ("base", 0), ("base", 1), ("flux_t2is", 0), ("flux_t2is", 1),
    ]  # fmt: skip
    pictures = [Image.open(row["file"]) for row in output["pictures"]]
    assert {picture.size for picture in pictures} == {(64, 64)} and len({p.tobytes() for p in pictures}) == 4
    sheet = Image.open(output["sheet"])
    assert sheet.width == 2 * (READABLE + GAP) - GAP
    assert sheet.height > 2 * (READABLE + 2 * LINE) + GAP, "captions below each picture, the prompt above all"
    origins = [read_origins(Path(row["file"])) for row in output["pictures"]]
    assert [(origin.models.policy, origin.seed, origin.models.adapter is None) for (origin,) in origins] == [
        ("base", 0, True), ("base", 1, True), ("flux_t2is", 0, False), ("flux_t2is", 1, False),
    ]  # fmt: skip
    assert read_origins(Path(output["sheet"])) == [origin for (origin,) in origins]
    assert all(row["score"] is None for row in output["pictures"])  # there is no reward model yet


@pytest.mark.slow
def test_equal_seeds_paint_equal_pictures(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, quick = [], ["--policy", "base", "--seeds", "1", "--steps", "1", "--out", "out"]
    for _ in range(2):
        main(["paint", "a red cat", "--panels", *PANELS, *quick])
        once.append((project / "out/base-0.png").read_bytes())
    main(["paint", "a red cat", "--panels", *PANELS, *quick, "--no-metadata"])
    file = project / "out/base-0.png"
    assert file.read_bytes() != once[0] and Image.open(file).tobytes() == Image.open(io.BytesIO(once[0])).tobytes()
    assert "paco" not in Image.open(file).info and str(project).encode() not in once[0]
    assert once[0] == once[1] and "no scores: there is no reward model yet" in capsys.readouterr().out


@pytest.mark.slow
def test_a_picture_is_edited(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (64, 64), "red").save(project / "cat.png")
    main(["edit", "cat.png", "Make the cat blue.", "--policy", "base", "--seeds", "1", "--steps", "1", "--out", "out"])
    assert Image.open(project / "out/base-0.png").size == (64, 64)
    assert read_origins(project / "out/base-0.png")[0].references == (picture_digest(read_image(project / "cat.png")),)
    assert "editing reward –" in capsys.readouterr().out
    with pytest.raises(SystemExit) as raised:
        main(["edit", "cat.png", "cat.png", "Mix them.", "--policy", "base"])
    assert raised.value.code != 0 and "flux_kontext needs one reference image" in capsys.readouterr().err


def test_painters_by_name(project: Path) -> None:
    params, folder = load(project / "params.yaml"), adapter(project)
    assert painter(project, params, None, SETS).adapter == folder
    assert painter(project, params, "base", EDITS).adapter is None
    assert painter(project, params, str(folder), SETS).adapter == folder
    with pytest.raises(DataError, match="not trained yet; run `dvc repro policies@kontext_edit`"):
        painter(project, params, "kontext_edit", EDITS)
    with pytest.raises(DataError, match="'kontext_edit' is no policy for sets: choose base, flux_t2is"):
        painter(project, params, "kontext_edit", SETS)
    with pytest.raises(DataError, match="the aliases are champion, challenger"):
        painter(project, params, "flux_t2is@best", SETS)


def test_prompts_need_panels() -> None:
    with pytest.raises(DataError, match="give a prompt that marks its panels"):
        set_record("a red cat", [], 64)
    with pytest.raises(DataError, match="give a prompt that marks its panels"):
        set_record("Two cats. [LEFT]: a cat [RIGHT]: a cat", ["a", "b"], 64)
    three = set_record("a red cat", ["one", "two", "three"], 64)
    assert (three.layout, three.theme) == ("1x3", "a red cat") and "[MIDDLE]: two" in three.prompt
    assert (three.height, three.width) == (64, 192)
    marked = set_record(three.prompt, [], 64)
    assert marked.prompt == three.prompt and marked.theme == "a red cat"


def test_a_lora_from_elsewhere_is_a_folder_a_file_or_of_a_hub(project: Path) -> None:
    params, file = load(project / "params.yaml"), project / "loras" / "style.v1.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"cut off")
    for reference, name in ((file, "style.v1"), (file.parent, "loras"), ("org/lora", "lora")):
        by = painter(project, params, str(reference), SETS)
        assert (by.name, by.adapter) == (name, reference)
    with pytest.raises(DataError, match=r"style.v1.safetensors: cannot be read"):
        load_painter_policy(project, painter(project, params, str(file), SETS))


def test_prompts_of_the_project_fit_when_they_are_put_together_again(repository: Path, tmp_path: Path) -> None:
    """From its parts each is the prompt that it was, to the letter; from the record's theme and panels none is cut."""
    tokenizer = AutoTokenizer.from_pretrained(repository / "data/zoo/flux/tokenizer_2")
    generated = storybook_prompts(200, 0)
    parts = [prompt_text.parse_prompt(record.prompt, record.layout) for record in generated]
    texts = [[panel.text for panel in part.panels] for part in parts]
    for record, part, panels in zip(generated, parts, texts, strict=True):
        assert set_record(part.theme, panels, 64).prompt == record.prompt, "to the letter"
    assert max(len(ids) for ids in tokenizer([record.prompt for record in generated]).input_ids) <= 40
    composed = [set_record(record.theme, panels, 64).prompt for record, panels in zip(generated, texts, strict=True)]
    assert max(len(ids) for ids in tokenizer(composed).input_ids) <= 40
    records = [storybook_record(record, 64, 64) for record in generated]
    project = lay_out(repository, tmp_path)
    for folder in (paths.PROMPTS, paths.DIVERSE_PROMPTS):
        (project / folder).mkdir(parents=True, exist_ok=True)
        write_prompts(project / folder / "prompts.jsonl", records)
    examples = about(project, load(project / "params.yaml"), Gallery())["set_examples"]
    recomposed = [set_record(record["theme"], record["panels"], 64) for record in examples]
    prompts_by_theme = {record.theme: record.prompt for record in records}
    assert [record.prompt for record in recomposed] == [
        prompts_by_theme[record["name"]] for record in examples
    ] and len(examples) == 4


@pytest.mark.slow
@pytest.mark.parametrize("keep_all", [False, True])
def test_the_best_of_several_candidates_is_kept(
    project: Path, capsys: pytest.CaptureFixture[str], keep_all: bool
) -> None:
    tiny_vlm.build(project / paths.REWARD_MERGED)
    options = ["--policy", "base", "--steps", "1", "--size", "64", "--out", "out", "--json"]
    main(["paint", "a red cat", "--panels", *PANELS, "--best", "3", *options, *(["--keep-all"] if keep_all else [])])
    output = json.loads(capsys.readouterr().out)
    scores = [row["score"] for row in output["pictures"]]
    best = max(range(3), key=scores.__getitem__)
    # 3 seeds of a tiny reward model may have two equal scores: that depends on the processor
    assert output["best"] == output["pictures"][best]["seed"] == best and len(set(scores)) > 1
    kept_files = [f"base-{seed}.png" for seed in range(3) if keep_all or seed == best]
    assert sorted(file.name for file in (project / "out").glob("base-*.png")) == kept_files
    assert [row["file"] is not None for row in output["pictures"]] == [keep_all or seed == best for seed in range(3)]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--best", "3", "--seeds", "3"], "leave out --seeds"),
        (["--best", "3", "--compare"], "leave out --seeds"),
        (["--keep-all"], "goes with --best"),
        (["--best", "3"], "needs a reward model"),
        (["--best", "1"], "--best"),
    ],
)
def test_best_needs_a_reward_model_and_no_seeds(
    project: Path, capsys: pytest.CaptureFixture[str], options: list[str], cause: str
) -> None:
    with pytest.raises(SystemExit):
        main(["paint", "a red cat", "--panels", *PANELS, "--policy", "base", "--out", "out", *options])
    assert cause in capsys.readouterr().err and not (project / "out").exists()
