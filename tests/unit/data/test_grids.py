"""Grids: the noise of a picture, shards, resuming, running out of memory; cutting pictures into panels."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from PIL import Image, ImageChops

from paco_core.config.params import GridsParams
from paco_core.data.grids import grids
from paco_core.data.grids.grids import noise_seed
from paco_core.data.grids.text_to_image import Request, TextToImage
from paco_core.data.records.panels import PanelStore, cut, shard_of
from paco_core.data.records.records import PromptRecord, panel_ref, write_prompts
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError
from paco_core.io.shards import INDEX, TAR, ShardReader
from paco_core.policies.base import NoiseKey
from paco_core.stages import run_stage
from tests.support.dataset_world import RECIPE, records
from tests.support.tiny import TEXT_LENGTH, tiny_flux


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_flux(tmp_path_factory.mktemp("flux") / "flux")


def params(flux: Path, **changes: object) -> GridsParams:
    given = {
        "model": str(flux),
        "device": "cpu",
        "dtype": "float32",
        "seeds": [0, 1],
        "height": 32,
        "width": 32,
        "steps": 2,
        "guidance": 3.5,
        "max_sequence_length": TEXT_LENGTH,
        "batch_size": 4,
    }
    return GridsParams(**{**given, **changes})  # type: ignore[arg-type]


def paint(folder: Path, prompts: list[PromptRecord], p: GridsParams, shards: int) -> pd.DataFrame:
    recipe = grids.Painting.from_params(p, Path())
    for shard in range(shards):
        jobs = grids.grid_jobs(shard_of(prompts, shard, list(range(shards))), p.seeds, recipe)
        finished = grids.GridFiles(folder / "work")
        grids.paint(jobs, finished.save, lambda: TextToImage.load(p.model, p), batch_size=p.batch_size, say=print)
        grids.write_grids(folder / "grids" / f"shard-{shard}", jobs, finished)
    table = ShardReader.below(folder / "grids").index
    return table.reset_index(drop=True).sort_values("id")[["id", "prompt_id", "seed", "md5"]].reset_index(drop=True)


@pytest.mark.slow
def test_shards_and_order_change_no_picture(flux: Path, tmp_path: Path) -> None:
    prompts = records(5, side=32)
    one = paint(tmp_path / "1", prompts, params(flux), 1)
    three = paint(tmp_path / "3", prompts[::-1], params(flux), 3)
    pd.testing.assert_frame_equal(one, three)
    assert one["md5"].nunique() == 10


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_batch_size_changes_no_noise_and_hardly_a_pixel(
    flux: Path, tmp_path: Path, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal noise to the bit; matrix products of another height may round differently, by a level in 255."""
    from diffusers import FluxPipeline

    prompts, noise = records(2, side=32), dict[str, list[bytes]]()
    make = FluxPipeline.prepare_latents
    for name, size in (("4", 4), ("other", batch_size)):
        made = noise.setdefault(name, [])

        def seen(self: FluxPipeline, *args: object, made: list[bytes] = made, **kwargs: object) -> object:
            latents = make(self, *args, **kwargs)
            made += [row.numpy().tobytes() for row in latents[0]]
            return latents

        monkeypatch.setattr(FluxPipeline, "prepare_latents", seen)
        paint(tmp_path / name, prompts, params(flux, batch_size=size), 1)
    assert set(noise["4"]) == set(noise["other"]) and len(set(noise["4"])) == 4
    one, other = (ShardReader.below(tmp_path / name / "grids") for name in ("4", "other"))
    for grid_id in one.index.index:
        difference = ImageChops.difference(one.read(grid_id), other.read(grid_id))
        assert max(high for _, high in difference.getextrema()) <= 1


