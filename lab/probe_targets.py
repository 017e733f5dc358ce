"""What probes ask, in place of containers: servers on this host that answer in every way.

An HTTP server (the path says how it answers), a server of gRPC's health service (the name of the
service does), and ports that only take connections. Each connection is answered with bytes that
were made beforehand, so that hundreds a second cost little. `python -m lab.probe_targets COUNT`
serves in a process of its own, beside COUNT ports; it says where on its first line, and tells for
each line on its standard input who asked when.
"""

import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lab.started import Started

SETTINGS, HEADERS, DATA = 4, 1, 0
END_STREAM, END_HEADERS = 1, 4
PRIORITY = -10
PREFACE_BYTES, FRAME_HEAD_BYTES = 24, 9
RESPONSE = b"\x88\x0f\x10\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"
SERVING, NOT_SERVING = 1, 2


def http_answer(path: str) -> bytes | None:
    """What is sent for a path: `/200`, `/500` and so on; `/cut`; None: nothing, ever."""
    name = path.partition("?")[0].removeprefix("/")
    if name == "hang":
        return None
    if name == "close":
        return b""
    if name == "cut":
        return b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes."
    if name == "away":
        return b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    return f"HTTP/1.1 {name} Words\r\nContent-Length: 5\r\n\r\nwords".encode()


def grpc_answer(service: str, stream: int) -> bytes | None:
    """What the health service says of `ill` and of any other; None, `hang`: nothing, ever."""
    if service == "hang":
        return None
    if service == "close":
        return b""
    message = bytes((0, 0, 0, 0, 2, 8, NOT_SERVING if service == "ill" else SERVING))
    return (
        _frame(HEADERS, END_HEADERS, stream, RESPONSE)
        + _frame(DATA, 0, stream, message)
        + _frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS)
    )


class ProbeTargets:
    """The servers, in this process: `serve` blocks for ever.

    `asked` has who asked when, in seconds of `time.monotonic`: `http PATH`, `grpc SERVICE`,
    `tcp PORT`.
    """

    def __init__(self, plain_ports: int = 0) -> None:
        self.asked: list[tuple[str, float]] = []
        self._selector = selectors.DefaultSelector()
        self.http_port = self._listen("http")
        self.grpc_port = self._listen("grpc")
        self.tcp_ports = tuple(self._listen("tcp") for _ in range(plain_ports))

    def serve(self) -> None:
        """Serve for ever. A connection that gets no answer stays until its client goes."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, str):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                else:
                    key.data.readable()

    def note(self, who: str) -> None:
        """Somebody asks now."""
        self.asked.append((who, time.monotonic()))

    def close(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _listen(self, kind: str) -> int:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", 0))
        listener.listen(512)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, kind)
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, kind: str) -> None:
        with suppress(BlockingIOError):
            while True:
                accepted, _ = listener.accept()
                if kind == "tcp":
                    self.note(f"tcp {listener.getsockname()[1]}")
                    accepted.close()
                    continue
                accepted.setblocking(False)
                connection = _Connection(self, accepted, kind)
                self._selector.register(accepted, selectors.EVENT_READ, connection)
                if kind == "grpc":
                    accepted.send(_frame(SETTINGS, 0, 0, b""))


class _Connection:
    """One connection, until its request is answered and its client gone."""

    def __init__(self, targets: ProbeTargets, accepted: socket.socket, kind: str) -> None:
        self.socket = accepted
        self._targets = targets
        self._kind = kind
        self._data = b""

    def readable(self) -> None:
        """Something has come, or the client is gone."""
        try:
            received = self.socket.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self._targets.close(self)
            return
        self._data += received
        answered = self._http() if self._kind == "http" else self._grpc()
        if answered:
            self._targets.close(self)

    def _http(self) -> bool:
        if b" HTTP/1.1\r\n" not in self._data or b"\r\n\r\n" not in self._data:
            return False
        path = self._data.split(b" ", 2)[1].decode(errors="replace")
        self._targets.note(f"http {path}")
        return self._send(http_answer(path))

    def _grpc(self) -> bool:
        at = PREFACE_BYTES
        while len(self._data) >= at + FRAME_HEAD_BYTES:
            length, kind, flags, stream = _head(self._data[at : at + FRAME_HEAD_BYTES])
            payload = self._data[at + FRAME_HEAD_BYTES : at + FRAME_HEAD_BYTES + length]
            at += FRAME_HEAD_BYTES + length
            if kind == DATA and flags & END_STREAM and len(payload) == length:
                service = payload[7:].decode(errors="replace")
                self._targets.note(f"grpc {service}")
                self._data = b""
                self._send(grpc_answer(service, stream))
                return service == "close"
        return False

    def _send(self, answer: bytes | None) -> bool:
        if answer is None:
            return False
        with suppress(OSError):
            self.socket.send(answer)
        return True


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def _head(data: bytes) -> tuple[int, int, int, int]:
    length = int.from_bytes(data[:3], "big")
    return length, data[3], data[4], int.from_bytes(data[5:9], "big")


class ProbeTargetsProcess(Started):
    """Such servers in a process of their own, which ends with this one."""

    def __init__(self, plain_ports: int = 0) -> None:
        self._count = plain_ports
        self._process: subprocess.Popen[str] | None = None
        self.http_port = self.grpc_port = 0
        self.tcp_ports: tuple[int, ...] = ()

    def start(self) -> None:
        """Start them, and learn where they listen."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.probe_targets", str(self._count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = self._read()
        self.http_port, self.grpc_port = told["http"], told["grpc"]
        self.tcp_ports = tuple(told["tcp"])

    def stop(self) -> None:
        """End them."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.communicate()

    def asked(self) -> Mapping[str, list[float]]:
        """Who has asked when since the last time, in seconds of `time.monotonic`."""
        assert self._process is not None, "not started"
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: Mapping[str, list[float]] = self._read()
        return found

    def _read(self) -> dict[str, Any]:
        assert self._process is not None, "not started"
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def main(count: int) -> None:
    """Serve until the standard input is closed; what measures others goes before them."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    targets = ProbeTargets(count)
    where = {"http": targets.http_port, "grpc": targets.grpc_port, "tcp": targets.tcp_ports}
    print(json.dumps(where), flush=True)
    threading.Thread(target=targets.serve, daemon=True).start()
    for _ in sys.stdin:
        asked, targets.asked = targets.asked, []
        times: dict[str, list[float]] = {}
        for who, at in asked:
            times.setdefault(who, []).append(at)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
