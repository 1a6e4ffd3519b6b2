/* SPDX-License-Identifier: Apache-2.0 */
/* What an export that was cut off has left, and a disk or a memory that fails while it is looked at. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define SHARD ".safetensors"
#define BYTES 300000

struct scene {
	char *dir;
	char *dest;
	struct core_rig rig;
	struct fixture_step step;
	struct fixture_step there;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	s->dest = scratch_make_in_memory();
	s->step = fixture_one(s->dir, fixture_bytes(BYTES));
	s->step.chunk_bytes = 4096;
	s->there = s->step;
	s->there.dir = s->dest;
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	scratch_remove(s->dest);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* A copy of the step that lacks its manifest, and its index where `index` is false. */
static void leave(struct scene *s, bool index)
{
	if (access(fixture_manifest(&s->there), F_OK) != 0)
		assert_int_equal(core_rig_export(&s->rig, 10, s->dest), 0);
	assert_int_equal(unlink(fixture_manifest(&s->there)), 0);
	if (!index)
		assert_int_equal(unlink(fixture_index(&s->there, 0)), 0);
}

static size_t read_all(const char *path, char *bytes, size_t room)
{
	FILE *f = fopen(path, "rb");

	assert_non_null(f);
	size_t length = fread(bytes, 1, room, f);
	(void)fclose(f);
	return length;
}

static bool is_same(struct scene *s)
{
	static char here[2 * BYTES];
	static char there[2 * BYTES];
	size_t length = read_all(fixture_shard(&s->step, 0), here, sizeof(here));

	return read_all(fixture_shard(&s->there, 0), there, sizeof(there)) == length &&
	       memcmp(here, there, length) == 0;
}

/* A shard of which not all could be read was not compared, whatever the disk said. */
static void test_not_compared(void **state)
{
	static const int codes[] = {-EIO, -ENODATA, -ESTALE, -ETIMEDOUT, -ENOTCONN};
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(codes); i++) {
		leave(s, true);
		scratch_flip(fixture_shard(&s->there, 0), 150000);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_READ, .path = SHARD, .error = codes[i]});
		assert_int_equal(core_rig_export(&s->rig, 10, s->dest), 0);
		assert_int_equal(s->rig.fault.hits[0], 1);
		io_fault_clear(&s->rig.fault);
		assert_true(is_same(s));
	}
}

/* No memory is no damage: who brings a run back would go a step further back. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	unsigned failed = 0;
	bool done = false;

	for (size_t n = 1; !done; n++) {
		leave(s, false);
		core_rig_count_allocations(&s->rig, n);
		int r = core_rig_export(&s->rig, 10, s->dest);
		done = core_rig_allocations(&s->rig) < n;
		if (r != 0)
			assert_int_equal(r, -ENOMEM);
		failed += r < 0;
		if (r < 0)
			assert_int_equal(core_rig_export(&s->rig, 10, s->dest), 0);
		assert_true(is_same(s));
	}
	assert_true(failed > 3);
}

/* One that cannot be opened is left alone, and its words are not those of what fails later. */
static void test_not_opened(void **state)
{
	struct scene *s = *state;

	leave(s, false);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = SHARD, .error = -EACCES});
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = SHARD, .error = -ESTALE});
	assert_int_equal(core_rig_export(&s->rig, 10, s->dest), -ESTALE);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(s->rig.fault.hits[1], 1);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_not_compared),
		SCENE(test_no_memory),
		SCENE(test_not_opened),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
