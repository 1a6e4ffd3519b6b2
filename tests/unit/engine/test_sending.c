/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends a shard into a bucket is alone at it: the lock on it, what is looked at under the lock, when it is let go,
 * and how an upload waits for whoever has it. Nothing here asks the bucket: it is a directory that goes by that name.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "config.h"
#include "lib/chain_fixture.h"
#include "lib/encode_fixture.h"
#include "lib/scratch.h"
#include "sending_scene.h"

#define LOOK_MS 2000

/* The claim by itself. */

static int claim(struct scene *s, unsigned at, uint32_t rank)
{
	struct ckpt_shard *shard = &s->shards[at];

	ckpt_error_clear(&s->err);
	s->of[at] = (struct ckpt_manifest_rank){.rank = rank};
	/* As store_fixture.c names it. */
	ckpt_name_attempt(s->of[at].attempt, 1000010);
	*shard = (struct ckpt_shard){.core = &s->rig.core,
		.generation = 1,
		.step = 10,
		.rank = &s->of[at],
		.into = &s->place,
		.stop = &s->stop,
		.err = &s->err};
	ckpt_shard_init(shard);
	ckpt_shard_start_claim(shard);
	core_rig_run(&s->rig);
	assert_true(shard->task.finished);
	return shard->task.result;
}

static void shut(struct scene *s, unsigned at)
{
	ckpt_shard_start_shut(&s->shards[at]);
	core_rig_run(&s->rig);
	assert_int_equal(s->shards[at].task.result, 0);
	ckpt_shard_clear(&s->shards[at]);
}

/* Held by another process, or by another copy in this one, for this place; and by nobody any more. */
static void test_one_has_it(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->here, .read_only = true});
	int other = hold(s, 0, NUMBER);
	assert_int_equal(claim(s, 0, 0), CKPT_EINUSE);
	assert_non_null(strstr(s->err.message, fixture_shard_name(&s->step, 0)));
	assert_non_null(strstr(s->err.message, s->here));
	assert_non_null(strstr(s->err.message, "is being sent to s3://bucket/run already"));
	assert_non_null(strstr(s->err.message, "another copy in this one: wait until"));
	assert_string_equal(s->err.tier, "local");
	assert_int_equal(s->err.step, 10);
	assert_int_equal(s->err.rank, 0);
	shut(s, 0);
	/* Other ranks' are not meant. */
	assert_int_equal(claim(s, 1, 1), 0);
	shut(s, 1);
	/* The file was replaced while it was locked: the new one has that lock, too. */
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = SHARDS, .error = -ENOENT});
	assert_int_equal(claim(s, 0, 0), CKPT_EINUSE);
	shut(s, 0);
	(void)close(other);
	assert_int_equal(claim(s, 0, 0), 0);
	assert_true(is_held(s, 0));
	assert_int_equal(claim(s, 1, 0), CKPT_EINUSE);
	shut(s, 1);
	assert_true(is_held(s, 0));
	shut(s, 0);
	assert_false(is_held(s, 0));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
	core_rig_close(&s->rig);
}

/* Copies of one shard to two places are not in each other's way. */
static void test_each_place(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->here, .read_only = true});
	int other = hold(s, 0, NUMBER + 1);
	assert_true(other >= 0);
	assert_int_equal(claim(s, 0, 0), 0);
	s->place.number = NUMBER + 2;
	assert_int_equal(claim(s, 1, 0), 0);
	shut(s, 0);
	assert_false(is_held(s, 0));
	shut(s, 1);
	(void)close(other);
	core_rig_close(&s->rig);
}

/* No permission to write, a file system without locks, somebody's lease: it goes on, and says so once. */
static void test_no_lock_to_be_had(void **state)
{
	static const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_OPEN, .path = SHARDS, .error = -EACCES},
		{.op = CKPT_IO_OP_OPEN, .path = SHARDS, .error = -EROFS},
		{.op = CKPT_IO_OP_OPEN, .path = SHARDS, .error = -EAGAIN},
		{.op = CKPT_IO_OP_LOCK, .path = SHARDS, .error = -ENOLCK},
	};
	struct scene *s = *state;

	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		core_rig_open(
			&s->rig, &(struct core_rig_config){.dir = s->here, .read_only = true});
		struct io_fault_rule rule = rules[i];
		rule.count = IO_FAULT_ALWAYS;
		(void)io_fault_add(&s->rig.fault, rule);
		assert_int_equal(claim(s, 0, 0), 0);
		assert_int_equal(s->shards[0].sole.fd, -1);
		assert_int_equal(s->err.code, 0);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot be locked"));
		assert_int_equal(claim(s, 1, 1), 0);
		assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
		shut(s, 0);
		shut(s, 1);
		core_rig_close(&s->rig);
	}
}

