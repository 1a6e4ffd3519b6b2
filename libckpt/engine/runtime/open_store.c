/* SPDX-License-Identifier: Apache-2.0 */
/* Where the store of an engine is. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/core/rate_limit.h"
#include "engine/runtime/runtime_state.h"
#include "format/remote_record.h"
#include "io/io_direct.h"
#include "s3/s3_bucket.h"
#include "s3/escape.h"
#include "s3/uri.h"

#include "config.h"

/* The directory that holds `path`, which is durable only when that is synced. */
static int sync_parent(const char *path)
{
	char *copy = ckpt_strdup(path);
	if (!copy)
		return -ENOMEM;
	size_t length = strlen(copy);
	while (length > 1 && copy[length - 1] == '/')
		copy[--length] = '\0';
	char *slash = strrchr(copy, '/');
	if (slash == copy)
		slash[1] = '\0';
	else if (slash)
		*slash = '\0';
	int fd = open(slash ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -errno : 0;
	if (fd >= 0) {
		r = fsync(fd) < 0 ? -errno : 0;
		(void)close(fd);
	}
	ckpt_free(copy);
	return r;
}

static int make_directory(const char *path, struct ckpt_error *err)
{
	const struct ckpt_where where = {.tier = "local", .file = path};
	int r = mkdir(path, 0777) < 0 ? -errno : 0;
	bool made = r == 0;

	if (r < 0 && r != -EEXIST)
		return ckpt_fail_at(err, r, &where, "cannot make the directory %s: %s", path,
			ckpt_code_text(r));
	r = sync_parent(path);
	/* A parent that may not be read was not changed either, unless by this mkdir. */
	if (r < 0 && (made || r != -EACCES))
		return ckpt_fail_at(err, r, &where, "cannot sync the directory that holds %s: %s",
			path, ckpt_code_text(r));
	return 0;
}

static int open_directory(const char *path, struct ckpt_error *err, int *ret_fd)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0) {
		int r = errno == ENOENT ? CKPT_ENOSTORE : -errno;
		return ckpt_fail_at(err, r, &(struct ckpt_where){.tier = "local", .file = path},
			"cannot open the store %s: %s", path, ckpt_code_text(r));
	}
	*ret_fd = fd;
	return 0;
}

static int make_and_open(const char *path, struct ckpt_error *err, int *ret_fd)
{
	int r = make_directory(path, err);

	return r < 0 ? r : open_directory(path, err, ret_fd);
}

/* How a bucket is asked. */
struct manner {
	uint64_t bytes_per_s;
	unsigned sharers;
	bool patient;
	bool gives_way;
};

/* By whoever has asked for just that, and would have to ask again. */
static const struct manner by_hand = {.patient = true};

static int open_bucket(struct ckpt_engine *engine, const struct ckpt_s3_uri *place,
	const char *label, const struct manner *manner, struct ckpt_error *err,
	struct ckpt_bucket **ret_bucket)
{
#if CKPT_HAVE_S3
	struct ckpt_bucket_core core = {.env = ckpt_env_os_env(engine->env),
		.sched = &engine->core.sched,
		.timers = &engine->core.timers,
		.log = engine->log,
		.send_bytes_per_s = manner->bytes_per_s,
		.sharers = manner->sharers,
		.patient = manner->patient,
		.gives_way = manner->gives_way};

	(void)label;
	return ckpt_bucket_open(place, &core, err, ret_bucket);
#else
	(void)engine;
	(void)place;
	(void)manner;
	(void)ret_bucket;
	return ckpt_fail(err, CKPT_EUNSUPPORTED,
		"cannot open %s: this libckpt was built without S3 (libcurl, OpenSSL, expat)",
		label);
#endif
}

int ckpt_runtime_open_place(struct ckpt_engine *engine, bool read_only, struct ckpt_error *err)
{
	struct ckpt_s3_uri place;
	int r = ckpt_s3_uri_parse(engine->label, err, &place);

	if (r < 0)
		return r;
	if (place.remote && !read_only)
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"the store %s is in a bucket, and can be read only: save into a directory "
			"of "
			"this machine",
			engine->label);
	if (place.remote)
		return open_bucket(engine, &place, engine->label, &by_hand, err, &engine->bucket);
	return read_only ? open_directory(place.path, err, &engine->root)
			 : make_and_open(place.path, err, &engine->root);
}

/* Its file system may be another than that of the store; a store in a bucket has none. */
static void try_direct(struct ckpt_core_place *place)
{
	place->tried = true;
	place->direct = ckpt_io_direct_works(place->root, false);
}

/* Whether a directory is that of the store, by whatever name it was opened. -errno. */
static int is_own(const struct ckpt_engine *engine, int root, bool *ret_own)
{
	struct stat here;
	struct stat there;

	*ret_own = false;
	if (engine->root < 0)
		return 0;
	if (fstat(engine->root, &here) < 0 || fstat(root, &there) < 0)
		return -errno;
	*ret_own = here.st_dev == there.st_dev && here.st_ino == there.st_ino;
	return 0;
}

