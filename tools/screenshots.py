"""Pictures of what a finished project shows, for README and docs: ``make screenshots`` after ``make demo``.

Starts what people start (``make ui``, ``paco annotate``, ``paco play``), opens it in the system's Chromium and writes
WebP files. A page counts as drawn when its texts are there, its pictures have loaded and two frames in a row are equal.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dvc_project.process_group import interrupt_on
from paco_core.io import paths

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 300_000
QUALITIES = range(90, 20, -10)
PATIENCE_S = 300.0
FRAME_MS = 700  # between two frames that must be equal
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
PYTHON = [sys.executable, "-m"]
LINEAGE, COMPARED, REPORT = "lineage", "policies compared", "report"  # as `make ui` prints them

# What the pages keep in a browser that has seen them before.
#: MLflow's assistant is closed, and trainings are looked at, not chat models.
MLFLOW_SEEN = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"');
"""
#: Dagster's menu shows its symbols alone.
DAGSTER_SEEN = 'localStorage.setItem("dagster-nav-collapsed", "true");'
CHART = ".plot-container"  # of MLflow, once drawn
#: Every asset of the graph has been asked for, and was materialised.
ALL_GREEN = """() => {
    const boxes = [...document.querySelectorAll('[class*="minimalAssetNodeBox"]')];
    return boxes.length > 0 && boxes.every(box => box.style.cssText.includes("accent-green"));
}"""


def links(log: str) -> dict[str, str]:
    """What ``make ui`` printed: the name of a page -> its address."""
    return dict(re.findall(r"^  ([a-z ]+): ((?:http|file)://\S+)$", log, re.MULTILINE))


def webp(png: bytes, most: int = MOST_BYTES) -> bytes:
    """A screenshot as WebP, at the best quality that keeps it within ``most`` bytes.

    Raises:
        ValueError: where none does.
    """
    from paco_core.io.pictures import decode_image

    image = decode_image(png, "screenshot")
    for quality in QUALITIES:
        data = io.BytesIO()
        image.save(data, format="WEBP", quality=quality, method=6)
        if data.tell() <= most:
            return data.getvalue()
    raise ValueError(f"{image.width} x {image.height} px do not fit into {most} bytes: make the picture smaller")


