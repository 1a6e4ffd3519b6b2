/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that may fail, made to fail. The library is built as a shared object of its own whose every
 * symbol can be replaced; this program replaces the calls that may fail (taps_*.c), writes down each
 * place that it sees (a site: what is called, on what, and the call stack inside the library), and fails
 * the sites that a plan names. Only calls of armed threads count: a user's inside of the interface, and
 * those that the library starts.
 */
#ifndef CKPT_TESTS_TORTURE_H
#define CKPT_TESTS_TORTURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kill/workload.h"

enum torture_kind {
	TORTURE_ALLOC,
	TORTURE_TABLE,
	TORTURE_SYSCALL,
	TORTURE_THREAD,
	TORTURE_KINDS,
};

#define TORTURE_SITES     16384
#define TORTURE_FRAMES    24
#define TORTURE_CODES     6
#define TORTURE_PLANS     3
#define TORTURE_SLOTS     64
#define TORTURE_JOBS      16
#define TORTURE_RANKS     3
#define TORTURE_SOFT      0x10000 /* a code that calls are to bear by themselves: never for ever */
#define TORTURE_SHORT     (-0x20000) /* not a failure: half of the bytes */
#define TORTURE_WAIT_MS   80000      /* of a trial for one thing: longer than a save may take */
#define TORTURE_SILENT_MS 3000       /* the same, for what the kernel will not answer */
#define TORTURE_DEADLINE  360000 /* milliseconds that a run may take; its waits give up before */

/* A function whose calls are counted. */
struct torture_call {
	const char *name;
	enum torture_kind kind;
	/* Negative errnos or codes; 0: the end. With none, it is counted and cannot fail. */
	int codes[TORTURE_CODES];
};

struct torture_site {
	_Atomic uint64_t key; /* 0: free */
	atomic_bool ready;
	const struct torture_call *call;
	char what[64]; /* the file, operation or option that it is about */
	unsigned depth;
	unsigned rank;
	uint64_t stack;                   /* the key, whatever the rank */
	uintptr_t frames[TORTURE_FRAMES]; /* return addresses in the library, the innermost first */
	_Atomic uint64_t seen;            /* scenarios, a bit for each */
	atomic_uint injected;
	unsigned
		origin_scenario; /* where it was first seen, and what had been made to fail there */
	unsigned origin_plans;
	struct torture_plan {
		uint64_t key;
		int code;
		enum torture_mode {
			TORTURE_ONCE = 1, /* the first time */
			TORTURE_SITE,     /* every time */
			/* And from then on every call of the kind that may say so: of rank 0 for
			   all, whose storage it is; of another one, or where every node has a store
			   of its own, on its own node. */
			TORTURE_ALL,
		} mode;
	} origin[TORTURE_PLANS];
};

/* What one run and those who look at it share. */
struct torture_run {
	unsigned scenario;
	unsigned plans;
	struct torture_plan plan[TORTURE_PLANS];
	atomic_uint fired[TORTURE_PLANS];
	atomic_uint whose[TORTURE_PLANS]; /* the rank that it fired at */
	atomic_bool abandoned; /* storage did not answer: what is left behind is no leak */
	/* The kernel does not answer for what it was given: what has no end of its own has none. */
	atomic_bool silent;
	atomic_uint events;
	/* Of armed threads: who is inside of a call that is counted. For the tracer. */
	struct torture_slot {
		_Atomic pid_t tid;
		atomic_uint inside;
	} slots[TORTURE_SLOTS];
};

/* Shared by all processes. */
struct torture_shared {
	struct torture_site sites[TORTURE_SITES];
	struct torture_run runs[TORTURE_JOBS];
	atomic_uint next; /* of the queue, that no worker has taken */
	struct {
		_Atomic uint64_t runs;
		_Atomic uint64_t failed;
		_Atomic uint64_t missed;
	} total;
};

extern struct torture_shared *torture_all;
extern struct torture_run *torture; /* this process's */

