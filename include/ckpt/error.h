/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. Functions return 0 (or a count) or a negative code: -errno for the system, the codes below
 * for the library. A call that fails by itself leaves a sentence in ckpt_last_error(). What fails in
 * the background is recorded on the operation: ckpt_save_error(), ckpt_restore_error().
 */
#ifndef CKPT_ERROR_H
#define CKPT_ERROR_H

#include <ckpt/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	CKPT_EINTEGRITY = -10001,   /* bytes differ from their digest */
	CKPT_EINCOMPLETE = -10002,  /* a file of a committed step is missing here or short */
	CKPT_EFORMAT = -10003,      /* malformed file */
	CKPT_EVERSION = -10004,     /* written by a newer format */
	CKPT_ENOSTORE = -10005,     /* no store there */
	CKPT_ENOSTEP = -10006,      /* no such step in the lineage */
	CKPT_EINUSE = -10007,       /* a live process holds the store, or sends it */
	CKPT_EFENCED = -10008,      /* a later generation has taken the store over */
	CKPT_ENOTRESUMED = -10009,  /* there are commits; neither resumed nor started anew */
	CKPT_ESTEP = -10010,        /* the step was decided already, or is not after the last one */
	CKPT_ETORN = -10011,        /* something changed a tensor before its copy was complete */
	CKPT_EABORTED = -10012,     /* the attempt at this step ended in an abort record */
	CKPT_ESKIPPED = -10013,     /* the last save still ran, and the policy is to skip */
	CKPT_ECLOSED = -10014,      /* the engine is closed or closing */
	CKPT_EFORKED = -10015,      /* the handle belongs to the parent process */
	CKPT_ELEVEL = -10016,       /* that level is not configured */
	CKPT_EMISMATCH = -10017,    /* name, type or shape is not what the step holds */
	CKPT_EUNSUPPORTED = -10018, /* this build or machine cannot do it */
	CKPT_EDEVICE = -10019,      /* an accelerator failed */
	CKPT_EAUTH = -10020,        /* not authorised */
	CKPT_ENETWORK = -10021,     /* network or server failed */
	CKPT_EQUARANTINED = -10022, /* the step failed verification before; see quarantine.json */
	CKPT_EOTHERNODE = -10023,   /* what is asked for lies in the store of another node */
	CKPT_EREPLICA = -10024      /* ranks hold different bytes of what all must have alike */
};

/* What failed, where and why. Strings are empty and numbers -1 where they do not apply. */
struct ckpt_error {
	uint32_t size;       /* sizeof(struct ckpt_error), set by the caller */
	int32_t code;        /* 0: nothing failed */
	int32_t sys_errno;   /* positive errno behind the code, or 0 */
	int32_t http_status; /* or 0 */
	int64_t step;
	int64_t offset; /* byte offset in `file` */
	int32_t rank;
	int32_t repaired; /* 1: of a restore: what was damaged is whole again, with the remote store; ask again.
	                   Of many ranks it says so on rank 0, and not on all others */
	char tier[16];      /* "memory", "local", "peer", "remote" */
	char tensor[256];   /* cut if longer */
	char file[512];     /* path below the store; cut if longer */
	char message[1024]; /* what, where, why, what to do; UTF-8, no newline */
};

/* One short English phrase for a code. Static storage; any thread; never NULL. */
CKPT_API const char *ckpt_strerror(int code);

/*
 * The sentence of the last call that failed on this thread; "" if none has. Valid until the next
 * failing call on this thread.
 */
CKPT_API const char *ckpt_last_error(void);

/* The same with all its fields. Returns its code, 0 if no call has failed on this thread. */
CKPT_API int ckpt_last_error_record(struct ckpt_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
