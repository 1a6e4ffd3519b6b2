# SPDX-License-Identifier: Apache-2.0
"""Configuration files of AWS."""


def configurations():
    yield "empty", b""
    yield "one", b"[default]\nregion = eu-west-1\n"
    yield (
        "everything",
        (
            b'\xef\xbb\xbf# c\r\n[profile "a b"] # c\r\nX=1\r\ns3 =\r\n'
            b"  addressing_style = path\r\n  max = 2\r\ncommand = a\r\n  b\r\n"
            b"[services w]\ns3 =\n endpoint_url = http://h\n"
        ),
    )
    yield "twice", b"[a]\nx=1\nx=2\n[a]\nx=\n"
    yield "no-section", b"x=1\n"
    yield "no-bracket", b"[a\n"
    yield "no-name", b"[]\n[a]\n=1\n"
    yield "no-value", b"[a]\nx\n"
    yield "nested-without-value", b"[a]\ns3=\n x\n"
    yield "nul", b"[a]\nx=\0\n"
    yield "quotes", b"[profile \"]\n[profile '']\n[profile \"'\"]\n[profile  x y ]\n"
    yield "indented-first", b"[a]\n  x=1\n  y=2\n"
    yield "only-blanks", b" \t\r\n\x0b\x0c\n"
