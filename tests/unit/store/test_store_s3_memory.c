/* SPDX-License-Identifier: Apache-2.0 */
/* Every verb of the store in a bucket, at every allocation that may fail: it says so, and leaves nothing open. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/test.h"

#define BLOCK BUCKET_RIG_BLOCK
#define SIZE  (3 * BLOCK + 5)

/* One allocation finds no memory, or all from that one on. */
struct shortage {
	unsigned left;
	bool lasting;
	bool hit;
};

static bool none_left(void *user, size_t size)
{
	struct shortage *shortage = user;

	(void)size;
	if (shortage->left > 0) {
		shortage->left--;
		return false;
	}
	if (shortage->hit && !shortage->lasting)
		return false;
	shortage->hit = true;
	return true;
}

struct scene {
	struct bucket_rig rig;
	struct ckpt_object object;
	char data[SIZE];
	char got[SIZE];
};

/* A verb, before which all goes well, and behind which it is looked at what there is. */
struct act {
	const char *name;
	void (*before)(struct scene *s);
	int (*verb)(struct scene *s);
	void (*after)(struct scene *s, int result, const struct shortage *shortage);
};

static void publish_first(struct scene *s)
{
	assert_int_equal(bucket_rig_publish(&s->rig, "p", "text"), 0);
}

static void create(struct scene *s)
{
	assert_int_equal(bucket_rig_create(&s->rig, "s", SIZE, &s->object), 0);
}

static void write_all(struct scene *s)
{
	create(s);
	for (uint64_t at = 0; at < SIZE; at += BLOCK)
		assert_int_equal(bucket_rig_write(&s->rig, &s->object, s->data + at,
					 ckpt_min_u64(BLOCK, SIZE - at), at),
			0);
}

static void begin_two(struct scene *s)
{
	static const char *const names[] = {"d/a", "d/b"};

	for (size_t i = 0; i < COUNT(names); i++) {
		assert_int_equal(bucket_rig_create(&s->rig, names[i], SIZE, &s->object), 0);
		assert_int_equal(bucket_rig_shut(&s->rig, &s->object), 0);
	}
}

static void create_empty(struct scene *s)
{
	assert_int_equal(bucket_rig_create(&s->rig, "s", 0, &s->object), 0);
}

static void shard(struct scene *s)
{
	assert_int_equal(bucket_rig_shard(&s->rig, "s", s->data, SIZE), 0);
}

static void open_shard(struct scene *s)
{
	shard(s);
	assert_int_equal(bucket_rig_open_file(&s->rig, "s", &s->object), 0);
}

static int do_publish(struct scene *s)
{
	return bucket_rig_publish(&s->rig, "s", "text");
}

static int do_publish_again(struct scene *s)
{
	return bucket_rig_publish(&s->rig, "p", "others");
}

static int do_publish_locked(struct scene *s)
{
	ckpt_store_publish(s->rig.store, bucket_rig_op(&s->rig), "s", "text", 4, &s->object);
	return bucket_rig_wait(&s->rig);
}

static int do_get(struct scene *s)
{
	int r = bucket_rig_get(&s->rig, "p");

	ckpt_free(s->rig.op.data);
	return r;
}

static int do_list(struct scene *s)
{
	int r = bucket_rig_list(&s->rig, ".");

	ckpt_free(s->rig.op.listing.names);
	return r;
}

static int do_remove(struct scene *s)
{
	return bucket_rig_remove(&s->rig, "p");
}

/* It is said, and none of its own affair, if some of them stay. */
static int do_sweep(struct scene *s)
{
	ckpt_store_sweep(s->rig.store, bucket_rig_op(&s->rig), "d");
	return bucket_rig_wait(&s->rig);
}

static int do_create(struct scene *s)
{
	return bucket_rig_create(&s->rig, "s", SIZE, &s->object);
}

static int do_write(struct scene *s)
{
	return bucket_rig_write(&s->rig, &s->object, s->data, BLOCK, 0);
}

static int do_seal(struct scene *s)
{
	return bucket_rig_seal(&s->rig, &s->object, SIZE);
}

static int do_seal_empty(struct scene *s)
{
	return bucket_rig_seal(&s->rig, &s->object, 0);
}

static int do_abandon(struct scene *s)
{
	return bucket_rig_abandon(&s->rig, &s->object);
}

static int do_open(struct scene *s)
{
	return bucket_rig_open_file(&s->rig, "s", &s->object);
}

static int do_read(struct scene *s)
{
	return bucket_rig_read(&s->rig, &s->object, s->got, 2000, 1000);
}

static void may_be_text(struct scene *s, int result, const struct shortage *shortage)
{
	bool there = bucket_rig_there(&s->rig, "s") != NULL;

	(void)shortage;
	assert_true(there || result < 0);
	assert_true(!there || bucket_rig_holds(&s->rig, "s", "text", 4));
	assert_true(result == 0 || s->object.fd == -1);
}

static void is_text(struct scene *s, int result, const struct shortage *shortage)
{
	(void)shortage;
	assert_true(bucket_rig_holds(&s->rig, "p", "text", 4));
	assert_int_not_equal(result, 0);
}

