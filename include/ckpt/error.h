/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. Functions return 0 (or a count) on success, and a negative code on failure: -errno for an
 * error of the system, or a CKPT_E* code of the library. ckpt_last_error() has the message of a call
 * that failed. ckpt_save_error() and ckpt_restore_error() have the error of an operation that failed
 * in the background.
 */
#ifndef CKPT_ERROR_H
#define CKPT_ERROR_H

#include <ckpt/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	CKPT_EINTEGRITY = -10001,  /* bytes differ from their digest */
	CKPT_EINCOMPLETE = -10002, /* a file of a committed step is missing here or short */
	CKPT_EFORMAT = -10003,     /* malformed file */
	CKPT_EVERSION = -10004,    /* written by a newer format */
	CKPT_ENOSTORE = -10005,    /* there is no store */
	CKPT_ENOSTEP = -10006,     /* no such step in the lineage */
	CKPT_EINUSE = -10007,      /* a live process holds the store, or uploads the same files */
	CKPT_EFENCED = -10008,     /* a later generation has taken the store over */
	CKPT_ENOTRESUMED = -10009, /* the store has commits: restore, or CKPT_ENGINE_NEW_START */
	CKPT_ESTEP = -10010, /* the step exists, was aborted, or does not come after the last one */
	CKPT_ETORN = -10011, /* a tensor was changed before its copy was complete */
	CKPT_EABORTED = -10012,  /* the step was aborted */
	CKPT_ESKIPPED = -10013,  /* the previous save was still running (CKPT_BUSY_SKIP) */
	CKPT_ECLOSED = -10014,   /* the engine is closed or closing */
	CKPT_EFORKED = -10015,   /* the handle belongs to the parent process */
	CKPT_ELEVEL = -10016,    /* the level is not configured */
	CKPT_EMISMATCH = -10017, /* a name, type or shape is not that of the step or other ranks */
	CKPT_EUNSUPPORTED = -10018, /* not supported by this build or machine */
	CKPT_EDEVICE = -10019,      /* a GPU failed */
	CKPT_EAUTH = -10020,        /* not authorised */
	CKPT_ENETWORK = -10021,     /* the network or a server failed */
	CKPT_EQUARANTINED = -10022, /* the step is quarantined, see its quarantine.json */
	CKPT_EOTHERNODE = -10023,   /* the data is in the store of another node */
	CKPT_EREPLICA = -10024      /* ranks have different bytes where they must be equal */
};

/* What failed, where and why. Strings are empty and numbers are -1 if they do not apply. */
struct ckpt_error {
	uint32_t size;       /* sizeof(struct ckpt_error), set by the caller */
	int32_t code;        /* 0: nothing failed */
	int32_t sys_errno;   /* the positive errno behind the code, or 0 */
	int32_t http_status; /* of the server's answer, or 0 */
	int64_t step;
	int64_t offset; /* byte offset in `file` */
	int32_t rank;
	int32_t repaired;   /* 1: the step was repaired from the remote store: restore it again.
	                   With many ranks it is set on rank 0, and not on all others;
	                   see ckpt_restore_wait() */
	char tier[16];      /* "local", "remote", "memory" (of the program); "peer" is reserved */
	char tensor[256];   /* truncated if longer */
	char file[512];     /* path below the store; truncated if longer */
	char message[1024]; /* one line of UTF-8: what, where, why, what to do */
};

/* A short English phrase for a code. Never NULL. Static storage. Any thread. */
CKPT_API const char *ckpt_strerror(int code);

/*
 * The message of the last call that failed on this thread; "" if none has failed. Valid until the next
 * call that fails on this thread.
 */
CKPT_API const char *ckpt_last_error(void);

/*
 * Copies the whole record of that error to `ret_error`. Returns its code, or 0 if no call has failed on
 * this thread.
 */
CKPT_API int ckpt_last_error_record(struct ckpt_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