/* An upload. */

/* Somebody else sends the files of a rank. */
static void send(struct scene *s, uint32_t rank)
{
	struct fixture_step far = s->step;

	far.dir = s->there;
	copy(fixture_shard(&s->step, rank), fixture_shard(&far, rank));
	copy(fixture_index(&s->step, rank), fixture_index(&far, rank));
}

/*
 * What was missing when it was listed may be there when the lock is had: nothing of it is sent again. The step is listed
 * when it begins and before it is committed, and not for each rank.
 */
static void test_sent_meanwhile(void **state)
{
	struct scene *s = *state;
	char index[CKPT_PATH_MAX];
	char step[CKPT_PATH_MAX];

	open_upload(s);
	unsigned locks = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = SHARDS, .hold = true});
	(void)snprintf(index, sizeof(index), "%s", fixture_index_name(&s->step, 0));
	unsigned indexes = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = index, .nth = 1000});
	unsigned writes = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .nth = 1000});
	ckpt_name_step(step, 1, 10);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = step, .nth = 1000});
	start_upload(s);
	assert_int_equal(s->rig.fault.hits[locks], 1);
	send(s, 0);
	core_rig_let_go(&s->rig);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, 0);
	assert_true(s->upload.committed);
	/* It is looked for there, and not read here. */
	assert_int_equal(s->rig.fault.seen[indexes], 1);
	/* All blocks of the other one. */
	assert_int_equal(s->rig.fault.seen[writes], 1);
	assert_int_equal(s->rig.fault.seen[locks], 2);
	assert_int_equal(s->rig.fault.seen[lists], 2);
	close_upload(s);
}

/* An index without its shard is not what the rank has sent: all is sent. */
static void test_index_alone(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;

	open_upload(s);
	far.dir = s->there;
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = SHARDS, .hold = true});
	unsigned writes = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .nth = 1000});
	start_upload(s);
	copy(fixture_index(&s->step, 0), fixture_index(&far, 0));
	core_rig_let_go(&s->rig);
	assert_true(s->upload.committed);
	assert_int_equal(s->rig.fault.seen[writes], WORLD);
	close_upload(s);
}

/* Names the files of a rank anew, as a repair does. */
static void rename_to(const struct fixture_step *step, uint32_t rank, const char *attempt)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, rank, attempt);
	assert_int_equal(rename(fixture_shard(step, rank), scratch_join(step->dir, path)), 0);
	ckpt_name_index(path, 1, 10, rank, attempt);
	assert_int_equal(rename(fixture_index(step, rank), scratch_join(step->dir, path)), 0);
}

/* The remote store is whole, when it has what an upload does not bring. Ends the upload. */
static void end_whole(struct scene *s)
{
	assert_int_equal(
		rename(scratch_join(s->here, "ckpt.json"), scratch_join(s->there, "ckpt.json")), 0);
	assert_int_equal(rename(scratch_join(s->here, "gens/000001.json"),
				 scratch_join(s->there, "gens/000001.json")),
		0);
	s->step.dir = s->there;
	assert_true(is_whole(s));
	ckpt_store_close(s->dest);
	s->rig.core.parts.remote = (struct ckpt_core_place){.root = -1};
	(void)close(s->place.root);
	core_rig_close(&s->rig);
}

/*
 * A rank that was repaired here is sent from the files that it has, which are locked meanwhile; one that was repaired
 * there is not sent again.
 */
