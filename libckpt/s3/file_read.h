/* SPDX-License-Identifier: Apache-2.0 */
/* Reads small files of the user: configuration and tokens. Blocks: use the caller's thread or a worker. */
#ifndef CKPT_S3_FILE_READ_H
#define CKPT_S3_FILE_READ_H

#include "base/compiler.h"

/*
 * The whole file and an uncounted NUL. -EFBIG: more than `max` bytes. It may contain a secret: ckpt_secret_free(text).
 */
int ckpt_s3_textfile_read(const char *path, size_t max, char **ret_text, size_t *ret_length);

#endif
