/* SPDX-License-Identifier: Apache-2.0 */
/* A step as plain safetensors files, of whole tensors or as a rank would hold them, whoever wrote them. */
#ifndef CKPT_TOOLS_CONSOLIDATE_H
#define CKPT_TOOLS_CONSOLIDATE_H

#include "cli.h"

/*
 * Writes the step that is asked for to the directory DEST (the second operand): one file, or several of
 * cli->file_size at most and an index of them, as Hugging Face has it; with cli->world_size the file of rank
 * cli->rank. All or nothing of it is there in the end. Returns an exit code, and has said why. *ret_restore is
 * the caller's to free, also after a failure; *ret_files the names written.
 */
int consolidate(const struct cli *cli, struct ckpt_engine *engine,
	struct ckpt_restore **ret_restore, json_t *ret_files);

#endif
