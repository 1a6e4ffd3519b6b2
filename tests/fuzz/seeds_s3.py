# SPDX-License-Identifier: Apache-2.0
"""What the target s3 begins with: the first byte says which reader gets the rest."""

PART = "<Part><PartNumber>2</PartNumber><ETag>&quot;e&quot;</ETag><Size>1</Size>{}</Part>"
KEYS = "<AccessKeyId>A</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
ROLE = "AssumeRoleWithWebIdentity"

TEXTS = [
    (0, "upload", "<InitiateMultipartUploadResult xmlns='x'><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
    (1, "parts", "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>2</NextPartNumberMarker>"
        + PART.format("<ChecksumCRC32C>4waSgw==</ChecksumCRC32C>") + "</ListPartsResult>"),
    (1, "parts-twice", "<ListPartsResult>" + PART.format("") * 2 + "</ListPartsResult>"),
    (1, "parts-going-back", "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>1"
        "</NextPartNumberMarker>" + PART.format("") + "</ListPartsResult>"),
    (2, "completed", " \n<CompleteMultipartUploadResult><ETag>e-2</ETag><ChecksumCRC32C>4waSgw==-2"
        "</ChecksumCRC32C></CompleteMultipartUploadResult>"),
    (2, "completed-with-error", "<Error><Code>InternalError</Code></Error>"),
    (3, "objects", "<ListBucketResult><Contents><Key>a%2Bb+c</Key><Size>7</Size><LastModified>"
        "2009-10-12T17:50:30.000Z</LastModified></Contents><CommonPrefixes><Prefix>g/</Prefix></CommonPrefixes>"
        "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t"
        "</NextContinuationToken></ListBucketResult>"),
    (3, "objects-of-nul", "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%00</Key></Contents>"
        "</ListBucketResult>"),
    (3, "laughs", "<!DOCTYPE l [<!ENTITY a 'aa'><!ENTITY b '&a;&a;'>]><ListBucketResult>&b;</ListBucketResult>"),
    (3, "deep", "<ListBucketResult>" + "<a>" * 40),
    (3, "many", "<ListBucketResult>" + "<Contents><Key>k</Key></Contents>" * 200 + "</ListBucketResult>"),
    (4, "uploads", "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u</UploadId><Initiated>"
        "2010-11-10T20:48:33.000Z</Initiated></Upload><IsTruncated>true</IsTruncated><NextKeyMarker>k"
        "</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker></ListMultipartUploadsResult>"),
    (5, "deletes", "<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code><Message>m</Message></Error>"
        "</DeleteResult>"),
    (5, "deletes-of-nothing", "<DeleteResult>" + "<Error/>" * 900 + "</DeleteResult>"),
    (6, "session", f"<{ROLE}Response><{ROLE}Result><Credentials>{KEYS}<SessionToken>t</SessionToken><Expiration>"
        f"2014-10-24T23:00:23Z</Expiration></Credentials></{ROLE}Result></{ROLE}Response>"),
    (7, "error", "<Error><Code>PermanentRedirect</Code><Message>m</Message><Region>r</Region><Endpoint>e</Endpoint>"
        "<RequestId>i</RequestId></Error>"),
    (7, "error-quoting", "<Error><Message>AWS4-HMAC-SHA256 Signature=00</Message></Error>"),
    (8, "place", "s3://bucket/run/42"),
    (8, "place-collapsed", "s3:/bucket/run"),
    (8, "file", "file:///a%20b"),
    (8, "endpoint", "http://[::1]:9000/base"),
    (8, "endpoint-with-password", "https://me:hunter2@host"),
    (9, "query", "uploadId=2~a%2fb=&partNumber=7&uploads&a-=1&a=1"),
    (10, "date-http", "Sun, 06 Nov 1994 08:49:37 GMT"),
    (10, "date-850", "Sunday, 06-Nov-94 08:49:37 GMT"),
    (10, "date-asctime", "Sun Nov  6 08:49:37 1994"),
    (10, "date-iso", "2013-05-24T02:30:00.5+02:30"),
    (10, "crc32c", "4waSgw=="),
]  # fmt: skip


def s3():
    for kind, name, text in TEXTS:
        yield name, bytes([kind]) + text.encode()
