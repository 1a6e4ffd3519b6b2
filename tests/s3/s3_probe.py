# SPDX-License-Identifier: Apache-2.0
"""Questions to a store, and what Amazon's answers: whether a server is true, and in which ways another is not.

Each probe is a name and a short answer. `AWS` is what the documentation says; `RADOSGW` is where Ceph's radosgw
16.2.15 differs, found by asking it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

from s3_client import Answer, Client

MIB = 1 << 20
PART = 5 * MIB
CRC32C = {b"123456789": "4waSgw=="}  # the check value of CRC-32C

AWS = {
    "wrong secret": "403 SignatureDoesNotMatch",
    "unknown key": "403 InvalidAccessKeyId",
    "two hours late": "403 RequestTimeTooSkewed",
    "two hours early": "403 RequestTimeTooSkewed",
    "anonymous": "403 AccessDenied",
    "wrong region": "400 AuthorizationHeaderMalformed",
    "payload is another": "400 XAmzContentSHA256Mismatch",
    "payload is not signed": "200",
    "chunked": "411 MissingContentLength",
    "no such bucket": "404 NoSuchBucket",
    "no such key": "404 NoSuchKey",
    "head of nothing": "404",
    "bucket is there": "200",
    "odd keys": "all",
    "key of 1025": "400 KeyTooLongError",
    "etag is md5": "yes",
    "metadata": "x",
    "range": "206 bytes 2-4/10 234",
    "suffix": "206 bytes 7-9/10 789",
    "open range": "206 bytes 8-9/10 89",
    "range beyond": "416 InvalidRange",
    "get if-match": "200",
    "get if-match other": "412",
    "get if-none-match": "304",
    "put if-none-match, new": "200",
    "put if-none-match, there": "412 PreconditionFailed",
    "put if-match": "200",
    "put if-match bare": "200",
    "put if-match other": "412 PreconditionFailed",
    "put if-match, nothing": "404 NoSuchKey",
    "content-md5": "200",
    "content-md5 wrong": "400 BadDigest",
    "content-md5 malformed": "400 InvalidDigest",
    "crc32c": "200 4waSgw==",
    "crc32c wrong": "400 BadDigest",
    "sha256 header wrong": "400 BadDigest",
    "delete": "204",
    "delete of nothing": "204",
    "delete many": "200 2",
    "delete many, wrong md5": "400 BadDigest",
    "list": "a/1 a/2 b c/d/e",
    "list prefix": "a/1 a/2",
    "list delimiter": "b | a/ c/",
    "list pages": "a/ b c/",
    "list start-after": "b c/d/e",
    "list url": "1%2B1%20%3D2",
    "multipart": "200 -2",
    "multipart again": "200 same",
    "multipart, part after": "404 NoSuchUpload",
    "part 0": "400 InvalidArgument",
    "part 10001": "400 InvalidArgument",
    "list parts": "1 2 | 3",
    "complete, wrong etag": "400 InvalidPart",
    "complete, no such part": "400 InvalidPart",
    "complete, wrong order": "400 InvalidPartOrder",
    "complete, small part": "400 EntityTooSmall",
    "complete, no xml": "400 MalformedXML",
    "complete a subset": "200",
    "complete if-none-match, there": "412 PreconditionFailed",
    "list uploads": "2 then 1",
    "abort": "204",
    "abort again": "404 NoSuchUpload",
    "list parts after abort": "404 NoSuchUpload",
}

RADOSGW = {
    "wrong region": "404 NoSuchKey",  # no region is wrong to it
    "key of 1025": "400 InvalidObjectName",
    "put if-match": "412 PreconditionFailed",  # it wants the ETag without quotes
    "put if-match, nothing": "412 PreconditionFailed",
    "crc32c": "200 None",  # x-amz-checksum-* is not looked at
    "crc32c wrong": "200",
    "sha256 header wrong": "200",
    "delete many, wrong md5": "200",
    "multipart": "200 ",  # its Complete says no ETag
    "part 0": "200",
    "part 10001": "200",
    "complete, wrong order": "200",
    "complete a subset": "400 InvalidPart",
    "complete if-none-match, there": "200",  # and overwrites
    "list parts after abort": "404 NoSuchKey",
}
# What s3d --like radosgw does as Amazon all the same.
NOT_IMITATED = {"wrong region", "key of 1025", "delete many, wrong md5", "part 0", "part 10001"}


def quoted_md5(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def content_md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


class Probe:
    def __init__(self, client: Client, bucket: str) -> None:
        self.c, self.bucket = client, bucket
        self.found: dict[str, str] = {}

    def ask(self, method: str, key: str = "", *args: object, **more: object) -> Answer:
        path = f"/{self.bucket}/{key}" if key else f"/{self.bucket}"
        return self.c.ask(method, path, *args, **more)  # type: ignore[arg-type]

    def run(self) -> dict[str, str]:
        made = self.ask("PUT")
        assert made.status == 200, made.body
        steps: list[Callable[[], None]] = [
            self.who, self.objects, self.ranges, self.conditions, self.sums, self.deleting,
            self.listing, self.parts, self.completing, self.uploads,
        ]  # fmt: skip
        for step in steps:
            step()
        return self.found

    def note(self, name: str, answer: object) -> None:
        self.found[name] = str(answer)

    def who(self) -> None:
        self.note("wrong secret", self.ask("GET", "k", secret="not it"))
        self.note("unknown key", self.ask("GET", "k", access="NOBODY"))
        self.note("two hours late", self.ask("GET", "k", seconds_off=-7200))
        self.note("two hours early", self.ask("GET", "k", seconds_off=7200))
        self.note("anonymous", self.ask("GET", "k", anonymous=True))
        self.note("wrong region", self.ask("GET", "k", region="eu-north-1"))
        other = hashlib.sha256(b"other").hexdigest()
        self.note("payload is another", self.ask("PUT", "k", b"this", payload=other))
        unsigned = self.ask("PUT", "k", b"this", payload="UNSIGNED-PAYLOAD")
        self.note("payload is not signed", unsigned)
        self.note("chunked", self.chunked())

    def chunked(self) -> Answer:
        target = f"/{self.bucket}/chunked"
        headers = self.c.signed("PUT", target, b"", {}, payload="UNSIGNED-PAYLOAD")
        connection = self.c.connect()
        connection.request("PUT", target, iter([b"some"]), headers, encode_chunked=True)
        reply = connection.getresponse()
        answer = Answer(reply.status, {}, reply.read())
        connection.close()
        return answer

    def objects(self) -> None:
        self.note("no such bucket", self.c.ask("GET", "/nobody-has-this-one/k"))
        self.note("no such key", self.ask("GET", "nothing"))
        self.note("head of nothing", self.ask("HEAD", "nothing"))
        self.note("bucket is there", self.ask("HEAD"))
        odd = ["a b", "step=100/x", "a+b", "ü/€", "..x", "a&b", "a#b", "a%b", "~t", "x" * 1024]
        bad = []
        for key in odd:
            put = self.ask("PUT", key, key.encode())
            got = self.ask("GET", key)
            if put.status != 200 or got.body != key.encode():
                bad.append(f"{key[:10]} {put} {got}")
            self.ask("DELETE", key)
        self.note("odd keys", bad or "all")
        self.note("key of 1025", self.ask("PUT", "x" * 1025, b"x"))
        put = self.ask("PUT", "o", b"0123456789", {"x-amz-meta-Of": "x"})
        self.note("etag is md5", "yes" if put.headers["etag"] == quoted_md5(b"0123456789") else "no")
        self.note("metadata", self.ask("HEAD", "o").headers.get("x-amz-meta-of"))

    def ranges(self) -> None:
        for name, spec in (("range", "2-4"), ("suffix", "-3"), ("open range", "8-")):
            got = self.ask("GET", "o", b"", {"Range": f"bytes={spec}"})
            words = f"{got.status} {got.headers.get('content-range')} {got.body.decode()}"
            self.note(name, words)
        self.note("range beyond", self.ask("GET", "o", b"", {"Range": "bytes=10-"}))

    def conditions(self) -> None:
        etag = quoted_md5(b"0123456789")

        def get(name: str, value: str) -> int:
            return self.ask("GET", "o", b"", {name: value}).status

        def put(key: str, name: str, value: str) -> Answer:
            return self.ask("PUT", key, b"0123456789", {name: value})

        self.note("get if-match", get("If-Match", etag))
        self.note("get if-match other", get("If-Match", quoted_md5(b"")))
        self.note("get if-none-match", get("If-None-Match", etag))
        self.note("put if-none-match, new", put("once", "If-None-Match", "*"))
        self.note("put if-none-match, there", put("once", "If-None-Match", "*"))
        self.note("put if-match", put("o", "If-Match", etag))
        self.note("put if-match bare", put("o", "If-Match", etag.strip('"')))
        self.note("put if-match other", put("o", "If-Match", quoted_md5(b"")))
        self.note("put if-match, nothing", put("never", "If-Match", etag))

    def sums(self) -> None:
        def put(body: bytes, name: str, value: str) -> Answer:
            return self.ask("PUT", "s", body, {name: value})

        good = b"123456789"
        self.note("content-md5", put(good, "Content-MD5", content_md5(good)))
        self.note("content-md5 wrong", put(good, "Content-MD5", content_md5(b"")))
        self.note("content-md5 malformed", put(good, "Content-MD5", "nonsense"))
        crc = put(good, "x-amz-checksum-crc32c", CRC32C[good])
        self.note("crc32c", f"{crc} {crc.headers.get('x-amz-checksum-crc32c')}")
        self.note("crc32c wrong", put(b"x", "x-amz-checksum-crc32c", CRC32C[good]))
        sha = base64.b64encode(hashlib.sha256(b"").digest()).decode()
        self.note("sha256 header wrong", put(b"x", "x-amz-checksum-sha256", sha))

    def deleting(self) -> None:
        self.note("delete", self.ask("DELETE", "s"))
        self.note("delete of nothing", self.ask("DELETE", "s"))
        body = b"<Delete><Object><Key>o</Key></Object><Object><Key>once</Key></Object></Delete>"

        def many(md5: str) -> Answer:
            return self.ask("POST", "", body, {"Content-MD5": md5}, {"delete": ""})

        self.note("delete many, wrong md5", many(content_md5(b"")))
        gone = many(content_md5(body))
        self.note("delete many", f"{gone} {len(gone.texts('Key'))}")
        self.ask("DELETE", "k")

    def listing(self) -> None:
        for key in ("a/1", "a/2", "b", "c/d/e"):
            self.ask("PUT", key, b"x")

        def ls(**query: str) -> Answer:
            named = {name.replace("_", "-"): value for name, value in query.items()}
            return self.ask("GET", "", b"", {}, {"list-type": "2", **named})

        self.note("list", " ".join(ls().texts("Key")))
        self.note("list prefix", " ".join(ls(prefix="a/").texts("Key")))
        cut = ls(delimiter="/")
        prefixes = [p for p in cut.texts("Prefix") if p]
        self.note("list delimiter", " ".join([*cut.texts("Key"), "|", *prefixes]))
        names: list[str] = []
        more: dict[str, str] = {}
        for _ in range(5):
            page = ls(delimiter="/", max_keys="1", **more)
            names += page.texts("Key") + [p for p in page.texts("Prefix") if p]
            if page.text("IsTruncated") != "true":
                break
            more = {"continuation_token": page.text("NextContinuationToken")}
        self.note("list pages", " ".join(names))
        self.note("list start-after", " ".join(ls(start_after="a/2").texts("Key")))
        self.ask("PUT", "1+1 =2", b"x")
        self.note("list url", ls(prefix="1", encoding_type="url").text("Key"))

    def create(self, key: str) -> str:
        return self.ask("POST", key, b"", {}, {"uploads": ""}).text("UploadId")

    def part(self, key: str, upload: str, number: int, body: bytes) -> Answer:
        query = {"partNumber": str(number), "uploadId": upload}
        return self.ask("PUT", key, body, {}, query)

    def complete(
        self,
        key: str,
        upload: str,
        parts: list[tuple[int, str]],
        headers: dict[str, str] | None = None,
    ) -> Answer:
        items = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts
        )
        body = f"<CompleteMultipartUpload>{items}</CompleteMultipartUpload>".encode()
        return self.ask("POST", key, body, headers, {"uploadId": upload})

    def parts(self) -> None:
        upload = self.create("m")
        one, two = bytes(PART), b"end"
        tags = [self.part("m", upload, n, b).headers["etag"] for n, b in ((1, one), (2, two))]
        done = self.complete("m", upload, [(1, tags[0]), (2, tags[1])])
        etag = done.text("ETag").strip('"').replace("&quot;", "").replace("&#34;", "")
        self.note("multipart", f"{done} {etag[32:]}")
        whole = self.ask("GET", "m").body
        assert whole == one + two
        again = self.complete("m", upload, [(1, tags[0]), (2, tags[1])])
        self.note("multipart again", f"{again} {'same' if etag in str(again.body) else 'other'}")
        self.note("multipart, part after", self.part("m", upload, 1, b"x"))

    def completing(self) -> None:
        upload = self.create("m2")
        self.note("part 0", self.part("m2", upload, 0, b"x"))
        tags = {n: self.part("m2", upload, n, b).headers["etag"]
                for n, b in ((1, bytes(PART)), (2, b"small"), (3, b"last"))}  # fmt: skip
        pages = []
        marker = "0"
        for _ in range(3):
            query = {"uploadId": upload, "max-parts": "2", "part-number-marker": marker}
            page = self.ask("GET", "m2", b"", {}, query)
            pages.append(" ".join(page.texts("PartNumber")))
            if page.text("IsTruncated") != "true":
                break
            marker = page.text("NextPartNumberMarker")
        self.note("list parts", " | ".join(pages))
        both = [(1, tags[1]), (3, tags[3])]
        self.note("complete, wrong etag", self.complete("m2", upload, [(1, tags[2])]))
        self.note("complete, no such part", self.complete("m2", upload, [(7, tags[1])]))
        everything = [(n, tags[n]) for n in (1, 2, 3)]
        self.note("complete, small part", self.complete("m2", upload, everything))
        no_xml = self.ask("POST", "m2", b"<no", {}, {"uploadId": upload})
        self.note("complete, no xml", no_xml)
        self.note("complete if-none-match, there", self.there(upload))
        self.note("complete a subset", self.complete("m2", upload, both))
        upload = self.create("m3")
        big = self.part("m3", upload, 1, bytes(PART)).headers["etag"]
        also = self.part("m3", upload, 2, bytes(PART)).headers["etag"]
        self.note("complete, wrong order", self.complete("m3", upload, [(2, also), (1, big)]))
        self.ask("DELETE", "m3", b"", {}, {"uploadId": upload})
        upload = self.create("m4")
        self.note("part 10001", self.part("m4", upload, 10001, b"x"))
        self.ask("DELETE", "m4", b"", {}, {"uploadId": upload})

    def there(self, upload: str) -> Answer:
        del upload
        mine = self.create("m")
        tag = self.part("m", mine, 1, b"x").headers["etag"]
        answer = self.complete("m", mine, [(1, tag)], {"If-None-Match": "*"})
        self.ask("DELETE", "m", b"", {}, {"uploadId": mine})
        return answer

    def uploads(self) -> None:
        ids = [self.create(f"u/{i}") for i in range(3)]
        first = self.ask("GET", "", b"", {}, {"uploads": "", "prefix": "u/", "max-uploads": "2"})
        query = {
            "uploads": "",
            "prefix": "u/",
            "key-marker": first.text("NextKeyMarker"),
            "upload-id-marker": first.text("NextUploadIdMarker"),
        }
        rest = self.ask("GET", "", b"", {}, query)
        self.note("list uploads", f"{len(first.texts('UploadId'))} then {len(rest.texts('UploadId'))}")

        def abort(i: int) -> Answer:
            return self.ask("DELETE", f"u/{i}", b"", {}, {"uploadId": ids[i]})

        self.note("abort", abort(0))
        self.note("abort again", abort(0))
        gone = self.ask("GET", "u/0", b"", {}, {"uploadId": ids[0]})
        self.note("list parts after abort", gone)
        abort(1)
        abort(2)
