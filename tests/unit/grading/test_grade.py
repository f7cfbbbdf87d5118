"""`paco grade` with the embedded models: five trainers' files, a broken one, resume, images of the subject."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from dvc_project.file_locks import hold
from paco_core import grade
from paco_core.cli import main
from paco_core.config.params import load
from paco_core.data.image_measures import THUMBNAIL
from paco_core.grading import images, measures
from paco_core.grading.measures import SubjectImages
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.policies.base import load_recipe_policy
from paco_core.sampling import generation
from paco_core.sampling.origin import read_origins
from tests.support import loras, reward_tiny, tiny_vlm
from tests.support.small_project import adapter

QUICK: dict[str, Any] = {"seeds": 2, "steps": 1, "size": 64}
TEXT = "\n".join(f"a {colour} cat at night, flat style." for colour in ("red", "blue", "green"))
TEXT += "\nTwo cats. [LEFT]: a big red cat. [RIGHT]: a small red cat.\n"


@pytest.fixture(scope="module")
def laid_out(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two adapters, one of them as five trainers write it, and a small reward model."""
    root = tmp_path_factory.mktemp("graded")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, root)
    (root / "data").mkdir()
    (root / "data/zoo").symlink_to(repository / "data/zoo")
    folder = adapter(root)
    shutil.copytree(folder, root / "strong")
    policy: Any = load_recipe_policy(load(root / "params.yaml").policies.recipes["flux_t2is"], root)
    sizes = {name: size[0] for name, size in loras.sizes_of(policy.transformer).items()}
    loras.write_trainer_layouts(folder / loras.FILE, root / "loras", sizes)
    tiny_vlm.build(root / paths.REWARD_MERGED)
    (root / "prompts.txt").write_text(TEXT)
    (root / "photos").mkdir()
    for number in range(6):
        reward_tiny.picture(number).save(root / "photos" / f"{number}.png")
    return root


