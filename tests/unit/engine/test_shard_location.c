/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of one node of several: what the ranks of other nodes wrote is elsewhere. It is neither missing nor
 * damaged; what is here can be had without it, and what cannot says where it is.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ckpt/ckpt.h>
#include "base/error.h"
#include "engine/restore/restore_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define WORLD 4
#define ROWS  800
#define EACH  (ROWS / WORLD)
#define WIDE  10

/* Ranks 0 and 1 ran on node a, 2 and 3 on node b. Each wrote its rows of "w", its own tensor, and "same". */
struct scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step step;
	struct fixture_rank ranks[WORLD];
	struct ckpt_tensor tensors[WORLD][3];
	float w[ROWS][WIDE];
	float same[WIDE];
	float own[WORLD][WIDE];
	char names[WORLD][8];
	char metas[WORLD][16];
	int64_t starts[WORLD][2];
	float out[ROWS][WIDE];
};

static const int64_t whole[2] = {ROWS, WIDE};
static const int64_t part[2] = {EACH, WIDE};
static const int64_t flat[1] = {WIDE};

static struct ckpt_tensor tensor_of(const char *name, const float *data)
{
	return (struct ckpt_tensor){.size = sizeof(struct ckpt_tensor),
		.name = name,
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = flat,
		.data = data};
}

static void make_rank(struct scene *s, uint32_t rank)
{
	struct ckpt_tensor *t = s->tensors[rank];

	s->starts[rank][0] = (int64_t)EACH * rank;
	(void)snprintf(s->names[rank], sizeof(s->names[rank]), "own.%u", rank);
	(void)snprintf(s->metas[rank], sizeof(s->metas[rank]), "{\"rank\":%u}", rank);
	for (unsigned i = 0; i < WIDE; i++)
		s->own[rank][i] = (float)(rank * 100 + i);
	t[0] = (struct ckpt_tensor){.size = sizeof(t[0]),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = part,
		.data = s->w[(size_t)EACH * rank],
		.global_shape = whole,
		.global_start = s->starts[rank]};
	t[1] = tensor_of("same", s->same);
	t[2] = tensor_of(s->names[rank], s->own[rank]);
	s->ranks[rank] = (struct fixture_rank){.tensors = t, .count = 3, .meta = s->metas[rank]};
}

static void on_two_nodes(struct ckpt_manifest *manifest)
{
	for (uint32_t i = 0; i < manifest->world; i++)
		(void)snprintf(manifest->ranks[i].node, sizeof(manifest->ranks[i].node), "%s",
			i < WORLD / 2 ? "a" : "b");
}

/* A store that holds all files of step 10; not open. */
static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	for (unsigned i = 0; i < ROWS * WIDE; i++)
		s->w[i / WIDE][i % WIDE] = (float)i;
	for (unsigned i = 0; i < WIDE; i++)
		s->same[i] = (float)i / 2;
	for (uint32_t i = 0; i < WORLD; i++)
		make_rank(s, i);
	s->dir = scratch_make_in_memory();
	fixture_node_store(s->dir, FIXTURE_RUN);
	fixture_claim(s->dir, FIXTURE_RUN, 1, 0, 0);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.chunk_bytes = 4096,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
	fixture_edit(&s->step, on_two_nodes);
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* The files of ranks `from` to `to` - 1 are not here. */
static void take_away(const struct scene *s, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		assert_int_equal(unlink(fixture_index(&s->step, i)), 0);
		assert_int_equal(unlink(fixture_shard(&s->step, i)), 0);
	}
}

static void open_on(struct scene *s, const char *node)
{
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	(void)snprintf(s->rig.core.config.node, sizeof(s->rig.core.config.node), "%s", node);
}

static bool is_quarantined(const struct scene *s)
{
	return access(fixture_quarantine(&s->step), F_OK) == 0;
}

static struct ckpt_restore *begin(struct scene *s)
{
	return core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, NULL);
}

static bool is_open(struct ckpt_restore *r)
{
	return ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED;
}

