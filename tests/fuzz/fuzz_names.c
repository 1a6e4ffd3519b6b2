/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files: what is taken is exactly what is written, and no path leads out of the store. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/types.h>
#include "format/naming.h"

/* At most three components of letters, digits, '-' and '.', none of which begins with a dot. */
static void check_path(const char *path)
{
	size_t components = 1;

	FUZZ_CHECK(strlen(path) < CKPT_PATH_MAX);
	FUZZ_CHECK(strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789-./") == strlen(path));
	for (const char *at = path; *at; at++) {
		if (at == path || at[-1] == '/')
			FUZZ_CHECK(*at != '.' && *at != '/');
		components += *at == '/';
	}
	FUZZ_CHECK(components <= 3 && path[strlen(path) - 1] != '/');
}

static void check_claim(const char *name)
{
	uint64_t generation = UINT64_MAX;
	char path[CKPT_PATH_MAX];

	if (!ckpt_parse_claim(name, &generation)) {
		FUZZ_CHECK(generation == UINT64_MAX);
		return;
	}
	FUZZ_CHECK(generation >= 1 && generation <= CKPT_GENERATION_MAX);
	ckpt_name_claim(path, generation);
	check_path(path);
	FUZZ_CHECK(strcmp(path + strlen(CKPT_NAME_GENS "/"), name) == 0);
}

static void check_generation(const char *name)
{
	uint64_t generation = UINT64_MAX;
	char path[CKPT_PATH_MAX];

	if (!ckpt_parse_generation(name, &generation)) {
		FUZZ_CHECK(generation == UINT64_MAX);
		return;
	}
	FUZZ_CHECK(generation >= 1 && generation <= CKPT_GENERATION_MAX);
	ckpt_name_generation(path, generation);
	check_path(path);
	FUZZ_CHECK(strcmp(path, name) == 0);
}

static void check_step(const char *name)
{
	uint64_t step = UINT64_MAX;
	char path[CKPT_PATH_MAX];

	if (!ckpt_parse_step(name, &step)) {
		FUZZ_CHECK(step == UINT64_MAX);
		return;
	}
	FUZZ_CHECK(step <= CKPT_STEP_MAX);
	ckpt_name_step(path, 1, step);
	check_path(path);
	FUZZ_CHECK(strcmp(path + strlen("g000001/"), name) == 0);
}

/* An attempt is part of a name as it is. */
static void check_attempt(const char *text, uint64_t generation, uint64_t step, uint32_t rank)
{
	char path[CKPT_PATH_MAX];
	char again[CKPT_ATTEMPT_CHARS];

	if (!ckpt_attempt_valid(text))
		return;
	ckpt_name_attempt(again, strtoull(text, NULL, 16));
	FUZZ_CHECK(strcmp(again, text) == 0);
	ckpt_name_shard(path, generation, step, rank, text);
	check_path(path);
	ckpt_name_index(path, generation, step, rank, text);
	check_path(path);
	FUZZ_CHECK(strstr(path, text));
}

/* What numbers give is read back as these numbers, and as nothing else. */
static void check_numbers(uint64_t generation, uint64_t step)
{
	char path[CKPT_PATH_MAX];
	uint64_t found = 0;

	ckpt_name_claim(path, generation);
	FUZZ_CHECK(ckpt_parse_claim(path + strlen(CKPT_NAME_GENS "/"), &found));
	FUZZ_CHECK(found == generation && !ckpt_parse_claim(path, &found));
	ckpt_name_generation(path, generation);
	FUZZ_CHECK(ckpt_parse_generation(path, &found) && found == generation);
	FUZZ_CHECK(!ckpt_parse_step(path, &found) && !ckpt_parse_claim(path, &found));
	ckpt_name_step(path, generation, step);
	check_path(path);
	FUZZ_CHECK(ckpt_parse_step(strchr(path, '/') + 1, &found) && found == step);
	ckpt_name_manifest(path, generation, step);
	check_path(path);
	ckpt_name_quarantine(path, generation, step);
	check_path(path);
}

/* Numbers, and a name. */
struct input {
	uint64_t generation;
	uint64_t step;
	uint32_t rank;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input;
	char *name;
	size_t length;

	if (size < sizeof(input))
		return 0;
	memcpy(&input, data, sizeof(input));
	input.generation = 1 + input.generation % CKPT_GENERATION_MAX;
	input.step %= CKPT_STEP_MAX + 1;
	input.rank %= 1000000;
	/* Exactly so much memory, so that a byte too many is seen. */
	length = strnlen((const char *)data + sizeof(input), size - sizeof(input));
	name = malloc(length + 1);
	FUZZ_CHECK(name);
	memcpy(name, data + sizeof(input), length);
	name[length] = 0;
	check_claim(name);
	check_generation(name);
	check_step(name);
	check_attempt(name, input.generation, input.step, input.rank);
	check_numbers(input.generation, input.step);
	free(name);
	return 0;
}

/* A name as it is written, with something changed in it. */
static void draw_name(char *out, struct prng *prng)
{
	char path[CKPT_PATH_MAX];
	uint64_t generation = 1 + fuzz_edge(prng) % CKPT_GENERATION_MAX;
	uint64_t step = fuzz_edge(prng) % (CKPT_STEP_MAX + 1);
	char attempt[CKPT_ATTEMPT_CHARS];

	ckpt_name_attempt(attempt, prng_next(prng));
	switch (prng_below(prng, 5)) {
	case 0:
		ckpt_name_claim(path, generation);
		break;
	case 1:
		ckpt_name_generation(path, generation);
		break;
	case 2:
		ckpt_name_step(path, generation, step);
		break;
	case 3:
		ckpt_name_index(path, generation, step, (uint32_t)(generation - 1), attempt);
		break;
	default:
		(void)snprintf(path, sizeof(path), "%s", attempt);
	}
	(void)snprintf(out, CKPT_PATH_MAX, "%s",
		strrchr(path, '/') && prng_below(prng, 8) ? strrchr(path, '/') + 1 : path);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char odd[] = "0123456789abcdefgG/.-\0 \n\xc3\xa4~\xff";
	struct prng prng = {seed};
	struct input input = {fuzz_edge(&prng), fuzz_edge(&prng), (uint32_t)fuzz_edge(&prng)};
	char name[CKPT_PATH_MAX];
	size_t length;

	if (size < sizeof(input) || max < sizeof(input) + CKPT_PATH_MAX ||
		prng_below(&prng, 3) == 0)
		return LLVMFuzzerMutate(data, size, max);
	memcpy(data, &input, sizeof(input));
	draw_name(name, &prng);
	length = strlen(name);
	memcpy(data + sizeof(input), name, length);
	if (prng_below(&prng, 4) > 0)
		data[sizeof(input) + prng_below(&prng, length)] =
			(uint8_t)odd[prng_below(&prng, sizeof(odd) - 1)];
	if (prng_below(&prng, 4) == 0)
		data[sizeof(input) + length++] = (uint8_t)odd[prng_below(&prng, sizeof(odd) - 1)];
	if (prng_below(&prng, 4) == 0)
		length -= prng_below(&prng, length);
	return sizeof(input) + length;
}
