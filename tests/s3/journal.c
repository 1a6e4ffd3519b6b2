/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/journal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void add_name(struct text *text, const char *name, const char *value)
{
	if (!value || !*value)
		return;
	text_addf(text, ",\"%s\":", name);
	text_add_json(text, value);
}

static void write_one(const struct journal_entry *e, size_t number, struct text *text)
{
	text_addf(text, "{\"n\":%zu,\"kind\":\"%s\",\"time_ns\":%" PRIu64 ",\"request\":%" PRIu64,
		number, e->kind == JOURNAL_APPLIED ? "applied" : "answered", e->time_ns, e->label);
	add_name(text, "operation", e->operation);
	add_name(text, "bucket", e->bucket);
	add_name(text, "key", e->key);
	add_name(text, "upload", e->upload);
	if (e->part)
		text_addf(text, ",\"part\":%u", e->part);
	if (e->length)
		text_addf(text, ",\"length\":%" PRIu64, e->length);
	add_name(text, "sha256", e->digest);
	add_name(text, "etag", e->etag);
	if (e->kind == JOURNAL_ANSWERED) {
		text_addf(text, ",\"status\":%d", e->status);
		add_name(text, "code", e->code);
		add_name(text, "how", e->how);
	}
	text_add(text, "}\n");
}

static char *copy(const char *words)
{
	return need_text(words ? words : "");
}

void journal_add(struct journal *journal, const struct journal_entry *entry)
{
	journal->entries =
		need_again(journal->entries, journal->count + 1, sizeof(*journal->entries));
	struct journal_entry *e = &journal->entries[journal->count++];
	*e = *entry;
	e->bucket = copy(entry->bucket);
	e->key = copy(entry->key);
	e->upload = copy(entry->upload);
	e->digest = copy(entry->digest);
	e->etag = copy(entry->etag);
	if (!journal->file)
		return;
	struct text line = {0};
	write_one(e, journal->count - 1, &line);
	(void)fwrite(line.at, 1, line.length, journal->file);
	(void)fflush(journal->file);
	text_clear(&line);
}

void journal_write(const struct journal *journal, size_t first, struct text *text)
{
	text_add_bytes(text, "", 0);
	for (size_t i = first; i < journal->count; i++)
		write_one(&journal->entries[i], i, text);
}

void journal_clear(struct journal *journal)
{
	for (size_t i = 0; i < journal->count; i++) {
		struct journal_entry *e = &journal->entries[i];
		free(e->bucket);
		free(e->key);
		free(e->upload);
		free(e->digest);
		free(e->etag);
	}
	free(journal->entries);
	journal->entries = NULL;
	journal->count = 0;
}