/* Binds rows `from` to `to` - 1 of "w". */
static int bind_rows(struct scene *s, struct ckpt_restore *r, int64_t from, int64_t to)
{
	int64_t start[2] = {from, 0};
	int64_t shape[2] = {to - from, WIDE};
	struct ckpt_target target = {.size = sizeof(target),
		.name = "w",
		.data = s->out[from],
		.ndim = 2,
		.shape = shape,
		.start = start};

	ckpt_error_clear(&s->rig.err);
	return ckpt_restore_add_targets(r, &target, 1, &s->rig.err);
}

static int bind_name(struct scene *s, struct ckpt_restore *r, const char *name, void *out)
{
	struct ckpt_target target = {.size = sizeof(target), .name = name, .data = out};

	ckpt_error_clear(&s->rig.err);
	return ckpt_restore_add_targets(r, &target, 1, &s->rig.err);
}

static int run(struct scene *s, struct ckpt_restore *r)
{
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	return core_rig_end(&s->rig, r);
}

/* The record says which rank, which node, and what to do. */
static void check_says(const struct ckpt_error *err, uint32_t rank, const char *node)
{
	char text[64];

	assert_int_equal(err->code, CKPT_EOTHERNODE);
	assert_int_equal(err->step, 10);
	assert_int_equal(err->rank, rank);
	(void)snprintf(text, sizeof(text), "the files of rank %u of step 10", rank);
	assert_non_null(strstr(err->message, text));
	(void)snprintf(text, sizeof(text), "the store of node %s", node);
	assert_non_null(strstr(err->message, text));
	assert_non_null(strstr(err->message, "start the job on the node that has it, or copy"));
}

/* Nothing of the step is here. Whether anybody has it is not known. */
static void check_says_none(const struct ckpt_error *err)
{
	assert_int_equal(err->code, CKPT_EOTHERNODE);
	assert_int_equal(err->step, 10);
	assert_int_equal(err->rank, 0);
	assert_non_null(strstr(
		err->message, " has no file of step 10, which rank 0 wrote on node a; start the "));
}

/* So many different boxes of it are known here; nothing is left in what the caller had there before. */
static void check_pieces(struct ckpt_restore *r, const char *name, uint32_t pieces)
{
	struct ckpt_tensor_info info;
	size_t index = 0;

	memset(&info, 0xaa, sizeof(info));
	assert_int_equal(ckpt_restore_name_find(r, name, NULL, &index), 0);
	assert_int_equal(ckpt_restore_name(r, index, &info), 0);
	assert_int_equal(info.pieces, pieces);
	assert_int_equal(info.reserved, 0);
}

/* Each half of a job has its own half, and the replica that it wrote; of the other half it hears where it is. */
static void test_halves(void **state)
{
	struct scene *s = *state;
	float same[WIDE] = {0};
	float own[WIDE] = {0};
	size_t index = 0;

	take_away(s, 2, 4);
	open_on(s, "a");
	struct ckpt_restore *r = begin(s);
	assert_true(is_open(r));
	assert_int_equal(bind_rows(s, r, 0, 400), 0);
	assert_int_equal(bind_name(s, r, "same", same), 0);
	assert_int_equal(bind_name(s, r, "own.1", own), 0);
	assert_int_equal(bind_rows(s, r, 350, 450), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 2, "b");
	assert_non_null(strstr(s->rig.err.message, "[400:450, 0:10]"));
	assert_string_equal(s->rig.err.tensor, "w");
	assert_int_equal(bind_name(s, r, "w", s->out), CKPT_EOTHERNODE);
	assert_int_equal(bind_name(s, r, "own.3", own), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 2, "b");
	assert_string_equal(s->rig.err.tensor, "own.3");
	/* What is wrong with what is known here stays so. */
	struct ckpt_target typed = {
		.size = sizeof(typed), .name = "same", .dtype = CKPT_I64, .data = same};
	assert_int_equal(ckpt_restore_add_targets(r, &typed, 1, NULL), CKPT_EMISMATCH);
	ckpt_error_clear(&s->rig.err);
	assert_int_equal(ckpt_restore_name_find(r, "own.2", &s->rig.err, &index), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 2, "b");
	assert_non_null(strstr(
		s->rig.err.message, "no rank whose files are here holds a tensor 'own.2': "));
	assert_int_equal(ckpt_restore_name_find(r, "own.0", NULL, &index), 0);
	assert_int_equal(ckpt_restore_name_count(r), 4);
	check_pieces(r, "w", 2);
	check_pieces(r, "same", 1);
	assert_int_equal(run(s, r), 0);
	assert_memory_equal(s->out, s->w, sizeof(s->w) / 2);
	assert_memory_equal(same, s->same, sizeof(same));
	assert_memory_equal(own, s->own[1], sizeof(own));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
	assert_false(is_quarantined(s));
	core_rig_close(&s->rig);
}

