"""Ends process groups whose starter was killed before it could: ``kill -9`` leaves it no time for that.

Run by path with nothing but the standard library. Standard input is a pipe from the starter, who writes ``+ID`` for a
group that it started and ``-ID`` for one that has ended; the starter's death closes it. The argument: the seconds that
the groups are given to end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

ENDS = ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.4))  # and the share of the grace that each gets


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def end_groups(groups: set[int], grace_seconds: float) -> None:
    """SIGINT and SIGTERM to all of them, and SIGKILL to what is left after the grace."""
    left = set(groups)
    for number, share in ENDS:
        left = {group for group in left if signal_group(group, number)}
        deadline = time.monotonic() + share * grace_seconds
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = {group for group in left if signal_group(group, 0)}
    for group in left:
        signal_group(group, signal.SIGKILL)


def main() -> None:
    """Watch until the starter has gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    end_groups(groups, float(sys.argv[1]))


if __name__ == "__main__":
    main()
