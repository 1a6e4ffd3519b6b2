/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store has done, in order, and what it has said: the truth that a client's claims are held
 * against. Kept in memory, and on request a line of JSON for each entry as it comes.
 */
#ifndef S3_JOURNAL_H
#define S3_JOURNAL_H

#include <stdio.h>

#include "s3/text.h"

enum journal_kind {
	JOURNAL_APPLIED = 1, /* something is now different in the store */
	JOURNAL_ANSWERED,    /* how a request ended, for the one who asked */
};

struct journal_entry {
	enum journal_kind kind;
	uint64_t time_ns;
	uint64_t label;        /* of the request, the same in all its entries */
	const char *operation; /* a constant */
	char *bucket;
	char *key;
	char *upload; /* "": none */
	unsigned part;
	uint64_t length; /* of what was put */
	char *digest;    /* SHA-256 of it in hex; "": nothing was put */
	char *etag;
	int status;    /* answered: what was said; 0: nothing */
	char code[48]; /* S3's */
	/* answered: "whole", "lost" (it was applied, or would have been refused), "dropped" (not applied), ... */
	const char *how;
};

struct journal {
	struct journal_entry *entries;
	size_t count;
	FILE *file;       /* NULL: none. Borrowed */
	bool digests_off; /* for measurements */
};

/* Copies what it is given. */
void journal_add(struct journal *journal, const struct journal_entry *entry);
/* As lines of JSON from entry `first` on. */
void journal_write(const struct journal *journal, size_t first, struct text *text);
void journal_clear(struct journal *journal);

#endif
