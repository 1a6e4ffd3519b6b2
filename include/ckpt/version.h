/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the library and of the format it writes. */
#ifndef CKPT_VERSION_H
#define CKPT_VERSION_H

#include <ckpt/types.h>

#define CKPT_VERSION_MAJOR 0
#define CKPT_VERSION_MINOR 1
#define CKPT_VERSION_PATCH 0
#define CKPT_VERSION       "0.1.0"

/*
 * Version of the bytes in a store (FORMAT.md). A reader refuses a greater major and reads every minor
 * of a major that it knows.
 */
#define CKPT_FORMAT_MAJOR 1
#define CKPT_FORMAT_MINOR 0

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the loaded library, as "major.minor.patch". Static storage; any thread. */
CKPT_API const char *ckpt_version(void);

/* What this build was made with: a list of words such as "io_uring" Static storage; any thread. */
CKPT_API const char *ckpt_features(void);

#ifdef __cplusplus
}
#endif

#endif
