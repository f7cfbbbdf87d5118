"""The one process that sends to MLflow while stages run: ``python -m paco_core.runtime.tracking.daemon ROOT``.

The first stage starts it. It imports MLflow once, serves the journals of all stages that run, ends the runs of those
that were killed, and goes when nothing has come for a while. It may be killed at any time: a stage that waits for it
starts another one, which reads on from what is marked as delivered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

from paco_core.io.file_locks import try_hold
from paco_core.io.imports import uncollected
from paco_core.io.secrets import redact_tracebacks
from paco_core.runtime.tracking.outbox import SenderAddress
from paco_core.runtime.tracking.sender import Sender
from paco_core.runtime.tracking.store import tracking_uri

IDLE_S = 20.0
IDLE = "PACO_SENDER_IDLE_S"


def is_gone(file: Path, held: IO[bytes]) -> bool:
    """Whether the project, or its folder of senders, was taken away."""
    try:
        return not os.path.samestat(file.stat(), os.fstat(held.fileno()))
    except FileNotFoundError:
        return True


def complain(line: str) -> None:
    """Into the file of the address, where Python's own complaints land, too."""
    print(line, file=sys.stderr, flush=True)


def main(root: Path) -> None:
    redact_tracebacks()
    address, uri = SenderAddress.from_environment(root, os.environ), tracking_uri(root)
    address.file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    held = try_hold(address.file)
    if held is None:  # another one is at it
        return
    with held:
        held.truncate(0)  # what the last one complained about
        held.write(f"process {os.getpid()}\n".encode())
        held.flush()
        with uncollected():
            import mlflow  # noqa: F401  (now, while the stage works)
        sender = Sender(address.root, uri, complain, address.key)
        sender.run(float(os.environ.get(IDLE) or IDLE_S), lambda: is_gone(address.file, held))
        if not is_gone(address.file, held):
            # Keys that expire would leave one file each. A sender that failed leaves its complaint.
            address.file.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
