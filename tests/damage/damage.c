/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: damage bytes|bits|lengths|blocks|writers [all] [--slice I/N]
 *        damage random SEED COUNT [--slice I/N]
 *
 * Does one kind of damage to a store, one after the other, and looks each time what the library makes
 * of it (judge.h). --slice: every Nth, from the Ith (slice.h). The last line has the counts.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "damage/judge.h"
#include "lib/prng.h"
#include "lib/slice.h"

static struct victim victim;
static struct judge judge = {.victim = &victim};
static bool all; /* without leaving out what is much alike */
static struct slice slice;
static uint64_t damages; /* planned so far, in the slice or not */

/* Whether the next damage is in the slice. */
static bool in_slice(void)
{
	return slice_has(&slice, damages++);
}

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(judge.what, sizeof(judge.what), fmt, args);
	va_end(args);
}

static void keep_reader(void)
{
	judge.reader = victim_engine(&victim, CKPT_ENGINE_READ_ONLY);
	if (!judge.reader)
		victim_die("open: %s", ckpt_last_error());
}

static void drop_reader(void)
{
	ckpt_engine_close(judge.reader);
	judge.reader = NULL;
}

static void flip(unsigned f, size_t at, unsigned char mask)
{
	if (!in_slice())
		return;
	say("byte %zu of %s ^ %#x", at, victim.file[f].path, mask);
	victim_flip(&victim, f, at, mask);
	judge_look(&judge);
	victim_flip(&victim, f, at, mask);
}

/* Whether only spaces are there, which fill the header up. */
static bool is_padding(const struct victim_file *file, size_t at)
{
	return file->kind == VICTIM_SHARD && at < victim.header_bytes && file->bytes[at] == ' ';
}

/* Every byte of every file; every 64th before an engine that has just been opened. */
static void run_bytes(void)
{
	keep_reader();
	for (unsigned f = 0; f < victim.files; f++)
		for (size_t at = 0; at < victim.file[f].size; at++) {
			struct ckpt_engine *kept = judge.reader;
			if (all || at % 64 == 3)
				judge.reader = NULL;
			else
				judge.brief = is_padding(&victim.file[f], at);
			flip(f, at, (unsigned char)(1 + (at * 37 + f) % 255));
			judge.reader = kept;
			judge.brief = false;
		}
	drop_reader();
}

/* Every bit of what describes the newest step and the store; of a shard that is its header. */
static void run_bits(void)
{
	keep_reader();
	for (unsigned f = 0; f < victim.files; f++) {
		struct victim_file *file = &victim.file[f];
		size_t end = file->kind == VICTIM_SHARD ? victim.header_bytes : file->size;
		if (!all && file->step == 1)
			continue;
		for (size_t bit = 0; bit < end * 8; bit++) {
			if (!all && is_padding(file, bit / 8))
				continue;
			judge.brief = !all && bit % 8 != 5;
			flip(f, bit / 8, (unsigned char)(1u << bit % 8));
		}
	}
	judge.brief = false;
	drop_reader();
}

static void put(unsigned f, const void *bytes, size_t size)
{
	if (!in_slice())
		return;
	victim_spoil(&victim, f, bytes, size);
	judge_look(&judge);
	victim_repair(&victim, f);
}

/* Every shorter length, of shards every seventh; longer by bytes of several kinds; none at all. */
static void run_lengths(void)
{
	static const unsigned char tails[] = {0, '\n', ' ', '}', 0xff};
	static const size_t more[] = {1, 2, 46, 511, 4096, 70000};

	keep_reader();
	for (unsigned f = 0; f < victim.files; f++) {
		struct victim_file *file = &victim.file[f];
		size_t stride = !all && file->kind == VICTIM_SHARD ? 7 : 1;
		for (size_t size = 0; size < file->size; size += stride) {
			say("%s cut to %zu bytes", file->path, size);
			put(f, file->bytes, size);
		}
		for (size_t i = 0; i < sizeof(tails) * sizeof(more) / sizeof(more[0]); i++) {
			size_t add = more[i / sizeof(tails)];
			unsigned char *longer = malloc(file->size + add);
			if (!longer)
				victim_die("out of memory");
			memcpy(longer, file->bytes, file->size);
			memset(longer + file->size, tails[i % sizeof(tails)], add);
			say("%s with %zu bytes %#x more", file->path, add,
				tails[i % sizeof(tails)]);
			put(f, longer, file->size + add);
			free(longer);
		}
		say("%s is gone", file->path);
		victim_unlink(&victim, f);
		judge_look(&judge);
		victim_repair(&victim, f);
	}
	drop_reader();
}

