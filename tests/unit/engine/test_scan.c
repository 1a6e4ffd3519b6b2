/* SPDX-License-Identifier: Apache-2.0 */
/* What is seen of a store when it is read: each thing as what it is, or an error, and nothing left out. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/lineage/lineage.h"
#include "lib/core_scene.h"
#include "lib/scratch.h"

static int set_up(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;

	s->step = fixture_one(s->dir, fixture_floats(1000));
	s->step.world = 2;
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	return 0;
}

static void make(struct core_scene *s)
{
	core_rig_make(&s->rig, &(struct core_rig_config){.dir = s->dir, .read_only = true});
}

static const struct ckpt_scan_step *find(struct core_scene *s, uint64_t step)
{
	const struct ckpt_scan_step *found = ckpt_scan_find(&s->rig.core.lineage->scan, 1, step);

	assert_non_null(found);
	return found;
}

static void note_it(const struct fixture_step *step)
{
	FILE *f = fopen(fixture_quarantine(step), "wb");

	assert_non_null(f);
	assert_true(fputs("bad", f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void test_whole(void **state)
{
	struct core_scene *s = *state;
	uint64_t bytes = 0;
	struct stat st;

	for (uint32_t rank = 0; rank < 2; rank++) {
		assert_int_equal(stat(fixture_shard(&s->step, rank), &st), 0);
		bytes += (uint64_t)st.st_size;
	}
	make(s);
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_string_equal(s->rig.core.lineage->scan.run_id, FIXTURE_RUN);
	assert_int_equal(find(s, 10)->state, CKPT_STEP_COMMITTED);
	assert_int_equal(find(s, 10)->bytes, bytes);
	assert_int_equal(find(s, 10)->world, 2);
	assert_true(find(s, 10)->in_lineage);
	core_rig_close(&s->rig);
}

/* Why a step is not to be had stands with it. */
static void test_notes(void **state)
{
	struct core_scene *s = *state;
	struct fixture_step other = s->step;

	note_it(&s->step);
	fixture_abort(s->dir, 1, 20);
	other.step = 30;
	fixture_commit(&other);
	scratch_flip(fixture_manifest(&other), 30);
	make(s);
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(find(s, 10)->state, CKPT_STEP_QUARANTINED);
	assert_string_equal(find(s, 10)->note, "its quarantine note does not verify");
	assert_int_equal(find(s, 20)->state, CKPT_STEP_ABORTED);
	assert_string_equal(find(s, 20)->note, "a test says so");
	assert_int_equal(find(s, 30)->state, CKPT_STEP_BROKEN);
	assert_int_equal(find(s, 30)->code, CKPT_EINTEGRITY);
	assert_non_null(strstr(find(s, 30)->note, "step-0000000030/manifest.json"));
	core_rig_close(&s->rig);
}

/* A note beside what is no commit makes no commit of it. */
static void test_notes_of_no_commit(void **state)
{
	struct core_scene *s = *state;
	struct fixture_step other = s->step;

	scratch_flip(fixture_manifest(&s->step), 30);
	note_it(&s->step);
	fixture_abort(s->dir, 1, 20);
	other.step = 20;
	note_it(&other);
	other.step = 30;
	fixture_commit(&other);
	assert_int_equal(unlink(fixture_manifest(&other)), 0);
	note_it(&other);
	make(s);
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(find(s, 10)->state, CKPT_STEP_BROKEN);
	assert_int_equal(find(s, 20)->state, CKPT_STEP_ABORTED);
	assert_int_equal(find(s, 30)->state, CKPT_STEP_PENDING);
	core_rig_close(&s->rig);
}

/* A directory that cannot be listed is not an empty one. */
static void test_not_listed(void **state)
{
	static const char *const paths[] = {".", "gens", "g000001"};
	struct core_scene *s = *state;

	for (unsigned i = 0; i < COUNT(paths); i++) {
		make(s);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LIST, .path = paths[i], .error = -EIO});
		assert_int_equal(core_rig_open_store(&s->rig), -EIO);
		assert_non_null(strstr(s->rig.err.message, "cannot list the directory"));
		core_rig_close(&s->rig);
	}
}

