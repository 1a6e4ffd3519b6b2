/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marker and claims of a store into another directory, without a step: what a run leaves in its remote store that
 * ended before its first step was there. Whoever comes next goes on as the same run.
 */
#ifndef CKPT_ENGINE_BRINGER_H
#define CKPT_ENGINE_BRINGER_H

#include "engine/exporter.h"

struct ckpt_bringer {
	struct ckpt_command command;
	struct ckpt_core_place place; /* its descriptor stays the caller's */

	/* Its own. */
	struct ckpt_pick pick;
	struct ckpt_exporter exporter;
	int stop;
	int code;
};

int ckpt_bringer_body(struct ckpt_task *task);

#endif
