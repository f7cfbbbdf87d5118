"""The one process that sends to MLflow while stages run: ``python -m paco_core.runtime.tracking ROOT``.

The first stage starts it. It imports MLflow once, serves the journals of all stages that run, ends the runs of those
that were killed, and goes when nothing has come for a while. It may be killed at any time: a stage that waits for it
starts another one, which reads on from what is marked as delivered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paco_core.io.file_locks import remove_unless_held, try_hold
from paco_core.io.imports import uncollected
from paco_core.io.secrets import redact_tracebacks
from paco_core.runtime.tracking.outbox import SenderAddress
from paco_core.runtime.tracking.sender import Sender
from paco_core.runtime.tracking.store import brief_requests, tracking_uri

IDLE_S = 20.0
IDLE = "PACO_SENDER_IDLE_S"


def complain(line: str) -> None:
    """Into the file of the address, where Python's own complaints land, too."""
    print(line, file=sys.stderr, flush=True)


def main(root: Path) -> None:
    redact_tracebacks()
    address, uri = SenderAddress.from_environment(root, os.environ), tracking_uri(root)
    held = try_hold(address.file)
    if held is None:
        return
    with held, brief_requests():
        held.truncate(0)  # what the last one complained about
        held.write(f"process {os.getpid()}\n".encode())
        held.flush()
        with uncollected():
            import mlflow  # noqa: F401  (now, while the stage works)
        Sender(address.root, uri, complain, address.key).run(float(os.environ.get(IDLE) or IDLE_S))
    remove_unless_held(address.file)  # keys that expire would leave one each; a sender that failed leaves its complaint


if __name__ == "__main__":
    main(Path(sys.argv[1]))
