/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where shards, indexes and manifests are kept. One table; store.c holds the only calls of its
 * members. Everything is asynchronous and runs on the core's thread: an operation is the caller's,
 * and the store's from its start until `done` is set and `waiter` woken.
 *
 * Paths are those of format/naming.h: relative, made by this library, never by what was read.
 */
#ifndef CKPT_STORE_STORE_H
#define CKPT_STORE_STORE_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/task.h"
#include "format/naming.h"
#include "io/io.h"

struct ckpt_s3_client;

/* PUBLISH writes `path` + this + 16 hexadecimal digits, then renames; a crash may leave that behind. */
#define CKPT_STORE_TEMP ".tmp-"

enum ckpt_store_verb {
	CKPT_STORE_MKDIR =
		1,         /* path. Exists already: fine. Durable on return: the parent is synced */
	CKPT_STORE_CREATE, /* path, size -> object, unit. A new name, space reserved; -EEXIST */
	CKPT_STORE_WRITE, /* object, data, length, offset, slot. Aligned as the store asks; whole or an error */
	CKPT_STORE_SEAL, /* object, size. Cut to its true size and synced; the object is closed, by a failure too */
	CKPT_STORE_ABANDON, /* object. Closed, if it is open, and unlinked, after a failure */
	CKPT_STORE_PUT, /* path, data, length. A small new file, synced; -EEXIST. Not yet its name */
	CKPT_STORE_SYNC, /* path: a directory. Names put into it before are durable */
	CKPT_STORE_PUBLISH, /* path, data, length, locked -> object. Atomic create, durable on return; -EEXIST.
	                         After another error the file may be there all the same */
	CKPT_STORE_GET,  /* path, limit -> data, length. A small whole file; -ENOENT, -EFBIG */
	CKPT_STORE_OPEN, /* path -> object, size. To read; -ENOENT */
	CKPT_STORE_READ, /* object, data, length, offset, slot -> size. Aligned unless it was opened cached. Whole, but for less than `align` that the
	                         file's end may cut off; CKPT_EINCOMPLETE when it ends earlier */
	CKPT_STORE_CLOSE,  /* object */
	CKPT_STORE_LIST,   /* path -> listing; -ENOENT */
	CKPT_STORE_REMOVE, /* path -> uncertain. Is not there: fine */
	CKPT_STORE_RMDIR,  /* path. Is not there or not empty: fine */
	CKPT_STORE_LOCK, /* path, shared, offset, length -> object. An open-file lock; length 0: on the whole file.
	                     -EAGAIN when held, -ENOENT */
	CKPT_STORE_SWEEP, /* path: a directory. What ended processes have begun of files in it, and is in no listing,
	                     goes as far as it can: a failure is logged, and none. Files: nothing is hidden, nor done */
};

/* A file that is open, or a lock that is held. */
struct ckpt_object {
	int fd;      /* -1: none */
	bool direct; /* the store's: transfers must be aligned */
	char path[CKPT_PATH_MAX];
};

struct ckpt_store;

struct ckpt_store_op {
	/* What the caller asks. */
	enum ckpt_store_verb verb;
	struct ckpt_store *store;
	struct ckpt_task *waiter; /* woken when done; NULL: nobody */
	struct ckpt_error *err;   /* where the failure is worded; NULL: nowhere */
	char path[CKPT_PATH_MAX];
	struct ckpt_object *
		object; /* in: WRITE, SEAL, ABANDON, READ, CLOSE; out: CREATE, OPEN, LOCK, PUBLISH locked */
	void *data; /* GET allocates it: the caller frees it with ckpt_free */
	uint64_t length;
	uint64_t offset;
	uint64_t size;
	uint64_t
		unit; /* CREATE: what WRITE brings at once, but for the file's end; 0: as it likes */
	int slot;
	bool shared;   /* LOCK */
	bool cached;   /* OPEN: through the page cache in any case */
	bool locked;   /* PUBLISH: keep an exclusive lock on what is published, in `object` */
	bool fleeting; /* PUBLISH: it need not outlast a power cut */
	bool over;     /* PUBLISH: in place of what has the name, if anything has; never -EEXIST */
	bool resume;   /* CREATE: go on with what an earlier one has begun, where the store can */
	bool quiet;    /* -ENOENT, -EEXIST and -EAGAIN are answers, not worded failures */
	/*
	 * Not 0: nobody wants it any more. What waits for a server is given up then, with -ECANCELED, as soon as the
	 * server's client is told to look (ckpt_core_give_up()); a disk is waited for. NULL: it goes on to its end.
	 */
	const int *stop;
	/*
	 * REMOVE, PUT, PUBLISH: by ckpt_env_age(). It goes by what was seen, and is not asked for later, however it was held up:
	 * -ETIMEDOUT then, and after a try that had no answer it may be done all the same. A directory removes at once. 0: whenever.
	 */
	uint64_t not_after_ns;

