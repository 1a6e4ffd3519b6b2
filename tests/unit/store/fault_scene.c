/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_scene.h"

#include <stdlib.h>

char scene_page[PAGE] __attribute__((aligned(PAGE)));

static struct ckpt_io *wrap(void *user, struct ckpt_io *inner)
{
	struct scene *s = user;

	io_fault_init(&s->fault, inner);
	s->fault.tap.io.direct = s->direct && inner->direct;
	return &s->fault.tap.io;
}

struct scene *scene_open(enum rig_place place, bool direct)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->direct = direct;
	assert_int_equal(store_rig_open(&s->rig, CKPT_IO_AUTO, place, wrap, s), 0);
	return s;
}

void scene_close(struct scene *s)
{
	assert_int_equal(s->fault.tap.open_files, 0);
	store_rig_close(&s->rig);
	free(s);
}

int scene_set_up(void **state)
{
	*state = scene_open(RIG_DISK, true);
	return 0;
}

/* For thousands of syncs. */
int scene_set_up_quick(void **state)
{
	*state = scene_open(RIG_SHM, true);
	return 0;
}

int scene_tear_down(void **state)
{
	scene_close(*state);
	return 0;
}

unsigned scene_always(struct scene *s, enum ckpt_io_op op, int error)
{
	return io_fault_add(&s->fault,
		(struct io_fault_rule){.op = op, .error = error, .count = IO_FAULT_ALWAYS});
}