static void test_repaired(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;

	far.dir = s->there;
	rename_to(&s->step, 1, "00000000000000ff");
	open_upload(s);
	assert_int_equal(mkdir(scratch_join(s->there, "g000001"), 0777), 0);
	assert_int_equal(mkdir(scratch_join(s->there, "g000001/step-0000000010"), 0777), 0);
	send(s, 0);
	rename_to(&far, 0, "00000000000000fe");
	unsigned locks = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = "ff." SHARDS, .nth = 1000});
	unsigned writes = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .nth = 1000});
	start_upload(s);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, 0);
	assert_true(s->upload.committed);
	assert_int_equal(s->rig.fault.seen[locks], 1);
	assert_int_equal(s->rig.fault.seen[writes], 1);
	assert_int_equal(access(fixture_shard(&far, 1), F_OK), 0);
	assert_int_not_equal(access(scratch_join(far.dir, fixture_shard_name(&far, 0)), F_OK), 0);
	rename_to(&far, 1, "00000000000000fd");
	end_whole(s);
}

static const char *there_by(struct scene *s, uint32_t rank)
{
	return scratch_join(s->there, fixture_shard_name(&s->step, rank));
}

static int upload_to_directory(struct scene *s)
{
	ckpt_error_clear(&s->err);
	start_upload(s);
	assert_true(s->upload.task.finished);
	return s->upload.task.result;
}

/*
 * A try that fails leaves nothing of the shard that it has begun, which has its whole size on the disk. What one that
 * was killed has left goes when the step is there.
 */
static void test_cut_short_in_a_directory(void **state)
{
	static const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_WRITE, .path = SHARDS, .error = -EIO},
		{.op = CKPT_IO_OP_FDATASYNC, .path = SHARDS, .error = -EIO},
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .error = -EIO},
	};
	struct scene *s = *state;

	open_upload(s);
	s->rig.core.parts.remote.bucket = NULL;
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault, rules[i]);
		assert_int_equal(upload_to_directory(s), -EIO);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_null(scratch_find(s->there, SHARDS));
		assert_null(scratch_find(s->there, ".index"));
	}
	io_fault_clear(&s->rig.fault);
	char attempt[CKPT_ATTEMPT_CHARS];
	char name[CKPT_PATH_MAX] = "/";
	ckpt_name_attempt(attempt, 1000010);
	ckpt_name_rank_file(name + 1, 1, 10, 0, CKPT_RANK_SHARD, attempt);
	scratch_put(s->there, name, "begun by one that was killed");
	ckpt_name_rank_file(name + 1, 1, 10, 0, CKPT_RANK_ENCODED, attempt);
	scratch_put(s->there, name, "in either form");
	assert_int_equal(upload_to_directory(s), 0);
	assert_true(s->upload.committed);
	assert_int_not_equal(access(there_by(s, 0), F_OK), 0);
	assert_int_equal(access(there_by(s, 1), F_OK), 0);
	/* The directories, two files of each rank, the manifest; and gens. */
	assert_int_equal(scratch_count(s->there), 2 + 2 * WORLD + 1 + 1);
	end_whole(s);
}

#if CKPT_HAVE_CODEC

static bool same_file(const char *a, const char *b)
{
	FILE *files[2] = {fopen(a, "rb"), fopen(b, "rb")};
	int bytes[2] = {0, 0};

	assert_non_null(files[0]);
	assert_non_null(files[1]);
	while (bytes[0] == bytes[1] && bytes[0] != EOF)
		for (size_t i = 0; i < 2; i++)
			bytes[i] = fgetc(files[i]);
	(void)fclose(files[0]);
	(void)fclose(files[1]);
	return bytes[0] == bytes[1];
}

/* Encoded shards are sent as they are; who sends them has the lock on them; a try that fails leaves nothing. */
static void test_encoded(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;
	struct prng prng = {5};

	far.dir = s->there;
	for (uint32_t i = 0; i < WORLD; i++)
		encode_fixture_rank(&s->step, i, &prng, NULL);
	open_upload(s);
	assert_int_equal(claim(s, 0, 0), 0);
	assert_true(s->shards[0].sole.fd >= 0);
	assert_int_equal(claim(s, 1, 0), CKPT_EINUSE);
	shut(s, 1);
	shut(s, 0);
	s->rig.core.parts.remote.bucket = NULL;
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = ".encoded", .error = -EIO});
	assert_int_equal(upload_to_directory(s), -EIO);
	assert_null(scratch_find(s->there, ".encoded"));
	io_fault_clear(&s->rig.fault);
	assert_int_equal(upload_to_directory(s), 0);
	for (uint32_t i = 0; i < WORLD; i++)
		assert_true(
			same_file(encode_fixture_path(&s->step, i), encode_fixture_path(&far, i)));
	assert_null(scratch_find(s->there, SHARDS));
	assert_int_equal(s->bytes, 2 * (4096 + WIDE * sizeof(float)));
	end_whole(s);
}