	/* What the store answers. */
	bool done;
	int result;
	struct ckpt_listing listing;
	/* REMOVE: it was asked for more than once, and one of these requests may be carried out yet, though `result` is 0 */
	bool uncertain;

	/* The store's. */
	struct ckpt_task task;
	struct ckpt_io_req req;
	bool asked; /* req is under way */
	struct ckpt_object temp;
	char parent[CKPT_PATH_MAX];
	uint64_t progress;
	int saved;
	void *remote; /* of one in a bucket */
};

struct ckpt_store_ops {
	const char *name; /* "file" */
	const char *tier; /* "local" */
	void (*submit)(struct ckpt_store *store, struct ckpt_store_op *op);
	/* Frees. Nothing may be under way. */
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
	const char *tier;  /* what its failures say instead of the table's; NULL: that */
};

/*
 * The wrappers fill the operation (which must not be under way), check it, and hand it over. The
 * completion never comes before the wrapper returns.
 */
void ckpt_store_mkdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_create(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object);
/*
 * As create, of a name that is of one content only: what an earlier one has written of it and never sealed may be
 * kept, and is not written again when WRITE brings it. A store that cannot tell begins anew.
 */
void ckpt_store_resume(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object);
void ckpt_store_write(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	const void *data, uint64_t length, uint64_t offset, int slot);
void ckpt_store_seal(
	struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object, uint64_t size);
void ckpt_store_abandon(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object);
void ckpt_store_put(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
void ckpt_store_sync(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
/* `ret_lock` NULL: not locked. */
void ckpt_store_publish(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length, struct ckpt_object *ret_lock);
/* As publish: whole or not at all, never over another. But after a power cut it may be empty, or gone. */
void ckpt_store_show(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
/* As publish, and whatever has the name loses it at that moment: the last one who does so has it. */
void ckpt_store_supersede(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length);
void ckpt_store_get(
	struct ckpt_store *s, struct ckpt_store_op *op, const char *path, uint64_t limit);
void ckpt_store_open(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object);
/*
 * What several processes of this machine read goes through the page cache, and is read from the disk once; and what
 * must not be more than was asked for.
 */
void ckpt_store_open_cached(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object);
void ckpt_store_read(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	void *data, uint64_t length, uint64_t offset, int slot);
void ckpt_store_shut(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object);
void ckpt_store_list(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_remove(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_rmdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
/* Nobody may be about to write there what is still wanted. */
void ckpt_store_sweep(struct ckpt_store *s, struct ckpt_store_op *op, const char *path);
void ckpt_store_lock(struct ckpt_store *s, struct ckpt_store_op *op, const char *path, bool shared,
	struct ckpt_object *ret_lock);
/* On one byte, exclusively, whether the file has so many or not: it stands for what its users have agreed on. */
void ckpt_store_lock_byte(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t offset, struct ckpt_object *ret_lock);

/* A code that says that what is there is no regular file, or too large to be what it should: damage. */
bool ckpt_store_is_no_file(int code);
/* A code of a read: the medium does not give these bytes, or not as they were written. Others may be good. */
bool ckpt_store_is_unreadable(int code);

/* Prepares `op` for its first use: who is woken, where failures are worded. Keeps both, `stop` and `not_after_ns`, afterwards. */
void ckpt_store_op_init(struct ckpt_store_op *op, struct ckpt_task *waiter, struct ckpt_error *err);

/* Frees the answer of a GET. */
void ckpt_store_drop_data(struct ckpt_store_op *op);
/* Moves the answer of a LIST to the caller, who frees `names`. */
struct ckpt_listing ckpt_store_take_listing(struct ckpt_store_op *op);

/* Which tier it is, for error records. */
const char *ckpt_store_tier(const struct ckpt_store *store);
/*
 * Records that `op` failed: "cannot DOING PATH in STORE", or the words of a remote store, if they are in `said` (NULL:
 * nowhere). Returns the code.
 */
int ckpt_store_fail(const struct ckpt_store_op *op, const char *doing,
	const struct ckpt_error *said, struct ckpt_error *err);

void ckpt_store_close(struct ckpt_store *store);

/*
 * The store in a directory. `root` is a descriptor of it, borrowed; `label` its path, for messages,
 * copied.
 */
int ckpt_store_file_open(struct ckpt_env *env, struct ckpt_sched *sched, struct ckpt_io *io,
	int root, const char *label, struct ckpt_store **ret_store);

/* Whether its shards are opened with O_DIRECT; as `io` has it until then. Before anything is asked of it. */
void ckpt_store_file_set_direct(struct ckpt_store *store, bool direct);

/*
 * The store in a bucket. `client` and `label` are borrowed. Parts of an upload are of
 * whole blocks: CREATE says of how many. -ENOMEM.
 */
int ckpt_store_s3_open(struct ckpt_env *env, struct ckpt_sched *sched,
	struct ckpt_s3_client *client, uint64_t block_bytes, const char *label,
	struct ckpt_store **ret_store);

#endif