int ckpt_runtime_dest(struct ckpt_engine *engine, const char *dest, struct ckpt_error *err,
	struct ckpt_core_place *ret_place)
{
	struct ckpt_core_place made = {.root = -1, .label = dest};
	struct ckpt_bucket *bucket = NULL;
	struct ckpt_s3_uri place;
	int r = ckpt_s3_uri_parse(dest, err, &place);

	if (r < 0)
		return r;
	r = place.remote ? open_bucket(engine, &place, dest, &by_hand, err, &bucket)
			 : make_and_open(place.path, err, &made.root);
	if (r < 0)
		return r;
	if (made.root >= 0) {
		r = is_own(engine, made.root, &made.self);
		if (r < 0) {
			(void)close(made.root);
			return ckpt_fail(err, r, "cannot look at %s: %s", dest, ckpt_code_text(r));
		}
		try_direct(&made);
	}
#if CKPT_HAVE_S3
	if (bucket) {
		r = ckpt_runtime_keep_dest(engine, bucket);
		if (r < 0) {
			ckpt_bucket_close(bucket);
			return ckpt_fail(err, r, "out of memory");
		}
		made.bucket = ckpt_bucket_client(bucket);
		made.number = ckpt_s3_uri_number(&place);
	}
#endif
	*ret_place = made;
	return 0;
}

/* One place for two things would have each step be its own copy. */
static int check_apart(struct ckpt_engine *engine, struct ckpt_error *err)
{
	bool own;
	int r = is_own(engine, engine->remote.root, &own);

	if (r < 0)
		return ckpt_fail(
			err, r, "cannot look at %s: %s", engine->remote.label, ckpt_code_text(r));
	if (!own)
		return 0;
	return ckpt_fail(err, -EINVAL, "the remote store %s is the store %s itself",
		engine->remote.label, engine->label);
}

/*
 * What whoever goes on from this store, in whatever directory, calls the remote one: a bucket's URI as it was given, in
 * which no secret is taken; a directory by its whole path.
 */
static int name_remote(
	struct ckpt_engine *engine, const struct ckpt_s3_uri *place, struct ckpt_error *err)
{
	struct ckpt_buf url = {0};
	char *path = place->remote ? NULL : realpath(place->path, NULL);

	if (!place->remote && !path)
		return ckpt_fail(err, -errno, "cannot look at %s: %s", engine->remote.label,
			ckpt_code_text(-errno));
	if (place->remote) {
		ckpt_buf_puts(&url, engine->remote.label);
	} else {
		ckpt_buf_puts(&url, "file://");
		ckpt_s3_escape_path(&url, path);
	}
	free(path);
	ckpt_buf_put(&url, "", 1);
	if (url.failed) {
		ckpt_buf_free(&url);
		return ckpt_fail(err, -ENOMEM, "out of memory");
	}
	engine->remote.url = url.data;
	if (url.len <= CKPT_REMOTE_CHARS)
		return 0;
	ckpt_log(engine->log, CKPT_LOG_WARN,
		"%s: the name of the remote store is too long to be remembered", engine->label);
	ckpt_buf_free(&url);
	engine->remote.url = NULL;
	return 0;
}

int ckpt_runtime_open_remote(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err)
{
	struct ckpt_s3_uri place;

	if (!opts->remote)
		return 0;
	int r = ckpt_s3_uri_parse(opts->remote, err, &place);
	if (r < 0)
		return r;
	engine->remote.label = ckpt_strdup(opts->remote);
	if (!engine->remote.label)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	if (!place.remote) {
		r = make_and_open(place.path, err, &engine->remote.root);
		if (r == 0)
			try_direct(&engine->remote);
		if (r == 0)
			r = check_apart(engine, err);
		return r < 0 ? r : name_remote(engine, &place, err);
	}
	/* The upload queue tries again by itself, and says what fails. */
	const struct manner behind = {
		.bytes_per_s = ckpt_rate_limit_share(opts->remote_bytes_per_s, opts->node_ranks),
		.sharers = opts->node_ranks,
		.gives_way = true};
	r = open_bucket(engine, &place, opts->remote, &behind, err, &engine->remote_bucket);
	if (r == 0)
		r = name_remote(engine, &place, err);
#if CKPT_HAVE_S3
	if (r == 0)
		engine->remote.bucket = ckpt_bucket_client(engine->remote_bucket);
	engine->remote.number = ckpt_s3_uri_number(&place);
#endif
	return r;
}

struct ckpt_s3_client *ckpt_runtime_client(const struct ckpt_engine *engine)
{
#if CKPT_HAVE_S3
	return engine->bucket ? ckpt_bucket_client(engine->bucket) : NULL;
#else
	(void)engine;
	return NULL;
#endif
}

void ckpt_runtime_close_place(struct ckpt_engine *engine)
{
#if CKPT_HAVE_S3
	ckpt_bucket_close(engine->bucket);
	ckpt_bucket_close(engine->remote_bucket);
#endif
	ckpt_runtime_close_dests(engine);
	if (engine->remote.root >= 0)
		(void)close(engine->remote.root);
	if (engine->root >= 0)
		(void)close(engine->root);
}
