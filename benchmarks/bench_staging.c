/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging copy against plain memcpy with as many threads: one large tensor, and 10,000 small ones.
 *
 * Ours is what a save does: blocks of 8 MiB into slots of the pool, each a job of a worker, with the
 * samples compared. A slot is free again at once, as if the disk took no time. The peer knows no
 * blocks: each thread copies its share of the tensors, one memcpy for each, to ordinary memory of the
 * same size. All memory is touched before. The two run in turn; a ratio above 1 is ours being faster.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/device.h"
#include "device/memcpy_nt.h"
#include "staging/pool.h"

#define BLOCK       ((size_t)8 << 20)
#define THREADS_MAX 64
#define PAIRS_MAX   1000
#define TARGET      0.95

struct options {
	uint64_t bytes;
	unsigned pairs;
	unsigned threads;
	const char *json;
};

/* Tensors one behind the other in `from`. */
struct load {
	const char *name;
	char *from;
	char *to; /* the peer's */
	uint64_t bytes;
	size_t tensors;
	int64_t *sizes;
	uint64_t *offsets;
	unsigned passes; /* over all of it, to be long enough to measure */
	struct ckpt_segment *segments;
	size_t segment_count;
};

struct bench {
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	struct ckpt_device *device;
	struct ckpt_pool *pool;
	unsigned threads;
};

struct result {
	const char *name;
	uint64_t bytes;
	size_t tensors;
	unsigned pairs;
	double ours[PAIRS_MAX];  /* GB/s */
	double peers[PAIRS_MAX]; /* GB/s */
	double ratios[PAIRS_MAX];
};

__attribute__((noreturn)) static void die(const char *what)
{
	(void)fprintf(stderr, "bench_staging: %s\n", what);
	exit(1);
}

static void *must(void *ptr)
{
	if (!ptr || ptr == MAP_FAILED)
		die("out of memory; use a smaller --mib");
	return ptr;
}

static char *large_memory(uint64_t bytes)
{
	char *at =
		must(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	memset(at, 1, bytes);
	return at;
}

/* Cuts the tensors where blocks end, as the plan of a save does; all passes one behind the other. */
static void cut_segments(struct load *load)
{
	size_t most = (load->tensors + load->bytes / BLOCK + 1) * load->passes;
	uint64_t at = 0;

	load->segments = must(calloc(most, sizeof(*load->segments)));
	for (size_t i = 0; i < load->tensors * load->passes; i++) {
		size_t tensor = i % load->tensors;
		uint64_t begin = at;
		uint64_t end = begin + (uint64_t)load->sizes[tensor];

		while (at < end) {
			uint64_t n = ckpt_min_u64(end - at, BLOCK - at % BLOCK);

			load->segments[load->segment_count++] = (struct ckpt_segment){
				.view = {.data = load->from + load->offsets[tensor],
					.item = 1,
					.ndim = 1,
					.shape = &load->sizes[tensor]},
				.offset = at - begin,
				.length = n,
				.tensor = (uint32_t)tensor,
			};
			at += n;
		}
	}
}

static void make_load(struct load *load, const char *name, size_t tensors)
{
	load->name = name;
	load->tensors = tensors;
	load->sizes = must(calloc(tensors, sizeof(*load->sizes)));
	load->offsets = must(calloc(tensors, sizeof(*load->offsets)));
}

static void fill_load(struct load *load)
{
	for (size_t i = 0; i < load->tensors; i++) {
		load->offsets[i] = load->bytes;
		load->bytes += (uint64_t)load->sizes[i];
	}
	load->from = large_memory(load->bytes);
	load->to = large_memory(load->bytes);
	cut_segments(load);
}

static void free_load(struct load *load)
{
	(void)munmap(load->from, load->bytes);
	(void)munmap(load->to, load->bytes);
	free(load->sizes);
	free(load->offsets);
	free(load->segments);
}

/* One block on its way. */
struct flight {
	struct ckpt_copy copy;
	struct ckpt_slot *slot;
	struct flight *next;
	struct flight **landed; /* list that it joins when it is back */
};

static void land(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);
	struct flight *flight = CKPT_CONTAINER(copy, struct flight, copy);

	flight->next = *flight->landed;
	*flight->landed = flight;
}