/* sites.c */
void torture_sites_init(void);
/* From here to the disarm, calls of this thread count; the stack ends at `base`. */
void torture_arm(void *base);
void torture_disarm(void);
bool torture_armed(void);
/* Which rank of a job this thread works for, and those that it starts: 0, unless it is told. */
void torture_set_rank(unsigned rank);
unsigned torture_rank(void);
/* The thread is in a call that is counted, or in what the torture does itself: no others count. */
void torture_enter(void *frame);
void torture_leave(void);
bool torture_inside(void);
/* What this thread does meanwhile is somebody else's, and none of it counts. */
void torture_set_foreign(bool yes);
/*
 * Counts a call of an armed thread; `frame` is that of the replacement. Returns 0 if it is to be made, or
 * the code to fail with.
 */
int torture_event(const struct torture_call *call, const char *what, void *frame);
/* A path without the numbers in it. */
const char *torture_path_class(const char *path);
bool torture_in_library(uintptr_t address);
/* What the I/O thread is at; and what a descriptor is. */
void torture_set_topic(const char *topic);
const char *torture_topic(void);
void torture_name_fd(int fd, const char *name);
const char *torture_fd_name(int fd);

/* taps_alloc.c */
void torture_alloc_begin(void);
/* Prints the sites of library allocations that were not freed. Their number. */
unsigned torture_alloc_leaks(void);

/* calls.c, taps_*.c: all that is counted */
const struct torture_call *torture_call_find(const char *name);

/* elf_calls.c */
struct torture_static {
	uintptr_t back; /* the return address */
	const char *callee;
};
void torture_elf_load(void);
const struct torture_static *torture_elf_calls(size_t *ret_count);
const char *torture_symbol(uintptr_t address, uintptr_t *ret_offset);

/* trials.c */
struct trial {
	const char *name;
	void (*prepare)(struct workload *d);
	void (*run)(struct workload *d);
	bool threads; /* the backend */
	bool tool;    /* a program, which prints */
	unsigned odd;
	uint64_t pool; /* 0: as small as it may be */
	uint32_t block;
	size_t extra;   /* bytes of one more tensor, which is eager */
	bool boxed;     /* it saves a box of a tensor, too, in the words of an older caller */
	unsigned nodes; /* ranks of a job whose nodes have a store each (nodes.h); 0: one store */
	bool remote;    /* its steps go on to another store (remotes.h) */
};

/* What is odd about the machine, from the beginning of the run. */
#define TORTURE_OLD_KERNEL 1u  /* calls that came late to Linux are not there */
#define TORTURE_HUGE_PAGES 2u  /* there are pages set aside */
#define TORTURE_VANISHED   4u  /* the first step that is locked is removed just before that */
#define TORTURE_REMOVED    64u /* a step is removed while it is opened, and then is there */
#define TORTURE_LATE_STEP  8u  /* the others see late what rank 0 has published */
#define TORTURE_LATE_CLAIM 16u /* and what it has claimed */
#define TORTURE_GOING                                                                              \
	256u /* the first step that is locked is being removed, by somebody who lets go */
#define TORTURE_LATE_STORE 128u /* rank 0 sees late that its store is there */
#define TORTURE_MANY       512u /* readers go by the catalog, however few ranks have written a step */
#define TORTURE_LARGE      2048u /* the indexes of two ranks are more than rank 0 holds at once */
#define TORTURE_TWICE      1024u /* the first catalog that is published was there already */
#define TORTURE_GONE       32u /* the first index of another rank is not there when rank 0 looks */

bool torture_odd(unsigned what);
/* No call of this process counts. */
void torture_off(void);
extern const struct trial torture_trials[];
extern const unsigned torture_trial_count;

/* Ends the run: the library has done what it must not. */
void torture_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* What a call has answered: a failure has a sentence. */
int torture_answer(int r, const char *call);

#define CALL(expr)                                                                                 \
	({                                                                                         \
		torture_arm(__builtin_frame_address(0));                                           \
		int r_of_call = (expr);                                                            \
		torture_disarm();                                                                  \
		torture_answer(r_of_call, #expr);                                                  \
	})
#define DO(expr)                                                                                   \
	do {                                                                                       \
		torture_arm(__builtin_frame_address(0));                                           \
		(expr);                                                                            \
		torture_disarm();                                                                  \
	} while (0)

/* bypass.c: runs a trial under ptrace; prints the system calls that nobody counted. How many; -1: cannot. */
int torture_bypass(void (*child)(unsigned scenario), unsigned scenario);

#endif
