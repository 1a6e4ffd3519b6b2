/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: bench_codec STATE BASE|- plain|adam MARGIN SIMD REPEAT [zstd]
 *
 * Encodes and decodes a state that bench_codec.py has written, chunk by chunk, and writes a line for each of its classes:
 * name, bytes, encoded bytes, seconds to encode, seconds to decode; then "memcpy", bytes and seconds. Seconds are CPU time of
 * one thread, the best of REPEAT for each chunk. With "zstd", the stock library does it at several settings, for the class as a whole.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

#include "codec/codec.h"

#define CLASSES 16

struct array {
	uint8_t *data;
	size_t bytes;
};

struct class
{
	char name[32];
	struct array now, base;
	struct ckpt_adam_hint hint;
	size_t encoded;
	double encode, decode;
};

/* A tensor: where it lies in the files of its class, and what it is. */
struct tensor {
	char class[32];
	size_t offset, count; /* elements */
	unsigned width;
	char kind[16], role[16];
	double weight_decay;
	long long master; /* the offset of its fp32 values; -1: none */
};

static struct class classes[CLASSES];
static unsigned class_count;
static const char *folder, *base_folder;
static struct ckpt_adam_step hyper;
static bool with_adam;
static unsigned repeat;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "bench_codec: %s\n", what);
	exit(1);
}

static double number(const char *word)
{
	char *end;
	double value = strtod(word, &end);

	if (end == word || *end)
		die("not a number");
	return value;
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct array load(const char *where, const char *name)
{
	struct array array = {0};
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.bin", where, name);
	f = fopen(path, "rb");
	if (!f)
		return array;
	fseek(f, 0, SEEK_END);
	array.bytes = (size_t)ftell(f);
	rewind(f);
	array.data = malloc(array.bytes + 1);
	if (!array.data || fread(array.data, 1, array.bytes, f) != array.bytes)
		die(path);
	fclose(f);
	return array;
}

static struct class *class_of(const char *name)
{
	struct class *class = &classes[class_count];

	for (unsigned i = 0; i < class_count; i++) {
		if (strcmp(classes[i].name, name) == 0)
			return &classes[i];
	}
	if (class_count++ == CLASSES)
		die("too many classes");
	snprintf(class->name, sizeof(class->name), "%s", name);
	class->now = load(folder, name);
	if (base_folder)
		class->base = load(base_folder, name);
	return class;
}

static const uint8_t *at(struct array array, size_t element, unsigned width)
{
	return array.data ? array.data + element * width : NULL;
}

static struct ckpt_codec_chunk describe(
	const struct tensor *t, size_t from, size_t count, const struct ckpt_adam_step *step)
{
	size_t i = t->offset + from;
	struct ckpt_codec_chunk chunk = {.count = count, .width = t->width, .kind = CKPT_KIND_INT};

	if (strcmp(t->kind, "float") == 0)
		chunk.kind = CKPT_KIND_FLOAT;
	if (strcmp(t->kind, "bf16") == 0)
		chunk.kind = CKPT_KIND_BF16;
	chunk.base = at(class_of(t->class)->base, i, t->width);
	if (t->master >= 0)
		chunk.master = at(class_of("master")->now, (size_t)t->master + from, 4);
	if (!with_adam || strcmp(t->role, "none") == 0 || !chunk.base)
		return chunk;
	chunk.adam = step;
	chunk.hint = &class_of(t->class)->hint;
	chunk.role = strcmp(t->role, "m") == 0   ? CKPT_ADAM_M
		     : strcmp(t->role, "v") == 0 ? CKPT_ADAM_V
						 : CKPT_ADAM_W;
	chunk.m = at(class_of("m")->now, i, 4);
	chunk.m_base = at(class_of("m")->base, i, 4);
	chunk.v = at(class_of("v")->now, i, 4);
	chunk.v_base = at(class_of("v")->base, i, 4);
	return chunk;
}

static void measure(struct ckpt_codec *codec, struct class *class, struct ckpt_codec_chunk *chunk,
	const uint8_t *data)
{
	static uint8_t out[4 * CKPT_CODEC_CHUNK_BYTES], back[CKPT_CODEC_CHUNK_BYTES];
	double encode = INFINITY, decode = INFINITY;
	size_t size = 0;

	if (ckpt_encode_room(CKPT_CODEC_CHUNK_BYTES) > sizeof(out))
		die("no room");
	for (unsigned i = 0; i < repeat; i++) {
		double began = cpu_seconds();

		size = ckpt_encode(codec, chunk, data, out);
		encode = fmin(encode, cpu_seconds() - began);
	}
	chunk->adam = NULL;
	for (unsigned i = 0; i < repeat; i++) {
		double began = cpu_seconds();

		if (ckpt_decode(codec, chunk, out, size, back) != 0)
			die("a chunk cannot be decoded");
		decode = fmin(decode, cpu_seconds() - began);
	}
	if (memcmp(back, data, chunk->count * chunk->width) != 0)
		die("a chunk has come back wrong");
	/* What a store has beside each chunk: its size and its digest. */
	class->encoded += size + 24;
	class->encode += encode;
	class->decode += decode;
}

static void run_tensor(struct ckpt_codec *codec, const struct tensor *t)
{
	struct ckpt_adam_step step = hyper;
	struct class *class = class_of(t->class);
	size_t most = CKPT_CODEC_CHUNK_BYTES / t->width;

	step.weight_decay = t->weight_decay;
	for (size_t from = 0; from < t->count; from += most) {
		size_t count = t->count - from < most ? t->count - from : most;
		struct ckpt_codec_chunk chunk = describe(t, from, count, &step);

		measure(codec, class, &chunk, at(class->now, t->offset + from, t->width));
	}
}

static void run_tensors(struct ckpt_codec *codec)
{
	char path[4096];
	struct tensor t;
	FILE *f;

	snprintf(path, sizeof(path), "%s/tensors.txt", folder);
	f = fopen(path, "r");
	if (!f || fscanf(f, "%lf %lf %lf %lf %llu", &hyper.beta1, &hyper.beta2, &hyper.lr,
			  &hyper.eps, (unsigned long long *)&hyper.step) != 5)
		die(path);
	while (fscanf(f, "%31s %zu %zu %u %15s %15s %lf %lld", t.class, &t.offset, &t.count,
		       &t.width, t.kind, t.role, &t.weight_decay, &t.master) == 8) {
		if (codec)
			run_tensor(codec, &t);
		else
			class_of(t.class);
	}
	fclose(f);
}

static size_t zstd_once(ZSTD_CCtx *context, struct class *class, int level, bool far, bool base,
	uint8_t *out, size_t room)
{
	ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
	ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
	if (far || base) {
		ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
		ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 27);
	}
	if (base)
		ZSTD_CCtx_refPrefix(context, class->base.data, class->base.bytes);
	return ZSTD_compress2(context, out, room, class->now.data, class->now.bytes);
}

