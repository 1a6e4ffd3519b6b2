# SPDX-License-Identifier: Apache-2.0
"""Requests to a store as botocore signs them, sent as they are: wrong ones too."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import re
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def code(self) -> str:
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found.group(1).decode() if found else ""

    def texts(self, element: str) -> list[str]:
        name = element.encode()
        return [t.decode() for t in re.findall(b"<%b>([^<]*)</%b>" % (name, name), self.body)]

    def text(self, element: str) -> str:
        return self.texts(element)[0]

    def __str__(self) -> str:
        return f"{self.status} {self.code}".strip()


class _Auth(botocore.auth.S3SigV4Auth):
    """Signs what it is told of the payload, be it true or not."""

    said: str | None = None

    def payload(self, request: AWSRequest) -> str:
        return self.said or super().payload(request)


@contextlib.contextmanager
def _clock(seconds_off: float) -> Iterator[None]:
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds_off)
    with mock.patch.object(botocore.auth, "get_current_datetime", lambda: now):
        yield


class Client:
    """Opens a connection for every request, unless it is given one."""

    def __init__(self, endpoint: str, access: str, secret: str, ca: str | None = None) -> None:
        self.url = urllib.parse.urlsplit(endpoint)
        self.access, self.secret, self.ca = access, secret, ca
        self.region = "us-east-1"

    def connect(self) -> http.client.HTTPConnection:
        assert self.url.hostname
        if self.url.scheme == "http":
            return http.client.HTTPConnection("127.0.0.1", self.url.port, timeout=300)
        context = ssl.create_default_context(cafile=self.ca)
        return http.client.HTTPSConnection(
            "localhost", self.url.port, timeout=300, context=context
        )

    def signed(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str],
        *,
        host: str | None = None,
        secret: str | None = None,
        access: str | None = None,
        token: str | None = None,
        region: str | None = None,
        payload: str | None = None,
        seconds_off: float = 0,
    ) -> dict[str, str]:
        base = f"{self.url.scheme}://{host or self.url.netloc}"
        request = AWSRequest(method=method, url=base + target, data=body, headers=headers)
        auth = _Auth(
            Credentials(access or self.access, secret or self.secret, token),
            "s3",
            region or self.region,
        )
        auth.said = payload
        with _clock(seconds_off):
            auth.add_auth(request)
        return {**dict(request.headers.items()), "Host": host or self.url.netloc}

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        *,
        anonymous: bool = False,
        connection: http.client.HTTPConnection | None = None,
        **signing: object,
    ) -> Answer:
        """`path` is not encoded yet."""
        target = urllib.parse.quote(path, safe="/~")
        if query:
            target += "?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        sent = dict(headers or {})
        if not anonymous:
            sent = self.signed(method, target, body, sent, **signing)  # type: ignore[arg-type]
        own = connection or self.connect()
        try:
            if method in ("PUT", "POST"):
                sent.setdefault("Content-Length", str(len(body)))
            own.request(method, target, body or None, sent)
            reply = own.getresponse()
            content = reply.read()
            named = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, named, content)
        finally:
            if not connection:
                own.close()
