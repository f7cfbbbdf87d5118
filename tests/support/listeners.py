"""Listening sockets of a process and its children, polled while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def watched(pid: int) -> Iterator[set[str]]:
    """The addresses that were listened on during the block; complete after it.

    A socket that listens for less than some 20 ms may be missed; those of a rendezvous live as long as its training.
    """
    addresses: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            try:
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    addresses.update(
                        c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN
                    )
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield addresses
    finally:
        over.set()
        thread.join()