def test_any_layout_is_painted_and_cut(flux: Path, tmp_path: Path) -> None:
    prompts = [*records(1, "2x3", 96), *records(1, "1x4", 64), *records(1, "3x2", 64)]
    paint(tmp_path, prompts, params(flux, seeds=[0, 1], steps=1), 2)
    store = PanelStore.below(tmp_path / "grids")
    for row in store.grids.index.to_dict("records"):
        rows, columns = (int(n) for n in row["layout"].split("x"))
        panels = store.panels(row["id"])
        assert len(panels) == rows * columns
        assert {panel.size for panel in panels} == {(row["width"] // columns, row["height"] // rows)}


def test_prompt_and_seed_decide_the_noise() -> None:
    made = {grids.noise_seed(prompt, seed) for prompt in ("a", "b") for seed in (0, 1)}
    assert len(made) == 4 and grids.noise_seed("a", 0) == grids.noise_seed("a", 0)
    assert all(0 <= seed < 2**63 for seed in made)


def test_pictures_equal_the_pipeline_s_own(flux: Path) -> None:
    from diffusers import FluxPipeline

    request = Request("a red cat on the beach", 32, 32, 7)
    generator = TextToImage.load(flux, params(flux))
    generator.encode([request])
    assert generator.pipeline.text_encoder is None and generator.pipeline.text_encoder_2 is None
    (ours,) = generator.paint([request], 1)
    pipeline = FluxPipeline.from_pretrained(flux)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        request.prompt,
        height=32,
        width=32,
        num_inference_steps=2,
        guidance_scale=3.5,
        max_sequence_length=TEXT_LENGTH,
        generator=torch.Generator().manual_seed(7),
    ).images[0]
    assert ours.tobytes() == theirs.tobytes()


def test_images_of_nan_are_an_error(flux: Path) -> None:
    generator = TextToImage.load(flux, params(flux))
    torch.nn.init.constant_(generator.pipeline.vae.decoder.conv_out.weight, torch.nan)
    with pytest.raises(DataError, match=f"{flux} in float32: 2 of 2"):
        generator.paint([Request("a red cat", 32, 32, 7)], 2)


def test_a_folder_without_a_pipeline_is_named(flux: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no diffusers pipeline there"):
        TextToImage.load(tmp_path / "nowhere", params(flux))


class Painter:
    """Paints plain pictures; fails as told."""

    def __init__(self, fits: int = 99, fails_after: int | None = None, error: Exception | None = None) -> None:
        self.fits, self.fails_after, self.calls = fits, fails_after, 0
        self.error = error or torch.OutOfMemoryError("CUDA out of memory")
        self.encoded: list[str] = []

    def encode(self, requests: Sequence[Request]) -> int:
        self.encoded = [request.prompt for request in requests]
        return len(set(self.encoded))

    def kind(self, request: Request) -> tuple[int, int]:
        return request.height, request.width

    def paint(self, requests: Sequence[Request], batch_size: int) -> list[Image.Image]:
        self.calls += 1
        if batch_size > self.fits or (self.fails_after is not None and self.calls > self.fails_after):
            raise self.error
        return [Image.new("RGB", (r.width, r.height), (r.noise_seed % 256, 0, 0)) for r in requests]


@pytest.mark.slow
def test_out_of_memory_halves_the_batch_and_says_so(tmp_path: Path) -> None:
    jobs, said = grids.grid_jobs(records(5), [0, 1], RECIPE), list[str]()
    finished = grids.GridFiles(tmp_path)
    counted: list[int] = []
    done = grids.paint(
        jobs, finished.save, lambda: Painter(fits=2), batch_size=8, say=said.append, advance=counted.append
    )
    assert (done, sum(counted)) == (2, 10)
    assert [line for line in said if "out of memory with 8" in line] and all(job.id in finished for job in jobs)
    with pytest.raises(DataError, match="does not fit into memory"):
        grids.paint(jobs, grids.GridFiles(tmp_path / "b").save, lambda: Painter(fits=0), batch_size=2, say=said.append)


def test_other_errors_are_not_taken_for_memory(tmp_path: Path) -> None:
    jobs = grids.grid_jobs(records(1), [0, 1], RECIPE)
    painter = Painter(fits=0, error=RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        grids.paint(jobs, grids.GridFiles(tmp_path).save, lambda: painter, batch_size=2, say=print)


@pytest.mark.slow
def test_a_stage_killed_by_signal_9_leaves_no_shard_and_gives_the_same_one_again(flux: Path, project: Path) -> None:
    prompts = records(6, side=32)
    write_prompts(project / "data/diverse_prompts/prompts.jsonl", prompts)
    settings = params(flux, steps=12, batch_size=1)
    _write_params(project, {"grids": settings.model_dump(), "grid_shards": [0]})
    out = project / "data/grids/shard-0"
    with subprocess.Popen([sys.executable, "-m", "paco_core", "run", "grids", "--item", "0"], cwd=project) as stage:
        deadline = time.monotonic() + 240
        while len(list((project / "data/grids").rglob("*.png"))) < 2:
            assert stage.poll() is None and time.monotonic() < deadline, "the stage ended before it could be killed"
            time.sleep(0.01)
        stage.kill()
    assert stage.returncode == -signal.SIGKILL and not out.exists()
    run_stage("grids", "0", project)
    paint(project / "whole", prompts, settings, 1)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        path.name for path in (project / "whole/grids/shard-0").iterdir()
    )
    for name in (TAR, INDEX):
        assert (out / name).read_bytes() == (project / "whole/grids/shard-0" / name).read_bytes(), name
    assert [path.name for path in (project / "data/grids").iterdir()] == ["shard-0"], "no rest of the killed run"


def _write_params(project: Path, changes: dict[str, Any]) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    (project / "params.yaml").write_text(yaml.safe_dump({**tree, **changes}))


def test_ids_follow_content() -> None:
    job = grids.grid_jobs(records(1), [0], RECIPE)[0]
    other = grids.Painting("drawn", "float32", 2, 1.0, 40)
    assert grids.grid_jobs(records(1), [0], RECIPE)[0].id == job.id
    assert grids.grid_jobs(records(1), [0], other)[0].id != job.id
    assert grids.grid_jobs(records(1), [1], RECIPE)[0].id != job.id
    with pytest.raises(DataError, match="a seed twice"):
        grids.grid_jobs(records(1), [0, 0], RECIPE)
    with pytest.raises(DataError, match="no grid shard 7; grid_shards are 0, 1"):
        shard_of(records(1), 7, [0, 1])


def test_cut_gives_panels_in_reading_order() -> None:
    picture = Image.new("RGB", (6, 4))
    for x in range(6):
        for y in range(4):
            picture.putpixel((x, y), (y // 2 * 3 + x // 2, 0, 0))
    panels = cut(picture, "2x3")
    assert [panel.getpixel((1, 1))[0] for panel in panels] == [0, 1, 2, 3, 4, 5]
    assert {panel.size for panel in panels} == {(2, 2)}
    with pytest.raises(DataError, match="does not divide into 3x3"):
        cut(picture, "3x3")


def test_panel_store_finds_panels_and_names_what_is_missing(tmp_path: Path) -> None:
    jobs, finished = grids.grid_jobs(records(1), [0, 1], RECIPE), grids.GridFiles(tmp_path / "w")
    grids.paint(jobs, finished.save, Painter, batch_size=2, say=print)
    grids.write_grids(tmp_path / "grids" / "shard-0", jobs, finished)
    store = PanelStore(ShardReader.below(tmp_path / "grids"), cached_grids=1)
    assert store.panel(panel_ref(jobs[0].id, 3)).size == (32, 32)
    assert store.panel(panel_ref(jobs[1].id, 0)).getpixel((0, 0)) != store.panel(panel_ref(jobs[0].id, 0)).getpixel(
        (0, 0)
    )
    for wrong in (panel_ref(jobs[0].id, 4), panel_ref("unknown", 0), "nonsense"):
        with pytest.raises(DataError, match=wrong.partition("#")[0]):
            store.panel(wrong)


def test_seeds_are_those_of_every_release() -> None:
    assert noise_seed("a", 0) == seed_of("a", 0) == 8248403736293150640
    assert NoiseKey("a", 0, 1).generator_seed == 6162722053782007845
