/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where shards, indexes and manifests are kept. Only store.c calls the members of the table. All operations are
 * asynchronous and run on the core's thread. The caller allocates an operation; the store owns it from its start until
 * `done` is set and `waiter` woken.
 *
 * Paths are relative, and made by format/naming.h, never taken from what was read.
 */
#ifndef CKPT_STORE_STORE_H
#define CKPT_STORE_STORE_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/task.h"
#include "format/naming.h"
#include "io/io.h"

struct ckpt_s3_client;

/* PUBLISH writes to `path` + this + 16 hexadecimal digits, then renames. A crash may leave that file. */
#define CKPT_STORE_TEMP ".tmp-"

enum ckpt_store_verb {
	CKPT_STORE_MKDIR =
		/* Path. Succeeds if it exists. Durable on return: the parent is synced. */
	1,
	/* Path, size -> object, unit. A new name, with space reserved; -EEXIST. */
	CKPT_STORE_CREATE,
	/* Object, data, length, offset, slot. Aligned to `align`; writes all or fails. */
	CKPT_STORE_WRITE,
	/* Object, size. Truncates to `size`, syncs and closes, also after a failure. */
	CKPT_STORE_SEAL,
	CKPT_STORE_ABANDON, /* object. Closes it if it is open, and unlinks it */
	/* Path, data, length. A small new file, synced; -EEXIST. Its name is not durable yet. */
	CKPT_STORE_PUT,
	CKPT_STORE_SYNC, /* path: a directory. Makes the names in it durable */
	/*
	 * Path, data, length, locked -> object. Atomic create, durable on return; -EEXIST. After another error the file
	 * may exist.
	 */
	CKPT_STORE_PUBLISH,
	CKPT_STORE_GET,  /* path, limit -> data, length. A small file as a whole; -ENOENT, -EFBIG */
	CKPT_STORE_OPEN, /* path -> object, size. For reading; -ENOENT */
	/*
	 * Object, data, length, offset, slot -> size. Aligned unless it was opened cached. Reads all, but for less than
	 * `align` bytes past the end of the file; CKPT_EINCOMPLETE if the file ends earlier.
	 */
	CKPT_STORE_READ,
	CKPT_STORE_CLOSE,  /* object */
	CKPT_STORE_LIST,   /* path -> listing; -ENOENT */
	CKPT_STORE_REMOVE, /* path -> uncertain. Succeeds if it does not exist */
	CKPT_STORE_RMDIR,  /* path. Succeeds if it does not exist or is not empty */
	/*
	 * Path, shared, offset, length -> object. An open file description lock; length 0: on the whole file. -EAGAIN
	 * if it is held, -ENOENT.
	 */
	CKPT_STORE_LOCK,
	/*
	 * Path: a directory. Bucket: aborts the unfinished uploads of files in it, which no listing shows; failures are
	 * only logged. Directory: does nothing.
	 */
	CKPT_STORE_SWEEP,
};

/* A file that is open, or a lock that is held. */
struct ckpt_object {
	int fd;      /* -1: none */
	bool direct; /* set by the store: transfers must be aligned */
	char path[CKPT_PATH_MAX];
};

struct ckpt_store;

struct ckpt_store_op {
	/* Set by the caller. */
	enum ckpt_store_verb verb;
	struct ckpt_store *store;
	struct ckpt_task *waiter; /* woken when done; NULL: nobody */
	struct ckpt_error *err;   /* receives the error; NULL: none */
	char path[CKPT_PATH_MAX];
	struct ckpt_object *
		object; /* in: WRITE, SEAL, ABANDON, READ, CLOSE; out: CREATE, OPEN, LOCK, PUBLISH locked */
	void *data; /* GET allocates it: the caller frees it with ckpt_free() */
	uint64_t length;
	uint64_t offset;
	uint64_t size;
	uint64_t unit; /* CREATE: size of each WRITE but the last; 0: any */
	int slot;
	bool shared;   /* LOCK */
	bool cached;   /* OPEN: always through the page cache */
	bool locked;   /* PUBLISH: keep an exclusive lock on the published file, in `object` */
	bool fleeting; /* PUBLISH: it need not survive a power cut */
	bool over;     /* PUBLISH: replaces an existing file; never -EEXIST */
	bool resume;   /* CREATE: continue an unfinished earlier one, where the store can */
	bool varied;   /* with `resume`: other contents of this name may have been begun */
	bool quiet;    /* -ENOENT, -EEXIST and -EAGAIN set no error */
	/*
	 * Not 0: nobody needs the result any more. An operation that waits for a server then ends with -ECANCELED, once
	 * the client has been told to look (ckpt_core_give_up()). One that waits for a disk continues. NULL: it is
	 * never cancelled.
	 */
	const int *stop;
	/*
	 * REMOVE, PUT, PUBLISH, in ckpt_env_age(): no request is sent after this time, because the decision would be
	 * outdated. Then -ETIMEDOUT; a request that had no answer may have been carried out. A directory removes at
	 * once. 0: no limit.
	 */
	uint64_t not_after_ns;

	/* Set by the store. */
	bool done;
	int result;
	struct ckpt_listing listing;
	/* REMOVE: more than one request was sent, and one of them may still be carried out, though `result` is 0 */
	bool uncertain;