#endif

/* Rank 0 may have seen the index already: neither of the two files is taken back. */
static void test_index_stays(void **state)
{
	static const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .nth = 2, .hold_answer = true},
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .nth = 2, .error = -EIO},
		{.op = CKPT_IO_OP_RENAME, .path = ".index", .error = -EIO, .late = true},
	};
	struct scene *s = *state;
	struct fixture_step far = s->step;

	far.dir = s->there;
	open_upload(s);
	s->rig.core.parts.remote.bucket = NULL;
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault, rules[i]);
		ckpt_error_clear(&s->err);
		start_upload(s);
		assert_int_equal(s->rig.fault.hits[0], 1);
		if (rules[i].hold_answer)
			s->stop = -ECANCELED;
		core_rig_let_go(&s->rig);
		assert_true(s->upload.task.finished);
		assert_int_equal(s->upload.task.result, rules[i].hold_answer ? -ECANCELED : -EIO);
		assert_false(s->upload.committed);
		assert_int_equal(access(fixture_shard(&far, 0), F_OK), 0);
		assert_int_equal(access(fixture_index(&far, 0), F_OK), 0);
		s->stop = 0;
		scratch_remove(strdup(scratch_join(s->there, "g000001")));
	}
	io_fault_clear(&s->rig.fault);
	assert_int_equal(upload_to_directory(s), 0);
	end_whole(s);
}

/* Another job has taken over while the shard was sent, and may have begun the same file anew: nothing of it is touched. */
static void test_taken_over(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;

	far.dir = s->there;
	open_upload(s);
	s->rig.core.parts.remote.bucket = NULL;
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .path = SHARDS, .hold = true});
	start_upload(s);
	assert_int_equal(s->rig.fault.hits[0], 1);
	scratch_put(s->there, "/gens/000002.json", "{}");
	core_rig_let_go(&s->rig);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, CKPT_EFENCED);
	assert_int_equal(access(fixture_shard(&far, 0), F_OK), 0);
	assert_int_equal(access(fixture_index(&far, 0), F_OK), -1);
	close_upload(s);
}

static void give_claim(struct scene *s)
{
	copy(scratch_join(s->here, "ckpt.json"), scratch_join(s->there, "ckpt.json"));
	copy(scratch_join(s->here, "gens/000001.json"), scratch_join(s->there, "gens/000001.json"));
}

/* Another process exports the step to the remote directory. */
static int export_there(struct scene *s)
{
	struct core_rig rig;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->here, .read_only = true});
	struct ckpt_restore *r = core_rig_begin(&rig, 10, CKPT_SINK_STORE, s->there);
	core_rig_run(&rig);
	int code = core_rig_end(&rig, r);
	core_rig_close(&rig);
	return code;
}

/* An export removes what others have begun: it does not work beside an upload. Uploads do beside each other. */
static void test_beside_an_export(void **state)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct scene *s = *state;

	open_upload(s);
	give_claim(s);
	s->rig.core.parts.remote.bucket = NULL;
	/* The claim is held. */
	int fd = open(scratch_join(s->there, "gens/000001.json"), O_RDWR | O_CLOEXEC);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	assert_int_equal(upload_to_directory(s), CKPT_EINUSE);
	assert_non_null(strstr(s->err.message, "is held by another process"));
	assert_string_equal(s->err.file, "gens/000001.json");
	assert_int_not_equal(access(scratch_join(s->there, "g000001"), F_OK), 0);
	lock.l_type = F_RDLCK;
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	/* Whenever an export comes meanwhile, it is refused and removes nothing. */
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .hold = true});
	ckpt_error_clear(&s->err);
	start_upload(s);
	assert_int_equal(s->rig.fault.hits[0], 1);
	(void)close(fd);
	size_t files = scratch_count(s->there);
	assert_int_equal(export_there(s), CKPT_EINUSE);
	assert_int_equal(scratch_count(s->there), files);
	core_rig_let_go(&s->rig);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, 0);
	assert_true(s->upload.committed);
	assert_int_equal(export_there(s), 0);
	assert_true(is_whole(s));
	/* Without locks it goes on. */
	scratch_remove(strdup(scratch_join(s->there, "g000001")));
	io_fault_clear(&s->rig.fault);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = "gens", .error = -ENOLCK});
	assert_int_equal(upload_to_directory(s), 0);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_true(is_whole(s));
	close_upload(s);
}

