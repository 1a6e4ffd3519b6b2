/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/core_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "lib/scratch.h"
#include "lib/test.h"

int core_scene_set_up(void **state)
{
	struct core_scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	*state = s;
	return 0;
}

int core_scene_set_up_three(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;
	fixture_begin(s->dir);
	for (size_t i = 0; i < CORE_SCENE_STEPS; i++) {
		s->steps[i] = fixture_one(s->dir, fixture_floats(10000));
		s->steps[i].step = 10 * (i + 1);
		fixture_commit(&s->steps[i]);
	}
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	return 0;
}

int core_scene_remove(void **state)
{
	struct core_scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

int core_scene_tear_down(void **state)
{
	struct core_scene *s = *state;

	core_rig_close(&s->rig);
	return core_scene_remove(state);
}

int core_tiers_set_up(void **state)
{
	struct core_tiers *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	assert_int_equal(mkdir(s->local, 0777), 0);
	assert_int_equal(mkdir(s->remote, 0777), 0);
	*state = s;
	return 0;
}

int core_tiers_tear_down(void **state)
{
	struct core_tiers *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}
