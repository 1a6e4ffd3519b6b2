/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step as plain safetensors files, of whole tensors or of what one rank would hold. */
#ifndef CKPT_TOOLS_CONSOLIDATE_H
#define CKPT_TOOLS_CONSOLIDATE_H

#include "cli.h"

/*
 * Writes the step to the directory DEST (the second operand): one file, or several of at most cli->file_size
 * bytes and an index of them, as Hugging Face has it; with cli->world_size the file of rank cli->rank. After a
 * failure no file remains. Returns an exit code; errors were printed. The caller frees *ret_restore, also after a
 * failure. The names of the files are appended to `ret_files`.
 */
int consolidate(const struct cli *cli, struct ckpt_engine *engine,
	struct ckpt_restore **ret_restore, json_t *ret_files);

#endif
