# SPDX-License-Identifier: Apache-2.0
"""s3d is S3, to a client that others have written; and its faults are what they are called."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from s3_probe import AWS, NOT_IMITATED, PART, RADOSGW, Probe
from s3_server import ACCESS, SECRET, Server
from waiting import until

Serve = Callable[..., Server]


def sdk(server: Server, **config: Any) -> Any:
    return botocore.session.Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        verify=str(server.tls[0]) if server.tls else None,
        config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, **config),
    )


@pytest.mark.parametrize("tls", [False, True])
def test_it_is_amazons(serve: Serve, certificate: tuple[Path, Path], tls: bool) -> None:
    server = serve(tls=certificate if tls else None)
    assert Probe(server.client, "probe").run() == AWS


def test_it_is_like_radosgw(serve: Serve) -> None:
    found = Probe(serve("--like", "radosgw").client, "probe").run()
    wanted = {name: answer for name, answer in RADOSGW.items() if name not in NOT_IMITATED}
    assert found == {**AWS, **wanted}


def test_a_client_of_amazons(serve: Serve) -> None:
    """Its checksums are looked at; pages, multipart uploads and errors are what it understands."""
    server = serve()
    s3 = sdk(server)
    server.admin("PUT", "capabilities", {"page_most": 2})
    put = s3.put_object(Bucket="bkt", Key="a b", Body=b"x", ChecksumAlgorithm="SHA256")
    assert put["ChecksumSHA256"]
    got = s3.get_object(Bucket="bkt", Key="a b", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"x"
    upload = s3.create_multipart_upload(Bucket="bkt", Key="big", ChecksumAlgorithm="CRC32")
    where = {"Bucket": "bkt", "Key": "big", "UploadId": upload["UploadId"]}
    parts = []
    for n in (1, 2, 3):
        part = s3.upload_part(PartNumber=n, Body=bytes([n]) * PART, ChecksumAlgorithm="CRC32", **where)
        parts.append({"PartNumber": n, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]})
    listed = [p for page in s3.get_paginator("list_parts").paginate(**where) for p in page["Parts"]]
    assert [p["ETag"] for p in listed] == [p["ETag"] for p in parts]
    done = s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **where)
    assert done["ETag"].endswith('-3"')
    for key in ("c", "d", "e"):
        s3.put_object(Bucket="bkt", Key=key, Body=b"")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="bkt")
    assert [o["Key"] for p in pages for o in p["Contents"]] == ["a b", "big", "c", "d", "e"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket="bkt", Key="c", Body=b"", IfNoneMatch="*")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.get_object(Bucket="nobodys", Key="k")


def test_virtual_hosts(server: Server) -> None:
    put = server.client.ask("PUT", "/key", b"x", host="bkt.s3.localhost")
    assert put.status == 200
    assert server.ask("GET", "key").body == b"x"


def test_keys_that_expire(server: Server) -> None:
    soon = {"access": "TEMP", "secret": "s", "token": "tok", "expires_s": int(time.time()) + 1000}
    server.admin("PUT", "keys", [soon])

    def ask(token: str | None = "tok") -> str:
        return str(server.ask("PUT", "k", b"x", access="TEMP", secret="s", token=token))

    assert ask() == "200"
    assert ask("other") == "400 InvalidToken"
    assert ask(None) == "403 InvalidAccessKeyId"
    server.admin("PUT", "clock", {"offset_s": 600})
    assert ask() == "200"
    server.admin("PUT", "clock", {"offset_s": 960})
    assert ask() == "403 RequestTimeTooSkewed"
    server.admin("PUT", "keys", [{**soon, "expires_s": int(time.time()) - 1}])
    server.admin("PUT", "clock", {"offset_s": 0})
    assert ask() == "400 ExpiredToken"


def test_a_bucket_elsewhere(server: Server) -> None:
    place = b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint>"
    assert server.client.ask("PUT", "/far-away", place + b"</CreateBucketConfiguration>").status == 200
    answer = server.client.ask("GET", "/far-away/k")
    assert (str(answer), answer.headers["x-amz-bucket-region"]) == (
        "301 PermanentRedirect",
        "eu-west-1",
    )


@pytest.mark.parametrize("like", ["swift", "old"])
def test_others(serve: Serve, like: str) -> None:
    server = serve("--like", like)
    first, second = (server.ask("PUT", "k", b"x", {"If-None-Match": "*"}) for _ in range(2))
    wanted = ["501 NotImplemented"] * 2 if like == "swift" else ["200", "200"]
    assert [str(first), str(second)] == wanted
    etag = server.ask("PUT", "k", b"x").headers["etag"]
    assert (etag == f'"{hashlib.md5(b"x").hexdigest()}"') == (like == "swift")


# What a client sees of a fault, and whether its request was applied.
LOST = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
FAULTS: list[tuple[dict[str, object], object, int]] = [
    ({"do": "delay", "delay_ms": 50, "reply_delay_ms": 50}, "200", 1),
    ({"do": "refuse"}, LOST, 0),
    ({"do": "drop"}, LOST, 0),
    ({"do": "drop", "bytes": 70000}, LOST, 0),
    ({"do": "late"}, LOST, 0),
    ({"do": "drop_reply"}, LOST, 1),
    ({"do": "stall", "delay_ms": 50}, LOST, 1),
    ({"do": "stall_body", "bytes": 1000, "delay_ms": 50}, LOST, 0),
    ({"do": "answer", "status": 503, "code": "SlowDown", "retry_after_s": 7}, "503 SlowDown", 0),
    ({"do": "answer", "status": 500, "applied": True}, "500 InternalError", 1),
    ({"do": "answer", "status": 409, "code": "ConditionalRequestConflict"},
     "409 ConditionalRequestConflict", 0),
    ({"do": "error_in_ok", "code": "InternalError"}, "200 InternalError", 0),
    ({"do": "twice"}, "200", 1),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "seen", "applied"), FAULTS, ids=lambda v: str(v)[:40])
def test_faults_of_a_put(server: Server, rule: dict[str, object], seen: Any, applied: int) -> None:
    server.admin("DELETE", "journal")
    server.rules({**rule, "times": 1, **({} if rule["do"] == "refuse" else {"operation": "PutObject"})})
    body = bytes(100_000)
    if rule["do"] == "refuse":
        # The rules' own connection was before it.
        with pytest.raises(seen):
            server.ask("PUT", "k", body)
    elif seen is LOST:
        with pytest.raises(seen):
            server.ask("PUT", "k", body)
    else:
        answer = server.ask("PUT", "k", body)
        assert str(answer) == seen
        if "retry_after_s" in rule:
            assert answer.headers["retry-after"] == "7"
    assert server.applied() == ["PutObject k"] * applied
    lands = rule["do"] in ("late", "twice")
    server.admin("POST", "land")
    assert server.applied() == ["PutObject k"] * (applied + lands)
    assert str(server.ask("PUT", "k", body)) == "200", "it happens once"


def test_faults_of_a_get(server: Server) -> None:
    body = bytes(range(256)) * 40
    server.ask("PUT", "k", body)
    server.rules({"do": "corrupt", "bytes": 17, "times": 1, "method": "GET"},
                 {"do": "truncate", "bytes": 100, "times": 1, "method": "GET"},
                 {"do": "length", "bytes": 5, "times": 1, "method": "GET"})  # fmt: skip
    got = server.ask("GET", "k").body
    assert [i for i in range(len(body)) if got[i] != body[i]] == [17]
    with pytest.raises(http.client.IncompleteRead) as cut:
        server.ask("GET", "k")
    assert cut.value.partial == body[:100]
    with pytest.raises(http.client.IncompleteRead) as longer:
        server.ask("GET", "k")
    assert longer.value.partial == body
    assert server.ask("GET", "k").body == body


def test_rules_choose(server: Server) -> None:
    server.rules({"do": "answer", "status": 503, "code": "SlowDown", "key": "a/*", "nth": 2, "times": 1})
    seen = [str(server.ask("PUT", k, b"")) for k in ("a/1", "b", "a/2", "a/3")]
    assert seen == ["200", "200", "503 SlowDown", "200"]

    def drawn(seed: int) -> list[int]:
        server.rules({"do": "answer", "status": 503, "chance": 5000}, seed=seed)
        return [server.ask("HEAD", "b").status for _ in range(30)]

    assert drawn(1) == drawn(1) != drawn(2)
    bad = server.client.ask("PUT", "/_ckpt/rules", b'{"rules":[{"do":"nothing"}]}', anonymous=True)
    assert bad.status == 400
    assert b"nothing is called" in bad.body


def test_a_late_write_overwrites(server: Server) -> None:
    server.rules({"do": "late", "times": 1})
    with pytest.raises(LOST):
        server.ask("PUT", "k", b"old")
    assert server.ask("PUT", "k", b"new").status == 200
    server.admin("POST", "land")
    assert server.ask("GET", "k").body == b"old"
    entries = [e for e in server.journal() if e["kind"] == "applied"]
    assert [e["sha256"] for e in entries] == [hashlib.sha256(b).hexdigest() for b in (b"new", b"old")]


def test_a_late_write_lands_by_itself(server: Server) -> None:
    server.rules({"do": "late", "delay_ms": 30, "times": 1})
    with pytest.raises(LOST):
        server.ask("PUT", "k", b"old")
    until(lambda: server.applied() == ["PutObject k"])


def test_it_survives_a_kill(serve: Serve, tmp_path: Path) -> None:
    server = serve("--directory", tmp_path / "data")
    server.ask("PUT", "a b/ü", b"one", {"x-amz-meta-of": "m"})
    server.ask("PUT", "gone", b"")
    server.ask("DELETE", "gone")
    probe = Probe(server.client, "bkt")
    upload = probe.create("m")
    tags = [probe.part("m", upload, n, bytes([n]) * PART).headers["etag"] for n in (1, 2)]
    server.kill()
    server.start()
    probe = Probe(server.client, "bkt")
    got = server.ask("GET", "a b/ü")
    assert (got.body, got.headers["x-amz-meta-of"]) == (b"one", "m")
    assert str(server.ask("GET", "gone")) == "404 NoSuchKey"
    parts = list(enumerate(tags, 1))
    assert probe.create("m") != upload
    first = probe.complete("m", upload, parts)
    assert first.status == 200
    server.kill()
    server.start()
    probe = Probe(server.client, "bkt")
    assert probe.complete("m", upload, parts).body == first.body
    assert server.ask("GET", "m").body == b"\1" * PART + b"\2" * PART
    assert not list(tmp_path.rglob("*.tmp"))


def test_bounds(serve: Serve) -> None:
    server = serve("--body", 1000, "--memory", 1500)
    assert str(server.ask("PUT", "a", bytes(1000))) == "200"
    assert str(server.ask("PUT", "b", bytes(501))) == "403 QuotaExceeded"
    server.ask("DELETE", "a")
    assert str(server.ask("PUT", "b", bytes(501))) == "200"


def test_null_sink(serve: Serve) -> None:
    server = serve("--null", "--memory", 1000)
    assert server.ask("PUT", "a", b"x" * 100_000).status == 200
    assert server.ask("GET", "a").body == bytes(100_000)


def raw(server: Server) -> socket.socket:
    address = server.client.url
    return socket.create_connection(("127.0.0.1", address.port), timeout=300)


def test_expect(server: Server) -> None:
    """Who is refused is told before the body; who is not, is told to go on."""
    for secret, wanted in (("not it", b"HTTP/1.1 403"), (SECRET, b"HTTP/1.1 100")):
        headers = server.client.signed(
            "PUT", "/bkt/k", b"", {}, payload="UNSIGNED-PAYLOAD", secret=secret
        )
        lines = [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Length: 5", "Expect: 100-continue", "", ""]
        with raw(server) as s:
            s.sendall("\r\n".join(["PUT /bkt/k HTTP/1.1", *lines]).encode())
            assert s.recv(12) == wanted
            if secret == SECRET:
                s.sendall(b"hello")
                rest = b""
                while b"etag" not in rest:
                    rest += s.recv(1000)
                assert b"HTTP/1.1 200" in rest
    assert server.ask("GET", "k").body == b"hello"


def test_connections(serve: Serve) -> None:
    server, hasty = serve(), serve("--idle-ms", 20)
    connection = server.client.connect()
    for n in range(3):
        server.ask("PUT", f"k{n}", b"x", connection=connection)
        if n == 0:
            first = connection.sock
    assert connection.sock is first, "it was kept"
    with raw(hasty) as s:
        assert s.recv(1) == b"", "one that nobody uses is closed"
    with raw(server) as s:
        s.sendall(b"nonsense\r\n\r\n")
        assert re.match(rb"HTTP/1.1 400", s.recv(100))


def test_it_ends_while_clients_hang(server: Server) -> None:
    server.rules({"do": "stall", "operation": "PutObject"})
    with raw(server) as idle, raw(server) as hanging:
        headers = server.client.signed("PUT", "/bkt/k", b"", {"Content-Length": "0"})
        lines = [f"{name}: {value}" for name, value in headers.items()]
        hanging.sendall("\r\n".join(["PUT /bkt/k HTTP/1.1", *lines, "", ""]).encode())
        until(lambda: server.applied() == ["PutObject k"])
        assert server.stop() == 0
        assert idle.recv(1) == b""


def test_two_servers_say_the_same(serve: Serve) -> None:
    def ids() -> list[str]:
        probe = Probe(serve("--seed", 7).client, "bkt")
        return [probe.create("k") for _ in range(3)]

    assert ids() == ids()
