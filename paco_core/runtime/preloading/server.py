"""Imports the libraries once and forks a process for each stage that asks.

``python -m paco_core.runtime.preloading.server DESCRIPTOR PARENT THREADS``: a listening socket, the process that
started it, and ``threads`` of params.yaml. It may fork, for it has one thread besides those of jemalloc (pyarrow's) and
OpenBLAS, which stop and start theirs around a fork. After SIGINT or SIGTERM, or when its parent dies, it takes on no
stage any more and ends with the last one.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paco_core.io.parent_process import die_with_parent
from paco_core.runtime.preloading import surroundings
from paco_core.runtime.preloading.wire import receive, send
from paco_core.runtime.preloading.worker import Job, become
from paco_core.runtime.process import prepare

#: Modules, and what of them is imported when it is asked for. Nothing of ours, and nothing that only few stages need.
LIBRARIES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "torch": (),
        "numpy.random": (),
        "PIL.Image": (),
        "PIL.ImageDraw": (),
        "PIL.ImageFont": (),
        "pandas": (),
        "pyarrow.parquet": (),
        "pydantic": (),
        "ruamel.yaml": (),
        "psutil": (),
        "httpx": (),
        "openai": (),
        "safetensors.torch": (),
        "scipy.stats": (),
        "torchvision.transforms": (),
        "transformers": (
            "AutoModel",
            "AutoProcessor",
            "AutoTokenizer",
            "CLIPModel",
            "CLIPTextModel",
            "DynamicCache",
            "Qwen2VLProcessor",
            "Qwen2_5_VLForConditionalGeneration",
            "T5EncoderModel",
        ),
        "transformers.models.clip.processing_clip": (),
        "transformers.models.qwen2_5_vl.processing_qwen2_5_vl": (),
        "diffusers": (
            "AutoencoderKL",
            "AutoencoderKLQwenImage",
            "DiffusionPipeline",
            "FlowMatchEulerDiscreteScheduler",
            "FluxKontextPipeline",
            "FluxPipeline",
            "QwenImageEditPipeline",
            "QwenImageEditPlusPipeline",
        ),
        "peft": (),
        "accelerate": (),
        "open_clip": (),
        "timm.models.vision_transformer": (),
    }
)
_REQUEST_WITHIN_S = 10.0


def preload() -> None:
    """Import the libraries; what is not installed is missed by the stage that needs it.

    What they made is never looked through for garbage again: that would copy memory that all forks share.
    """
    gc.disable()
    for name, attributes in LIBRARIES.items():
        with suppress(ImportError):
            module = importlib.import_module(name)
            for attribute in attributes:
                getattr(module, attribute)
    gc.freeze()
    gc.enable()


@dataclass(frozen=True)
class _Fork:
    """A stage at work: its process, what becomes readable when it ends, and its client unless that has gone."""

    process: int
    ending: int
    client: socket.socket


class Server:
    """One thread that waits for clients, for their ends and for those of its forks."""

    def __init__(self, listener: socket.socket, surroundings: dict[str, str], prepared: dict[str, str]) -> None:
        self._listener, self._greeting = listener, {"surroundings": surroundings, "prepared": prepared}
        self._forks: dict[int, _Fork] = {}
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def serve(self) -> Job | None:
        """Fork as often as clients ask: a job in the fork, None in the server when it is to end."""
        signal.set_wakeup_fd(self._waking.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)  # the byte at the other end is what counts
        while self._listener.fileno() >= 0 or self._forks:
            for key, _ in self._selector.select():
                if (job := key.data()) is not None:
                    return job
        return None

    def _accept(self) -> Job | None:
        if self._listener.fileno() < 0:  # closed by what came with this event
            return None
        client, _ = self._listener.accept()
        client.settimeout(_REQUEST_WITHIN_S)
        try:
            # The client decides, and sends its files only now: those of one that has gone would stay open meanwhile.
            send(client, self._greeting)
            received = receive(client, descriptors=3)
        except (OSError, ValueError):
            received = None
        if received is None:  # it runs its stage itself
            client.close()
            return None
        request, files = received
        try:
            return self._fork(Job(request, files, client, os.getpid()))
        except OSError:  # no memory for one more process
            client.close()
            for file in files:
                os.close(file)
            return None

    def _fork(self, job: Job) -> Job | None:
        sys.stdout.flush()
        sys.stderr.flush()
        if (process := os.fork()) == 0:
            self._leave_to_server()
            return job
        for file in job.files:
            os.close(file)
        fork = _Fork(process, os.pidfd_open(process), job.connection)
        self._forks[process] = fork
        self._selector.register(fork.ending, selectors.EVENT_READ, lambda: self._report(fork))
        self._selector.register(fork.client, selectors.EVENT_READ, lambda: self._kill(fork))
        return None

    def _leave_to_server(self) -> None:
        """Close, in a fork, all that is the server's: a client whose server is killed has to see its connection end."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for end in (self._listener, self._woken, self._waking):
            end.close()
        for fork in self._forks.values():
            os.close(fork.ending)
            fork.client.close()

    def _kill(self, fork: _Fork) -> None:
        """The client has gone without having waited: it was killed, and the stage is to be, too."""
        if fork.client.fileno() < 0:  # its stage has ended, by the same event
            return
        self._selector.unregister(fork.client)
        fork.client.close()
        for kill in (os.kill, os.killpg):  # it may not have its group yet
            with suppress(ProcessLookupError):
                kill(fork.process, signal.SIGKILL)

    def _report(self, fork: _Fork) -> None:
        """A stage has ended."""
        _, status = os.waitpid(fork.process, 0)
        self._selector.unregister(fork.ending)
        os.close(fork.ending)
        del self._forks[fork.process]
        if fork.client.fileno() >= 0:
            self._selector.unregister(fork.client)
            with fork.client, suppress(OSError):
                send(fork.client, {"status": os.waitstatus_to_exitcode(status)})

    def _drain(self) -> None:
        self._woken.recv(1024)
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()


def _serve(listener: socket.socket, threads: int) -> Job | None:
    """Import, and serve; the socket's folder, made for it alone, is removed at the end."""
    given, server, place = set(os.environ), os.getpid(), Path(listener.getsockname())
    prepare(threads)
    prepared = {name: value for name, value in os.environ.items() if name not in given}
    present = surroundings()
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))  # both end the imports as an exception
    try:
        preload()
        return Server(listener, present, prepared).serve()
    finally:
        if os.getpid() == server:
            with suppress(OSError):  # who started this removes them, too, unless it was killed
                place.unlink()
                place.parent.rmdir()


def main() -> None:
    """See the module."""
    descriptor, parent, threads = map(int, sys.argv[1:])
    die_with_parent(parent)
    job = _serve(socket.socket(fileno=descriptor), threads)
    if job is not None:
        become(job)


if __name__ == "__main__":
    main()
