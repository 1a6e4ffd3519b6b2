/* SPDX-License-Identifier: Apache-2.0 */
/* Version and features. */
#include <ckpt/version.h>

#include "config.h"

const char *ckpt_version(void)
{
	return CKPT_VERSION;
}

const char *ckpt_features(void)
{
#if CKPT_HAVE_IO_URING && CKPT_HAVE_S3
	return "io_uring s3";
#elif CKPT_HAVE_IO_URING
	return "io_uring";
#elif CKPT_HAVE_S3
	return "s3";
#else
	return "";
#endif
}
