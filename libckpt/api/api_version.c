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
	static const char features[] = ""
#if CKPT_HAVE_IO_URING
				       " io_uring"
#endif
#if CKPT_HAVE_S3
				       " s3"
#endif
#if CKPT_HAVE_CODEC
				       " zstd"
#endif
		;

	return features + (features[0] == ' ');
}
