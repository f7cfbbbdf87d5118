"""Origin of a generated image: its metadata, and `paco provenance IMAGE`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from paco_core.cli import commands, main
from paco_core.cli.provenance import trace_image
from paco_core.config.params import load
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.image_metadata import ImageMetadata, save_image
from paco_core.operations.promote import promote
from paco_core.operations.promotion.champions import ADAPTER_TAG, Champions
from paco_core.runtime.versions import md5_of_folder
from paco_core.sampling.generated_image import GeneratedImage
from paco_core.sampling.origin import (
    ImageOrigin,
    ModelVersion,
    PolicyVersion,
    image_metadata,
    policy_version,
    read_origins,
)
from tests.support import provenance_world as world
from tests.support.promotion_stand import NAME, POLICY, made_stand

BASE = ModelVersion("black-forest-labs/FLUX.1-dev", "0" * 40)
ADAPTER = ModelVersion("flux_t2is", f"{'ab' * 16}.dir")
ORIGIN = ImageOrigin(
    PolicyVersion("flux_t2is", BASE, "flux-1-dev-non-commercial-license", ADAPTER),
    'a bear, "blue" ☃\nSteps: none', 3, 64, 32, 10, 3.5, "1x2",
)  # fmt: skip


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8))


def generated(origin: ImageOrigin | None = ORIGIN) -> GeneratedImage:
    record = PromptRecord(
        idx="p",
        prompt="a bear",
        height=32,
        width=64,
        layout="1x2",
        theme="a bear",
        category="",
        task_name="",
        criteria={},
    )  # fmt: skip
    return GeneratedImage("flux_t2is", 64, "after", record, 3, noise(), origin=origin)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp"])
def test_a_file_contains_its_origin_and_the_pixels_of_one_without(tmp_path: Path, suffix: str) -> None:
    file, plain = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    generated().save(file)
    generated().save(str(plain), metadata=False)
    assert read_origins(file) == [ORIGIN]
    assert Image.open(file).tobytes() == Image.open(plain).tobytes()
    with pytest.raises(DataError, match="it has no metadata"):
        read_origins(plain)
    once = file.read_bytes()
    generated().save(file)
    assert file.read_bytes() == once


def test_image_tools_read_parameters(tmp_path: Path) -> None:
    """As AUTOMATIC1111 reads them: ``parameters`` of a PNG, ``UserComment`` of others; the last line are settings."""
    for name in ("a.png", "a.jpg", "a.webp"):
        generated().save(tmp_path / name)
    texts = [Image.open(tmp_path / "a.png").info["parameters"]]
    for name in ("a.jpg", "a.webp"):
        comment = Image.open(tmp_path / name).getexif().get_ifd(0x8769)[0x9286]
        texts.append(comment.removeprefix(b"UNICODE\0").decode("utf-16-be"))
    assert texts == [ORIGIN.parameters] * 3
    prompt, _, line = ORIGIN.parameters.rpartition("\n")
    assert prompt == ORIGIN.prompt
    assert line == (
        "Steps: 10, Sampler: Euler, CFG scale: 3.5, Seed: 3, Size: 64x32, Model hash: 0000000000, "
        'Model: black-forest-labs/FLUX.1-dev, Lora hashes: "flux_t2is: ababababab", '
        f"License: flux-1-dev-non-commercial-license, Layout: 1x2, Version: paco {ORIGIN.paco}"
    )


def test_panels_have_the_origin_of_their_set_and_their_number() -> None:
    assert generated().panel_origins == [replace(ORIGIN, width=32, panel=number) for number in (0, 1)]
    assert generated(None).panel_origins == [None, None]


def test_a_sheet_contains_each_origin_once(tmp_path: Path) -> None:
    base = replace(ORIGIN, models=replace(ORIGIN.models, policy="base", adapter=None))
    save_image(noise(), tmp_path / "sheet.png", image_metadata([base, ORIGIN, base]))
    assert read_origins(tmp_path / "sheet.png") == [base, ORIGIN] and image_metadata([]) is None


def test_other_formats_and_long_metadata_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.bmp"):
        generated().save(tmp_path / "a.bmp")
    with pytest.raises(DataError, match=r"65533; save a \.png"):
        generated(replace(ORIGIN, prompt="x" * 40_000)).save(tmp_path / "a.jpg")
    generated(replace(ORIGIN, prompt="x" * 40_000)).save(tmp_path / "a.png")
    assert not (tmp_path / "a.bmp").exists() and not (tmp_path / "a.jpg").exists()


def record(**changes: Any) -> dict[str, Any]:
    return {"format": 1, "images": [{**asdict(ORIGIN), **changes}]}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "format None"),
        (json.dumps(record() | {"format": 9}), "format 9"),
        (json.dumps(record() | {"images": []}), "damaged"),
        (json.dumps(record(seed="first")), "damaged"),
        (json.dumps(record(models=None)), "damaged"),
    ],
)
def test_damaged_metadata_are_named_with_their_file(tmp_path: Path, text: str, fault: str) -> None:
    chunks = PngInfo()
    chunks.add_itxt("paco", text)
    noise().save(tmp_path / "a.png", pnginfo=chunks)
    with pytest.raises(DataError, match=rf"a\.png: .*{fault}"):
        read_origins(tmp_path / "a.png")


def test_metadata_of_another_tool_and_files_that_are_no_image_are_named(tmp_path: Path) -> None:
    chunks = PngInfo()
    chunks.add_text("parameters", "a cat\nSteps: 20")
    noise().save(tmp_path / "a.png", pnginfo=chunks)
    with pytest.raises(DataError, match="another tool"):
        read_origins(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(DataError, match=r"b\.png: not a readable picture"):
        read_origins(tmp_path / "b.png")
    generated().save(tmp_path / "c.webp")
    data = (tmp_path / "c.webp").read_bytes()
    (tmp_path / "c.webp").write_bytes(data.replace(b"paco\0{", b"paco\0\xff"))
    with pytest.raises(DataError, match=r"c\.webp: "):
        read_origins(tmp_path / "c.webp")


def test_a_record_behind_the_pixels_is_read(tmp_path: Path) -> None:
    """As tools write it that save a PNG again."""
    generated().save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    start = data.index(b"iTXtpaco\0") - 4
    chunk = data[start : start + 12 + int.from_bytes(data[start : start + 4], "big")]
    (tmp_path / "a.png").write_bytes(data.replace(chunk, b"").replace(data[-12:], chunk + data[-12:]))
    assert read_origins(tmp_path / "a.png") == [ORIGIN]


def test_versions_of_models_name_no_path_of_the_machine(repository: Path, tmp_path: Path) -> None:
    recipe = load(repository / "params.yaml").policies.recipes["flux_t2is"]
    elsewhere, file = tmp_path / "models" / "flux", tmp_path / "loras" / "style.safetensors"
    (elsewhere).mkdir(parents=True)
    (elsewhere / "model_index.json").write_text("{}")
    file.parent.mkdir()
    file.write_text("weights")
    models = policy_version(tmp_path, "style", recipe.model_copy(update={"model": str(elsewhere)}), file)
    assert models.base.name == "flux" and models.license == "other" and models.adapter is not None
    assert (models.adapter.name, len(models.adapter.version)) == ("style", 32)
    assert str(tmp_path) not in image_metadata([replace(ORIGIN, models=models)]).parameters  # type: ignore[union-attr]


def test_an_image_leads_to_the_stages_of_its_policy(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = world.make_whole(project)
    md5 = md5_of_folder(root, root / POLICY / "adapter")
    image = replace(ORIGIN, models=replace(ORIGIN.models, adapter=ModelVersion(NAME, str(md5))))
    (root / "painted").mkdir()
    generated(image).save(root / "painted/a.png")
    monkeypatch.chdir(root / "painted")
    monkeypatch.setattr(commands, "validate_code_origin", lambda _root: None)  # this project has a paco_core
    main(["provenance", "a.png", "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert [link["stage"] for link in tree["provenance"]["links"]][:2] == [f"policies@{NAME}", "pairs"]
    assert tree["images"][0]["seed"] == 3 and tree["gap"] is None
    main(["provenance", "a.png"])
    text = capsys.readouterr().out
    assert ORIGIN.prompt in text and f"policies@{NAME}" in text
    (root / POLICY / "adapter/weights.safetensors").write_text("trained again")
    traced = trace_image(root, root / "painted/a.png")
    assert traced.policy is None and str(md5) in str(traced.gap)
    assert trace_image(None, root / "painted/a.png").gap is not None


@pytest.mark.slow
def test_an_image_of_an_earlier_version_leads_to_the_registered_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, stand = project, made_stand(project, monkeypatch)
    md5 = str(md5_of_folder(root, root / POLICY / "adapter"))
    promote(root, NAME)
    assert Champions(root).of_adapter(NAME, md5) is not None, ADAPTER_TAG
    stand.retrain("new", 0.0)
    image = replace(ORIGIN, models=replace(ORIGIN.models, adapter=ModelVersion(NAME, md5)))
    generated(image).save(root / "a.png")
    traced = trace_image(root, root / "a.png")
    assert traced.policy is not None and not traced.policy.present
    assert traced.policy.provenance.path == POLICY


def test_parameters_hold_what_a_record_has() -> None:
    metadata = image_metadata([ORIGIN])
    assert isinstance(metadata, ImageMetadata) and json.loads(json.dumps(metadata.record)) == json.loads(
        json.dumps(record())
    )
