# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy: tunnels for TLS (CONNECT), and requests for whole URLs."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy(socketserver.ThreadingTCPServer):
    """One request for each connection. `asked`: the head of each."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Hop)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def serving() -> Iterator[Proxy]:
    """A proxy that runs."""
    with Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class _Hop(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            byte = self.request.recv(1)
            if not byte:
                return
            head += byte
        text = head.decode("latin-1")
        self.server.asked.append(text)
        line, *fields = text.removesuffix("\r\n\r\n").split("\r\n")
        method, url, version = line.split(" ")
        if method == "CONNECT":
            self._join(url, there="", back="HTTP/1.1 200 OK\r\n\r\n")
            return
        scheme, _, rest = url.partition("://")
        assert scheme == "http", line
        host, _, target = rest.partition("/")
        kept = [f for f in fields if not f.lower().startswith(("proxy-", "connection:"))]
        # What proxies add is not signed.
        told = [f"{method} /{target} {version}", *kept, "Via: 1.1 proxy", "Connection: close"]
        self._join(host, there="\r\n".join([*told, "", ""]), back="")

    def _join(self, host: str, *, there: str, back: str) -> None:
        """Connects to the server, begins with these texts, and passes on what each of both says."""
        name, _, port = host.rpartition(":")
        try:
            to = socket.create_connection((name, int(port)))
        except ConnectionRefusedError:
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        with to:
            to.sendall(there.encode("latin-1"))
            self.request.sendall(back.encode("latin-1"))
            up = threading.Thread(target=_pump, args=(self.request, to), daemon=True)
            up.start()
            _pump(to, self.request)
            # The client may wait with its end until it sees that of the server.
            with suppress(OSError):
                self.request.shutdown(socket.SHUT_RDWR)
            up.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one of them has gone."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
