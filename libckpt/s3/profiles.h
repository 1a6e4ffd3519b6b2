/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles in ~/.aws/config and ~/.aws/credentials, or the files that the environment names. */
#ifndef CKPT_S3_PROFILES_H
#define CKPT_S3_PROFILES_H

#include "s3/environ.h"
#include "s3/ini.h"

enum ckpt_s3_profile_file {
	CKPT_S3_FILE_CONFIG,      /* "[profile x]", and "[default]" */
	CKPT_S3_FILE_CREDENTIALS, /* "[x]" */
	CKPT_S3_FILES,
};

/* Zero: no files. May contain keys. */
struct ckpt_s3_profiles {
	struct ckpt_s3_ini ini[CKPT_S3_FILES];
	char *path[CKPT_S3_FILES];  /* name for messages: "~/.aws/config"; not NULL after reading */
	int missing[CKPT_S3_FILES]; /* why it could not be opened, -errno; 0: it was read */
};

/* Blocks. A file that does not exist or is not readable counts as empty. */
int ckpt_s3_profiles_read(const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_profiles *ret_profiles);
void ckpt_s3_profiles_clear(struct ckpt_s3_profiles *profiles);

bool ckpt_s3_profile_in(const struct ckpt_s3_profiles *profiles, enum ckpt_s3_profile_file file,
	const char *profile);
bool ckpt_s3_profile_is(const struct ckpt_s3_profiles *profiles, const char *profile);
/* NULL: not set. `parent`: "s3" for nested names; NULL: not nested. */
const char *ckpt_s3_profile_in_file(const struct ckpt_s3_profiles *profiles,
	enum ckpt_s3_profile_file file, const char *profile, const char *parent, const char *name);
/* The same in both files; the credentials file takes precedence. `ret_file` may be NULL. */
const char *ckpt_s3_profile_get(const struct ckpt_s3_profiles *profiles, const char *profile,
	const char *parent, const char *name, enum ckpt_s3_profile_file *ret_file);
/* endpoint_url of a service ("s3", "sts") in the profile's services section. */
const char *ckpt_s3_profile_service(
	const struct ckpt_s3_profiles *profiles, const char *profile, const char *service);

#endif