/* Rank 0 is elsewhere: the lowest one here stands for the step, and of each it is told where it is. */
static void test_lowest_is_elsewhere(void **state)
{
	struct scene *s = *state;
	const char *text = NULL;
	size_t length = 0;
	uint32_t elsewhere = 9;
	struct ckpt_error err = {.size = sizeof(err)};

	take_away(s, 0, 2);
	open_on(s, "b");
	struct ckpt_restore *r = begin(s);
	assert_true(is_open(r));
	assert_int_equal(ckpt_restore_world(r), WORLD);
	assert_null(ckpt_restore_rank_index(r, 0));
	assert_ptr_equal(ckpt_restore_index(r), ckpt_restore_rank_index(r, 2));
	assert_int_equal(ckpt_restore_meta(r, &text, &length), 0);
	assert_int_equal(length, strlen(s->metas[2]));
	assert_memory_equal(text, s->metas[2], length);
	assert_int_equal(ckpt_restore_rank_meta(r, 3, &text, &length), 0);
	assert_memory_equal(text, s->metas[3], length);
	assert_int_equal(ckpt_restore_rank_meta(r, 1, &text, &length), CKPT_EOTHERNODE);
	(void)ckpt_last_error_record(&err);
	check_says(&err, 1, "a");
	assert_non_null(strstr(err.message, "what rank 1 saved is not here: "));
	assert_int_equal(ckpt_restore_rank_meta(r, 4, &text, &length), -ERANGE);
	for (uint32_t i = 0; i < WORLD; i++) {
		assert_int_equal(ckpt_restore_rank_node(r, i, &text, &elsewhere), 0);
		assert_string_equal(text, i < 2 ? "a" : "b");
		assert_int_equal(elsewhere, i < 2);
	}
	assert_int_equal(ckpt_restore_rank_node(r, 4, &text, &elsewhere), -ERANGE);
	assert_int_equal(bind_rows(s, r, 400, 800), 0);
	assert_int_equal(bind_rows(s, r, 399, 800), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 0, "a");
	assert_int_equal(run(s, r), 0);
	assert_memory_equal(s->out[400], s->w[400], sizeof(s->w) / 2);
	core_rig_close(&s->rig);
}

/* What this node wrote and has not any more is missing, by whatever it is known to be this node's. */
static void test_missing(void **state)
{
	static const struct {
		const char *node;
		bool keep_shard; /* of rank 0, without its index */
	} kinds[] = {
		{"a", false},       /* its name, too */
		{"renamed", false}, /* another rank's files */
		{"renamed", true},  /* its own shard, and nothing else of the node */
	};

	for (size_t i = 0; i < COUNT(kinds); i++) {
		struct scene *s = NULL;

		(void)setup((void **)&s);
		take_away(s, 2, 4);
		if (kinds[i].keep_shard)
			take_away(s, 1, 2);
		assert_int_equal(unlink(fixture_index(&s->step, 0)), 0);
		if (!kinds[i].keep_shard)
			assert_int_equal(unlink(fixture_shard(&s->step, 0)), 0);
		open_on(s, kinds[i].node);
		assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
		assert_int_equal(s->rig.err.rank, 0);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
		size_t index = 0;
		assert_false(is_open(r));
		/* Of what is not open nothing is known, be it elsewhere. */
		assert_int_equal(ckpt_restore_name_find(r, "own.2", NULL, &index), CKPT_EMISMATCH);
		assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINCOMPLETE);
		assert_non_null(strstr(s->rig.err.message, fixture_index_name(&s->step, 0)));
		assert_true(is_quarantined(s));
		core_rig_close(&s->rig);
		(void)teardown((void **)&s);
	}
	(void)state;
}

