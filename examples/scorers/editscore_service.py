"""EditScore (arXiv 2509.23909) as a service for the reward ``http`` of paco.

    python examples/scorers/editscore_service.py --lora EditScore/EditScore-7B --port 8009

Run it in a separate environment (``editscore_requirements.txt``). It imports nothing from paco. ``POST /`` takes
``{"model": ..., "samples": [{"prompt", "picture", "reference", ...}]}``, images as data URLs, and answers
``{"scores": [...], "causes": [...]}``. A score is EditScore's ``overall`` divided by 10, so it is between 0 and 1.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Protocol

from PIL import Image

MAX_BODY = 512 << 20  # bytes of a request: a batch of images
LARGEST = 10.0  # of EditScore's numbers


class Scorer(Protocol):
    """The part of ``editscore.EditScore`` that the service uses."""

    def evaluate(self, image_prompts: list[Image.Image], text_prompt: str) -> dict[str, Any]:
        """Score an edit: the image before and after it, and its instruction."""


def decode_image(url: object) -> Image.Image:
    """The RGB image of a data URL.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(url, str) or not url.startswith("data:image/") or ";base64," not in url:
        raise ValueError("expected an image as a data URL")
    return Image.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2], validate=True))).convert("RGB")


def score_sample(scorer: Scorer, sample: dict[str, Any]) -> tuple[float | None, str | None]:
    """The score of one edit, or None and the cause."""
    if "reference" not in sample:
        return None, "the sample has no reference; EditScore scores edits only"
    try:
        images = [decode_image(sample["reference"]), decode_image(sample.get("picture"))]
        return float(scorer.evaluate(images, str(sample["prompt"]))["overall"]) / LARGEST, None
    except Exception as error:  # an answer without a score affects its sample only  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"


def score_request(scorer: Scorer, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON answer of a request."""
    try:
        samples = json.loads(body)["samples"]
        if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
            raise TypeError("samples is not a list of objects")
    except (KeyError, TypeError, ValueError) as error:
        return 400, {"error": f"expected a JSON object with the list samples ({type(error).__name__}: {error})"}
    results = [score_sample(scorer, sample) for sample in samples]
    return 200, {"scores": [score for score, _ in results], "causes": [cause for _, cause in results]}


def build_server(scorer: Scorer, port: int) -> HTTPServer:
    """A server on 127.0.0.1 that handles one request at a time, because the model is on one GPU."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
                self._reply(413, {"error": f"expected Content-Length, at most {MAX_BODY}"})
                return
            self._reply(*score_request(scorer, self.rfile.read(int(length))))

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

        def _reply(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return HTTPServer(("127.0.0.1", port), Handler)


def load_scorer(options: argparse.Namespace) -> Scorer:
    """EditScore with the LoRA of a size on its base model."""
    from editscore import EditScore  # noqa: PLC0415 - the other functions do not need it

    scorer: Scorer = EditScore(
        backbone="qwen25vl",
        model_name_or_path=options.model,
        enable_lora=True,
        lora_path=options.lora,
        score_range=25,
        num_pass=options.passes,
    )
    return scorer


def main(arguments: list[str] | None = None) -> None:
    """Load the model and serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="EditScore as a service for the reward http of paco")
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-7B-Instruct", help="base model: folder or hub id")
    parser.add_argument("--lora", default="EditScore/EditScore-7B", help="LoRA of EditScore: folder or hub id")
    parser.add_argument("--passes", type=int, default=1, help="number of answers per sample, whose scores are averaged")
    parser.add_argument("--port", type=int, default=8009)
    options = parser.parse_args(arguments)
    with build_server(load_scorer(options), options.port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