static void is_open_or_not(struct scene *s, int result, const struct shortage *shortage)
{
	(void)shortage;
	assert_true((result == 0) == (s->object.fd >= 0));
}

/* An answer that could not be taken in has told nobody of the upload. */
static void has_begun_or_not(struct scene *s, int result, const struct shortage *shortage)
{
	bool read = !strstr(s->rig.err.message, "a test wants it so") &&
		    !strstr(s->rig.err.message, "to read the answer");

	is_open_or_not(s, result, shortage);
	if (result == 0)
		assert_int_equal(bucket_rig_uploads(&s->rig), 1);
	else if (!shortage->lasting && read && bucket_rig_uploads(&s->rig) > 0)
		fail_msg("an upload stays: %s", s->rig.err.message);
}

/* Whole, or not at all; what was uploaded of it is gone, unless it was its removal that found no memory. */
static void is_sealed_or_not(struct scene *s, int result, const struct shortage *shortage)
{
	bool there = bucket_rig_there(&s->rig, "s") != NULL;

	assert_int_equal(s->object.fd, -1);
	assert_true(result < 0 || there);
	assert_true(!there || bucket_rig_holds(&s->rig, "s", s->data, SIZE));
	if (bucket_rig_uploads(&s->rig) == 0)
		return;
	if (!bucket_rig_logged(&s->rig, "the unfinished upload") ||
		(!shortage->lasting && result == -ENOMEM))
		fail_msg("an upload stays: %s", s->rig.err.message);
}

static void is_empty_or_not(struct scene *s, int result, const struct shortage *shortage)
{
	(void)shortage;
	assert_int_equal(s->object.fd, -1);
	assert_true(result < 0 || bucket_rig_holds(&s->rig, "s", "", 0));
}

static void is_abandoned(struct scene *s, int result, const struct shortage *shortage)
{
	(void)result;
	assert_int_equal(s->object.fd, -1);
	/* Else it is said. */
	if (bucket_rig_uploads(&s->rig) > 0)
		assert_true(shortage->hit &&
			    (result < 0 || bucket_rig_logged(&s->rig, "the unfinished upload")));
}

static void is_swept(struct scene *s, int result, const struct shortage *shortage)
{
	assert_int_equal(result, shortage->hit && result < 0 ? -ENOMEM : 0);
	if (bucket_rig_uploads(&s->rig) > 0)
		assert_true(shortage->hit &&
			    (result < 0 || bucket_rig_logged(&s->rig, "unfinished uploads")));
}

static void is_read(struct scene *s, int result, const struct shortage *shortage)
{
	(void)shortage;
	if (result == 0)
		assert_memory_equal(s->got, s->data + 1000, 2000);
	assert_int_equal(bucket_rig_shut(&s->rig, &s->object), 0);
}

static const struct act acts[] = {
	{"publish", NULL, do_publish, may_be_text},
	{"publish, probed", publish_first, do_publish, may_be_text},
	{"publish locked", NULL, do_publish_locked, may_be_text},
	{"publish again", publish_first, do_publish_again, is_text},
	{"get", publish_first, do_get, NULL},
	{"list", publish_first, do_list, NULL},
	{"remove", publish_first, do_remove, NULL},
	{"create", NULL, do_create, has_begun_or_not},
	{"write", create, do_write, NULL},
	{"seal", write_all, do_seal, is_sealed_or_not},
	{"seal with a part missing", create, do_seal, is_sealed_or_not},
	{"seal an empty one", create_empty, do_seal_empty, is_empty_or_not},
	{"abandon", write_all, do_abandon, is_abandoned},
	{"sweep", begin_two, do_sweep, is_swept},
	{"open", shard, do_open, is_open_or_not},
	{"read", open_shard, do_read, is_read},
};

/* False: there were fewer allocations. */
static bool run(const struct act *act, unsigned nth, bool lasting, bool tls)
{
	struct scene *s = need(sizeof(*s));
	struct shortage shortage = {.left = nth, .lasting = lasting};
	int r;

	*s = (struct scene){.object = {.fd = -1}, .rig.tls = tls};
	for (size_t i = 0; i < SIZE; i++)
		s->data[i] = (char)(i * 7 + i / 251);
	bucket_rig_open(&s->rig, 11 + nth);
	if (act->before)
		act->before(s);
	ckpt_alloc_set_hook(none_left, &shortage);
	r = act->verb(s);
	ckpt_alloc_set_hook(NULL, NULL);
	if (r != 0 && r != -ENOMEM && r != -EIO && r != -EEXIST)
		fail_msg("%s, allocation %u: %d: %s", act->name, nth, r, s->rig.err.message);
	if (act->after)
		act->after(s, r, &shortage);
	if (s->object.fd >= 0)
		assert_int_equal(bucket_rig_shut(&s->rig, &s->object), 0);
	bucket_rig_close(&s->rig);
	free(s);
	return shortage.hit;
}

static void test_no_memory(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(acts); i++)
		for (int lasting = 0; lasting < 2; lasting++) {
			unsigned nth = 0;
			while (run(&acts[i], nth, lasting, false))
				nth++;
			assert_true(nth > 2);
			for (nth = 0; run(&acts[i], nth, lasting, true); nth++)
				;
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
