"""``make screenshots``: what it reads from `make ui`, and how it writes; the pages need a run and a browser."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from paco_core.io.shards import encode_png


@pytest.fixture(scope="module")
def screenshots(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", repository / "tools" / "screenshots.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_that_make_ui_prints(screenshots: ModuleType) -> None:
    log = (
        "INFO:     Uvicorn running on http://127.0.0.1:5000\n"
        "MLflow on http://127.0.0.1:5000\nDagster on http://127.0.0.1:3000\n"
        "  lineage: http://127.0.0.1:3000/asset-groups?expanded=global@global:data\n"
        "  policies compared: http://127.0.0.1:5000/#/experiments/12/runs?a=b\n"
        "  report: file:///here/data/report/index.html\n"
    )
    assert screenshots.links(log) == {
        screenshots.LINEAGE: "http://127.0.0.1:3000/asset-groups?expanded=global@global:data",
        screenshots.COMPARED: "http://127.0.0.1:5000/#/experiments/12/runs?a=b",
        screenshots.REPORT: "file:///here/data/report/index.html",
    }


def test_a_picture_fits_at_the_best_quality_that_does(screenshots: ModuleType) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    shot = encode_png(Image.fromarray(noise))
    large, small = (len(screenshots.webp(shot, most)) for most in (10**6, 12_000))
    assert small <= 12_000 < large
    assert Image.open(io.BytesIO(screenshots.webp(shot, 12_000))).size == (160, 120)
    with pytest.raises(ValueError, match="160 x 120 px do not fit into 100 bytes"):
        screenshots.webp(shot, 100)


def test_a_server_that_does_not_start_is_reported_with_its_output(screenshots: ModuleType, tmp_path: Path) -> None:
    fails = [sys.executable, "-c", "print('no such port'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match=r"did not start:\nno such port"), screenshots.serving(fails, "up", tmp_path):
        pass


def test_a_server_is_ended_as_by_ctrl_c(screenshots: ModuleType, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = (
        "import pathlib, signal, sys\n"
        f"signal.signal(signal.SIGINT, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit(0)))\n"
        "print('up on http://127.0.0.1:1', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with screenshots.serving([sys.executable, "-c", program], "up on", tmp_path) as log:
        assert "http://127.0.0.1:1" in log and not ended.exists()
    assert ended.exists()
