/* SPDX-License-Identifier: Apache-2.0 */
/* ~/.aws/config: what is read lies in the one copy, is found again, and nothing of what is refused is told. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "s3/ini.h"

static bool inside(const struct ckpt_s3_ini *ini, const char *text)
{
	return text >= ini->text && text + strlen(text) < ini->text + ini->size;
}

static bool is_trimmed(const char *text)
{
	size_t length = strlen(text);

	return length == 0 ||
	       (!strchr(" \t\r\n\v\f", text[0]) && !strchr(" \t\r\n\v\f", text[length - 1]));
}

/* The last of that name counts. */
static void check_entry(const struct ckpt_s3_ini *ini, size_t i)
{
	const struct ckpt_s3_ini_entry *e = &ini->entries[i];
	const char *found;

	FUZZ_CHECK(inside(ini, e->section) && *e->section && ckpt_s3_ini_has(ini, e->section));
	if (!e->name) {
		FUZZ_CHECK(!e->value && !e->parent);
		return;
	}
	FUZZ_CHECK(inside(ini, e->name) && inside(ini, e->value));
	FUZZ_CHECK(!e->parent || inside(ini, e->parent));
	FUZZ_CHECK(is_trimmed(e->name) && is_trimmed(e->value) && !strpbrk(e->name, "=\n"));
	for (const char *c = e->name; *c; c++)
		FUZZ_CHECK(*c < 'A' || *c > 'Z');
	found = ckpt_s3_ini_get(ini, e->section, e->parent, e->name);
	FUZZ_CHECK(!found || (*found && inside(ini, found)));
	/* As it is written here, or further down. */
	FUZZ_CHECK(!found || found >= e->value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_s3_ini ini;
	struct ckpt_error err = {0};
	struct ckpt_error other = {0};
	size_t count;
	int r;

	fuzz_memory_begin(0);
	r = ckpt_s3_ini_parse((const char *)data, size, FUZZ_FILE, &err, &ini);
	/* An entry for every three bytes at most, in a table that doubles. */
	count = fuzz_memory_end(
		4096 + size + 2 * (size / 2 + 1) * 2 * sizeof(struct ckpt_s3_ini_entry));
	fuzz_check_error(&err, r, size);
	if (r < 0) {
		FUZZ_CHECK(!ini.text && !ini.entries && ini.count == 0);
	} else {
		FUZZ_CHECK(ini.count <= CKPT_S3_INI_ENTRIES);
		for (size_t i = 0; i < ini.count && i < 200; i++)
			check_entry(&ini, i);
		ckpt_s3_ini_clear(&ini);
	}
	fuzz_memory_begin(1 + size % (count + 1));
	r = ckpt_s3_ini_parse((const char *)data, size, FUZZ_FILE, &other, &ini);
	(void)fuzz_memory_end(UINT64_MAX);
	fuzz_check_error(&other, r, size);
	if (r == 0)
		ckpt_s3_ini_clear(&ini);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char *const pieces[] = {"[default]\n", "[profile x]\n",
		"[profile \"x y\"]\r\n", "[services s]\n", "region = eu\n", "s3 =\n",
		"  addressing_style = path\n", "\t", " ", "\n", "=", ":", "#", ";", "[", "]", "\"",
		"'", "\r", "\xef\xbb\xbf", "endpoint_url=http://h\n", "  more\n", "x=\n"};
	struct prng prng = {seed};

	if (prng_below(&prng, 3) == 0)
		return LLVMFuzzerMutate(data, size, max);
	return fuzz_mutate_pieces(
		data, size, max, &prng, pieces, sizeof(pieces) / sizeof(pieces[0]));
}