@contextlib.contextmanager
def serving(command: Sequence[str], pattern: str, cwd: Path = ROOT) -> Iterator[str]:
    """Run a command until what it prints matches, and give its output so far. It is ended as by Ctrl-C.

    Raises:
        SystemExit: with its last output, when it ends before or takes too long.
    """
    with tempfile.NamedTemporaryFile(prefix="paco-screenshots-", suffix=".log") as log:
        process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not re.search(pattern, printed := Path(log.name).read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)} did not start:\n{printed[-2000:]}")
                time.sleep(0.1)
            yield printed
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Camera:
    """A browser, and where its pictures go."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder

    @contextlib.contextmanager
    def page(self, url: str, width: int, height: int, *texts: str, before: str = "", scale: float = 1) -> Iterator[Any]:
        """A page of this size, ``scale`` pixels of the picture to one of its own, that shows these texts.

        Args:
            before: JavaScript that runs before that of the page.
        """
        size = {"width": width, "height": height}
        page = self.browser.new_page(viewport=size, device_scale_factor=scale, color_scheme="light")
        page.set_default_timeout(PATIENCE_S * 1000)
        page.add_init_script(before)
        try:
            page.goto(url, wait_until="domcontentloaded")
            for text in texts:
                page.get_by_text(text).first.wait_for()
            yield page
        finally:
            page.close()

    def take(self, page: Any, name: str, selector: str | None = None) -> None:
        """Keep the page, or one element of it, once it has stopped changing."""
        page.wait_for_function("() => [...document.images].every(image => image.complete)")
        target = page.locator(selector).first if selector else page
        last, deadline = b"", time.monotonic() + PATIENCE_S
        while (frame := target.screenshot(animations="disabled")) != last:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: the page does not stop changing")
            last = frame
            page.wait_for_timeout(FRAME_MS)
        path = self.folder / f"{name}.webp"
        path.write_bytes(webp(frame))
        print(f"{path}  {path.stat().st_size // 1000} kB", flush=True)


def user_interfaces(camera: Camera) -> None:
    """The report, Dagster and MLflow, where ``make ui`` says that they are."""
    command = [*PYTHON, "paco_pipelines.ui", "--dagster-port", free_port(), "--mlflow-port", free_port()]
    with serving(command, r"(?m)^  lineage: .*\n(  .*\n)*\Z") as log:
        found = links(log)
        if missing := [name for name in (LINEAGE, COMPARED, REPORT) if name not in found]:
            raise SystemExit(f"`make ui` has no link to {missing[0]!r}: run `make demo` first")
        report(camera, found[REPORT])
        dagster(camera, found[LINEAGE])
        mlflow(camera, found[COMPARED])


def report(camera: Camera, url: str) -> None:
    with camera.page(url, 1180, 1000, "Picked by a rule") as page:
        camera.take(page, "report")
        camera.take(page, "before_after", ".showcase")


def dagster(camera: Camera, lineage: str) -> None:
    wanted = (paths.COT_LABELS.name, paths.REWARD_MERGED.name)
    with camera.page(lineage, 1600, 1090, *wanted, before=DAGSTER_SEEN, scale=2) as page:
        page.get_by_label("panel_show_right").first.click()  # the list of groups: the graph is what is looked at
        page.wait_for_function(ALL_GREEN)
        page.set_viewport_size({"width": 1340, "height": 1090})  # the graph stays where it was
        camera.take(page, "dagster_lineage")
    asset = lineage.partition("/asset-groups")[0] + "/assets/t2is"
    with camera.page(asset, 1500, 1150, "before_and_after", before=DAGSTER_SEEN) as page:
        page.get_by_text("least_gain_in_gold_consistency").first.scroll_into_view_if_needed()
        page.get_by_text("[Show Markdown]").first.click()
        page.get_by_role("dialog").locator("img").first.wait_for()
        camera.take(page, "dagster_asset")


def mlflow(camera: Camera, compared: str) -> None:
    names = [f"policies/{name}" for name in ("flux_t2is", "kontext_edit", "qwen_edit")]
    with camera.page(compared, 1500, 1150, "Policies compared", *names, before=MLFLOW_SEEN) as page:
        page.locator(CHART).nth(3).wait_for()
        camera.take(page, "mlflow_policies")
        page.get_by_text(names[0]).first.click()
        page.get_by_text("Model metrics").first.click()
        page.get_by_text("Summary").first.wait_for()
        page.locator(CHART).nth(4).wait_for()
        camera.take(page, "mlflow_run")


def annotation(camera: Camera) -> None:
    """The page of an annotator who has ranked two candidates, in a study of its own beside that of the project."""
    with tempfile.TemporaryDirectory(prefix="paco-screenshots-") as folder:
        project = Path(folder)
        (project / "data").mkdir()
        for name in ("params.yaml", "dvc.yaml", ".dvc", paths.RANKINGS, paths.GRIDS):
            (project / name).symlink_to(ROOT / name)
        command = [*PYTHON, "paco_core", "annotate", "--port", "0"]
        with serving(command, r"http://\S+/a/\S+", project) as log:
            (url,) = re.findall(r"http://\S+/a/\S+", log)
            with camera.page(url, 1180, 760) as page:
                page.keyboard.press("Escape")  # how to rank: shown to whoever comes for the first time
                page.keyboard.press("3")
                page.keyboard.press("1")
                page.get_by_text("2nd").first.wait_for()
                camera.take(page, "annotate")


def play(camera: Camera) -> None:
    """The page of ``paco play`` with the sets that its first example paints."""
    command = [*PYTHON, "paco_core", "play", "--port", "0", "--no-open"]
    with serving(command, r"http://\S+") as log:
        (url,) = re.findall(r"http://\S+", log)
        with camera.page(url, 1280, 900) as page:
            page.locator("#set-examples button").first.click()
            page.locator("#paint button.main").click()
            page.locator("#paint .found img").nth(3).wait_for()
            camera.take(page, "play")


def has_play() -> bool:
    listed = subprocess.run([*PYTHON, "paco_core", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    return re.search(r"^\s+play\b", listed.stdout, re.MULTILINE) is not None


SETS = {"ui": user_interfaces, "annotate": annotation, "play": play}


def main() -> None:
    """``python tools/screenshots.py [ui] [annotate] [play] [--out docs/images]``."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="tools/screenshots.py", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="SET", help=f"what to take: {', '.join(SETS)} (default: all)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures (default: docs/images)")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(SETS):
        parser.error(f"{min(unknown)!r}: choose among {', '.join(SETS)}")
    if CHROMIUM is None:
        raise SystemExit("no Chromium on the path; `apt-get install chromium` brings one")
    interrupt_on(signal.SIGTERM)  # as by Ctrl-C: the servers are ended in any case
    chosen = arguments.only or [name for name in SETS if name != "play" or has_play()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            for name in chosen:
                SETS[name](Camera(browser, arguments.out))
        finally:
            browser.close()


if __name__ == "__main__":
    main()