/* The files of a rank that the manifest names are bad here, and it has others, which are good. */
static void test_bad_beside_good(void **state)
{
	static const long bad[] = {20, 9000}; /* in the header, and behind it */
	struct scene *s = *state;
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, 1, "00000000000000ff");
	copy(fixture_shard(&s->step, 1), scratch_join(s->here, path));
	ckpt_name_index(path, 1, 10, 1, "00000000000000ff");
	copy(fixture_index(&s->step, 1), scratch_join(s->here, path));
	open_upload(s);
	s->rig.core.parts.remote.bucket = NULL;
	for (size_t i = 0; i < 2; i++) {
		scratch_flip(fixture_shard(&s->step, 1), bad[i]);
		assert_int_equal(upload_to_directory(s), 0);
		assert_true(s->upload.committed);
		assert_int_equal(scratch_count(s->there), 2 + 2 * WORLD + 1 + 1);
		/* What was begun of the bad one got another attempt. */
		assert_int_equal(access(there_by(s, 1), F_OK), i == 0 ? 0 : -1);
		scratch_flip(fixture_shard(&s->step, 1), bad[i]);
		if (i == 0)
			scratch_remove(strdup(scratch_join(s->there, "g000001")));
	}
	end_whole(s);
}

/* It is given up while the step there is listed. The names are freed: a sanitizer would say so. */
static void test_given_up_at_the_list(void **state)
{
	struct scene *s = *state;

	open_upload(s);
	scratch_put(s->there, "/g000001/step-0000000010/rank-00000.index", "x");
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LIST, .path = "step-", .hold_answer = true});
	start_upload(s);
	assert_false(s->upload.task.finished);
	s->stop = -ECANCELED;
	core_rig_let_go(&s->rig);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, -ECANCELED);
	close_upload(s);
}

/* It fails: what it has under way there is ended before the lock goes. */
static void test_ends_before_it_lets_go(void **state)
{
	struct scene *s = *state;

	open_upload(s);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .error = -EIO});
	/* The file there, the one here, and the lock, whichever comes when. */
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_CLOSE, .path = SHARDS, .nth = 3, .hold = true});
	start_upload(s);
	assert_false(s->upload.task.finished);
	assert_true(is_held(s, 0));
	core_rig_let_go(&s->rig);
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, -EIO);
	close_upload(s);
}

/* The upload queue. */

static struct ckpt_stats stats_of(struct scene *s)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	ckpt_upload_queue_report(&s->rig.core, &stats);
	return stats;
}

/* A training waits as long as it takes, says so once, and shows it. */
static void test_waits(void **state)
{
	struct scene *s = *state;
	int other = hold(s, 1, NUMBER);

	open_job(s, 0);
	core_rig_run(&s->rig);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "is being sent to"));
	for (unsigned i = 0; i < 1000; i++) {
		core_rig_sleep(&s->rig, LOOK_MS);
		assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
		assert_int_equal(stats_of(s).remote_code, CKPT_EINUSE);
	}
	assert_int_equal(stats_of(s).uploads_waiting, 1);
	assert_int_equal(s->rig.core.stats.uploads_failed, 0);
	assert_true(stats_of(s).remote_failing_ms > 0);
	(void)close(other);
	core_rig_sleep(&s->rig, LOOK_MS);
	assert_int_equal(s->rig.core.stats.uploads_done, 1);
	assert_int_equal(stats_of(s).remote_code, 0);
	core_rig_close(&s->rig);
	assert_true(is_whole(s));
}