/* The file of the other step, or for the store's the other of them. */
static unsigned twin(unsigned f)
{
	const struct victim_file *file = &victim.file[f];

	for (unsigned i = 0; i < victim.files; i++)
		if (i != f &&
			(file->step ? victim.file[i].kind == file->kind : !victim.file[i].step))
			return i;
	victim_die("%s has no twin", file->path);
}

/* Puts a range of another file, or of another place of this one, into a file. */
static void misplace(unsigned f, size_t to, unsigned other, size_t from, size_t length)
{
	struct victim_file *file = &victim.file[f];
	const struct victim_file *source = &victim.file[other];
	unsigned char *bytes = malloc(file->size + 1);

	if (!bytes)
		victim_die("out of memory");
	if (length > file->size - to)
		length = file->size - to;
	memcpy(bytes, file->bytes, file->size);
	memset(bytes + to, 0, length);
	if (from < source->size)
		memcpy(bytes + to, source->bytes + from,
			length < source->size - from ? length : source->size - from);
	say("%zu bytes at %zu of %s, put at %zu of %s", length, from, source->path, to, file->path);
	put(f, bytes, file->size);
	free(bytes);
}

static void run_places(void)
{
	for (unsigned f = 0; f < victim.files; f++) {
		size_t size = victim.file[f].size;
		for (size_t length = 16; length <= 4096; length *= 2)
			for (size_t at = 0; at < size; at += length) {
				misplace(f, at, f, size, length);
				misplace(f, at, twin(f), at, length);
				misplace(
					f, at, f, at >= length ? at - length : at + length, length);
			}
	}
}

static void run_swaps(void)
{
	for (unsigned a = 0; a < victim.files; a++)
		for (unsigned b = a + 1; b < victim.files; b++) {
			struct victim_file *x = &victim.file[a];
			struct victim_file *y = &victim.file[b];
			say("%s and %s swapped", x->path, y->path);
			victim_spoil(&victim, a, y->bytes, y->size);
			victim_spoil(&victim, b, x->bytes, x->size);
			judge_look(&judge);
			victim_repair(&victim, a);
			victim_repair(&victim, b);
		}
	say("all files of the two steps swapped");
	for (unsigned f = 0; f < victim.files; f++)
		if (victim.file[f].step)
			victim_spoil(
				&victim, f, victim.file[twin(f)].bytes, victim.file[twin(f)].size);
	judge_look(&judge);
	victim_reset(&victim);
}

static void run_blocks(void)
{
	keep_reader();
	run_places();
	run_swaps();
	drop_reader();
	run_swaps();
}

/* A process that means to go on comes to a damaged store. */
static void run_writers(void)
{
	for (unsigned f = 0; f < victim.files; f++) {
		struct victim_file *file = &victim.file[f];
		for (unsigned i = 0; i < 40; i++) {
			size_t at = file->size * i / 40;
			if (!in_slice())
				continue;
			say("writer: byte %zu of %s", at, file->path);
			victim_flip(&victim, f, at, 0x10);
			judge_writer(&judge);
			victim_reset(&victim);
			say("writer: %s cut to %zu bytes", file->path, at);
			victim_spoil(&victim, f, file->bytes, at);
			judge_writer(&judge);
			victim_reset(&victim);
		}
		say("writer: %s is gone", file->path);
		victim_unlink(&victim, f);
		judge_writer(&judge);
		victim_reset(&victim);
	}
}

/* Random damage to a larger store. */

static size_t few(struct prng *prng, size_t most)
{
	return 1 + prng_below(prng, UINT64_C(1) << prng_below(prng, 17)) % most;
}

