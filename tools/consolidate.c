/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole tensors in plain files. A file is reserved first, so that no disk is full when it is too late,
 * and mapped; the restore brings every box of every tensor to its place in it. Then it is synced, and
 * gets its name when all have been.
 */
#include "consolidate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_SIZE   64
#define HEADER_PAGE 4096
#define INDEX_NAME  "model.safetensors.index.json"

/* Names of safetensors, and the bytes of an element. What it lacks is U8, with a dimension more. */
static const struct {
	const char *name;
	unsigned bytes;
	bool lacking;
} types[CKPT_DTYPE_END] = {
	[CKPT_BOOL] = {"BOOL", 1, false},
	[CKPT_U8] = {"U8", 1, false},
	[CKPT_I8] = {"I8", 1, false},
	[CKPT_U16] = {"U16", 2, false},
	[CKPT_I16] = {"I16", 2, false},
	[CKPT_U32] = {"U32", 4, false},
	[CKPT_I32] = {"I32", 4, false},
	[CKPT_U64] = {"U64", 8, false},
	[CKPT_I64] = {"I64", 8, false},
	[CKPT_F16] = {"F16", 2, false},
	[CKPT_BF16] = {"BF16", 2, false},
	[CKPT_F32] = {"F32", 4, false},
	[CKPT_F64] = {"F64", 8, false},
	[CKPT_F8_E4M3] = {"F8_E4M3", 1, false},
	[CKPT_F8_E5M2] = {"F8_E5M2", 1, false},
	[CKPT_F8_E8M0] = {"F8_E8M0", 1, false},
	[CKPT_C64] = {"C64", 8, false},
	[CKPT_C128] = {"U8", 16, true},
	[CKPT_C32] = {"U8", 4, true},
	[CKPT_F8_E4M3FNUZ] = {"U8", 1, true},
	[CKPT_F8_E5M2FNUZ] = {"U8", 1, true},
};

struct file {
	char name[NAME_SIZE];
	char temp[NAME_SIZE + 32];
	size_t first; /* of its tensors */
	size_t count;
	uint64_t data_bytes;
	char *map; /* NULL: none */
	uint64_t map_bytes;
	int fd;    /* -1: none */
	bool made; /* the temporary is there */
};

struct job {
	const struct cli *cli;
	struct ckpt_restore *restore;
	const char *dest;
	int dir;
	bool dir_made;
	struct ckpt_tensor_info *tensors; /* no aliases */
	size_t tensor_count;
	json_t *aliases; /* name: what it stands for */
	struct file *files;
	size_t file_count; /* the last is the index, if there are several */
	size_t model_files;
};

/* Says that something about DEST failed; errno is `error`. */
static int fail_dest(const struct job *job, int error, const char *doing, const char *name)
{
	struct ckpt_error record = {.size = sizeof(record), .code = -error, .sys_errno = error};

	record.step = record.offset = record.rank = -1;
	(void)snprintf(record.message, sizeof(record.message), "cannot %s %s%s%s: %s", doing,
		job->dest, *name ? "/" : "", name, ckpt_strerror(-error));
	return cli_fail_record(job->cli, cli_exit_of(-error), &record);
}

static int fail_library(const struct job *job, int code)
{
	return cli_fail(job->cli, code);
}

static int fail_memory(const struct job *job)
{
	return fail_dest(job, ENOMEM, "write", "");
}

/* What there is. */

static int take_tensors(struct job *job)
{
	size_t count = ckpt_restore_count(job->restore);

	job->tensors = calloc(count + 1, sizeof(*job->tensors));
	job->aliases = json_object();
	if (!job->tensors || !job->aliases)
		return fail_memory(job);
	for (size_t i = 0; i < count; i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};

		int r = ckpt_restore_tensor(job->restore, i, &info);
		if (r < 0)
			return fail_library(job, r);
		if (info.alias_of)
			(void)json_object_set_new(
				job->aliases, info.name, json_string(info.alias_of));
		else
			job->tensors[job->tensor_count++] = info;
	}
	return CLI_OK;
}

/* Tensors in their order, as many to a file as it takes; one at least. */
static int share_out(struct job *job)
{
	uint64_t most = job->cli->file_size;
	size_t i = 0;

	job->files = calloc(job->tensor_count + 2, sizeof(*job->files));
	if (!job->files)
		return fail_memory(job);
	do {
		struct file *f = &job->files[job->model_files++];

		f->fd = -1;
		f->first = i;
		while (i < job->tensor_count &&
			(f->count == 0 || most == 0 ||
				job->tensors[i].nbytes <= most - f->data_bytes)) {
			f->data_bytes += job->tensors[i++].nbytes;
			f->count++;
			/* A tensor that is larger by itself has a file of its own. */
			if (most && f->data_bytes >= most)
				break;
		}
	} while (i < job->tensor_count);
	job->file_count = job->model_files;
	for (i = 0; i < job->model_files; i++)
		(void)snprintf(job->files[i].name, NAME_SIZE,
			job->model_files == 1 ? "model.safetensors"
					      : "model-%05zu-of-%05zu.safetensors",
			i + 1, job->model_files);
	if (job->model_files > 1) {
		struct file *index = &job->files[job->file_count++];
		index->fd = -1;
		(void)snprintf(index->name, NAME_SIZE, "%s", INDEX_NAME);
	}
	for (i = 0; i < job->file_count; i++)
		(void)snprintf(job->files[i].temp, sizeof(job->files[i].temp), "%s.tmp-%ld",
			job->files[i].name, (long)getpid());
	return CLI_OK;
}