/* Starts the block whose first segment is `first`; returns the first of the next block. */
static size_t start_block(
	struct bench *b, struct load *load, size_t first, uint64_t seed, struct flight *flight)
{
	size_t end = first;
	size_t used = 0;

	while (end < load->segment_count && used + load->segments[end].length <= BLOCK) {
		load->segments[end].staged = flight->slot->data + used;
		used += load->segments[end].length;
		end++;
	}
	flight->copy = (struct ckpt_copy){.direction = CKPT_COPY_TO_STAGING,
		.segments = load->segments + first,
		.count = end - first,
		.seed = seed,
		.sampled = true};
	flight->copy.job.node.run = land;
	ckpt_device_copy(b->device, &flight->copy);
	return end;
}

static void run_inbox(struct bench *b)
{
	struct ckpt_node *node;

	ckpt_inbox_wait(&b->inbox, UINT64_MAX);
	node = ckpt_inbox_take(&b->inbox);
	while (node) {
		struct ckpt_node *next = node->next;

		node->run(node);
		node = next;
	}
}

/* All of it, with as many blocks under way as the pool has slots. */
static void stage(struct bench *b, struct load *load, uint64_t seed)
{
	unsigned slots = ckpt_pool_slots(b->pool);
	struct flight *flights = must(calloc(slots, sizeof(*flights)));
	struct flight *idle = NULL;
	size_t next = 0;
	unsigned flying = 0;

	for (unsigned i = 0; i < slots; i++) {
		flights[i].landed = &idle;
		land(&flights[i].copy.job.node);
	}
	while (next < load->segment_count || flying > 0) {
		struct flight *flight = next < load->segment_count ? idle : NULL;

		if (flight) {
			idle = flight->next;
			flight->slot = ckpt_pool_get(b->pool);
			next = start_block(b, load, next, seed, flight);
			flying++;
			continue;
		}
		run_inbox(b);
		for (struct flight *f = idle; f; f = f->next) {
			if (!f->slot)
				continue;
			if (f->copy.result < 0 || f->copy.torn >= 0)
				die("a copy failed");
			ckpt_pool_put(b->pool, f->slot);
			f->slot = NULL;
			flying--;
		}
	}
	free(flights);
}

static double run_ours(struct bench *b, struct load *load, uint64_t seed)
{
	uint64_t begin;

	/* Taken where save() is called, which is not the copy's time. */
	for (size_t i = 0; i < load->segment_count; i++)
		load->segments[i].sample = ckpt_segment_sample(&load->segments[i], seed, false);
	begin = ckpt_clock_ns();
	stage(b, load, seed);
	return (double)load->bytes * load->passes / (double)(ckpt_clock_ns() - begin);
}

struct share {
	const struct load *load;
	uint64_t begin; /* bytes of the load */
	uint64_t end;
};

static void *copy_share(void *argument)
{
	const struct share *share = argument;
	const struct load *load = share->load;

	for (unsigned pass = 0; pass < load->passes; pass++) {
		for (size_t i = 0; i < load->tensors; i++) {
			uint64_t begin = ckpt_max_u64(load->offsets[i], share->begin);
			uint64_t end = ckpt_min_u64(
				load->offsets[i] + (uint64_t)load->sizes[i], share->end);

			if (begin < end)
				memcpy(load->to + begin, load->from + begin, end - begin);
		}
	}
	return NULL;
}

