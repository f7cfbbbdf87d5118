"""The process that was to run a stage, while a fork of the server does: it passes signals on and ends as that ends.

Nothing but the standard library is imported here: all that this process does is wait.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from paco_core.io.parent_process import die_with_parent
from paco_core.runtime.preloading import FOR_RANKS, SOCKET, STAGES, changes, surroundings
from paco_core.runtime.preloading.wire import receive, send

#: What a stage tidies up after. Other signals end this process as they would end a stage, and the server ends the fork.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def run_preloaded() -> None:
    """Have the stage of this command line run by the server that the environment names, and end as it does.

    Returns where it has to be run the ordinary way: it is not one that the server is for, the server is gone, or it
    has imported the libraries under other circumstances. What the stage starts sees no server, except its ranks.
    """
    place, stages = os.environ.pop(SOCKET), os.environ.pop(STAGES, "").split(",")
    if sys.argv[1:2] != ["run"] or sys.argv[2:3] == [] or sys.argv[2] not in stages:
        return
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # a rank: its launcher ends it unless it is killed
        die_with_parent(number=signal.SIGKILL)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            if (fork := _asked(connection, place)) is None:
                return
        except (OSError, ValueError):
            return
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        status = _followed(connection, fork)
    _end_with(status)


def _asked(connection: socket.socket, place: str) -> int | None:
    """The process that runs the stage; None where the server has other surroundings, or has gone."""
    connection.connect(place)
    server = receive(connection)  # it says so when it has imported all: sooner than we would have ourselves
    if server is None:
        return None
    prepared = server[0]["prepared"]  # what a stage sets for itself, and has set for its ranks
    if changed := changes({**prepared, **surroundings()}, server[0]["surroundings"]):
        print(
            f"paco run: {', '.join(changed)}: not what it was when the run began; this stage imports its libraries "
            "itself",
            file=sys.stderr,
        )
        return None
    request = {
        "arguments": sys.argv,
        "original_arguments": sys.orig_argv,
        "path": sys.path,
        "environment": {**os.environ, FOR_RANKS: place},
        "folder": str(Path.cwd()),
        "umask": _umask(),
        "ignored": [int(number) for number in _PASSED_ON if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    send(connection, request, (0, 1, 2))
    answer = receive(connection)
    return None if answer is None else int(answer[0]["process"])


def _umask() -> int:
    os.umask(mask := os.umask(0o077))  # there is no other way to read it
    return mask


def _followed(connection: socket.socket, fork: int) -> int:
    """Pass on signals until the stage has ended; its exit status, below zero where a signal ended it."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(fork, number)  # the stage and what it started, as a signal to our group would have

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    try:
        answer = receive(connection)
    except OSError:
        answer = None
    if answer is None:
        with suppress(ProcessLookupError):
            os.killpg(fork, signal.SIGKILL)  # the kernel has ended the stage with the server; these are its children
        print(
            f"paco run: the process that had imported the libraries ({SOCKET}) was killed, and the stage with it; run "
            "the same command again",
            file=sys.stderr,
        )
        return 1
    return int(answer[0]["status"])


def _end_with(status: int) -> NoReturn:
    if status < 0:
        with suppress(OSError):  # SIGKILL cannot be set to anything
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        raise SystemExit(128 - status)
    raise SystemExit(status)
