"""Many bad requests at once: the reward server's memory stays bounded, and it goes on answering."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.faults import hostile
from tests.faults.verdicts import Ledger
from tests.support import children
from tests.support.serving_fakes import NAME
from tests.unit.serving.test_app import GOOD, request, url_of
from tests.unit.serving.test_faults import memory

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
GROWTH = 1_200 << 20  # bytes; one picture of the largest size accepted is 48 MiB
HEALTH_S = 5.0
REQUESTS, SIDE = 20, 4096
SERVER = """
import sys, time, uvicorn
from tests.support.serving_fakes import FakeModel, build_app, fake_server
class Slow(FakeModel):
    def __call__(self, asks):
        time.sleep(0.2)
        return [self._answer(ask) for ask in asks]
    def _answer(self, ask):
        query, corner = ask.query, (0, 0, 8, 8)
        small = type(query)(query.first.crop(corner), query.second.crop(corner), query.instruction)
        return super()._answer(type(ask)(small, ask.max_tokens, ask.logprobs, ask.top, ask.token_ids))
uvicorn.Server(uvicorn.Config(build_app(fake_server(Slow())), port=0, log_level="info")).run()
"""


def large(number: int) -> str:
    """A data URL of 100 kB that holds as many pixels as are accepted, another one for each number."""
    buffer = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (number, 7, 9)).save(buffer, "PNG")
    return url_of(buffer.getvalue())


def test_large_pictures_in_many_requests(tmp_path: Path, repository: Path, ledger: Ledger) -> None:
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", SERVER], env={**os.environ, "PYTHONPATH": children.PATH}, stderr=log, stdout=log
        )
    try:
        url = address(tmp_path / "log", child)
        good = json.dumps(request([GOOD, GOOD])).encode()
        chat = "/v1/chat/completions"
        assert hostile.send(url, "POST", chat, good).status == 200
        before, slowest = memory(child.pid), 0.0
        flood = [json.dumps(request([large(2 * n), large(2 * n + 1)])).encode() for n in range(REQUESTS)]
        replies: list[hostile.Reply] = []
        callers = [
            threading.Thread(
                target=lambda body=body: replies.append(hostile.send(url, "POST", chat, body, patience_s=120))
            )
            for body in flood
        ]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            began = time.monotonic()
            hostile.send(url, "GET", "/health")
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.05)
        grown = memory(child.pid, "VmHWM") - before
        with ledger.row("flood of large pictures", "reward server", hostile=True) as row:
            for number, reply in enumerate(replies):
                row.judge(f"request {number}", hostile.answered(reply))
            row.judge("memory", ("wrong", f"{grown >> 20} MiB more at once") if grown > GROWTH else None)
            row.judge("/health", ("unclear", f"took {slowest:.1f} s") if slowest > HEALTH_S else None)
            after = hostile.send(url, "POST", chat, good)
            row.judge("and a good one afterwards", hostile.answered(after))
        assert NAME in hostile.send(url, "GET", "/v1/models").body.decode()
    finally:
        child.kill()
        child.wait()


def address(log: Path, child: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while "running on" not in log.read_text():
        assert child.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return log.read_text().split("running on ")[1].split()[0]
