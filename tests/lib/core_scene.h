/* SPDX-License-Identifier: Apache-2.0 */
/* What most tests of a core begin with: a directory in memory, with a core on it, or two tiers. */
#ifndef CKPT_TESTS_CORE_SCENE_H
#define CKPT_TESTS_CORE_SCENE_H

#include "lib/core_rig.h"
#include "lib/store_fixture.h"

#define CORE_SCENE_STEPS 3

struct core_scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step step;                    /* of a test that crafts one */
	struct fixture_step steps[CORE_SCENE_STEPS]; /* 10, 20, 30 */
};

/* For cmocka: a directory with nothing in it; a store with three steps, and a rig on it; all gone. */
int core_scene_set_up(void **state);
int core_scene_set_up_three(void **state);
int core_scene_tear_down(void **state);
/* The same of a test that closes its rig itself. */
int core_scene_remove(void **state);

struct core_tiers {
	char *dir;
	char local[512];
	char remote[512];
	struct core_rig rig; /* which the test opens and closes */
};

/* For cmocka: two directories with nothing in them; all gone. */
int core_tiers_set_up(void **state);
int core_tiers_tear_down(void **state);

#endif