/* An index that is here vouches for its shard, on whatever node both were written. */
static void test_missing_shard(void **state)
{
	struct scene *s = *state;
	float own[WIDE];

	assert_int_equal(unlink(fixture_shard(&s->step, 2)), 0);
	take_away(s, 0, 1);
	open_on(s, "a");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
	core_rig_close(&s->rig);
	open_on(s, "elsewhere");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 0);
	core_rig_close(&s->rig);
	take_away(s, 1, 2);
	open_on(s, "elsewhere");
	struct ckpt_restore *r = begin(s);
	assert_true(is_open(r));
	assert_int_equal(bind_name(s, r, "own.2", own), 0);
	assert_int_equal(run(s, r), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 2);
	assert_true(is_quarantined(s));
	core_rig_close(&s->rig);
}

/* A node whose disk was lost has none of it: no damage. With a copy of another's files it has what that had. */
static void test_lost(void **state)
{
	struct scene *s = *state;
	float same[WIDE] = {0};

	take_away(s, 0, 2);
	open_on(s, "a");
	struct ckpt_restore *r = begin(s);
	assert_true(is_open(r));
	assert_int_equal(bind_name(s, r, "own.0", same), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 0, "a, which had this node's name but another disk");
	assert_non_null(strstr(s->rig.err.message, "start the job on the node that has it"));
	assert_int_equal(bind_name(s, r, "same", same), 0);
	assert_int_equal(run(s, r), 0);
	assert_memory_equal(same, s->same, sizeof(same));
	core_rig_close(&s->rig);
	take_away(s, 2, 4);
	open_on(s, "a");
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EOTHERNODE);
	assert_false(is_quarantined(s));
	core_rig_close(&s->rig);
}

static void on_mixed_nodes(struct ckpt_manifest *manifest)
{
	static const char *const nodes[WORLD] = {"z", "a", "m", "z"};

	for (uint32_t i = 0; i < WORLD; i++)
		(void)snprintf(
			manifest->ranks[i].node, sizeof(manifest->ranks[i].node), "%s", nodes[i]);
}

/* The ranks of a node need not follow each other. */
static void test_mixed(void **state)
{
	struct scene *s = *state;

	fixture_edit(&s->step, on_mixed_nodes);
	take_away(s, 3, 4);
	open_on(s, "renamed");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 3);
	core_rig_close(&s->rig);
	take_away(s, 0, 1);
	open_on(s, "renamed");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&s->rig);
}

static void without_node(struct ckpt_manifest *manifest)
{
	manifest->ranks[3].node[0] = 0;
}

/* A rank whose node nobody knows is nowhere else. */
static void test_unknown_node(void **state)
{
	struct scene *s = *state;

	fixture_edit(&s->step, without_node);
	take_away(s, 2, 4);
	open_on(s, "a");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 3);
	core_rig_close(&s->rig);
}

/* One store for all nodes has all files, or misses them. */
static void test_shared(void **state)
{
	struct scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	take_away(s, 2, 4);
	open_on(s, "a");
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 2);
	assert_true(is_quarantined(s));
	core_rig_close(&s->rig);
}

static const struct ckpt_finding *finding(struct ckpt_restore *r, size_t i)
{
	assert_true(i < ckpt_restore_finding_count(r));
	return ckpt_restore_finding(r, i);
}

/* Nothing is here: nothing can be opened or be said to be good, and nobody is accused. */
static void test_all_elsewhere(void **state)
{
	struct scene *s = *state;

	take_away(s, 0, 4);
	open_on(s, "c");
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EOTHERNODE);
	check_says_none(&s->rig.err);
	assert_false(is_quarantined(s));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), WORLD);
	for (size_t i = 0; i < WORLD; i++)
		assert_int_equal(finding(r, i)->error.code, CKPT_EOTHERNODE);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EOTHERNODE);
	check_says_none(&s->rig.err);
	core_rig_close(&s->rig);
}

