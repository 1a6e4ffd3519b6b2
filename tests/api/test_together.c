/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks get a step back: the same one on all of them, or none on any. Each is an engine of its own
 * and has a thread, all in this process; what one of them does otherwise is seen by the others.
 */
#include "api/kit.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <unistd.h>

#define WORLD    4
#define COUNT    ((int64_t)5000)
#define SHORT_MS 500u

enum deed {
	RESTORE,     /* as it should be */
	STAY_AWAY,   /* never begin */
	FREE_OPEN,   /* open, and let go */
	BIND_WRONG,  /* open, find that it does not fit, and let go */
	CANCEL,      /* open, and cancel */
	CLOSE,       /* open, and close the engine */
	OTHER_STEP,  /* ask for another one */
	ADOPT_EARLY, /* adopt before it has been read */
};

struct rank {
	struct job *job;
	uint32_t number;
	struct ckpt_engine *engine;
	struct kit_vector vector;
	enum deed deed;
	uint64_t wanted;
	pthread_t thread;
	/* What came of it. */
	int result;
	uint64_t step;
	uint64_t generation;
	uint32_t restored;
	int early;
	bool same; /* the bytes that were saved */
	struct ckpt_error error;
};

struct job {
	char *dir;
	char store[200];
	char session[32];
	unsigned starts;
	struct rank ranks[WORLD];
};

static int open_rank(struct job *job, uint32_t rank, uint32_t timeout_ms, uint32_t flags)
{
	struct ckpt_engine_opts opts = kit_opts();

	opts.rank = rank;
	opts.world = WORLD;
	opts.session = job->session;
	opts.save_timeout_ms = timeout_ms;
	opts.flags = flags;
	return ckpt_engine_open(job->store, &opts, &job->ranks[rank].engine);
}

static void close_job(struct job *job)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		ckpt_engine_close(job->ranks[rank].engine);
		job->ranks[rank].engine = NULL;
	}
}

/* The next start of the job. */
static void open_job(struct job *job, uint32_t timeout_ms)
{
	close_job(job);
	(void)snprintf(job->session, sizeof(job->session), "start-%u", ++job->starts);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(open_rank(job, rank, timeout_ms, 0));
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	(void)snprintf(job->store, sizeof(job->store), "%s", scratch_join(job->dir, "store"));
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "w%u", rank);
		kit_fill(&job->ranks[rank].vector, name, COUNT + rank, rank);
		job->ranks[rank].job = job;
		job->ranks[rank].number = rank;
		job->ranks[rank].wanted = CKPT_STEP_LATEST;
	}
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	close_job(job);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		kit_clear(&job->ranks[rank].vector);
	scratch_remove(job->dir);
	free(job);
	return 0;
}