/* Files. */

static json_t *describe(const struct ckpt_tensor_info *t, uint64_t begin)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < t->ndim; i++)
		(void)json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
	if (types[t->dtype].lacking && types[t->dtype].bytes > 1)
		(void)json_array_append_new(shape, json_integer(types[t->dtype].bytes));
	uint64_t end = begin + t->nbytes;
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->dtype].name, "shape", shape,
		"data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The header, with its length before it and spaces behind; NULL: no memory. The caller frees it. */
static char *make_header(const struct job *job, const struct file *f, uint64_t *ret_bytes)
{
	json_t *object = json_object();
	json_t *metadata = json_copy(job->aliases);
	uint64_t begin = 0;

	/* As safetensors' own writers note the names that are left out. */
	(void)json_object_set_new(metadata, "format", json_string("pt"));
	(void)json_object_set_new(object, "__metadata__", metadata);
	for (size_t i = f->first; i < f->first + f->count; i++) {
		const struct ckpt_tensor_info *t = &job->tensors[i];
		(void)json_object_set_new(object, t->name, describe(t, begin));
		begin += t->nbytes;
	}
	size_t length = json_dumpb(object, NULL, 0, JSON_COMPACT);
	size_t bytes = (8 + length + HEADER_PAGE - 1) / HEADER_PAGE * HEADER_PAGE;
	char *header = length > 0 ? malloc(bytes) : NULL;
	if (header) {
		memset(header, ' ', bytes);
		for (unsigned i = 0; i < 8; i++)
			header[i] = (char)((bytes - 8) >> (8 * i));
		if (json_dumpb(object, header + 8, length, JSON_COMPACT) != length) {
			free(header);
			header = NULL;
		}
		*ret_bytes = bytes;
	}
	json_decref(object);
	return header;
}

