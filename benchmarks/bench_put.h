/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of one size, put from memory to a server that throws them away: through the library's clients, and through
 * libcurl alone. All fail by ending the program.
 */
#ifndef BENCH_PUT_H
#define BENCH_PUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What shows the server that it has what was sent. */
enum bench_proof {
	BENCH_PROOF_NONE = 0,
	BENCH_PROOF_SHA256, /* x-amz-content-sha256 */
	BENCH_PROOF_CRC32C, /* x-amz-checksum-crc32c */
};

struct bench_put {
	char endpoint[64];   /* "https://127.0.0.1:1234" */
	const char *ca_file; /* of https */
	enum bench_proof proof;
	const char *part;
	uint64_t part_bytes;
	unsigned parts;
	unsigned connections;
	unsigned threads; /* of the HTTP client */
	unsigned workers; /* that hash, if there is a proof */
};

/*
 * The server, a process of its own that ends with this one; `certificate` NULL: without TLS. Returns its port.
 * A context of OpenSSL's is inherited.
 */
struct ssl_ctx_st;
unsigned bench_sink_start(struct ssl_ctx_st *certificate, pid_t *ret_pid);
void bench_sink_stop(pid_t pid);

/* By net/http.h, without a proof. */
void bench_put_http(const struct bench_put *put);
/* By s3/client.h, as an upload does it: signed, with the proof. */
void bench_put_bucket(const struct bench_put *put);
/*
 * By libcurl alone, with as many threads as the library has in all; each hashes what it sends before it sends it.
 * It does not sign, and is never told to wait for a 100.
 */
void bench_put_plain(const struct bench_put *put);

#endif