static double zstd_back(struct class *class, bool base, const uint8_t *out, size_t size)
{
	ZSTD_DCtx *context = ZSTD_createDCtx();
	uint8_t *back = malloc(class->now.bytes);
	double seconds = INFINITY;

	if (!context || !back)
		die("no memory");
	for (unsigned i = 0; i < 1 + repeat / 3; i++) {
		double began = cpu_seconds();

		ZSTD_DCtx_reset(context, ZSTD_reset_session_only);
		ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, 27);
		if (base)
			ZSTD_DCtx_refPrefix(context, class->base.data, class->base.bytes);
		if (ZSTD_decompressDCtx(context, back, class->now.bytes, out, size) !=
			class->now.bytes)
			die("zstd cannot read what it wrote");
		seconds = fmin(seconds, cpu_seconds() - began);
	}
	ZSTD_freeDCtx(context);
	free(back);
	return seconds;
}

/* Lines "zstd-SETTING CLASS ...", like those of the codec. */
static void run_zstd(void)
{
	static const struct {
		const char *name;
		int level;
		bool far, base;
	} settings[] = {{"zstd-1", 1, false, false}, {"zstd-3", 3, false, false},
		{"zstd-3-long", 3, true, false}, {"zstd-1-patch-from", 1, true, true}};
	ZSTD_CCtx *context = ZSTD_createCCtx();

	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
		for (unsigned i = 0; i < class_count; i++) {
			struct class *class = &classes[i];
			size_t room = ZSTD_compressBound(class->now.bytes), size = 0;
			uint8_t *out = malloc(room);
			double seconds = INFINITY;

			if (!out || (settings[s].base && !class->base.data))
				continue;
			for (unsigned k = 0; k < 1 + repeat / 3; k++) {
				double began = cpu_seconds();

				size = zstd_once(context, class, settings[s].level, settings[s].far,
					settings[s].base, out, room);
				seconds = fmin(seconds, cpu_seconds() - began);
			}
			if (ZSTD_isError(size))
				die(ZSTD_getErrorName(size));
			printf("%s %s %zu %zu %.9f %.9f\n", settings[s].name, class->name,
				class->now.bytes, size, seconds,
				zstd_back(class, settings[s].base, out, size));
			free(out);
		}
	}
	ZSTD_freeCCtx(context);
}

static void measure_memcpy(void)
{
	size_t bytes = (size_t)64 << 20;
	uint8_t *from = malloc(bytes), *to = malloc(bytes);
	double seconds = INFINITY;

	if (!from || !to)
		die("no memory");
	memset(from, 1, bytes);
	memset(to, 2, bytes);
	for (unsigned i = 0; i < 5; i++) {
		double began = cpu_seconds();

		memcpy(to, from, bytes);
		seconds = fmin(seconds, cpu_seconds() - began);
	}
	printf("memcpy - %zu %u %.9f 0\n", bytes, to[bytes / 2], seconds);
	free(from);
	free(to);
}

int main(int argc, char **argv)
{
	struct ckpt_codec *codec;

	if (argc < 7)
		die("usage: bench_codec STATE BASE|- plain|adam MARGIN SIMD REPEAT [zstd]");
	folder = argv[1];
	base_folder = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
	with_adam = strcmp(argv[3], "adam") == 0;
	repeat = (unsigned)number(argv[6]);
	codec = ckpt_codec_open((enum ckpt_simd)(unsigned)number(argv[5]));
	if (!codec)
		die("this processor lacks these instructions");
	ckpt_codec_set_margin(codec, number(argv[4]));
	if (argc > 7) {
		run_tensors(NULL);
		run_zstd();
	} else {
		run_tensors(codec);
		for (unsigned i = 0; i < class_count; i++) {
			if (classes[i].encoded > 0)
				printf("codec %s %zu %zu %.9f %.9f\n", classes[i].name,
					classes[i].now.bytes, classes[i].encoded, classes[i].encode,
					classes[i].decode);
		}
	}
	measure_memcpy();
	ckpt_codec_close(codec);
	return 0;
}