@pytest.fixture
def project(laid_out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(laid_out)
    monkeypatch.setenv("PACO_TRACKING", "off")
    return laid_out


def generated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the adapters, once per image that is generated from now on."""
    names: list[str] = []
    generate = generation.generate_images

    def counted(*args: Any, **options: Any) -> Iterator[Any]:
        for image in generate(*args, **options):
            names.append(options["name"])
            yield image

    monkeypatch.setattr(images, "generate_images", counted)
    return names


@pytest.mark.slow
def test_files_of_five_trainers_and_a_broken_one(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = tmp_path / "broken.safetensors", tmp_path / "other.safetensors"
    broken.write_bytes((project / "loras" / "kohya-000002.safetensors").read_bytes()[:5000])
    loras.write(tmp_path, loras.peft(loras.random_lora({"blocks.0.to_q": (8, 8)})), other.name)
    names = generated(monkeypatch)
    options = ["--prompts", "prompts.txt", "--images", "photos", "--size", "64", "--steps", "1"]
    main(["grade", "loras", str(broken), str(other), *options, "--out", str(tmp_path / "out"), "--json"])
    result = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in result["adapters"]}
    assert set(rows) == {"checkpoint-500", "peft", "kohya-000002", "one-save-400-8-0", "aitoolkit_000001000"}
    assert {name: row["step"] for name, row in rows.items()} == {
        "checkpoint-500": 500, "peft": None, "kohya-000002": 2, "one-save-400-8-0": 400, "aitoolkit_000001000": 1000,
    }  # fmt: skip
    assert set(result["left_out"]) == {"broken", "other"} and "does not fit" in result["left_out"]["other"]
    assert result["main"] == "identity" and result["prompts"] == 4
    values = np.array([[measure["mean"] for measure in row["measures"].values()] for row in rows.values()])
    assert values.shape == (5, 7) and np.allclose(values, values[0], atol=2e-3), "one adapter in five spellings"
    assert values[0].tolist() != [m["mean"] for m in result["base"]["measures"].values()]
    assert len(names) == 6 * 4 * 2 and names[:8] == ["base"] * 8, "one base model, and five adapters"
    file = next(Path(rows["kohya-000002"]["images"]).glob("*.png"))
    (origin,) = read_origins(file)
    assert origin.models.adapter is not None and origin.models.adapter.name == "kohya-000002" and origin.steps == 1
    page = (tmp_path / "out" / "grade.html").read_text()
    assert all(name in page for name in (*rows, "broken")) and page.count("data:image/webp") == 6 * 4
    written = json.loads((tmp_path / "out" / "grade.json").read_text())
    assert {key: result[key] for key in written} == written


@pytest.mark.slow
def test_a_killed_run_resumes(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["strong", "loras/kohya-000002.safetensors"]
    options = {**QUICK, "prompts": Path("prompts.txt"), "out": tmp_path / "out"}
    names, save = generated(monkeypatch), images.ImageFolder.save

    def killed(folder: images.ImageFolder, *args: Any) -> None:
        if len(names) == 13:
            raise KeyboardInterrupt
        save(folder, *args)

    monkeypatch.setattr(images.ImageFolder, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        grade(sources, **options)
    monkeypatch.setattr(images.ImageFolder, "save", save)
    del names[:]
    grades = grade(sources, **options)
    assert "base" not in names and names.count("strong") in (4, 5, 6) and names.count("kohya-000002") == 8
    del names[:]

    def no_model(*_: Any) -> Any:
        raise AssertionError("everything is cached")

    monkeypatch.setattr("paco_core.api.judge_model.LocalModel.load", no_model)
    monkeypatch.setattr("paco_core.grading.base_model.load_policy", no_model)
    again = grade(sources, **options)
    assert names == [] and again.figures == grades.figures


@pytest.mark.slow
def test_the_recipes_and_checkpoints_of_a_project(project: Path, tmp_path: Path) -> None:
    grades = grade(prompts=Path("prompts.txt"), out=tmp_path / "out", **QUICK)
    assert [row.candidate.name for row in grades.comparison.adapters] == ["flux_t2is"]
    assert grades.best == "flux_t2is" and grades.comparison.main == "consistency"
    assert any("4 prompts" in remark for remark in grades.remarks), "too few for an interval"


@pytest.mark.slow
def test_no_adapter_that_fits_stops_before_an_image(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loras.write(tmp_path, loras.peft(loras.random_lora({"blocks.0.to_q": (8, 8)})), "other.safetensors")
    names = generated(monkeypatch)
    with pytest.raises(DataError, match=r"none of 1 adapters can be read:\n  other: .*does not fit"):
        grade([tmp_path / "other.safetensors"], prompts=Path("prompts.txt"), out=tmp_path / "out", **QUICK)
    assert names == []


@pytest.mark.slow
def test_an_adapter_of_infinite_images_is_left_out(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nan(policy: Any, *args: Any, **options: Any) -> Iterator[Any]:
        if options["name"] == "strong":
            raise DataError("flux in mixed: NaN")
        return generate(policy, *args, **options)

    generate = generation.generate_images
    monkeypatch.setattr(images, "generate_images", nan)
    sources = ["strong", "loras/kohya-000002.safetensors"]
    grades = grade(sources, prompts=Path("prompts.txt"), out=tmp_path / "out", **QUICK)
    assert grades.unreadable == {"strong": "flux in mixed: NaN"} and grades.best == "kohya-000002"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"images": Path("empty")}, "holds no picture"),
        ({"images": Path("lost")}, "lost"),
        ({"trigger": "sks fox"}, "no prompt contains the trigger"),
        ({"seeds": 1}, "choose 2 or more"),
        ({"reward": "lost"}, "lost"),
        ({"model": "data/zoo/flux_kontext"}, "FluxKontextPipeline"),
        ({"model": "data/zoo/lost"}, "no such folder"),
        ({"prompts": Path("lost.txt")}, "no such file"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], cause: str
) -> None:
    def no_model(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("paco_core.grading.base_model.load_policy", no_model)
    (project / "empty").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=cause):
        grade(["strong"], **{**QUICK, "prompts": Path("prompts.txt"), "out": tmp_path / "out", **options})


def test_two_runs_do_not_share_a_folder(project: Path, tmp_path: Path) -> None:
    with hold(tmp_path / "out" / "grade.lock"), pytest.raises(DataError, match="another `paco grade`"):
        grade(["strong"], prompts=Path("prompts.txt"), out=tmp_path / "out", **QUICK)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_the_next_one_resumes(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, seeds = images.ImageFolder.save, list[int]()

    def full(folder: images.ImageFolder, image: Any, *args: Any) -> None:
        if len(seeds) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder.file(image.record, image.seed)))
        seeds.append(image.seed)
        save(folder, image, *args)

    monkeypatch.setattr(images.ImageFolder, "save", full)
    command = ["grade", "strong", "--prompts", "prompts.txt", "--size", "64", "--steps", "1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as exit_info:
        main(command)
    message = capsys.readouterr().err.splitlines()[-1]
    assert exit_info.value.code == 1 and str(tmp_path) in message and "paco grade" in message
    monkeypatch.setattr(images.ImageFolder, "save", save)
    names = generated(monkeypatch)
    main(command)
    assert len(names) == 16 - 2, "the prompt whose second image is missing is generated again"


def test_images_of_the_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    for number in range(10):
        reward_tiny.picture(number, 64).save(tmp_path / f"{number}.png")
    references = SubjectImages.from_folder(tmp_path, lines.append)
    assert references.thumbnails.shape == (10, 3 * THUMBNAIL**2) and len(references.images) == 4
    enlarged = reward_tiny.picture(3, 64).resize((128, 128))
    assert references.near_copies([enlarged, Image.new("RGB", (64, 64), "red")]) == 0.5
    (tmp_path / "3.png").write_bytes(b"cut off")
    again = SubjectImages.from_folder(tmp_path, lines.append)
    assert again.unreadable == 1 and again.near_copies([enlarged]) == 0.0 and any("3.png" in line for line in lines)
    for number in range(10):
        (tmp_path / f"{number}.png").write_bytes(b"cut off")
    with pytest.raises(DataError, match="no image can be read"):
        SubjectImages.from_folder(tmp_path, lines.append)


def test_a_single_image_of_the_subject(tmp_path: Path) -> None:
    reward_tiny.picture(0).save(tmp_path / "0.png")
    assert len(SubjectImages.from_folder(tmp_path, print).images) == 1


def test_ten_thousand_images_need_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{number}.png" for number in range(10_000)]
    decoded: list[Path] = []

    def read(file: Path) -> Image.Image:
        decoded.append(file)
        return reward_tiny.picture(int(file.stem) % 7, 8)

    monkeypatch.setattr(measures, "list_pictures", lambda _folder: files)
    monkeypatch.setattr(measures, "read_image", read)
    references = SubjectImages.from_folder(tmp_path, lambda _line: None)
    assert len(references.images) == measures.SUBJECT_IMAGES and decoded[:10_000] == files
    assert references.thumbnails.nbytes == 10_000 * 3 * THUMBNAIL**2 * 4


def test_equal_settings_have_equal_keys_and_others_do_not(project: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from paco_core.grading.base_model import graded_base
    from paco_core.grading.candidates import Candidate
    from paco_core.grading.prompts import graded_prompts

    base = graded_base(project, load(project / "params.yaml"), None)
    records = graded_prompts(Path("prompts.txt"), None, base.size)

    def folder(change: Callable[[images.Generation], images.Generation], source: str = "strong") -> Path:
        plan = change(images.Generation(base, records, range(2), tmp_path, tmp_path))
        return plan.folder(Candidate(source, Path(source), source)).file(records[0], 0)

    first = folder(lambda plan: plan)
    assert first == folder(lambda plan: replace(plan, seeds=range(9)))
    changed = [
        folder(lambda plan: replace(plan, base=replace(base, steps=99))),
        folder(lambda plan: replace(plan, base=replace(base, size=32))),
        folder(lambda plan: plan, "loras/kohya-000002.safetensors"),
    ]
    assert len({first, *changed}) == 4
    assert load_file(project / "loras" / "kohya-000002.safetensors")
