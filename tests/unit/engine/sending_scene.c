/* SPDX-License-Identifier: Apache-2.0 */
#include "sending_scene.h"
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "lib/scratch.h"

static const int64_t shape[1] = {WIDE};
static const char *const names[WORLD] = {"own.0", "own.1"};

static struct ckpt_s3_client *a_bucket(void)
{
	static char nobody_looks_into_it[8];

	return (struct ckpt_s3_client *)(void *)nobody_looks_into_it;
}

void open_job(struct scene *s, uint32_t tries)
{
	core_rig_make(&s->rig, &(struct core_rig_config){.dir = s->here, .remote = s->there});
	s->rig.core.parts.remote.bucket = a_bucket();
	s->rig.core.parts.remote.number = NUMBER;
	s->rig.core.config.remote_tries = tries;
	assert_int_equal(core_rig_open_store(&s->rig), 0);
}

int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	for (uint32_t i = 0; i < WORLD; i++) {
		for (unsigned k = 0; k < WIDE; k++)
			s->own[i][k] = (float)(i * WIDE + k);
		s->tensors[i] = (struct ckpt_tensor){.size = sizeof(s->tensors[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = shape,
			.data = s->own[i]};
		s->ranks[i] = (struct fixture_rank){.tensors = &s->tensors[i], .count = 1};
	}
	s->dir = scratch_make_in_memory();
	(void)snprintf(s->here, sizeof(s->here), "%s/here", s->dir);
	(void)snprintf(s->there, sizeof(s->there), "%s/there", s->dir);
	assert_int_equal(mkdir(s->here, 0777), 0);
	assert_int_equal(mkdir(s->there, 0777), 0);
	fixture_store(s->here, FIXTURE_RUN);
	fixture_claim(s->here, FIXTURE_RUN, 1, 0, 0);
	s->step = (struct fixture_step){.dir = s->here,
		.generation = 1,
		.step = 10,
		.chunk_bytes = 4096,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
	s->place = (struct ckpt_core_place){
		.root = -1, .bucket = a_bucket(), .number = NUMBER, .label = "s3://bucket/run"};
	*state = s;
	return 0;
}

int teardown(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

int hold(struct scene *s, uint32_t rank, uint64_t byte)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
	int fd = open(fixture_shard(&s->step, rank), O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
		return fd;
	assert_true(errno == EAGAIN || errno == EACCES);
	(void)close(fd);
	return -1;
}

bool is_held(struct scene *s, uint32_t rank)
{
	int fd = hold(s, rank, NUMBER);

	if (fd >= 0)
		(void)close(fd);
	return fd < 0;
}

bool is_whole(struct scene *s)
{
	struct core_rig rig;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->there, .read_only = true});
	bool found = rig.core.lineage->scan.step_count == 1 &&
		     rig.core.lineage->scan.steps[0].state == CKPT_STEP_COMMITTED;
	if (found)
		assert_int_equal(core_rig_read(&rig, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&rig);
	return found;
}

void open_upload_in(struct scene *s, uint32_t block_bytes)
{
	core_rig_make(
		&s->rig, &(struct core_rig_config){
				 .dir = s->here, .block_bytes = block_bytes, .read_only = true});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	s->place.root = open(s->there, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(s->place.root >= 0);
	struct ckpt_core_place as_it_is = s->place;
	as_it_is.bucket = NULL;
	assert_int_equal(ckpt_core_open_store(&s->rig.core, &as_it_is, &s->dest), 0);
	s->dest->tier = "remote";
	s->rig.core.parts.remote = s->place;
	ckpt_error_clear(&s->err);
	assert_int_equal(mkdir(scratch_join(s->there, "gens"), 0777), 0);
}

void open_upload(struct scene *s)
{
	open_upload_in(s, 0);
}

void start_upload(struct scene *s)
{
	s->upload = (struct ckpt_upload){.core = &s->rig.core,
		.dest = s->dest,
		.generation = 1,
		.step = s->step.step,
		.all = true,
		.bytes_left = &s->bytes,
		.stop = &s->stop,
		.err = &s->err,
		.counter = &s->bytes};
	ckpt_upload_start(&s->upload);
	core_rig_run(&s->rig);
}

void close_upload(struct scene *s)
{
	assert_false(is_held(s, 0));
	assert_false(is_held(s, 1));
	end_upload(s);
}

void end_upload(struct scene *s)
{
	ckpt_store_close(s->dest);
	s->rig.core.parts.remote = (struct ckpt_core_place){.root = -1};
	(void)close(s->place.root);
	core_rig_close(&s->rig);
}

void copy(const char *from, const char *to)
{
	char data[65536];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	assert_true(in >= 0 && out >= 0);
	ssize_t n = read(in, data, sizeof(data));
	assert_true(n > 0 && n < (ssize_t)sizeof(data));
	assert_int_equal(write(out, data, (size_t)n), n);
	(void)close(in);
	(void)close(out);
}
