"""Messages between a stage's client, the server and its fork: JSON behind its length, descriptors with it."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH_BYTES = 8
_MOST_BYTES = 64 << 20


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and open files of this process with it."""
    data = json.dumps(message).encode()
    length = len(data).to_bytes(_LENGTH_BYTES, "big")
    if descriptors:
        socket.send_fds(connection, [length], descriptors)
    else:
        connection.sendall(length)
    connection.sendall(data)


def receive(connection: socket.socket, descriptors: int = 0) -> tuple[dict[str, Any], list[int]] | None:
    """A message and the files that came with it, at most ``descriptors``; None where the other side has gone.

    Raises:
        OSError: when the connection breaks, or stays silent longer than its time-out.
        ValueError: for what is no message.
    """
    length, files, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, descriptors, socket.MSG_CMSG_CLOEXEC)
    if not length:
        return None
    length += _exactly(connection, _LENGTH_BYTES - len(length))
    size = int.from_bytes(length, "big")
    if size > _MOST_BYTES:
        raise ValueError(f"a message of {size} bytes")
    message = json.loads(_exactly(connection, size))
    if not isinstance(message, dict):
        raise ValueError(f"a message that is a {type(message).__name__}")
    return message, files


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (part := connection.recv(min(count - len(data), 1 << 20))):
            raise ConnectionResetError("the other side has gone within a message")
        data += part
    return bytes(data)
