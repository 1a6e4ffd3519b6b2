# SPDX-License-Identifier: Apache-2.0
"""usage: wheel_tls.py MODULE DIR: what scripts/wheel links talks TLS in a process that has Python's OpenSSL, too.

MODULE is wheel_tls.c, linked as the wheel is; certificates are made in DIR."""

import concurrent.futures
import ctypes
import http.server
import os
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

BODY = b"<list>" + b"<key/>" * 1000 + b"</list>"
PEER_FAILED_VERIFICATION = 60  # libcurl's
# Who takes it does not understand the server's certificate.
CONFIG = """openssl_conf = all
[all]
ssl_conf = tls
[tls]
system_default = none
[none]
SignatureAlgorithms = RSA+SHA512
"""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args):
        pass


def certificate(folder, name):
    made = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
        + ["-out", made[0], "-keyout", made[1]],
        check=True,
        capture_output=True,
    )
    return made


def serve(pem, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"https://localhost:{server.server_port}/"


def main():
    module, folder, load_config = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), len(sys.argv) > 3
    pem, key = certificate(folder, "server")
    other, _ = certificate(folder, "other")
    url = serve(pem, key)
    python_trusts = ssl.create_default_context(cafile=pem)
    # Python's OpenSSL has read its configuration by now.
    (folder / "openssl.cnf").write_text(CONFIG)
    os.environ["OPENSSL_CONF"] = str(folder / "openssl.cnf")
    if module.wheel_tls_start(ctypes.c_bool(load_config)) != 0:
        sys.exit("libcurl does not start, or knows more than HTTP and HTTPS")

    def get(trusted):
        code, elements = ctypes.c_int(), ctypes.c_uint()
        path = None if trusted is None else os.fsencode(trusted)
        status = module.wheel_tls_get(url.encode(), path, ctypes.byref(code), ctypes.byref(elements))
        return status, code.value, elements.value

    def by_python():
        with urllib.request.urlopen(url, context=python_trusts) as answer:
            return answer.read()

    if load_config:
        assert get(pem)[1] not in (0, PEER_FAILED_VERIFICATION), "a configuration that forbids all changes nothing"
        return
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ours = [pool.submit(get, pem) for _ in range(40)]
        pythons = [pool.submit(by_python) for _ in range(40)]
        assert {future.result() for future in ours} == {(200, 0, 1001)}, ours[0].result()
        assert {future.result() for future in pythons} == {BODY}
    assert get(other)[:2] == (0, PEER_FAILED_VERIFICATION), get(other)
    assert get(None)[:2] == (0, PEER_FAILED_VERIFICATION), "it trusts a place of its own"


if __name__ == "__main__":
    main()
