/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations under random faults, against a model: what the store says of an object and what the bucket has agree,
 * and so does the bucket's journal. A failure may have done it or not; a success has.
 */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/test.h"
#include "s3/hash.h"

#define BLOCK  BUCKET_RIG_BLOCK
#define NAMES  6
#define TURNS  60
#define SEEDS  150
#define LENGTH (4 * BLOCK)

/* One name, of which there may be one content, or none. Names are used once, as the engine uses them. */
struct thing {
	char path[16];
	char *data;
	uint64_t size;
	bool shard;
	bool begun; /* something was sent */
	bool may_be_there;
	bool may_be_gone;
	bool removed;
	bool contested; /* another content was offered for it, too */
};

struct world {
	struct bucket_rig rig;
	struct thing things[NAMES];
	unsigned made; /* names so far */
	bool late;     /* requests may land after their end */
	bool plain;    /* the server heeds no conditions */
};

static uint64_t below(struct world *w, uint64_t n)
{
	return prng_below(&w->rig.prng, n);
}

static void renew(struct world *w, struct thing *t)
{
	free(t->data);
	*t = (struct thing){.may_be_gone = true, .shard = below(w, 2) > 0};
	(void)snprintf(t->path, sizeof(t->path), "n%u", w->made++);
	t->size = t->shard ? below(w, LENGTH) : 1 + below(w, 199);
	t->data = need(LENGTH + 1);
	for (uint64_t i = 0; i < t->size; i++)
		t->data[i] = (char)('a' + below(w, 20));
}

/* Some of what tests/s3 can do; none for long, and sometimes nothing. */
static void draw_faults(struct world *w)
{
	static const char *const kinds[] = {"drop", "drop_reply", "truncate", "stall", "length",
		"error_in_ok", "answer", "refuse", "late", "twice"};
	char rules[900] = "";
	unsigned count = (unsigned)below(w, 4);

	for (unsigned i = 0; i < count; i++) {
		const char *kind = kinds[below(w, w->late ? 10 : 8)];
		/* A DELETE that lands late hits what nobody can know. */
		static const char *const methods[] = {"GET", "PUT", "POST", "HEAD", "DELETE"};
		bool lands = strcmp(kind, "late") == 0 || strcmp(kind, "twice") == 0;
		const char *method = methods[below(w, lands ? 4 : 5)];
		/* No server does it to others. */
		if (strcmp(kind, "error_in_ok") == 0)
			method = methods[1 + below(w, 2)];
		/* The size that a HEAD tells is believed; what is read of it then is not there. */
		if (strcmp(kind, "length") == 0)
			method = methods[below(w, 3)];
		size_t length = strlen(rules);
		(void)snprintf(rules + length, sizeof(rules) - length,
			"%s{'do':'%s','method':'%s','chance':%u,'times':%u,'bytes':%u,"
			"'delay_ms':%u,'status':%u,'code':'%s'%s}",
			i ? "," : "", kind, method, 1000 + (unsigned)below(w, 9000),
			1 + (unsigned)below(w, 6), (unsigned)below(w, 200),
			1 + (unsigned)below(w, 60000), below(w, 2) ? 500 : 503,
			below(w, 2) ? "InternalError" : "SlowDown",
			below(w, 2) && strcmp(kind, "answer") == 0 ? ",'applied':true" : "");
	}
	bucket_rig_faults(&w->rig, rules);
}

/* What is in the bucket can be. */
static void check(struct world *w, struct thing *t, const char *when, int result)
{
	const struct rope *there = bucket_rig_there(&w->rig, t->path);

	if (there && !t->may_be_there)
		fail_msg("%s %s: %d, and it is there", when, t->path, result);
	if (!there && !t->may_be_gone)
		fail_msg("%s %s: %d, and it is gone", when, t->path, result);
	if (there && !bucket_rig_holds(&w->rig, t->path, t->data, t->size))
		fail_msg("%s %s: %d, and it is another", when, t->path, result);
}

static void write(struct world *w, struct thing *t)
{
	int r;

	if (t->removed)
		return;
	t->may_be_there = true;
	t->begun = true;
	t->data[t->size] = 0;
	if (t->shard && bucket_rig_there(&w->rig, t->path))
		return;
	r = t->shard ? bucket_rig_shard(&w->rig, t->path, t->data, t->size)
		     : bucket_rig_publish(&w->rig, t->path, t->data);
	if (r == 0)
		t->may_be_gone = false;
	else if (t->shard)
		/* It was abandoned, which may have removed it, and may not. */
		t->may_be_gone = true;
	check(w, t, "written", r);
}

/* Of another content: never over what is there. */
static void write_another(struct world *w, struct thing *t)
{
	int r;

	if (t->shard || t->removed || t->may_be_gone || w->plain)
		return;
	t->contested = true;
	w->rig.op.quiet = true;
	r = bucket_rig_publish(&w->rig, t->path, "another");
	w->rig.op.quiet = false;
	if (r == 0)
		fail_msg("%s was published twice", t->path);
	check(w, t, "published by another", r);
}

static void remove_it(struct world *w, struct thing *t)
{
	/* The other content might land where this one was. */
	if (w->late && t->contested)
		return;
	int r = bucket_rig_remove(&w->rig, t->path);
	t->removed = true;
	t->may_be_gone = true;
	/* What was sent earlier may land yet. */
	if (r == 0 && !w->late)
		t->may_be_there = false;
	check(w, t, "removed", r);
}