	/* Private to the store. */
	struct ckpt_task task;
	struct ckpt_io_req req;
	bool asked; /* req is in flight */
	struct ckpt_object temp;
	char parent[CKPT_PATH_MAX];
	uint64_t progress;
	int saved;
	void *remote; /* state of an operation on a bucket */
};

struct ckpt_store_ops {
	const char *name; /* "file" */
	const char *tier; /* "local" */
	void (*submit)(struct ckpt_store *store, struct ckpt_store_op *op);
	/* Frees it. Nothing may be in flight. */
	void (*close)(struct ckpt_store *store);
};

struct ckpt_store {
	const struct ckpt_store_ops *ops;
	struct ckpt_env *env;
	struct ckpt_sched *sched;
	uint32_t align;  /* of WRITE and READ: data, offset, length */
	uint64_t fsyncs; /* counters, for stats */
	uint64_t bytes_written;
	uint64_t bytes_read;
	const char *label; /* the store's path, for messages */
	const char *tier;  /* used in errors instead of ops->tier; NULL: not */
};

/*
 * The wrappers fill the operation (which must not be in flight), check it, and start it. It never completes before the
 * wrapper returns.
 */
void ckpt_store_mkdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_create(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object);
/*
 * As create, for a name with only one possible content: parts that an earlier attempt has written and not sealed may be
 * kept, and are then not written again. A store that cannot tell starts again.
 */
void ckpt_store_resume(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object);
/*
 * As resume, for a name that may have several contents, which may be shorter than `size`: SEAL has the true size. Each
 * WRITE but the last has `unit` bytes. A part of an earlier attempt is kept only if the server's CRC32C of it is that of
 * what is to be written.
 */
void ckpt_store_resume_varied(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object);
void ckpt_store_write(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	const void *data, uint64_t length, uint64_t offset, int slot);
void ckpt_store_seal(
	struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object, uint64_t size);
void ckpt_store_abandon(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object);
void ckpt_store_put(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
void ckpt_store_sync(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
/* `ret_lock` NULL: no lock. */
void ckpt_store_publish(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length, struct ckpt_object *ret_lock);
/* As publish, but after a power cut the file may be empty or gone. */
void ckpt_store_show(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
/* As publish, but replaces an existing file. The last caller wins. */
void ckpt_store_supersede(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
void ckpt_store_get(
	struct ckpt_store *s, struct ckpt_store_op *op, const char *path, uint64_t limit);
void ckpt_store_open(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object);
/*
 * For what several processes of this machine read: it goes through the page cache and is read from the disk once. Also
 * for reads that must not be rounded up.
 */
void ckpt_store_open_cached(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object);
void ckpt_store_read(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	void *data, uint64_t length, uint64_t offset, int slot);
void ckpt_store_shut(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object);
void ckpt_store_list(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_remove(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_rmdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
/* No other process may be writing files that are still wanted there. */
void ckpt_store_sweep(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_lock(struct ckpt_store *s, struct ckpt_store_op *op, const char *path, bool shared,
	struct ckpt_object *ret_lock);
/* An exclusive lock on one byte, which need not exist in the file. Its meaning is agreed among its users. */
void ckpt_store_lock_byte(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t offset, struct ckpt_object *ret_lock);

/* Whether the code means that the path is no regular file, or that it is too large: damage. */
bool ckpt_store_is_no_file(int code);
/* Whether a read failed because the medium cannot return these bytes. Others may be good. */
bool ckpt_store_is_unreadable(int code);

/* Prepares `op` for its first use. Sets waiter and err, which stay, like `stop` and `not_after_ns`. */
void ckpt_store_op_init(struct ckpt_store_op *op, struct ckpt_task *waiter, struct ckpt_error *err);

/* Frees the answer of a GET. */
void ckpt_store_drop_data(struct ckpt_store_op *op);
/* Moves the answer of a LIST to the caller, who frees `names`. */
struct ckpt_listing ckpt_store_take_listing(struct ckpt_store_op *op);

/* The tier's name, for error records. */
const char *ckpt_store_tier(const struct ckpt_store *store);
/*
 * Records that `op` failed: "cannot DOING PATH in STORE", or the words of a remote store, if they are in `said` (NULL:
 * nowhere). Returns the code.
 */
int ckpt_store_fail(const struct ckpt_store_op *op, const char *doing,
	const struct ckpt_error *said, struct ckpt_error *err);

void ckpt_store_close(struct ckpt_store *store);

/* The store in a directory. `root` is a borrowed descriptor; `label` is its path for messages, copied. */
int ckpt_store_file_open(struct ckpt_env *env, struct ckpt_sched *sched, struct ckpt_io *io,
	int root, const char *label, struct ckpt_store **ret_store);

/* Whether shards are opened with O_DIRECT; the default is that of `io`. Call it before the first operation. */
void ckpt_store_file_set_direct(struct ckpt_store *store, bool direct);

/*
 * The store in a bucket. `client` and `label` are borrowed. Parts of an upload consist of whole blocks; CREATE returns
 * their size. -ENOMEM.
 */
int ckpt_store_s3_open(struct ckpt_env *env, struct ckpt_sched *sched,
	struct ckpt_s3_client *client, uint64_t block_bytes, const char *label,
	struct ckpt_store **ret_store);

#endif
