/* SPDX-License-Identifier: Apache-2.0 */
#include "remote_scene.h"

#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "engine/lineage/lineage.h"
#include "lib/scratch.h"

int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	assert_int_equal(mkdir(s->local, 0777), 0);
	assert_int_equal(mkdir(s->remote, 0777), 0);
	*state = s;
	return 0;
}

int tear_down(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

void open_job(struct scene *s, struct core_rig *rig, uint64_t keep_last, uint64_t keep_every)
{
	core_rig_open(rig, &(struct core_rig_config){.dir = s->local,
				   .remote = s->remote,
				   .remote_keep_last = keep_last,
				   .remote_keep_every = keep_every});
	core_rig_run(rig);
}

/* Goes on from its newest step. */
void resume(struct core_rig *rig, uint64_t step)
{
	struct ckpt_restore *restore = core_rig_begin(rig, step, CKPT_SINK_MEMORY, NULL);

	core_rig_await(rig, restore);
	uint64_t generation = ckpt_restore_chosen_generation(restore);
	assert_int_equal(core_rig_adopt(rig, generation, step), 0);
	(void)core_rig_end(rig, restore);
	assert_int_equal(core_rig_claim(rig), 0);
	core_rig_run(rig);
}

void save(struct core_rig *rig, uint64_t from, uint64_t to)
{
	for (uint64_t step = from; step <= to; step++) {
		assert_int_equal(core_rig_save(rig, step), 0);
		core_rig_run(rig);
	}
}

void pass(struct core_rig *rig, unsigned minutes)
{
	while (minutes-- > 0)
		core_rig_sleep(rig, MINUTE_MS);
}

bool has(const struct scene *s, unsigned generation, uint64_t step, const char *what)
{
	char path[700];

	(void)snprintf(path, sizeof(path), "%s/g%06u/step-%010llu%s", s->remote, generation,
		(unsigned long long)step, what);
	return access(path, F_OK) == 0;
}

bool is_there(const struct scene *s, uint64_t step)
{
	return has(s, 1, step, "/manifest.json");
}

bool is_marked(const struct scene *s, uint64_t step)
{
	return has(s, 1, step, ".tombstone");
}

/* All that is committed there is whole. */
size_t verify(struct scene *s)
{
	struct core_rig rig;
	size_t found = 0;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->remote, .read_only = true});
	for (size_t i = 0; i < rig.core.lineage->scan.step_count; i++) {
		if (rig.core.lineage->scan.steps[i].state != CKPT_STEP_COMMITTED)
			continue;
		assert_int_equal(
			core_rig_read(&rig, rig.core.lineage->scan.steps[i].step, CKPT_SINK_NONE),
			0);
		found++;
	}
	core_rig_close(&rig);
	return found;
}

void read_there(struct scene *s, uint64_t step)
{
	struct core_rig rig;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->remote, .read_only = true});
	assert_int_equal(core_rig_read(&rig, step, CKPT_SINK_NONE), 0);
	core_rig_close(&rig);
}

/* Somebody else, who opens the remote store, and keeps a generation in mind that is the newest now. */
void open_other(struct scene *s, struct core_rig *other)
{
	core_rig_open(other, &(struct core_rig_config){.dir = s->remote, .read_only = true});
	other->random = 5000;
}

void hold(struct core_rig *rig, const char *path, unsigned nth)
{
	(void)io_fault_add(
		&rig->fault, (struct io_fault_rule){.path = path, .nth = nth, .hold = true});
}

bool waits(struct core_rig *rig)
{
	struct ckpt_upload_entry *last = ckpt_upload_queue_last(&rig->core);

	ckpt_upload_entry_unref(last);
	return last != NULL;
}