static double run_peer(struct bench *b, struct load *load)
{
	struct share shares[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	uint64_t begin = ckpt_clock_ns();

	for (unsigned i = 0; i < b->threads; i++) {
		shares[i] = (struct share){
			load, load->bytes * i / b->threads, load->bytes * (i + 1) / b->threads};
		if (ckpt_thread_start(&threads[i], "memcpy", copy_share, &shares[i]) < 0)
			die("cannot start a thread");
	}
	for (unsigned i = 0; i < b->threads; i++)
		(void)pthread_join(threads[i], NULL);
	return (double)load->bytes * load->passes / (double)(ckpt_clock_ns() - begin);
}

static void run_pairs(struct bench *b, struct load *load, unsigned pairs, struct result *result)
{
	*result = (struct result){
		.name = load->name, .bytes = load->bytes, .tensors = load->tensors, .pairs = pairs};
	/* Not counted: all has been used once. */
	(void)run_ours(b, load, 0);
	(void)run_peer(b, load);
	for (unsigned i = 0; i < pairs; i++) {
		if (i % 2)
			result->peers[i] = run_peer(b, load);
		result->ours[i] = run_ours(b, load, i + 1);
		if (i % 2 == 0)
			result->peers[i] = run_peer(b, load);
		result->ratios[i] = result->ours[i] / result->peers[i];
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

static double at(const double *values, unsigned count, unsigned rank)
{
	double sorted[PAIRS_MAX];

	memcpy(sorted, values, count * sizeof(*values));
	qsort(sorted, count, sizeof(*sorted), compare);
	return sorted[rank];
}

static double median(const double *values, unsigned count)
{
	return (at(values, count, (count - 1) / 2) + at(values, count, count / 2)) / 2;
}

/*
 * The rank from either end between which the true median lies with 90 % or more: by the binomial
 * distribution, whatever that of the values is.
 */
static unsigned interval_rank(unsigned count)
{
	double outside = 0;
	unsigned rank = 0;

	for (unsigned k = 0; k < count / 2; k++) {
		outside += 2 * exp(lgamma(count + 1.0) - lgamma(k + 1.0) - lgamma(count - k + 1.0) -
				       count * log(2));
		if (outside > 0.10)
			break;
		rank = k + 1;
	}
	return rank > 0 ? rank - 1 : 0;
}

static void print_table(const struct result *results, size_t count)
{
	(void)printf("%-16s %9s %7s  %10s  %10s  %6s  %s\n", "load", "MiB", "tensors", "ours GB/s",
		"peer GB/s", "ratio", "90 % interval");
	for (size_t i = 0; i < count; i++) {
		const struct result *r = &results[i];
		unsigned rank = interval_rank(r->pairs);

		(void)printf("%-16s %9llu %7zu  %10.2f  %10.2f  %6.3f  %.3f to %.3f\n", r->name,
			(unsigned long long)(r->bytes >> 20), r->tensors, median(r->ours, r->pairs),
			median(r->peers, r->pairs), median(r->ratios, r->pairs),
			at(r->ratios, r->pairs, rank),
			at(r->ratios, r->pairs, r->pairs - 1 - rank));
	}
}

static void print_ways(void)
{
	double gb_per_s = 0;
	bool chosen = false;
	const char *name;

	for (unsigned i = 0; (name = ckpt_stream_way(i, &gb_per_s, &chosen)); i++)
		(void)printf("copying %-40s %6.2f GB/s a thread%s\n", name, gb_per_s,
			chosen ? ", chosen" : "");
}

static const char *way_taken(void)
{
	double gb_per_s = 0;
	bool chosen = false;
	const char *name = NULL;

	for (unsigned i = 0; !chosen && (name = ckpt_stream_way(i, &gb_per_s, &chosen)); i++)
		continue;
	return name ? name : "not chosen";
}

static void print_json(FILE *out, const struct bench *b, const struct result *results, size_t count)
{
	(void)fprintf(out,
		"{\"schema\":1,\"benchmark\":\"staging\",\"threads\":%u,\"block_bytes\":%zu,"
		"\"pool_bytes\":%llu,\"pool_huge\":%s,\"target_ratio\":%.2f,\"peer\":\"memcpy\","
		"\"copying\":\"%s\",\"loads\":[",
		b->threads, BLOCK, (unsigned long long)ckpt_pool_bytes(b->pool),
		ckpt_pool_huge(b->pool) ? "true" : "false", TARGET, way_taken());
	for (size_t i = 0; i < count; i++) {
		const struct result *r = &results[i];
		unsigned rank = interval_rank(r->pairs);

		(void)fprintf(out,
			"%s{\"name\":\"%s\",\"bytes\":%llu,\"tensors\":%zu,\"pairs\":%u,"
			"\"ours_gb_s\":%.3f,\"peer_gb_s\":%.3f,\"ratio\":%.4f,"
			"\"ratio_low90\":%.4f,\"ratio_high90\":%.4f,\"ratios\":[",
			i ? "," : "", r->name, (unsigned long long)r->bytes, r->tensors, r->pairs,
			median(r->ours, r->pairs), median(r->peers, r->pairs),
			median(r->ratios, r->pairs), at(r->ratios, r->pairs, rank),
			at(r->ratios, r->pairs, r->pairs - 1 - rank));
		for (unsigned k = 0; k < r->pairs; k++)
			(void)fprintf(out, "%s%.4f", k ? "," : "", r->ratios[k]);
		(void)fprintf(out, "]}");
	}
	(void)fprintf(out, "]}\n");
}

static void open_bench(struct bench *b, const struct options *options)
{
	struct ckpt_error err;
	struct ckpt_pool_config config = {.block_bytes = (uint32_t)BLOCK, .touch = true};

	ckpt_error_clear(&err);
	ckpt_pool_default(0, &config);
	config.bytes_max = 0;
	b->threads = options->threads;
	if (ckpt_inbox_init(&b->inbox) < 0 || ckpt_env_os_open(b->threads, &b->inbox, &b->os) < 0 ||
		ckpt_device_host_open(ckpt_env_os_env(b->os), &b->device) < 0)
		die("cannot start the workers");
	if (ckpt_pool_open(&config, &err, &b->pool) < 0)
		die(err.message);
	if (*ckpt_pool_note(b->pool))
		(void)fprintf(stderr, "%s\n", ckpt_pool_note(b->pool));
	while (ckpt_pool_threads(b->pool) > 0)
		(void)usleep(1000);
}

static void close_bench(struct bench *b)
{
	ckpt_device_close(b->device);
	ckpt_env_os_close(b->os);
	ckpt_pool_close(b->pool);
	ckpt_inbox_destroy(&b->inbox);
}

static uint64_t number_of(const char *text, uint64_t most)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	if (end == text || *end || value == 0 || value > most)
		die("a number is wrong; see --help");
	return value;
}

static void parse(int argc, char **argv, struct options *options)
{
	static const struct option longs[] = {{"mib", required_argument, NULL, 'm'},
		{"pairs", required_argument, NULL, 'p'}, {"threads", required_argument, NULL, 't'},
		{"json", required_argument, NULL, 'j'}, {"quick", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'}, {0}};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'm')
			options->bytes = number_of(optarg, 1 << 20) << 20;
		else if (c == 'p')
			options->pairs = (unsigned)number_of(optarg, PAIRS_MAX);
		else if (c == 't')
			options->threads = (unsigned)number_of(optarg, THREADS_MAX);
		else if (c == 'j')
			options->json = optarg;
		else if (c == 'q')
			options->bytes = UINT64_C(256) << 20, options->pairs = 3;
		else {
			(void)fprintf(c == 'h' ? stdout : stderr,
				"usage: bench_staging [--mib N] [--pairs N] [--threads N] "
				"[--json FILE] [--quick]\n");
			exit(c == 'h' ? 0 : 2);
		}
	}
}

static void write_json(const char *path, const struct bench *b, const struct result *results)
{
	FILE *out = fopen(path, "w");

	if (!out)
		die("cannot write the file of --json");
	print_json(out, b, results, 2);
	if (fclose(out) != 0)
		die("cannot write the file of --json");
}

int main(int argc, char **argv)
{
	struct options options = {.bytes = UINT64_C(2) << 30,
		.pairs = 9,
		.threads = (unsigned)ckpt_min_u64(ckpt_thread_cpus(), 4)};
	struct result *results = must(calloc(2, sizeof(*results)));
	struct load large = {.passes = 1};
	struct load small = {.passes = 8};
	struct bench bench = {0};

	parse(argc, argv, &options);
	open_bench(&bench, &options);

	make_load(&large, "one large", 1);
	large.sizes[0] = (int64_t)options.bytes;
	fill_load(&large);
	run_pairs(&bench, &large, options.pairs, &results[0]);
	free_load(&large);

	/* 64 bytes to 64 KiB, as many of each order of magnitude. */
	make_load(&small, "10,000 small", 10000);
	for (size_t i = 0; i < small.tensors; i++)
		small.sizes[i] = (int64_t)(64 * exp2((double)(i * 7919 % 10000) / 1000));
	fill_load(&small);
	run_pairs(&bench, &small, options.pairs, &results[1]);
	free_load(&small);

	print_table(results, 2);
	print_ways();
	print_json(stdout, &bench, results, 2);
	if (options.json)
		write_json(options.json, &bench, results);
	close_bench(&bench);
	free(results);
	return 0;
}
