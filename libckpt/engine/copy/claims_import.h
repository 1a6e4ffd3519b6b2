/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marker and claims of a store into another directory, without a step: what a run leaves in its remote store that
 * ended before its first step was there. Whoever comes next goes on as the same run.
 */
#ifndef CKPT_ENGINE_COPY_CLAIMS_IMPORT_H
#define CKPT_ENGINE_COPY_CLAIMS_IMPORT_H

#include "engine/copy/step_copy.h"

struct ckpt_claims_import {
	struct ckpt_command command;
	struct ckpt_core_place place; /* its descriptor stays the caller's */

	/* Its own. */
	struct ckpt_select pick;
	struct ckpt_step_copy step_copy;
	int stop;
	int code;
};

int ckpt_claims_import_body(struct ckpt_task *task);

#endif
