"""Grids: any diffusers class paints as it does itself, shards, resuming, running out of memory; cutting into panels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image

from paco_core.config.params import GridsParams
from paco_core.data.grids import grids
from paco_core.data.grids.grids import noise_seed
from paco_core.data.grids.text_to_image import Request, TextToImage
from paco_core.data.records.panels import PanelStore, shard_of, split_grid
from paco_core.data.records.records import PromptRecord, panel_ref
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError
from paco_core.io.shards import ShardReader
from paco_core.policies.base import NoiseKey
from tests.support.dataset_world import RECIPE, records
from tests.support.tiny import TEXT_LENGTH, tiny_flux
from tests.support.tiny_pipelines import FAMILIES


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_flux(tmp_path_factory.mktemp("flux") / "flux")


def params(flux: Path, **changes: object) -> GridsParams:
    defaults = {
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
    return GridsParams(**{**defaults, **changes})  # type: ignore[arg-type]


def paint(folder: Path, prompts: list[PromptRecord], p: GridsParams, shards: int) -> pd.DataFrame:
    recipe = grids.GenerationSettings.from_params(p, Path())
    for shard in range(shards):
        jobs = grids.grid_jobs(shard_of(prompts, shard, list(range(shards))), p.seeds, recipe)
        finished = grids.GridFiles(folder / "work")
        grids.generate_grids(
            jobs, finished.save, lambda: TextToImage.load(p.model, p), batch_size=p.batch_size, log=print
        )
        grids.write_grids(folder / "grids" / f"shard-{shard}", jobs, finished)
    table = ShardReader.below(folder / "grids").index
    return table.reset_index(drop=True).sort_values("id")[["id", "prompt_id", "seed", "md5"]].reset_index(drop=True)


@pytest.mark.slow
def test_shards_and_order_change_no_picture(flux: Path, tmp_path: Path) -> None:
    prompts = records(5, side=32)
    single_shard = paint(tmp_path / "1", prompts, params(flux), 1)
    three_shards = paint(tmp_path / "3", prompts[::-1], params(flux), 3)
    pd.testing.assert_frame_equal(single_shard, three_shards)
    assert single_shard["md5"].nunique() == 10


def test_pictures_equal_the_pipeline_s_own(flux: Path) -> None:
    from diffusers import FluxPipeline

    request = Request("a red cat on the beach", 32, 32, 7)
    generator = TextToImage.load(flux, params(flux))
    generator.encode([request])
    assert generator.pipeline.text_encoder is None and generator.pipeline.text_encoder_2 is None
    (ours,) = generator.generate([request], 1)
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
        generator.generate([Request("a red cat", 32, 32, 7)], 2)


class Painter:
    """Paints plain pictures; fails on a batch that does not fit."""

    def __init__(self, fits: int = 99, error: Exception | None = None) -> None:
        self.fits, self.error = fits, error or torch.OutOfMemoryError("CUDA out of memory")

    def encode(self, requests: Sequence[Request]) -> int:
        return len({request.prompt for request in requests})

    def kind(self, request: Request) -> tuple[int, int]:
        return request.height, request.width

    def generate(self, requests: Sequence[Request], batch_size: int) -> list[Image.Image]:
        if batch_size > self.fits:
            raise self.error
        return [Image.new("RGB", (r.width, r.height), (r.noise_seed % 256, 0, 0)) for r in requests]


@pytest.mark.slow
def test_out_of_memory_halves_the_batch_and_no_other_error_does(tmp_path: Path) -> None:
    jobs, finished, counted = grids.grid_jobs(records(5), [0, 1], RECIPE), grids.GridFiles(tmp_path), list[int]()

    def paint(painter: Painter) -> int:
        return grids.generate_grids(
            jobs, finished.save, lambda: painter, batch_size=8, log=lambda _line: None, advance=counted.append
        )

    assert paint(Painter(fits=2)) == 2
    assert sum(counted) == 10 and all(job.id in finished for job in jobs)
    with pytest.raises(DataError):
        paint(Painter(fits=0))
    with pytest.raises(RuntimeError, match="shapes"):
        paint(Painter(fits=0, error=RuntimeError("shapes do not match")))


def test_ids_follow_content() -> None:
    job = grids.grid_jobs(records(1), [0], RECIPE)[0]
    other = grids.GenerationSettings("drawn", "float32", 2, 1.0, 40)
    assert grids.grid_jobs(records(1), [0], RECIPE)[0].id == job.id
    assert grids.grid_jobs(records(1), [0], other)[0].id != job.id
    assert grids.grid_jobs(records(1), [1], RECIPE)[0].id != job.id
    with pytest.raises(DataError, match="seed"):
        grids.grid_jobs(records(1), [0, 0], RECIPE)
    with pytest.raises(DataError, match="7"):
        shard_of(records(1), 7, [0, 1])


def test_cut_gives_panels_in_reading_order() -> None:
    picture = Image.new("RGB", (6, 4))
    for x in range(6):
        for y in range(4):
            picture.putpixel((x, y), (y // 2 * 3 + x // 2, 0, 0))
    panels = split_grid(picture, "2x3")
    assert [panel.getpixel((1, 1))[0] for panel in panels] == [0, 1, 2, 3, 4, 5]
    assert {panel.size for panel in panels} == {(2, 2)}
    with pytest.raises(DataError, match="does not divide into 3x3"):
        split_grid(picture, "3x3")


def test_panel_store_finds_panels_and_names_what_is_missing(tmp_path: Path) -> None:
    jobs, finished = grids.grid_jobs(records(1), [0, 1], RECIPE), grids.GridFiles(tmp_path / "w")
    grids.generate_grids(jobs, finished.save, Painter, batch_size=2, log=print)
    grids.write_grids(tmp_path / "grids" / "shard-0", jobs, finished)
    store = PanelStore(ShardReader.below(tmp_path / "grids"), cached_grids=1)
    first, other = (store.panel(panel_ref(job.id, 3)) for job in jobs)
    assert first.size == (32, 32) and first.getpixel((0, 0)) != other.getpixel((0, 0))
    for wrong in (panel_ref(jobs[0].id, 4), panel_ref("unknown", 0), "nonsense"):
        with pytest.raises(DataError, match=wrong.partition("#")[0]):
            store.panel(wrong)


def test_seeds_are_those_of_every_release() -> None:
    assert noise_seed("a", 0) == seed_of("a", 0) == 8248403736293150640
    assert NoiseKey("a", 0, 1).generator_seed == 6162722053782007845


SIDE = 32
STEPS = 2


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "model")


def own_picture(folder: Path, prompt: str, seed: int) -> bytes:
    """What the class paints when it is used as its documentation says."""
    from diffusers import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.Generator().manual_seed(seed)
    call = {"height": SIDE, "width": SIDE, "num_inference_steps": STEPS, "generator": noise, "guidance_scale": 3.5}
    if not type(pipeline).__name__.startswith("StableDiffusion"):
        call["max_sequence_length"] = TEXT_LENGTH
    if type(pipeline).__name__.startswith("PixArt"):
        call["use_resolution_binning"] = False
    return bytes(pipeline(prompt, **call).images[0].tobytes())


def test_any_class_paints_as_it_does_itself_with_its_prompts_encoded_once(family: Path) -> None:
    requests = [
        Request(text, SIDE, SIDE, seed) for text in ("a red cat", "one blue frog in the snow") for seed in (3, 4)
    ]
    generator = TextToImage.load(family, params(family))
    assert type(generator.pipeline).__name__ == family.parent.name.rstrip("0")
    calls: list[int] = []
    generator.pipeline.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    assert generator.encode(requests) == 2
    encoded = len(calls)
    assert generator.pipeline.text_encoder is None
    for prompt in {request.prompt for request in requests}:
        group = [request for request in requests if request.prompt == prompt]
        images = generator.generate(group, 2)
        assert images[0].tobytes() != images[1].tobytes()
        separate = generator.generate(group[1:], 2)
        assert separate[0].tobytes() == images[1].tobytes(), "a picture does not depend on its neighbours"
    assert len(calls) == encoded <= 4, "two prompts, and a negative one with guidance"
    (single,) = generator.generate(requests[:1], 1)
    assert single.tobytes() == own_picture(family, requests[0].prompt, 3)


def test_prompts_of_unequal_embeddings_go_into_batches_of_their_own(family: Path) -> None:
    short, long = (Request(text, SIDE, SIDE, 0) for text in ("a cat", "a red cat with a scarf in the snow at night"))
    generator = TextToImage.load(family, params(family, max_sequence_length=200))
    generator.encode([short, long])
    by_length = "Qwen" in type(generator.pipeline).__name__
    assert (generator.kind(short) != generator.kind(long)) == by_length
    if by_length:
        with pytest.raises(ValueError, match="2 requests of 2 kinds"):
            generator.generate([short, long], 2)
    else:
        assert len(generator.generate([short, long], 2)) == 2
