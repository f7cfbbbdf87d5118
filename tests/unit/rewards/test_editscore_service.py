"""The example service of EditScore behind the reward ``http``, with a model that needs no weights."""

from __future__ import annotations

import ast
import http.client
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import editscore_service
import pytest
from PIL import Image

from paco_core.config.params import HttpScorer, RewardTerm
from paco_core.data.records.records import PromptRecord
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.sources import Sources


class Redness:
    """Ten times the share of red after the edit, minus that before it; no number for an instruction to fail."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def evaluate(self, image_prompts: list[Image.Image], text_prompt: str) -> dict[str, Any]:
        if text_prompt == "fail":
            raise ValueError("no score in the answer")
        before, after = (image.getpixel((0, 0))[0] / 255 for image in image_prompts)  # type: ignore[index]
        return {"overall": 10 * (after - before), "prompt_following": 1.0}


@pytest.fixture
def address() -> Iterator[str]:
    with editscore_service.build_server(Redness(), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def reward(address: str, root: Path) -> Any:
    scorer = HttpScorer(url=f"http://{address}/", model="EditScore-7B 0.2", retries=0)
    return registry.build_reward("editscore", RewardTerm(weight=1.0, reward="http", http=scorer), Sources(root=root))


def batch(*instructions: str, edits: bool = True) -> RewardBatch:
    words: dict[str, Any] = {"theme": "t", "category": "Character", "task_name": "Edit", "criteria": {}}
    records = [
        PromptRecord(idx=f"p{number}", prompt=text, height=8, width=8, layout="1x1", **words)
        for number, text in enumerate(instructions)
    ]
    images = [Image.new("RGB", (8, 8), (51 * (number + 2), 0, 0)) for number in range(len(records))]
    references = [[Image.new("RGB", (8, 8), (51, 0, 0))] for _ in records] if edits else None
    return RewardBatch(records, [[] for _ in records], images, references)


def test_the_score_of_an_edit_is_a_reward(address: str, tmp_path: Path) -> None:
    assert reward(address, tmp_path)(batch("red", "redder")).tolist() == pytest.approx([0.2, 0.4])


def test_a_sample_without_a_score_has_its_cause(address: str, tmp_path: Path) -> None:
    scorer = reward(address, tmp_path)
    values = scorer(batch("red", "fail"))
    assert values[0] == pytest.approx(0.2) and math.isnan(values[1])
    assert scorer.causes == {"ValueError: no score in the answer": 1}
    sets = reward(address, tmp_path)
    assert math.isnan(sets(batch("a set", edits=False))[0]) and "reference" in next(iter(sets.causes))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"samples": 1}', b'{"samples": [1]}'])
def test_another_request_is_refused(address: str, body: bytes) -> None:
    connection = http.client.HTTPConnection(address)
    connection.request("POST", "/", body)
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize("picture", [None, "x.png", "data:image/png;base64,????", "data:image/png;base64,AAAA"])
def test_an_image_that_cannot_be_read_affects_its_sample(picture: object) -> None:
    score, cause = editscore_service.score_sample(Redness(), {"prompt": "p", "picture": picture, "reference": picture})
    assert score is None and cause


def test_the_model_is_built_as_its_card_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "editscore", SimpleNamespace(EditScore=Redness))
    servers: list[Any] = []

    class Server:
        server_address = ("127.0.0.1", 1)

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def serve_forever(self) -> None:
            pass

    def build(scorer: Any, port: int) -> Server:
        servers.append((scorer.options, port))
        return Server()

    monkeypatch.setattr(editscore_service, "build_server", build)
    editscore_service.main(["--passes", "4", "--port", "8010"])
    ((options, port),) = servers
    assert port == 8010 and options["num_pass"] == 4 and options["lora_path"] == "EditScore/EditScore-7B"
    assert options["model_name_or_path"] == "Qwen/Qwen2.5-VL-7B-Instruct" and options["enable_lora"] is True


def test_it_needs_nothing_of_paco(repository: Path) -> None:
    """Its environment has other versions of torch and transformers."""
    tree = ast.parse((repository / "examples/scorers/editscore_service.py").read_text())
    names = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names - set(sys.stdlib_module_names) == {"PIL", "editscore"}
