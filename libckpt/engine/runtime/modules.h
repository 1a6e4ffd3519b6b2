/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modules of an engine on its core. No folder of the engine includes one above it: what a module must do when
 * another one below it has done something is written down here.
 */
#ifndef CKPT_ENGINE_RUNTIME_MODULES_H
#define CKPT_ENGINE_RUNTIME_MODULES_H

#include "engine/core/core.h"

/* The core, and every module on it. Reads nothing yet: post an open command (lineage/open.h) first. */
int ckpt_modules_open(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err);
/* Nothing may be under way. */
void ckpt_modules_close(struct ckpt_core *core);

#endif