/* A verification is about what is here; what is elsewhere is said, and is no failure. */
static void test_verify(void **state)
{
	struct scene *s = *state;
	uint64_t done = 0;
	uint64_t total = 0;

	take_away(s, 0, 2);
	open_on(s, "b");
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), WORLD);
	for (size_t i = 0; i < WORLD; i++) {
		assert_int_equal(finding(r, i)->rank, i);
		assert_int_equal(finding(r, i)->error.code, i < 2 ? CKPT_EOTHERNODE : 0);
		assert_string_equal(finding(r, i)->node, i < 2 ? "a" : "");
	}
	check_says(&finding(r, 1)->error, 1, "a");
	assert_non_null(strstr(finding(r, 1)->error.message, "rank 1 is not verified here: "));
	ckpt_restore_counters(r, &done, &total);
	assert_true(done == total && total > sizeof(s->w) / 2 && total < sizeof(s->w));
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	core_rig_close(&s->rig);
}

/* What is wrong is the result, whatever is elsewhere before it. */
static void test_verify_damage(void **state)
{
	struct scene *s = *state;

	take_away(s, 0, 2);
	scratch_flip(fixture_shard(&s->step, 3), 5000);
	open_on(s, "b");
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), WORLD);
	assert_int_equal(finding(r, 0)->error.code, CKPT_EOTHERNODE);
	assert_int_equal(finding(r, 2)->error.code, 0);
	assert_int_equal(finding(r, 3)->error.code, CKPT_EINTEGRITY);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.rank, 3);
	core_rig_close(&s->rig);
}

/* More ranks are elsewhere than there are findings kept: they crowd out nothing that is wrong, or good. */
static void test_very_many(void **state)
{
	enum { MANY = 1200 };
	struct scene *s = *state;
	const struct ckpt_tensor tensor = tensor_of("w", s->w[0]);

	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 20,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = 4096,
		.world = MANY};
	fixture_commit(&s->step);
	take_away(s, 0, MANY - 2);
	scratch_flip(fixture_shard(&s->step, MANY - 2), 5);
	open_on(s, "node-1199");
	struct ckpt_restore *r = core_rig_begin(&s->rig, 20, CKPT_SINK_NONE, NULL);
	size_t count = ckpt_restore_finding_count(r);
	assert_int_equal(count, CKPT_FINDINGS_MAX);
	assert_int_equal(finding(r, count - 3)->error.code, CKPT_EOTHERNODE);
	assert_int_equal(finding(r, count - 2)->rank, MANY - 2);
	assert_int_equal(finding(r, count - 2)->error.code, CKPT_EINTEGRITY);
	assert_int_equal(finding(r, count - 1)->error.code, 0);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	core_rig_close(&s->rig);
}

/* A copy of a step is of all of it: it is refused before anything is written. */
static void test_export(void **state)
{
	struct scene *s = *state;
	char *dest = scratch_make_in_memory();

	take_away(s, 2, 4);
	open_on(s, "a");
	assert_int_equal(core_rig_export(&s->rig, 10, dest), CKPT_EOTHERNODE);
	check_says(&s->rig.err, 2, "b");
	assert_int_equal(scratch_count(dest), 0);
	core_rig_close(&s->rig);
	scratch_remove(dest);
}

/* A step that has just been removed by somebody whose lock does not reach here is gone, and not elsewhere. */
static void test_removed(void **state)
{
	static const enum ckpt_restore_sink sinks[] = {
		CKPT_SINK_MEMORY, CKPT_SINK_NONE, CKPT_SINK_STORE};
	struct scene *s = *state;
	char *dest = scratch_make_in_memory();

	for (size_t i = 0; i < COUNT(sinks); i++) {
		open_on(s, "c");
		/* The first time that the directory is opened after the manifest was read. */
		(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_LIST,
							  .path = "step-0000000010",
							  .hold = true,
							  .count = IO_FAULT_ALWAYS});
		struct ckpt_restore *r = core_rig_begin(
			&s->rig, 10, sinks[i], sinks[i] == CKPT_SINK_STORE ? dest : NULL);
		assert_false(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
		assert_int_equal(unlink(fixture_manifest(&s->step)), 0);
		take_away(s, 0, 4);
		io_fault_clear(&s->rig.fault);
		core_rig_let_go(&s->rig);
		assert_int_equal(core_rig_end(&s->rig, r), CKPT_ENOSTEP);
		assert_false(is_quarantined(s));
		core_rig_close(&s->rig);
		fixture_commit(&s->step);
		fixture_edit(&s->step, on_two_nodes);
	}
	scratch_remove(dest);
}

