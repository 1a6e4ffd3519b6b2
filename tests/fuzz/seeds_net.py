# SPDX-License-Identifier: Apache-2.0
"""Heads of answers, keys as JSON, and where keys come from."""

import json

KEYS = {"AccessKeyId": "A", "SecretAccessKey": "CANARY"}
STATIC = "aws_access_key_id=A\naws_secret_access_key=CANARY\n"


def heads():
    yield "empty", b""
    yield "ok", b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 7\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n'
    yield "interim", b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\nHTTP/1.1 503 Slow\r\nRetry-After: 120\r\n\r\n"
    yield "folded", b"HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\te: f\r\n"
    yield "nameless", b"HTTP/1.1 200 OK\r\n: x\r\n:\r\nA:\r\nB: \t \r\nC\r\n"
    yield "nul", b"HTTP/1.1 200 OK\r\nA\0: x\r\nB: \0\r\n"
    yield "cr-within", b"HTTP/1.1 200 OK\r\nA: b\rETag: e\r\n"
    yield "twice", b"HTTP/1.1 200 OK\r\netag: 1\r\nETAG: 2\r\nContent-Length: 1\r\nContent-Length: 2\r\n"
    yield "status-of-nothing", b"HTTP/1.1\r\nHTTP/1.1 \r\nHTTP/1.1 2\r\nHTTP/1.1 -99\r\n"
    yield "no-end", b"HTTP/1.1 206 P\r\nContent-Range: bytes 0-1/2"
    yield "length-too-great", b"HTTP/1.1 200 OK\nContent-Length: 9223372036854775808\n"
    yield "long", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 400


def keys():
    good = {**KEYS, "Expiration": "2030-01-01T00:00:00Z"}
    for name, members in (
        ("process", {"Version": 1, **good, "SessionToken": "CANARY"}),
        ("process-of-another-version", {"Version": 2, **good}),
        ("process-with-nothing", {"Version": 1}),
        ("process-token-null", {"Version": 1, **good, "SessionToken": None}),
        ("process-secret-with-break", {"Version": 1, **KEYS, "SecretAccessKey": "CANARY\nx"}),
        ("process-no-date", {"Version": 1, **KEYS, "Expiration": "soon"}),
        ("process-long", {"Version": 1, **KEYS, "SecretAccessKey": "CANARY" + "x" * 250}),
    ):
        yield name, b"\0" + json.dumps(members, separators=(",", ":")).encode()
    for name, members in (
        ("server", {"Code": "Success", **good, "Token": "CANARY"}),
        ("server-refuses", {"Code": "AssumeRoleUnauthorizedAccess", "Message": "no"}),
        ("server-refuses-oddly", {"Code": "\u001b[2J"}),
    ):
        yield name, b"\1" + json.dumps(members, separators=(",", ":")).encode()
    yield "empty", b"\0"
    yield "twice", b'\1{"SecretAccessKey":"CANARY","SecretAccessKey":"CANARY"}'
    yield "not-json", b"\0\n<html>CANARY"


def sources():
    chain = "".join(f"[profile p{i}]\nrole_arn=arn:{i}\nsource_profile=p{i + 1}\n" for i in range(9))
    for name, environment, config, credentials in (
        ("empty", "", "", ""),
        ("environment", "AWS_ACCESS_KEY_ID=A\nAWS_SECRET_ACCESS_KEY=CANARY\nAWS_REGION=eu", "", ""),
        ("half", "AWS_ACCESS_KEY_ID=A", "", ""),
        ("credentials", "", "[default]\nregion=eu\n", "[default]\n" + STATIC),
        ("config", "AWS_PROFILE=a", "[profile a]\n" + STATIC, ""),
        ("no-such-profile", "AWS_PROFILE=a", "", ""),
        ("role", "AWS_PROFILE=a", "[profile a]\nrole_arn=r\nsource_profile=b\n", "[b]\n" + STATIC),
        ("itself", "AWS_PROFILE=a", "[profile a]\nrole_arn=r\nsource_profile=a\n" + STATIC, ""),
        ("circle", "AWS_PROFILE=a", "[profile a]\nrole_arn=r\nsource_profile=b\n[profile b]\n"
            "role_arn=r\nsource_profile=a\n", ""),
        ("chain-too-long", "AWS_PROFILE=p0", chain, "[p9]\n" + STATIC),
        ("web", "AWS_ROLE_ARN=r\nAWS_WEB_IDENTITY_TOKEN_FILE=/t", "", ""),
        ("process", "", "[default]\ncredential_process=p CANARY\n", ""),
        ("sso", "", "[default]\nsso_session=s\nsso_account_id=1\nsso_role_name=r\n", ""),
        ("container", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/x", "", ""),
        ("instance", "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://[::1]/", "", ""),
        ("settings", "AWS_MAX_ATTEMPTS=3", "[default]\nservices=w\ns3=\n addressing_style=path\n"
            "use_fips_endpoint=true\n[services w]\ns3=\n endpoint_url=http://h\n", ""),
        ("no-number", "AWS_MAX_ATTEMPTS=x", "", ""),
    ):  # fmt: skip
        yield name, "\0".join((environment, config, credentials)).encode()
