# SPDX-License-Identifier: Apache-2.0
"""usage: wheel_s3.py CKPT DIR: that program asks a bucket, over HTTP, and over TLS whose CA is named to it.

Certificates are made in DIR. What is answered: that nothing is there."""

import http.server
import os
import re
import ssl
import subprocess
import sys
import threading
from pathlib import Path

from wheel_tls import CONFIG, certificate

NO_STORE, NOT_AUTHORISED = 10, 12
EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"
ABSENT = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802
        self.server.asked.append((self.path, self.headers))
        listed = "list-type=2" in self.path
        body = EMPTY if listed else ABSENT
        self.send_response(200 if listed else 404)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args):
        pass


def serve(pem=None, key=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.asked = []
    if pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def ls(program, url, **more):
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "eu-test-1",
        "AWS_ACCESS_KEY_ID": "AKIDWHEEL",
        "AWS_SECRET_ACCESS_KEY": "not/much+of/a/secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        **more,
    }
    command = [program, "ls", "s3://bucket/runs/x"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def main():
    program, folder = sys.argv[1], Path(sys.argv[2])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\bs3\b", version), version

    plain = serve()
    result = ls(program, f"http://127.0.0.1:{plain.server_port}")
    assert result.returncode == NO_STORE, result
    assert plain.asked, "it asked nobody"
    for path, headers in plain.asked:
        assert path.startswith("/bucket"), path
        assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDWHEEL/"), path

    pem, key = certificate(folder, "server")
    other, _ = certificate(folder, "other")
    (folder / "openssl.cnf").write_text(CONFIG)
    secret = serve(pem, key)
    url = f"https://localhost:{secret.server_port}"
    # What configures the system's OpenSSL, here so that nothing would work, is not for the one inside.
    result = ls(program, url, AWS_CA_BUNDLE=str(pem), OPENSSL_CONF=str(folder / "openssl.cnf"))
    assert result.returncode == NO_STORE, result
    assert secret.asked, "it asked nobody"
    secret.asked.clear()
    for trusts in ({}, {"AWS_CA_BUNDLE": str(other)}):
        result = ls(program, url, **trusts)
        assert result.returncode == NOT_AUTHORISED, result
        assert "certificate" in result.stderr and "AWS_CA_BUNDLE" in result.stderr, result
    assert not secret.asked, "it asked whom it does not trust"


main()