static void save(struct job *job, uint64_t step)
{
	struct ckpt_save *saves[WORLD];

	/* Rank 0 first: the others wait for its claim in their own start. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		saves[rank] =
			kit_start(job->ranks[rank].engine, step, 0, &job->ranks[rank].vector, 1);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		must_work(ckpt_save_wait(saves[rank], CKPT_LEVEL_LOCAL, TIMEOUT_MS));
		ckpt_save_free(saves[rank]);
	}
}

/* A job that has saved these steps, and the next start of it. */
static void saved(struct job *job, uint64_t first, uint64_t last, uint32_t timeout_ms)
{
	open_job(job, LONG_MS);
	for (uint64_t step = first; step <= last; step++)
		save(job, step);
	open_job(job, timeout_ms);
}

static int read_all(struct rank *r, struct ckpt_restore *restore)
{
	float *out = calloc((size_t)r->vector.count, sizeof(*out));
	struct ckpt_target target = {.size = sizeof(target), .name = r->vector.name, .data = out};

	int code = ckpt_restore_bind(restore, &target, 1);
	if (code == 0 && r->deed == ADOPT_EARLY)
		r->early = ckpt_restore_adopt(restore);
	if (code == 0)
		code = ckpt_restore_start(restore);
	if (code == 0)
		code = kit_wait_restore(restore);
	r->same = code == 0 &&
		  memcmp(out, r->vector.data, (size_t)r->vector.count * sizeof(*out)) == 0;
	if (code == 0)
		code = ckpt_restore_adopt(restore);
	/* Nothing is written to it any more. */
	ckpt_restore_free(restore);
	free(out);
	return code;
}

static int turn_back(struct rank *r, struct ckpt_restore *restore)
{
	struct ckpt_target wrong = {.size = sizeof(wrong), .name = "nobody saved this"};
	float nothing;
	int code = -ECANCELED;

	wrong.data = &nothing;
	if (r->deed == BIND_WRONG)
		code = ckpt_restore_bind(restore, &wrong, 1);
	if (r->deed == CANCEL) {
		ckpt_restore_cancel(restore);
		code = kit_wait_restore(restore);
	}
	if (r->deed == CLOSE) {
		ckpt_engine_close(r->engine);
		r->engine = NULL;
		code = kit_wait_restore(restore);
	}
	ckpt_restore_free(restore);
	return code;
}

static void *run_rank(void *argument)
{
	struct rank *r = argument;
	struct ckpt_restore *restore = NULL;

	r->result = 0;
	r->step = r->generation = 0;
	r->same = false;
	if (r->deed == STAY_AWAY)
		return NULL;
	r->result = ckpt_restore_open(r->engine, r->wanted, &restore);
	if (r->result == 0) {
		r->step = ckpt_restore_step(restore);
		r->generation = ckpt_restore_generation(restore);
		r->restored = ckpt_restore_number(restore);
		bool reads = r->deed == RESTORE || r->deed == ADOPT_EARLY;
		r->result = reads ? read_all(r, restore) : turn_back(r, restore);
	}
	r->error.size = sizeof(r->error);
	if (r->result < 0)
		(void)ckpt_last_error_record(&r->error);
	return NULL;
}

/* All at once. */
static void restore(struct job *job, uint32_t odd, enum deed deed)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		job->ranks[rank].deed = rank == odd ? deed : RESTORE;
		assert_int_equal(
			pthread_create(&job->ranks[rank].thread, NULL, run_rank, &job->ranks[rank]),
			0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(pthread_join(job->ranks[rank].thread, NULL), 0);
}

static void check_all(const struct job *job, uint64_t step)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		const struct rank *r = &job->ranks[rank];
		if (r->result < 0)
			fail_msg("rank %u: %d: %s", rank, r->result, r->error.message);
		assert_int_equal(r->step, step);
		assert_int_equal(r->generation, job->ranks[0].generation);
		assert_int_equal(r->restored, job->ranks[0].restored);
		assert_true(r->same);
	}
}

/* All but `odd` have failed so, and say why; who waits for its deadline says something else. */
static void check_failed(const struct job *job, uint32_t odd, int code, const char *text)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		const struct rank *r = &job->ranks[rank];
		if (rank == odd)
			continue;
		if (r->result != code || !strstr(r->error.message, text))
			fail_msg("rank %u: %d instead of %d: %s", rank, r->result, code,
				r->error.message);
	}
}

static void test_all(void **state)
{
	struct job *job = *state;

	saved(job, 1, 3, LONG_MS);
	restore(job, 0, RESTORE);
	check_all(job, 3);
	assert_int_equal(job->ranks[0].restored, 1);
	save(job, 4);
	/* Again in the same session: it leaves that generation behind. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		job->ranks[rank].wanted = 2;
	restore(job, 0, RESTORE);
	check_all(job, 2);
	assert_int_equal(job->ranks[0].restored, 2);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		job->ranks[rank].wanted = CKPT_STEP_BACK(1);
	restore(job, 0, RESTORE);
	check_all(job, 3);
	save(job, 5);
	/* First words, three of each restore, claims, and how the last save ended; nothing of a single rank. */
	close_job(job);
	assert_int_equal(
		scratch_count(scratch_join(job->store, "exchange/start-2")), WORLD + 3 * 3 + 2 + 1);
}