/* Who does not try for ever waits half a minute for one who makes no progress. */
static void test_gives_up(void **state)
{
	struct scene *s = *state;
	int other = hold(s, 0, NUMBER);

	open_job(s, 1);
	core_rig_run(&s->rig);
	core_rig_sleep(&s->rig, 28000);
	assert_int_equal(s->rig.core.upload_queue->halted, 0);
	core_rig_sleep(&s->rig, 2000);
	const struct ckpt_error *why = &s->rig.core.upload_queue->lost;
	assert_int_equal(s->rig.core.upload_queue->halted, CKPT_EINUSE);
	assert_int_equal(why->code, CKPT_EINUSE);
	assert_non_null(strstr(why->message, "step 10 was not sent within 30 s: "));
	assert_non_null(strstr(why->message, fixture_shard_name(&s->step, 0)));
	assert_non_null(strstr(why->message, "wait until that has ended, or end it"));
	assert_string_equal(why->file, fixture_shard_name(&s->step, 0));
	assert_int_equal(why->rank, 0);
	(void)close(other);
	core_rig_close(&s->rig);
	assert_false(is_whole(s));
}

/* He makes some: rank by rank he is waited for. */
static void test_progress(void **state)
{
	struct scene *s = *state;
	int first = hold(s, 0, NUMBER);
	int second = hold(s, 1, NUMBER);

	open_job(s, 1);
	core_rig_run(&s->rig);
	core_rig_sleep(&s->rig, 20000);
	send(s, 0);
	(void)close(first);
	core_rig_sleep(&s->rig, 20000);
	assert_int_equal(s->rig.core.upload_queue->halted, 0);
	(void)close(second);
	core_rig_sleep(&s->rig, LOOK_MS);
	assert_int_equal(s->rig.core.stats.uploads_done, 1);
	core_rig_close(&s->rig);
	assert_true(is_whole(s));
}

#if CKPT_HAVE_CODEC

/* What is sent of a step with bases is a plain shard, and needs no other step. */
static void test_chain_is_sent_plain(void **state)
{
	struct scene *s = *state;
	char here[512];
	char there[512];
	struct chain_fixture chain = {0};
	struct core_rig rig;
	size_t bytes;

	(void)snprintf(here, sizeof(here), "%s/chain", s->dir);
	(void)snprintf(there, sizeof(there), "%s/sent", s->dir);
	assert_int_equal(mkdir(here, 0777), 0);
	assert_int_equal(mkdir(there, 0777), 0);
	struct fixture_step step = fixture_one(here, &s->tensors[0]);
	fixture_begin(here);
	for (step.step = 10; step.step <= 30; step.step += 10) {
		s->own[0][step.step]++;
		chain_fixture_add(&chain, &step);
	}
	step.step = 30;
	assert_int_equal(chain.table.base_count, 2);
	core_rig_open(&rig, &(struct core_rig_config){.dir = here, .remote = there});
	assert_int_equal(core_rig_adopt(&rig, 1, 30), 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	core_rig_run(&rig);
	core_rig_close(&rig);
	step.dir = there;
	assert_int_equal(access(fixture_manifest(&step), F_OK), 0);
	FILE *f = fopen(fixture_shard(&step, 0), "rb");
	assert_non_null(f);
	char *sent = malloc(chain.index->layout->bytes + 1);
	bytes = fread(sent, 1, chain.index->layout->bytes + 1, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(bytes, chain.index->layout->bytes);
	assert_memory_equal(sent, chain.shard, bytes);
	free(sent);
	chain_fixture_clear(&chain);
	/* It is whole where it is. */
	core_rig_open(&rig, &(struct core_rig_config){.dir = there, .read_only = true});
	assert_int_equal(core_rig_read(&rig, 30, CKPT_SINK_NONE), 0);
	core_rig_close(&rig);
}

#endif

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_has_it, setup, teardown),
		cmocka_unit_test_setup_teardown(test_each_place, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_lock_to_be_had, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sent_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_index_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_repaired, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cut_short_in_a_directory, setup, teardown),
#if CKPT_HAVE_CODEC
		cmocka_unit_test_setup_teardown(test_encoded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chain_is_sent_plain, setup, teardown),
#endif
		cmocka_unit_test_setup_teardown(test_index_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_taken_over, setup, teardown),
		cmocka_unit_test_setup_teardown(test_beside_an_export, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_beside_good, setup, teardown),
		cmocka_unit_test_setup_teardown(test_given_up_at_the_list, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ends_before_it_lets_go, setup, teardown),
		cmocka_unit_test_setup_teardown(test_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gives_up, setup, teardown),
		cmocka_unit_test_setup_teardown(test_progress, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