static void get(struct world *w, struct thing *t)
{
	int r;

	w->rig.op.quiet = true;
	r = bucket_rig_get(&w->rig, t->path);
	w->rig.op.quiet = false;
	if (r == 0) {
		assert_true(t->may_be_there);
		assert_int_equal(w->rig.op.length, t->size);
		assert_memory_equal(w->rig.op.data, t->data, t->size);
		ckpt_free(w->rig.op.data);
	} else if (r == -ENOENT && !t->may_be_gone) {
		fail_msg("%s is there, and was not found", t->path);
	}
	check(w, t, "read", r);
}

static void read_some(struct world *w, struct thing *t)
{
	struct ckpt_object object = {.fd = -1};
	char got[LENGTH];
	uint64_t at, length;

	w->rig.op.quiet = true;
	int r = bucket_rig_open_file(&w->rig, t->path, &object);
	w->rig.op.quiet = false;
	if (r == -ENOENT)
		assert_true(t->may_be_gone);
	if (r < 0)
		return;
	assert_true(t->may_be_there);
	assert_int_equal(w->rig.op.size, t->size);
	if (t->size > 0) {
		at = below(w, t->size);
		length = 1 + below(w, t->size - at);
		r = bucket_rig_read(&w->rig, &object, got, length, at);
		if (r == 0)
			assert_memory_equal(got, t->data + at, length);
	}
	assert_int_equal(bucket_rig_shut(&w->rig, &object), 0);
}

static bool is_listed(const struct ckpt_listing *listing, const char *path)
{
	const char *name = listing->names;

	for (size_t i = 0; i < listing->count; i++, name += strlen(name) + 1)
		if (strcmp(name, path) == 0)
			return true;
	return false;
}

static void list(struct world *w)
{
	if (bucket_rig_list(&w->rig, ".") < 0)
		return;
	for (unsigned i = 0; i < NAMES; i++) {
		const struct thing *t = &w->things[i];
		bool listed = is_listed(&w->rig.op.listing, t->path);
		if (listed ? !t->may_be_there : !t->may_be_gone)
			fail_msg("%s is %slisted", t->path, listed ? "" : "not ");
	}
	ckpt_free(w->rig.op.listing.names);
}

static void turn(struct world *w)
{
	struct thing *t = &w->things[below(w, NAMES)];

	switch (below(w, 9)) {
	case 0:
		draw_faults(w);
		break;
	case 1:
	case 2:
		write(w, t);
		break;
	case 3:
		write_another(w, t);
		break;
	case 4:
		get(w, t);
		break;
	case 5:
		read_some(w, t);
		break;
	case 6:
		list(w);
		break;
	case 7:
		if (below(w, 3) == 0)
			remove_it(w, t);
		break;
	default:
		if (t->removed && below(w, 2))
			renew(w, t);
		else
			bucket_rig_settle(&w->rig);
		break;
	}
	for (unsigned i = 0; i < NAMES; i++)
		check(w, &w->things[i], "beside", 0);
}

/* What was applied last to a name, by the journal: there, with these bytes, or not. */
static void check_journal(struct world *w, const struct thing *t)
{
	const struct journal *journal = &w->rig.front.journal;
	const struct journal_entry *last = NULL;
	uint8_t sum[CKPT_S3_SHA256];
	char digest[CKPT_S3_SHA256_HEX];
	char key[32];

	(void)snprintf(key, sizeof(key), "run/%s", t->path);
	for (size_t i = 0; i < journal->count; i++) {
		const struct journal_entry *e = &journal->entries[i];
		if (e->kind == JOURNAL_APPLIED && strcmp(e->key, key) == 0 &&
			(strcmp(e->operation, "PutObject") == 0 ||
				strcmp(e->operation, "CompleteMultipartUpload") == 0 ||
				strcmp(e->operation, "DeleteObject") == 0))
			last = e;
	}
	bool there = last && strcmp(last->operation, "DeleteObject") != 0;
	if (there ? !t->may_be_there : !t->may_be_gone)
		fail_msg("%s is %s by the journal", t->path, there ? "there" : "gone");
	if (!there)
		return;
	assert_int_equal(ckpt_s3_sha256(t->data, t->size, sum), 0);
	ckpt_s3_hex(sum, sizeof(sum), digest);
	assert_string_equal(last->digest, digest);
}

static void run(uint64_t seed)
{
	static const char *const servers[] = {"aws", "aws", "radosgw", "swift", "old"};
	struct world *w = need(sizeof(*w));
	const char *server = servers[seed % COUNT(servers)];

	*w = (struct world){.late = (seed / 2) % 2, .plain = seed % COUNT(servers) >= 3};
	w->rig.tls = seed % 3 > 0;
	w->rig.attempts = 1 + (unsigned)(seed % 4);
	bucket_rig_open(&w->rig, seed);
	assert_true(s3_capabilities_named(server, buckets_capabilities(w->rig.front.buckets)));
	buckets_capabilities(w->rig.front.buckets)->part_minimum = 1;
	for (unsigned i = 0; i < NAMES; i++)
		renew(w, &w->things[i]);
	for (unsigned i = 0; i < TURNS; i++)
		turn(w);
	/* When all is well again, and all has landed, it is as it is said to be. */
	bucket_rig_faults(&w->rig, "");
	bucket_rig_settle(&w->rig);
	for (unsigned i = 0; i < NAMES; i++) {
		get(w, &w->things[i]);
		check_journal(w, &w->things[i]);
		free(w->things[i].data);
	}
	bucket_rig_close(&w->rig);
	free(w);
}

static void test_model(void **state)
{
	const char *one = getenv("CKPT_TEST_SEED");

	(void)state;
	for (uint64_t seed = 0; seed < (one ? 1 : SEEDS); seed++)
		run(one ? strtoull(one, NULL, 10) : seed);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