static char victim[600];
static const char *victim_name;

static int find_victim(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	(void)info;
	(void)where;
	if (kind == FTW_F && strstr(path, victim_name) && strstr(path, ".safetensors"))
		(void)snprintf(victim, sizeof(victim), "%s", path);
	return 0;
}

/* The last byte of a rank's shard of a step. */
static void damage(struct job *job, uint64_t step, uint32_t rank)
{
	char name[64];
	struct stat info;
	char byte;

	(void)snprintf(
		name, sizeof(name), "step-%010llu/rank-%05u.", (unsigned long long)step, rank);
	victim_name = name;
	victim[0] = '\0';
	assert_int_equal(nftw(job->store, find_victim, 16, FTW_PHYS), 0);
	assert_true(victim[0]);
	int fd = open(victim, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &info), 0);
	assert_int_equal(pread(fd, &byte, 1, info.st_size - 1), 1);
	byte = (char)~byte;
	assert_int_equal(pwrite(fd, &byte, 1, info.st_size - 1), 1);
	assert_int_equal(close(fd), 0);
}

/* One rank reads what is damaged, the others what is good: all go back together. */
static void test_damage(void **state)
{
	struct job *job = *state;

	saved(job, 1, 4, LONG_MS);
	for (uint32_t rank = 0; rank < 2; rank++) {
		damage(job, 4 - rank, 2 * rank);
		restore(job, 0, RESTORE);
		check_failed(job, 2 * rank, CKPT_EINTEGRITY, rank ? "rank 2 could not" : "rank 0");
		assert_int_equal(job->ranks[2 * rank].result, CKPT_EINTEGRITY);
		for (uint32_t i = 0; i < WORLD; i++)
			assert_int_equal(job->ranks[i].error.rank, 2 * rank);
	}
	restore(job, 0, RESTORE);
	check_all(job, 2);
	assert_int_equal(
		scratch_count(scratch_join(job->store, "g000001/step-0000000004")), 2 * WORLD + 2);
	save(job, 5);
	open_job(job, LONG_MS);
	restore(job, 0, RESTORE);
	check_all(job, 5);
}

static void test_nothing(void **state)
{
	struct job *job = *state;

	open_job(job, LONG_MS);
	restore(job, 0, RESTORE);
	check_failed(job, WORLD, CKPT_ENOSTEP, "holds no step");
	save(job, 1);
}

/* Whoever turns back while the others read, or wait to. */
static void test_turning_back(void **state)
{
	static const struct {
		enum deed deed;
		int code;
		int own;
		const char *text;
	} deeds[] = {
		{FREE_OPEN, -ECANCELED, -ECANCELED, "cancelled before the end"},
		{BIND_WRONG, CKPT_EMISMATCH, CKPT_EMISMATCH, "nobody saved this"},
		{CANCEL, -ECANCELED, -ECANCELED, "cancelled before the end"},
		{CLOSE, -ECANCELED, CKPT_ECLOSED, "closed"},
	};
	struct job *job = *state;

	saved(job, 1, 1, LONG_MS);
	for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++)
		for (uint32_t odd = 0; odd < WORLD; odd += 3) {
			restore(job, odd, deeds[i].deed);
			check_failed(job, odd, deeds[i].code, deeds[i].text);
			assert_int_equal(job->ranks[odd].result, deeds[i].own);
			if (deeds[i].deed == CLOSE)
				open_job(job, LONG_MS);
		}
	/* Nothing was laid at the step's door. */
	restore(job, 0, RESTORE);
	check_all(job, 1);
}

