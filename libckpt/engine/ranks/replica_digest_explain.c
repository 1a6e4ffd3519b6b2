/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks differ in what they hold alike, in words. */
#include "engine/ranks/replica_digest.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* " and about N more" */
#define MORE_CHARS 40

void ckpt_replica_digest_word_name(
	const char *name, size_t most, char out[CKPT_REPLICA_DIGEST_NAME])
{
	size_t length = strlen(name);

	CKPT_ASSERT(most >= 16 && most < CKPT_REPLICA_DIGEST_NAME);
	if (length <= most) {
		memcpy(out, name, length + 1);
		return;
	}
	size_t head = ckpt_utf8_cut(name, length, most / 2);
	size_t tail = length - (most - most / 2 - strlen("..."));
	while ((name[tail] & 0xc0) == 0x80)
		tail++;
	(void)snprintf(out, CKPT_REPLICA_DIGEST_NAME, "%.*s...%s", (int)head, name, name + tail);
}

static size_t put_ranks(const struct ckpt_replica_digest_finding *f, char *out, size_t size)
{
	uint32_t named =
		f->count < CKPT_REPLICA_DIGEST_RANKS ? f->count : CKPT_REPLICA_DIGEST_RANKS;
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

void ckpt_replica_digest_word_tensors(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size)
{
	const struct ckpt_replica_digest_finding *f = finding;
	const char *about = f->exact ? "" : "about ";
	char name[CKPT_REPLICA_DIGEST_NAME];
	size_t shown = 0;
	size_t at = 0;

	CKPT_ASSERT(size >= CKPT_REPLICA_DIGEST_WORDS_MIN);
	if (f->tensors == 0) {
		(void)snprintf(out, size, "one or more tensors");
		return;
	}
	if (f->name_count == 0) {
		(void)snprintf(
			out, size, "%s%zu tensor%s", about, f->tensors, f->tensors > 1 ? "s" : "");
		return;
	}
	for (; shown < f->name_count; shown++) {
		const size_t most = ckpt_min_u64(
			CKPT_REPLICA_DIGEST_NAME - 1, size - MORE_CHARS - strlen("''"));
		ckpt_replica_digest_word_name(f->names[shown], most, name);
		if (shown > 0 && at + strlen(", ''") + strlen(name) + MORE_CHARS > size)
			break;
		at += (size_t)snprintf(out + at, size - at, "%s'%s'", shown > 0 ? ", " : "", name);
	}
	size_t more = f->tensors - ckpt_min_u64(f->tensors, shown);
	if (more > 0)
		(void)snprintf(out + at, size - at, " and %s%zu more", about, more);
}

void ckpt_replica_digest_word_ranks(const struct ckpt_replica_digest_finding *finding,
	const char *tensors, char *out, size_t size)
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

static void word_lack(
	const struct ckpt_replica_digest_finding *f, const char *tensors, char *out, size_t size)
{
	char ranks[160];

	(void)put_ranks(f, ranks, sizeof(ranks));
	(void)snprintf(out, size, "%s and rank %u differ in %s", ranks, f->other, tensors);
}

/* As many names as there is room for. */
static void word(const struct ckpt_replica_digest_finding *f, char *out, size_t size,
	void (*put)(const struct ckpt_replica_digest_finding *, const char *, char *, size_t))
{
	char tensors[320];

	put(f, "", out, size);
	size_t room = size - strlen(out);
	room = ckpt_min_u64(ckpt_max_u64(room, CKPT_REPLICA_DIGEST_WORDS_MIN), sizeof(tensors));
	ckpt_replica_digest_word_tensors(f, tensors, room);
	put(f, tensors, out, size);
}

void ckpt_replica_digest_word_lack(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size)
{
	word(finding, out, size, word_lack);
}

void ckpt_replica_digest_word(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size)
{
	word(finding, out, size, ckpt_replica_digest_word_ranks);
}