/* Another one is taken in the place of one that has gone, whichever ranks of that were elsewhere. */
static void test_removed_before_the_next(void **state)
{
	struct scene *s = *state;
	struct fixture_step ten = s->step;

	s->step.step = 20;
	fixture_commit(&s->step);
	fixture_edit(&s->step, on_two_nodes);
	take_away(s, 0, 2);
	open_on(s, "b");
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "step-0000000020/rank-", .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_NONE, NULL);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(unlink(fixture_manifest(&s->step)), 0);
	take_away(s, 2, 4);
	io_fault_clear(&s->rig.fault);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_chosen_step(r), ten.step);
	assert_int_equal(ckpt_restore_finding_count(r), WORLD);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	core_rig_close(&s->rig);
}

/* However many ranks there are, each is said once. */
static void test_each_once(void **state)
{
	struct scene *s = *state;
	const struct ckpt_tensor tensor = tensor_of("w", s->w[0]);

	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 20,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = 4096};
	for (uint32_t world = 8; world <= 40; world += 8) {
		s->step.world = world;
		fixture_commit(&s->step);
		take_away(s, 0, world - 1);
		open_on(s, "elsewhere");
		struct ckpt_restore *r =
			core_rig_begin(&s->rig, s->step.step, CKPT_SINK_NONE, NULL);
		assert_int_equal(ckpt_restore_finding_count(r), world);
		assert_int_equal(core_rig_end(&s->rig, r), 0);
		core_rig_close(&s->rig);
		assert_int_equal(unlink(fixture_manifest(&s->step)), 0);
		take_away(s, world - 1, world);
		s->step.step++;
	}
}

/* All that can be said by somebody who has no memory, or whose disk fails, is that. */
static void test_failures(void **state)
{
	static const enum ckpt_restore_sink sinks[] = {CKPT_SINK_MEMORY, CKPT_SINK_NONE};
	struct scene *s = *state;
	float own[WIDE];

	take_away(s, 2, 4);
	for (unsigned at = 1, left = 1; left > 0; at++) {
		left = 0;
		for (size_t i = 0; i < COUNT(sinks); i++) {
			open_on(s, "a");
			core_rig_count_allocations(&s->rig, at);
			struct ckpt_restore *r = core_rig_begin(&s->rig, 10, sinks[i], NULL);
			int code = r && is_open(r) ? bind_name(s, r, "own.0", own) : 0;
			if (r && is_open(r) && code == 0)
				ckpt_restore_post_start(r);
			core_rig_run(&s->rig);
			left += core_rig_allocations(&s->rig) >= at;
			int end = r ? core_rig_end(&s->rig, r) : -ENOMEM;
			assert_true(code == 0 || code == -ENOMEM);
			assert_true(end == 0 || end == -ENOMEM || end == 1);
			assert_false(is_quarantined(s));
			core_rig_close(&s->rig);
		}
	}
	open_on(s, "a");
	(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_LIST,
						  .path = "step-0000000010",
						  .error = -EIO,
						  .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot list g000001/step-0000000010"));
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), -EIO);
	assert_false(is_quarantined(s));
	core_rig_close(&s->rig);
}

/* Half of it is here: it is verified, and of the other half it is said where it is; or there was no memory. */
static void verify_half_without_memory(struct scene *s)
{
	bool done = false;

	take_away(s, 0, 2);
	for (size_t n = 1; !done; n++) {
		open_on(s, "b");
		core_rig_count_allocations(&s->rig, n);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
		done = core_rig_allocations(&s->rig) < n;
		size_t count = r ? ckpt_restore_finding_count(r) : 0;
		int code = r ? core_rig_end(&s->rig, r) : -ENOMEM;
		assert_true(code == 0 || (code == -ENOMEM && !done));
		assert_true(code < 0 || count == WORLD);
		core_rig_close(&s->rig);
	}
}

