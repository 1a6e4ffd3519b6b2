/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose steps go on to a remote store in a directory, and what is there; for the tests of what is kept there. */
#ifndef CKPT_TESTS_REMOTE_SCENE_H
#define CKPT_TESTS_REMOTE_SCENE_H

#include "lib/core_rig.h"

#define MINUTE_MS 60000
/* The grace of what is somebody else's; that of what is one's own is a minute. */
#define OTHERS_MS (CKPT_TWO_PHASE_DELETE_GRACE_S * 1000)

struct scene {
	char *dir;
	char local[512];
	char remote[512];
};

int set_up(void **state);
int tear_down(void **state);
void open_job(struct scene *s, struct core_rig *rig, uint64_t keep_last, uint64_t keep_every);
void resume(struct core_rig *rig, uint64_t step);
void save(struct core_rig *rig, uint64_t from, uint64_t to);
void pass(struct core_rig *rig, unsigned minutes);
bool has(const struct scene *s, unsigned generation, uint64_t step, const char *what);
bool is_there(const struct scene *s, uint64_t step);
bool is_marked(const struct scene *s, uint64_t step);
size_t verify(struct scene *s);
void read_there(struct scene *s, uint64_t step);
void open_other(struct scene *s, struct core_rig *other);
void hold(struct core_rig *rig, const char *path, unsigned nth);
bool waits(struct core_rig *rig);

#endif