/* A store in which nobody has claimed yet. */
static void test_no_claims(void **state)
{
	struct core_scene *s = *state;

	assert_int_equal(unlink(scratch_join(s->dir, "gens/000001.json")), 0);
	assert_int_equal(rmdir(scratch_join(s->dir, "gens")), 0);
	make(s);
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(find(s, 10)->state, CKPT_STEP_COMMITTED);
	assert_false(find(s, 10)->in_lineage);
	core_rig_close(&s->rig);
}

/* Puts one more name behind the end of every listing. */
static void lengthen(struct io_tap *tap, struct io_tap_req *r)
{
	static const char beyond[] = "step-0000000077";
	struct ckpt_listing *listing = &r->req.listing;

	(void)tap;
	if (r->req.op != CKPT_IO_OP_LIST || r->req.result < 0)
		return;
	char *names = ckpt_alloc(listing->bytes + sizeof(beyond));
	assert_non_null(names);
	if (listing->bytes > 0)
		memcpy(names, listing->names, listing->bytes);
	memcpy(names + listing->bytes, beyond, sizeof(beyond));
	ckpt_free(listing->names);
	listing->names = names;
}

static void test_end_of_listing(void **state)
{
	struct core_scene *s = *state;

	assert_int_equal(mkdir(scratch_join(s->dir, "g000002"), 0777), 0);
	make(s);
	s->rig.fault.tap.after = lengthen;
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 1);
	core_rig_close(&s->rig);
}

/* Without memory it is not read; or the one manifest that was not is known to be there. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	size_t failed = 0;
	size_t noted = 0;
	bool done = false;

	assert_int_equal(mkdir(scratch_join(s->dir, "g000003"), 0777), 0);
	for (size_t n = 1; !done; n++) {
		make(s);
		core_rig_count_allocations(&s->rig, n);
		int r = core_rig_open_store(&s->rig);
		done = core_rig_allocations(&s->rig) < n;
		if (r == 0) {
			const struct ckpt_scan_step *step = find(s, 10);
			assert_int_equal(ckpt_scan_newest(&s->rig.core.lineage->scan), 3);
			assert_int_equal(s->rig.core.lineage->scan.gen_count, 2);
			if (step->state != CKPT_STEP_COMMITTED) {
				assert_int_equal(step->state, CKPT_STEP_BROKEN);
				assert_int_equal(step->code, -ENOMEM);
				noted++;
			}
		} else {
			assert_int_equal(r, -ENOMEM);
			failed++;
		}
		core_rig_close(&s->rig);
	}
	assert_true(noted > 0 && failed > 3);
}

static unsigned requests_of_a_scan(struct core_scene *s)
{
	make(s);
	unsigned before = s->rig.fault.requests;
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	return s->rig.fault.requests - before;
}

/* A tombstone is seen whatever is in it, one whose step is gone as well, and is never asked for by itself. */
static void test_tombstones(void **state)
{
	struct core_scene *s = *state;
	unsigned without = requests_of_a_scan(s);

	assert_false(find(s, 10)->deleting);
	core_rig_close(&s->rig);
	scratch_put(s->dir, "/g000001/step-0000000010.tombstone", "no record");
	scratch_put(s->dir, "/g000001/step-0000000009.tombstone", "");
	scratch_put(s->dir, "/g000001/step-0000000008.tombstone.tmp-0123456789abcdef", "");
	scratch_put(s->dir, "/g000001/step-7.tombstone", "");
	assert_int_equal(requests_of_a_scan(s), without);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 2);
	assert_true(find(s, 10)->deleting);
	assert_int_equal(find(s, 10)->state, CKPT_STEP_COMMITTED);
	assert_true(find(s, 9)->deleting);
	assert_int_equal(find(s, 9)->state, CKPT_STEP_PENDING);
	core_rig_close(&s->rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, core_scene_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_whole),
		SCENE(test_notes),
		SCENE(test_notes_of_no_commit),
		SCENE(test_not_listed),
		SCENE(test_no_claims),
		SCENE(test_end_of_listing),
		SCENE(test_no_memory),
		SCENE(test_tombstones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
