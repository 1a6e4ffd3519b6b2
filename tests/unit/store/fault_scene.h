/* SPDX-License-Identifier: Apache-2.0 */
/* A store of files whose requests fail when a test says so. */
#ifndef CKPT_TESTS_STORE_FAULT_SCENE_H
#define CKPT_TESTS_STORE_FAULT_SCENE_H

#include "lib/io_fault.h"
#include "lib/store_rig.h"
#include "lib/test.h"

#define PAGE 4096

struct scene {
	struct store_rig rig;
	struct io_fault fault;
	bool direct;
};

struct scene *scene_open(enum rig_place place, bool direct);
void scene_close(struct scene *s);
int scene_set_up(void **state);
/* For thousands of syncs. */
int scene_set_up_quick(void **state);
int scene_tear_down(void **state);
/* All requests of that kind fail. The number of the rule. */
unsigned scene_always(struct scene *s, enum ckpt_io_op op, int error);

/* What is written; aligned. */
extern char scene_page[PAGE];

#define SCENE(test) cmocka_unit_test_setup_teardown(test, scene_set_up, scene_tear_down)
#define QUICK(test) cmocka_unit_test_setup_teardown(test, scene_set_up_quick, scene_tear_down)

#endif
