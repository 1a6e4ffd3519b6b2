/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process that is going to be killed does to a store, and what it writes down of it, outside of the
 * store, line by line:
 *
 *	try STEP SEED    the save is about to start; the seed decides every byte of it
 *	ack STEP SEED    the library has said that it is durable
 *	let STEP BY      may go from now on; unless BY is 0, only once BY is committed
 *	gone STEP        its removal was acknowledged, or that it never came to be
 *	bad STEP         its bytes were damaged on purpose
 *	worn STEP        so were those of one rank, and another one has the same
 *	export STEP      its export was acknowledged
 *
 * Of several processes (rivals.c), each with a number:
 *
 *	claim GENERATION STEP ID    holds the store from now on, and goes on from STEP
 *	end ID                      lets it go now, or is killed
 *	told ID CODE                was refused
 */
#ifndef CKPT_TESTS_DEED_H
#define CKPT_TESTS_DEED_H

#include <ckpt/ckpt.h>
#include <stdbool.h>

#include "lib/hang.h"

#define DEED_TENSORS    3
#define DEED_TIMEOUT_MS HANG_LIMIT_MS

struct deed {
	char *store;
	char *dest; /* of an export */
	char *log_path;
	int log;
	/* Gets every line instead of the log, if it is set. */
	void (*tell)(struct deed *deed, const char *line, size_t length);
	struct ckpt_engine_opts opts;
	struct ckpt_engine *engine;
	float *live[DEED_TENSORS]; /* the state that is saved, and restored into */
};

/* Prints a sentence and ends the program: something failed that nobody made fail. */
void deed_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends the program with the library's sentence if a call has failed. */
#define deed_must(call) deed_check((call), #call, __FILE__, __LINE__)
void deed_check(int r, const char *call, const char *file, int line);

/*
 * ROOT/store, ROOT/dest and ROOT/log, or the file of CKPT_TEST_LOG; the backend is that of CKPT_TEST_IO.
 */
void deed_init(struct deed *deed, const char *root);
void deed_free(struct deed *deed);
void deed_log(struct deed *deed, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void deed_open(struct deed *deed, uint32_t flags);
void deed_close(struct deed *deed);
/* Fills the state with what `seed` decides; whether it is that. */
void deed_fill(struct deed *deed, unsigned seed);
bool deed_is(const struct deed *deed, unsigned seed);

struct ckpt_save *deed_start(struct deed *deed, unsigned step, unsigned seed);
void deed_finish(struct deed *deed, struct ckpt_save *save, unsigned step, unsigned seed);
void deed_save(struct deed *deed, unsigned step, unsigned seed);
/* Restores into the state. The step, or the error. */
int deed_restore(struct deed *deed, uint64_t step, bool adopt);
int deed_verify(struct deed *deed, uint64_t step);
/* 1: it was there already. */
int deed_export(struct deed *deed, uint64_t step);

/* What must hold afterwards. */
void deed_aftermath(struct deed *deed);

#endif