/* A rank stays away; so does nobody else, if only the time is long enough. */
static void stay_away(struct job *job, uint32_t away, const char *text)
{
	bool said = false;

	for (uint32_t ms = SHORT_MS; !said; ms *= 2) {
		hang_unless(ms < HANG_LIMIT_MS);
		open_job(job, ms);
		restore(job, away, STAY_AWAY);
		said = true;
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			const struct rank *r = &job->ranks[rank];
			if (rank == away)
				continue;
			assert_int_equal(r->result, -ETIMEDOUT);
			said &= strstr(r->error.message, text) != NULL;
		}
	}
}

static void test_staying_away(void **state)
{
	struct job *job = *state;

	saved(job, 1, 1, LONG_MS);
	stay_away(job, 3, "these have not opened the step in time: 3");
	stay_away(job, 0, "rank 0 has not said in time");
	open_job(job, LONG_MS);
	restore(job, 0, RESTORE);
	check_all(job, 1);
}

static void test_other_wishes(void **state)
{
	struct job *job = *state;

	saved(job, 1, 2, LONG_MS);
	job->ranks[2].wanted = 1;
	restore(job, 0, RESTORE);
	check_failed(job, 2, CKPT_EMISMATCH, "ask for the same on all ranks");
	job->ranks[2].wanted = CKPT_STEP_LATEST;
	restore(job, 1, ADOPT_EARLY);
	check_all(job, 2);
	assert_int_equal(job->ranks[1].early, -EINVAL);
}

/* Whoever only looks looks alone, beside the others. */
static void test_reader(void **state)
{
	struct job *job = *state;

	saved(job, 1, 2, LONG_MS);
	ckpt_engine_close(job->ranks[1].engine);
	must_work(open_rank(job, 1, LONG_MS, CKPT_ENGINE_READ_ONLY));
	assert_int_equal(kit_compare(job->ranks[1].engine, 1, &job->ranks[1].vector, 1), 0);
}

/* A session serves one start. */
static void test_session(void **state)
{
	struct job *job = *state;

	saved(job, 1, 1, LONG_MS);
	close_job(job);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(open_rank(job, rank, LONG_MS, 0), -EINVAL);
		assert_non_null(strstr(ckpt_last_error(), "was used before"));
		assert_null(job->ranks[rank].engine);
	}
	/* Who only looks may name any. */
	must_work(open_rank(job, 1, LONG_MS, CKPT_ENGINE_READ_ONLY));
}

/* What earlier starts have told each other goes when a later one has claimed. */
static void test_sweeping(void **state)
{
	struct job *job = *state;
	char name[32];

	for (unsigned i = 0; i < 3; i++) {
		open_job(job, LONG_MS);
		restore(job, 0, RESTORE);
		save(job, 10 + i);
	}
	for (unsigned i = 1; i < job->starts; i++) {
		(void)snprintf(name, sizeof(name), "exchange/start-%u", i);
		await(access(scratch_join(job->store, name), F_OK) < 0);
	}
	(void)snprintf(name, sizeof(name), "exchange/start-%u", job->starts);
	assert_true(scratch_count(scratch_join(job->store, name)) > 0);
}

/* Rank 0 may not claim: the others hear why, and need not wait for it. */
static void test_claim_refused(void **state)
{
	struct job *job = *state;
	uint64_t generation = 0;

	saved(job, 1, 1, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(
			ckpt_engine_claim(job->ranks[rank].engine, &generation), CKPT_ENOTRESUMED);
		assert_non_null(strstr(ckpt_last_error(), "resume from it"));
	}
	restore(job, 0, RESTORE);
	check_all(job, 1);
	save(job, 2);
}

#define RANKS(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS(test_all),
		RANKS(test_damage),
		RANKS(test_nothing),
		RANKS(test_turning_back),
		RANKS(test_staying_away),
		RANKS(test_other_wishes),
		RANKS(test_reader),
		RANKS(test_session),
		RANKS(test_sweeping),
		RANKS(test_claim_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
