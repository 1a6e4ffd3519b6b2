/* SPDX-License-Identifier: Apache-2.0 */
/* Small files that somebody else keeps: configuration, tokens. Blocks: on a caller's thread or a worker. */
#ifndef CKPT_S3_FILE_READ_H
#define CKPT_S3_FILE_READ_H

#include "base/compiler.h"

/*
 * All of it, with a NUL behind that is not counted. -EFBIG: more than `max` bytes. It may hold a secret:
 * ckpt_secret_free(text).
 */
int ckpt_s3_textfile_read(const char *path, size_t max, char **ret_text, size_t *ret_length);

#endif