/* An empty file under its temporary name, with room for so much, and mapped. */
static int make_file(struct job *job, struct file *f, uint64_t bytes)
{
	f->fd = openat(job->dir, f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return fail_dest(job, errno, "create", f->temp);
	f->made = true;
	int r = fallocate(f->fd, 0, 0, (off_t)bytes) < 0 ? errno : 0;
	/* Where the file system cannot, the C library writes to every block. */
	if (r == EOPNOTSUPP)
		r = posix_fallocate(f->fd, 0, (off_t)bytes);
	if (r != 0)
		return fail_dest(job, r, "reserve room for", f->name);
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
	if (map == MAP_FAILED)
		return fail_dest(job, errno, "map", f->name);
	f->map = map;
	f->map_bytes = bytes;
	return CLI_OK;
}

static int make_model_file(struct job *job, struct file *f, struct ckpt_target *targets)
{
	uint64_t header_bytes = 0;
	char *header = make_header(job, f, &header_bytes);

	if (!header)
		return fail_memory(job);
	int exit_code = make_file(job, f, header_bytes + f->data_bytes);
	if (exit_code == CLI_OK) {
		char *at = f->map + header_bytes;
		memcpy(f->map, header, header_bytes);
		for (size_t i = f->first; i < f->first + f->count; i++) {
			const struct ckpt_tensor_info *t = &job->tensors[i];
			targets[i] = (struct ckpt_target){.size = sizeof(targets[i]),
				.dtype = t->dtype,
				.name = t->name,
				.data = at};
			at += t->nbytes;
		}
	}
	free(header);
	return exit_code;
}

static int make_index(struct job *job, struct file *index)
{
	json_t *names = json_object();
	uint64_t total = 0;

	for (size_t k = 0; k < job->model_files; k++) {
		const struct file *f = &job->files[k];
		for (size_t i = f->first; i < f->first + f->count; i++)
			(void)json_object_set_new(
				names, job->tensors[i].name, json_string(f->name));
		total += f->data_bytes;
	}
	json_t *object = json_pack(
		"{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", names);
	char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
	json_decref(object);
	if (!text)
		return fail_memory(job);
	size_t length = strlen(text);
	int exit_code = make_file(job, index, length + 1);
	if (exit_code == CLI_OK) {
		memcpy(index->map, text, length);
		index->map[length] = '\n';
	}
	free(text);
	return exit_code;
}

static int open_dest(struct job *job)
{
	job->dir_made = mkdir(job->dest, 0777) == 0;
	if (!job->dir_made && errno != EEXIST)
		return fail_dest(job, errno, "make", "");
	job->dir = open(job->dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (job->dir < 0)
		return fail_dest(job, errno, "open", "");
	for (size_t i = 0; i < job->file_count; i++) {
		struct statx st;

		if (statx(job->dir, job->files[i].name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0)
			return fail_dest(job, EEXIST, "write", job->files[i].name);
	}
	return CLI_OK;
}

/* Everything that is wanted, to its place. */
static int fill(struct job *job, struct ckpt_target *targets)
{
	int r = ckpt_restore_bind(job->restore, targets, job->tensor_count);

	if (r == 0)
		r = ckpt_restore_start(job->restore);
	if (r == 0)
		r = cli_wait(job->cli, job->restore, "restoring");
	return r < 0 ? fail_library(job, r) : CLI_OK;
}

static int sync_file(struct job *job, struct file *f)
{
	void *map = f->map;

	f->map = NULL;
	if (munmap(map, f->map_bytes) < 0 || fsync(f->fd) < 0)
		return fail_dest(job, errno, "sync", f->name);
	return CLI_OK;
}

/* Gives a file its name, if nobody has it. Some file systems know only one way or the other. */
static int name_file(struct job *job, struct file *f)
{
	int r = renameat2(job->dir, f->temp, job->dir, f->name, RENAME_NOREPLACE);

	if (r < 0 && (errno == EINVAL || errno == ENOSYS)) {
		r = linkat(job->dir, f->temp, job->dir, f->name, 0);
		if (r == 0)
			(void)unlinkat(job->dir, f->temp, 0);
	}
	return r;
}

/* Names, when every byte is durable; the index last. */
static int name_files(struct job *job)
{
	for (size_t i = 0; i < job->file_count; i++)
		if (name_file(job, &job->files[i]) < 0)
			return fail_dest(job, errno, "write", job->files[i].name);
	if (fsync(job->dir) < 0)
		return fail_dest(job, errno, "sync", "");
	return CLI_OK;
}

static int write_all(struct job *job, struct ckpt_target *targets)
{
	int exit_code = open_dest(job);

	for (size_t i = 0; exit_code == CLI_OK && i < job->model_files; i++)
		exit_code = make_model_file(job, &job->files[i], targets);
	if (exit_code == CLI_OK && job->file_count > job->model_files)
		exit_code = make_index(job, &job->files[job->model_files]);
	if (exit_code == CLI_OK)
		exit_code = fill(job, targets);
	for (size_t i = 0; exit_code == CLI_OK && i < job->file_count; i++)
		exit_code = sync_file(job, &job->files[i]);
	if (exit_code == CLI_OK)
		exit_code = name_files(job);
	return exit_code;
}

/* Takes a file back, whichever names it has got: a call that fails may have done its work. */
static void take_back(const struct job *job, const struct file *f)
{
	struct stat own;
	struct stat found;

	(void)unlinkat(job->dir, f->temp, 0);
	if (fstat(f->fd, &own) == 0 &&
		fstatat(job->dir, f->name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
		own.st_ino == found.st_ino && own.st_dev == found.st_dev)
		(void)unlinkat(job->dir, f->name, 0);
}

/* The restore has let go of the maps. After a failure nothing is left. */
static void clean_up(struct job *job, int exit_code)
{
	for (size_t i = 0; i < job->file_count; i++) {
		struct file *f = &job->files[i];

		if (f->map)
			(void)munmap(f->map, f->map_bytes);
		if (f->made && exit_code != CLI_OK)
			take_back(job, f);
		if (f->fd >= 0)
			(void)close(f->fd);
	}
	if (job->dir >= 0)
		(void)close(job->dir);
	if (job->dir_made && exit_code != CLI_OK)
		(void)rmdir(job->dest);
	free(job->files);
	free(job->tensors);
	json_decref(job->aliases);
}

int consolidate(const struct cli *cli, struct ckpt_engine *engine,
	struct ckpt_restore **ret_restore, json_t *ret_files)
{
	struct job job = {.cli = cli, .dest = cli->operand[1], .dir = -1};
	struct ckpt_target *targets = NULL;

	int r = ckpt_restore_open(engine, cli->step, &job.restore);
	if (r < 0)
		return cli_fail(cli, r);
	*ret_restore = job.restore;
	int exit_code = take_tensors(&job);
	if (exit_code == CLI_OK)
		exit_code = share_out(&job);
	if (exit_code == CLI_OK) {
		targets = calloc(job.tensor_count + 1, sizeof(*targets));
		exit_code = targets ? write_all(&job, targets) : fail_memory(&job);
	}
	for (size_t i = 0; exit_code == CLI_OK && i < job.file_count; i++)
		(void)json_array_append_new(ret_files, json_string(job.files[i].name));
	clean_up(&job, exit_code);
	free(targets);
	return exit_code;
}
