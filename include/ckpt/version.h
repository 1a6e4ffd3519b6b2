/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the library, and of the format that it writes. */
#ifndef CKPT_VERSION_H
#define CKPT_VERSION_H

#include <ckpt/types.h>

#define CKPT_VERSION_MAJOR 0
#define CKPT_VERSION_MINOR 1
#define CKPT_VERSION_PATCH 0
#define CKPT_VERSION       "0.1.0"

/*
 * The version of the format of a store (FORMAT.md). A reader refuses a larger major version, and reads
 * every minor version of a major version that it knows.
 */
#define CKPT_FORMAT_MAJOR 1
#define CKPT_FORMAT_MINOR 0

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the loaded library, "major.minor.patch". Static storage. Any thread. */
CKPT_API const char *ckpt_version(void);

/* The features of this build: a list of words such as "io_uring"; "" if none. Static storage. Any thread. */
CKPT_API const char *ckpt_features(void);

#ifdef __cplusplus
}
#endif

#endif
