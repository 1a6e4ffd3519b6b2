/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing a run back from its remote store, before its own is opened: on a node that has nothing, or less than is
 * there. What is brought is the newest step that verifies, and every claim, so the local store has the same
 * lineage.
 */
#ifndef CKPT_ENGINE_RUNTIME_IMPORT_H
#define CKPT_ENGINE_RUNTIME_IMPORT_H

#include <ckpt/engine.h>
#include "engine/restore/restore.h"

struct ckpt_import {
	bool imported; /* this step, from there */
	uint64_t generation;
	uint64_t step;
	uint64_t bytes;
	uint64_t took_ns;
	/* The remote store could not be asked, and the local one has a step to go on from; code 0: it could. */
	struct ckpt_error trouble;
};

/*
 * Into the directory `path`; `opts` is complete, and names a remote place. `near`: which ranks of the job are on this node,
 * if each has a store; NULL: not known. 0 also when there is nothing to bring.
 * CKPT_EMISMATCH: the two have gone apart. What the remote store says, if there is nothing to go on from here.
 */
int ckpt_runtime_import(const char *path, const struct ckpt_engine_opts *opts,
	const struct ckpt_restore_near *near, struct ckpt_error *err,
	struct ckpt_import *ret_bring);
/* As ckpt_runtime_open(), after the import where opts asks for one. */
int ckpt_import_open(const char *path, const struct ckpt_engine_opts *opts, struct ckpt_error *err,
	struct ckpt_engine **ret_engine);

#endif