static void harm(struct prng *prng, unsigned f)
{
	struct victim_file *file = &victim.file[f];
	size_t at = prng_below(prng, file->now_size ? file->now_size : 1);
	size_t length = file->now_size ? few(prng, file->now_size - at) : 0;
	const struct victim_file *other = &victim.file[twin(f)];
	unsigned char *bytes = malloc(file->now_size + 1);

	if (!bytes)
		victim_die("out of memory");
	memcpy(bytes, file->now, file->now_size);
	size_t from = prng_below(prng, file->size);
	size_t size = file->now_size;
	unsigned kind = (unsigned)prng_below(prng, 12);
	if (kind < 4)
		length = length > 0;
	for (size_t i = 0; i < length; i++) {
		unsigned char *b = &bytes[at + i];
		*b = kind < 4    ? *b ^ (unsigned char)(1u << prng_below(prng, 8))
		     : kind < 6  ? (unsigned char)prng_next(prng)
		     : kind < 8  ? 0
		     : kind < 9  ? file->bytes[(from + i) % file->size]
		     : kind < 11 ? (at + i < other->size ? other->bytes[at + i] : 0)
				 : *b;
	}
	if (kind == 11)
		size = at;
	victim_spoil(&victim, f, bytes, size);
	free(bytes);
}

static void run_random(uint64_t seed, uint64_t count)
{
	struct prng prng;

	keep_reader();
	for (uint64_t i = 0; i < count; i++) {
		if (!in_slice())
			continue;
		prng.state = seed + i;
		unsigned times = 1 + (unsigned)prng_below(&prng, 3);
		bool touched[VICTIM_FILES] = {false};
		while (times-- > 0) {
			unsigned f = (unsigned)prng_below(&prng, victim.files);
			/* Most bytes are in shards. */
			while (victim.file[f].kind != VICTIM_SHARD && prng_below(&prng, 8) > 0)
				f = (unsigned)prng_below(&prng, victim.files);
			touched[f] = true;
			harm(&prng, f);
		}
		say("random damage %llu of seed %llu", (unsigned long long)i,
			(unsigned long long)seed);
		judge_look(&judge);
		judge_one(&judge, (unsigned)prng_below(&prng, victim.tensors));
		for (unsigned f = 0; f < victim.files; f++)
			if (touched[f])
				victim_repair(&victim, f);
	}
	drop_reader();
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {{"bytes", run_bytes}, {"bits", run_bits}, {"lengths", run_lengths},
	{"blocks", run_blocks}, {"writers", run_writers}};

int main(int argc, char **argv)
{
	double begun = now();
	bool sliced = argc > 3 && strcmp(argv[argc - 2], "--slice") == 0;
	if (sliced) {
		if (!slice_parse(&slice, argv[argc - 1]))
			victim_die("--slice takes I/N");
		argc -= 2;
	}
	bool random = argc == 4 && strcmp(argv[1], "random") == 0;
	void (*run)(void) = NULL;

	all = argc == 3 && strcmp(argv[2], "all") == 0;
	for (size_t i = 0; argc == 2 + all && i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(argv[1], kinds[i].name) == 0)
			run = kinds[i].run;
	if (!run && !random)
		victim_die("usage: damage bytes|bits|lengths|blocks|writers [all], or damage "
			   "random SEED COUNT; --slice I/N");
	uint64_t seed = random ? strtoull(argv[2], NULL, 10) : 1;
	victim_make(&victim, random, seed);
	if (run)
		run();
	else
		run_random(seed, strtoull(argv[3], NULL, 10));
	double seconds = now() - begun;
	(void)printf("damage %s: %llu damages in %.1f s (%.0f/s), %llu more changed nothing; "
		     "%llu chunks named; restored whole: %llu newest, %llu older\n",
		argv[1], (unsigned long long)judge.judged, seconds, (double)judge.judged / seconds,
		(unsigned long long)judge.unchanged, (unsigned long long)judge.named,
		(unsigned long long)judge.whole, (unsigned long long)judge.older);
	(void)printf("counts damages=%llu failed=0\n", (unsigned long long)judge.judged);
	victim_free(&victim);
	return 0;
}
