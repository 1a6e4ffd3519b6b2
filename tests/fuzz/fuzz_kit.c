/* SPDX-License-Identifier: Apache-2.0 */
/* What every target checks. */
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

void fuzz_broken(const char *what, const char *file, int line)
{
	(void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
	abort();
}

/* The hook does not see what is freed, so this is what was asked for in all: never less than was alive. */
static struct {
	bool on;
	size_t count;
	size_t fail_at;
	uint64_t asked;
} memory;

static bool refuse_one(void *user, size_t size)
{
	(void)user;
	if (!memory.on)
		return false;
	if (++memory.count == memory.fail_at)
		return true;
	memory.asked += size;
	return false;
}

void fuzz_memory_begin(size_t fail_at)
{
	ckpt_alloc_set_hook(refuse_one, NULL);
	memory.count = 0;
	memory.fail_at = fail_at;
	memory.asked = 0;
	memory.on = true;
}

size_t fuzz_memory_end(uint64_t most)
{
	memory.on = false;
	if (memory.asked > most)
		(void)fprintf(stderr, "%llu bytes were asked for, of %llu\n",
			(unsigned long long)memory.asked, (unsigned long long)most);
	FUZZ_CHECK(memory.asked <= most);
	return memory.count;
}

bool fuzz_is_line(const char *text, size_t length)
{
	for (size_t at = 0; at < length;) {
		size_t step = ckpt_utf8_char(text + at, length - at);
		unsigned char c = (unsigned char)text[at];

		if (step == 0 || c < 0x20 || c == 0x7f)
			return false;
		if (step == 2 && c == 0xc2 && (unsigned char)text[at + 1] < 0xa0)
			return false;
		at += step;
	}
	return true;
}

size_t fuzz_occurrences(const char *data, size_t size, const char *what)
{
	size_t count = 0;

	for (const char *at = data;
		(at = memmem(at, size - (size_t)(at - data), what, strlen(what))); at++)
		count++;
	return count;
}

void fuzz_check_error(const struct ckpt_error *err, int code, size_t length)
{
	size_t name = strnlen(err->tensor, sizeof(err->tensor));

	FUZZ_CHECK(err->code == code);
	if (code == 0) {
		FUZZ_CHECK(err->message[0] == 0);
		return;
	}
	FUZZ_CHECK(code == CKPT_EFORMAT || code == CKPT_EINTEGRITY || code == CKPT_EVERSION ||
		   code == -ENOMEM);
	FUZZ_CHECK(memory.fail_at > 0 || code != -ENOMEM);
	FUZZ_CHECK(err->message[0] != 0);
	FUZZ_CHECK(fuzz_is_line(err->message, strnlen(err->message, sizeof(err->message))));
	if (code != -ENOMEM) {
		FUZZ_CHECK(strstr(err->message, FUZZ_FILE));
		FUZZ_CHECK(strcmp(err->file, FUZZ_FILE) == 0);
	}
	FUZZ_CHECK(err->offset >= -1 && err->offset <= (int64_t)length);
	FUZZ_CHECK(name < sizeof(err->tensor));
	for (size_t at = 0, step; at < name; at += step) {
		step = ckpt_utf8_char(err->tensor + at, name - at);
		FUZZ_CHECK(step > 0);
	}
}
