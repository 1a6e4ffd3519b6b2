/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks differ in what they hold alike, in words. */
#include "engine/alike.h"

#include <stdio.h>

static size_t put_ranks(const struct ckpt_alike_finding *f, char *out, size_t size)
{
	uint32_t named = f->count < CKPT_ALIKE_RANKS ? f->count : CKPT_ALIKE_RANKS;
	size_t at = 0;

	at += (size_t)snprintf(out, size, "rank%s ", f->count > 1 ? "s" : "");
	for (uint32_t i = 0; i < named; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%u",
			i == 0              ? ""
			: i + 1 == f->count ? " and "
					    : ", ",
			f->odd[i]);
	if (f->count > named)
		at += (size_t)snprintf(out + at, size - at, " and %u more", f->count - named);
	return at;
}

void ckpt_alike_word_tensors(const struct ckpt_alike_finding *finding, char *out, size_t size)
{
	const struct ckpt_alike_finding *f = finding;
	const char *about = f->exact ? "" : "about ";
	size_t more = f->tensors - ckpt_min_u64(f->tensors, f->name_count);
	size_t at = 0;

	if (f->tensors == 0) {
		(void)snprintf(out, size, "tensors");
		return;
	}
	if (f->name_count == 0) {
		(void)snprintf(
			out, size, "%s%zu tensor%s", about, f->tensors, f->tensors > 1 ? "s" : "");
		return;
	}
	for (size_t i = 0; i < f->name_count; i++)
		at += (size_t)snprintf(
			out + at, size - at, "%s'%.80s'", i > 0 ? ", " : "", f->names[i]);
	if (more > 0)
		(void)snprintf(out + at, size - at, " and %s%zu more", about, more);
}

void ckpt_alike_word_ranks(
	const struct ckpt_alike_finding *finding, const char *tensors, char *out, size_t size)
{
	char ranks[160];

	(void)put_ranks(finding, ranks, sizeof(ranks));
	if (finding->minority)
		(void)snprintf(out, size,
			"%s of the %u ranks that hold it hold%s other bytes of %s than the rest",
			ranks, finding->ranks, finding->count > 1 ? "" : "s", tensors);
	else
		(void)snprintf(out, size, "%s and rank %u hold different bytes of %s", ranks,
			finding->other, tensors);
}

void ckpt_alike_word_lack(const struct ckpt_alike_finding *finding, char *out, size_t size)
{
	char ranks[160];
	char tensors[320];

	(void)put_ranks(finding, ranks, sizeof(ranks));
	ckpt_alike_word_tensors(finding, tensors, sizeof(tensors));
	(void)snprintf(out, size, "%s and rank %u differ in %s", ranks, finding->other, tensors);
}

void ckpt_alike_word(const struct ckpt_alike_finding *finding, char *out, size_t size)
{
	char tensors[320];

	ckpt_alike_word_tensors(finding, tensors, sizeof(tensors));
	ckpt_alike_word_ranks(finding, tensors, out, size);
}
