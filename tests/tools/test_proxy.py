# SPDX-License-Identifier: Apache-2.0
"""A server without TLS behind a proxy, which is given whole URLs."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from s3_programs import NETWORK, Bucket, same, save

URL = "s3://bkt/run"


class Proxy(socketserver.ThreadingTCPServer):
    """One request for each connection."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Hop)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Hop(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            byte = self.request.recv(1)
            if not byte:
                return
            head += byte
        line, *fields = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, url, version = line.split(" ")
        self.server.asked.append(f"{method} {url}")
        scheme, _, rest = url.partition("://")
        assert scheme == "http", line
        host, _, target = rest.partition("/")
        kept = [f for f in fields if not f.lower().startswith(("proxy-", "connection:"))]
        # What proxies add is not signed.
        told = [f"{method} /{target} {version}", *kept, "Via: 1.1 proxy", "Connection: close"]
        name, _, port = host.rpartition(":")
        with socket.create_connection((name, int(port))) as to:
            to.sendall("\r\n".join([*told, "", ""]).encode("latin-1"))
            up = threading.Thread(target=self.pump, args=(self.request, to), daemon=True)
            up.start()
            self.pump(to, self.request)

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy() as proxy:
        bucket.settings |= {"no_proxy": None, "NO_PROXY": None, "AWS_MAX_ATTEMPTS": "1"}
        bucket.settings["http_proxy"] = f"http://127.0.0.1:{proxy.server_address[1]}"
        yield proxy
        proxy.shutdown()


def test_there_and_back(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    parts = {"x": torch.arange(5 << 20, dtype=torch.float32)}  # 20 MiB: three parts
    store = save(tmp_path / "store", parts, 1)
    bucket.good("ckpt", "upload", store, URL)
    assert bucket.applied("UploadPart", ".*") == 3
    bucket.good("ckpt-restore", URL, tmp_path / "back")
    same(tmp_path / "back", store, 1)
    assert len(proxy.asked) > 10
    assert all(f" {bucket.server.endpoint}/" in asked for asked in proxy.asked)
    # Some hosts are asked without it.
    count = len(proxy.asked)
    bucket.good("ckpt-verify", URL, no_proxy="127.0.0.1")
    assert len(proxy.asked) == count
    # It is not passed by if it is away.
    assert bucket.run("ckpt", "ls", URL, http_proxy="http://127.0.0.1:1").returncode == NETWORK
