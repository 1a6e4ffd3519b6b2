/* SPDX-License-Identifier: Apache-2.0 */
/* What ~/.aws/config and ~/.aws/credentials, or those that the environment names, say of a profile. */
#ifndef CKPT_S3_PROFILES_H
#define CKPT_S3_PROFILES_H

#include "s3/environ.h"
#include "s3/ini.h"

enum ckpt_s3_profile_file {
	CKPT_S3_FILE_CONFIG,      /* "[profile x]", and "[default]" */
	CKPT_S3_FILE_CREDENTIALS, /* "[x]" */
	CKPT_S3_FILES,
};

/* Zero: there are no files. May hold keys. */
struct ckpt_s3_profiles {
	struct ckpt_s3_ini ini[CKPT_S3_FILES];
	char *path
		[CKPT_S3_FILES]; /* as it is told to people: "~/.aws/config"; never NULL once read */
	int missing[CKPT_S3_FILES]; /* why it could not be opened, -errno; 0: it was read */
};

/* Blocks. A file that is not there, or that this user may not read, is an empty one. */
int ckpt_s3_profiles_read(const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_profiles *ret_profiles);
void ckpt_s3_profiles_clear(struct ckpt_s3_profiles *profiles);

bool ckpt_s3_profile_in(const struct ckpt_s3_profiles *profiles, enum ckpt_s3_profile_file file,
	const char *profile);
bool ckpt_s3_profile_is(const struct ckpt_s3_profiles *profiles, const char *profile);
/* NULL: it says nothing of it. `parent`: "s3" for what is nested; NULL: not nested. */
const char *ckpt_s3_profile_in_file(const struct ckpt_s3_profiles *profiles,
	enum ckpt_s3_profile_file file, const char *profile, const char *parent, const char *name);
/* The same in both: what the credentials file says goes before. `ret_file` may be NULL. */
const char *ckpt_s3_profile_get(const struct ckpt_s3_profiles *profiles, const char *profile,
	const char *parent, const char *name, enum ckpt_s3_profile_file *ret_file);
/* endpoint_url of a service ("s3", "sts") in the services section that the profile names. */
const char *ckpt_s3_profile_service(
	const struct ckpt_s3_profiles *profiles, const char *profile, const char *service);

#endif
