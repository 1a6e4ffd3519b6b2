/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUT of parts from memory to a server that throws them away, through the library's clients and through libcurl
 * alone with as many threads and connections: over HTTP and HTTPS, without a proof of what was sent and with the one
 * that an upload has there. In pairs, one after the other; the server is another process on this machine, so wall
 * time is shared with it, and CPU time is not.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench_put.h"
#include "bench_tool.h"
#include "lib/tls_kit.h"

#define PAIRS_MAX 99

struct options {
	struct bench_common common;
	unsigned pairs;
	unsigned mib;
	unsigned part_mib;
	unsigned connections;
	unsigned threads;
};

struct cost {
	double wall_s;
	double cpu_s;
};

/* One way of sending, and what it took. */
struct way {
	const char *name;
	bool tls;
	enum bench_proof proof;
	struct cost ours[PAIRS_MAX];
	struct cost plain[PAIRS_MAX];
};

/* Medians. */
struct figures {
	double ours_mib_s;
	double plain_mib_s;
	double ours_cpu_s_gib;
	double plain_cpu_s_gib;
	double ratio_wall;
	double ratio_cpu;
};

static double cpu_s(void)
{
	struct rusage usage;

	bench_must_os(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static struct cost measure(void (*act)(const struct bench_put *put), const struct bench_put *put)
{
	uint64_t begun_ns = bench_now_ns();
	double cpu = cpu_s();

	act(put);
	return (struct cost){.wall_s = bench_ms_since(begun_ns) / 1000, .cpu_s = cpu_s() - cpu};
}

static void run_way(struct way *way, const struct bench_put *put, unsigned pairs)
{
	void (*ours)(const struct bench_put *put) =
		way->proof == BENCH_PROOF_NONE ? bench_put_http : bench_put_bucket;

	bench_put_plain(put);
	ours(put);
	for (unsigned i = 0; i < pairs; i++) {
		/* Each comes first half of the time. */
		if (i % 2)
			way->plain[i] = measure(bench_put_plain, put);
		way->ours[i] = measure(ours, put);
		if (i % 2 == 0)
			way->plain[i] = measure(bench_put_plain, put);
	}
}

static double median(double *values, unsigned count)
{
	bench_sort(values, count);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static struct figures sum_up(const struct way *way, const struct options *o)
{
	double values[6][PAIRS_MAX];
	double gib = o->mib / 1024.0;

	for (unsigned i = 0; i < o->pairs; i++) {
		const struct cost *ours = &way->ours[i];
		const struct cost *plain = &way->plain[i];
		values[0][i] = o->mib / ours->wall_s;
		values[1][i] = o->mib / plain->wall_s;
		values[2][i] = ours->cpu_s / gib;
		values[3][i] = plain->cpu_s / gib;
		values[4][i] = plain->wall_s / ours->wall_s;
		values[5][i] = plain->cpu_s / ours->cpu_s;
	}
	return (struct figures){.ours_mib_s = median(values[0], o->pairs),
		.plain_mib_s = median(values[1], o->pairs),
		.ours_cpu_s_gib = median(values[2], o->pairs),
		.plain_cpu_s_gib = median(values[3], o->pairs),
		.ratio_wall = median(values[4], o->pairs),
		.ratio_cpu = median(values[5], o->pairs)};
}

static void print_json(FILE *out, const struct way *way, const struct figures *f, const char *comma)
{
	fprintf(out,
		"%s{\"name\": \"%s\", \"ours\": {\"mib_s\": %.1f, \"cpu_s_gib\": %.4f}, "
		"\"plain\": {\"mib_s\": %.1f, \"cpu_s_gib\": %.4f}, "
		"\"ratio_wall\": %.4f, \"ratio_cpu\": %.4f}",
		comma, way->name, f->ours_mib_s, f->ours_cpu_s_gib, f->plain_mib_s,
		f->plain_cpu_s_gib, f->ratio_wall, f->ratio_cpu);
}

static void report(const struct options *o, const struct way *ways, size_t count)
{
	FILE *out = bench_json_open(o->common.json);

	printf("PUT of %u MiB in parts of %u MiB, %u connections, %u threads, %u pairs; %s\n",
		o->mib, o->part_mib, o->connections, o->threads, o->pairs, curl_version());
	printf("%-20s %23s %23s %20s\n", "", "MiB/s", "CPU s/GiB", "ratio, 1 is equal");
	printf("%-20s %11s %11s %11s %11s %10s %9s\n", "", "libckpt", "libcurl", "libckpt",
		"libcurl", "rate", "CPU");
	if (out)
		fprintf(out,
			"{\"benchmark\": \"http\", \"mib\": %u, \"part_mib\": %u, "
			"\"connections\": %u, "
			"\"threads\": %u, \"pairs\": %u, \"curl\": \"%s\", \"ways\": [",
			o->mib, o->part_mib, o->connections, o->threads, o->pairs, curl_version());
	for (size_t i = 0; i < count; i++) {
		struct figures f = sum_up(&ways[i], o);
		printf("%-20s %11.0f %11.0f %11.3f %11.3f %10.2f %9.2f\n", ways[i].name,
			f.ours_mib_s, f.plain_mib_s, f.ours_cpu_s_gib, f.plain_cpu_s_gib,
			f.ratio_wall, f.ratio_cpu);
		if (out)
			print_json(out, &ways[i], &f, i ? ", " : "");
	}
	if (!out)
		return;
	fprintf(out, "]}\n");
	bench_json_close(out);
}

static void run_all(const struct options *o, struct way *ways, size_t count)
{
	struct tls_ca ca = tls_ca_make();
	SSL_CTX *certificate = tls_server_make(&ca, "IP:127.0.0.1", 1);
	struct bench_put put = {.part_bytes = (uint64_t)o->part_mib << 20,
		.parts = (o->mib + o->part_mib - 1) / o->part_mib,
		.connections = o->connections,
		.threads = o->threads,
		.workers = 1};
	char dir[4096];
	char ca_file[4200];
	pid_t server;
	char *part = malloc(put.part_bytes);

	bench_must_os(part != NULL, "malloc");
	memset(part, 'x', put.part_bytes);
	put.part = part;
	bench_scratch(o->common.dir, "http", dir, sizeof(dir));
	(void)snprintf(ca_file, sizeof(ca_file), "%s/ca.pem", dir);
	tls_ca_write(&ca, ca_file);
	for (size_t i = 0; i < count; i++) {
		unsigned port = bench_sink_start(ways[i].tls ? certificate : NULL, &server);
		(void)snprintf(put.endpoint, sizeof(put.endpoint), "%s://127.0.0.1:%u",
			ways[i].tls ? "https" : "http", port);
		put.ca_file = ways[i].tls ? ca_file : NULL;
		put.proof = ways[i].proof;
		run_way(&ways[i], &put, o->pairs);
		bench_sink_stop(server);
	}
	bench_scratch_remove(dir);
	SSL_CTX_free(certificate);
	tls_ca_free(&ca);
	free(part);
}

int main(int argc, char **argv)
{
	struct options o = {.common = {.dir = "."},
		.pairs = 9,
		.mib = 2048,
		.part_mib = 8,
		.connections = 8,
		.threads = 2};
	const struct bench_option known[] = {{.name = "pairs",
						     .word = "N",
						     .number = &o.pairs,
						     .least = 1,
						     .most = PAIRS_MAX,
						     .quick = 1},
		{.name = "mib",
			.word = "N",
			.number = &o.mib,
			.least = 1,
			.most = 1 << 20,
			.quick = 64},
		{.name = "part-mib", .word = "N", .number = &o.part_mib, .least = 1, .most = 1024},
		{.name = "connections",
			.word = "N",
			.number = &o.connections,
			.least = 1,
			.most = 32},
		{.name = "threads", .word = "N", .number = &o.threads, .least = 1, .most = 32},
		{0}};
	static struct way ways[] = {{.name = "http"}, {.name = "https", .tls = true},
		{.name = "http, SHA-256", .proof = BENCH_PROOF_SHA256},
		{.name = "https, CRC32C", .tls = true, .proof = BENCH_PROOF_CRC32C}};
	const size_t count = sizeof(ways) / sizeof(ways[0]);

	bench_parse(argc, argv, known, &o.common);
	bench_must_os(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl");
	run_all(&o, ways, count);
	report(&o, ways, count);
	return 0;
}