/* Nothing of it is here, and there is no memory to say so of each rank: nothing was found, be it good or bad. */
static void test_no_memory_for_elsewhere(void **state)
{
	struct scene *s = *state;
	size_t failed = 0;
	bool done = false;

	verify_half_without_memory(s);
	take_away(s, 2, 4);
	for (size_t n = 1; !done; n++) {
		open_on(s, "c");
		core_rig_count_allocations(&s->rig, n);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
		done = core_rig_allocations(&s->rig) < n;
		size_t count = r ? ckpt_restore_finding_count(r) : 0;
		int code = r ? core_rig_end(&s->rig, r) : -ENOMEM;
		assert_true(code == -ENOMEM || code == CKPT_EOTHERNODE);
		assert_true(code == -ENOMEM || count == WORLD);
		assert_true(!done || code == CKPT_EOTHERNODE);
		failed += code == -ENOMEM;
		assert_false(is_quarantined(s));
		core_rig_close(&s->rig);
	}
	assert_true(failed > 3);
}

/* A disk that fails says nothing about where the files are, and a copy is begun only when that is known. */
static void test_where_is_not_known(void **state)
{
	struct scene *s = *state;
	char *dest = scratch_make_in_memory();

	open_on(s, "a");
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LIST, .path = "step-0000000010", .error = -EIO});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(core_rig_end(&s->rig, r), -EIO);
	s->rig.fault.seen[0] = 0;
	assert_int_equal(core_rig_export(&s->rig, 10, dest), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot list g000001/step-0000000010"));
	assert_int_equal(scratch_count(dest), 0);
	io_fault_clear(&s->rig.fault);
	assert_int_equal(core_rig_export(&s->rig, 10, dest), 0);
	core_rig_close(&s->rig);
	scratch_remove(dest);
}

/* Who gives up while that is looked for hears so at once; nothing is found, and nothing is written, later. */
static void test_given_up(void **state)
{
	static const enum ckpt_restore_sink sinks[] = {CKPT_SINK_NONE, CKPT_SINK_STORE};
	struct scene *s = *state;
	char *dest = scratch_make_in_memory();

	for (size_t i = 0; i < COUNT(sinks); i++) {
		open_on(s, "a");
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LIST, .path = "step-0000000010", .hold = true});
		struct ckpt_restore *r = core_rig_begin(
			&s->rig, 10, sinks[i], sinks[i] == CKPT_SINK_STORE ? dest : NULL);
		assert_int_equal(s->rig.fault.hits[0], 1);
		ckpt_restore_post_cancel(r);
		core_rig_run(&s->rig);
		assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
		unsigned rule = io_fault_add(&s->rig.fault,
			(struct io_fault_rule){.path = "rank-", .count = IO_FAULT_ALWAYS});
		core_rig_let_go(&s->rig);
		assert_int_equal(s->rig.fault.seen[rule], 0);
		assert_int_equal(ckpt_restore_finding_count(r), 0);
		assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
		assert_int_equal(scratch_count(dest), 0);
		core_rig_close(&s->rig);
	}
	scratch_remove(dest);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_halves, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lowest_is_elsewhere, setup, teardown),
		cmocka_unit_test(test_missing),
		cmocka_unit_test_setup_teardown(test_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(test_mixed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_missing_shard, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unknown_node, setup, teardown),
		cmocka_unit_test_setup_teardown(test_shared, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_verify, setup, teardown),
		cmocka_unit_test_setup_teardown(test_verify_damage, setup, teardown),
		cmocka_unit_test_setup_teardown(test_very_many, setup, teardown),
		cmocka_unit_test_setup_teardown(test_export, setup, teardown),
		cmocka_unit_test_setup_teardown(test_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_removed_before_the_next, setup, teardown),
		cmocka_unit_test_setup_teardown(test_each_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_memory_for_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_where_is_not_known, setup, teardown),
		cmocka_unit_test_setup_teardown(test_given_up, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
