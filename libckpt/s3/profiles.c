/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the two files of profiles. */
#include "s3/profiles.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"
#include "s3/file_read.h"

#define SECTION_MAX 256

static const struct {
	const char *variable;
	const char *path;
} files[CKPT_S3_FILES] = {
	[CKPT_S3_FILE_CONFIG] = {"AWS_CONFIG_FILE", "~/.aws/config"},
	[CKPT_S3_FILE_CREDENTIALS] = {"AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"},
};

/* Like the AWS command line, treats these as missing files. In containers HOME often is another user's. */
static bool as_good_as_none(int r)
{
	return r == -ENOENT || r == -ENOTDIR || r == -EACCES || r == -EPERM || r == -EISDIR ||
	       r == -ELOOP || r == -ENAMETOOLONG;
}

static int read_one(const struct ckpt_s3_environ *vars, enum ckpt_s3_profile_file which,
	struct ckpt_error *err, struct ckpt_s3_profiles *profiles)
{
	const char *named = ckpt_s3_var(vars, files[which].variable);
	char *path = NULL;
	char *text = NULL;
	size_t length = 0;
	int r;

	profiles->path[which] = ckpt_strdup(named ? named : files[which].path);
	if (!profiles->path[which])
		return ckpt_fail(err, -ENOMEM, "there is no memory to read the AWS profiles");
	r = ckpt_s3_environ_path(vars, profiles->path[which], &path);
	if (r == 0)
		r = ckpt_s3_textfile_read(path, CKPT_S3_INI_MAX, &text, &length);
	ckpt_free(path);
	if (as_good_as_none(r)) {
		profiles->missing[which] = r;
		return 0;
	}
	if (r == -EFBIG)
		return ckpt_fail(err, CKPT_EFORMAT,
			"%s is not a configuration file: it has more than %u bytes",
			profiles->path[which], CKPT_S3_INI_MAX);
	if (r < 0)
		return ckpt_fail(
			err, r, "cannot read %s: %s", profiles->path[which], ckpt_code_text(r));
	r = ckpt_s3_ini_parse(text, length, profiles->path[which], err, &profiles->ini[which]);
	ckpt_secret_free(text);
	return r;
}

int ckpt_s3_profiles_read(const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_profiles *ret_profiles)
{
	int r = 0;

	*ret_profiles = (struct ckpt_s3_profiles){0};
	for (int i = 0; i < CKPT_S3_FILES && r == 0; i++)
		r = read_one(vars, (enum ckpt_s3_profile_file)i, err, ret_profiles);
	if (r < 0)
		ckpt_s3_profiles_clear(ret_profiles);
	return r;
}

void ckpt_s3_profiles_clear(struct ckpt_s3_profiles *profiles)
{
	for (int i = 0; i < CKPT_S3_FILES; i++) {
		ckpt_s3_ini_clear(&profiles->ini[i]);
		ckpt_free(profiles->path[i]);
	}
	*profiles = (struct ckpt_s3_profiles){0};
}

/* The section of a profile in a file; false: there is none. "[profile default]" takes precedence over "[default]". */
static bool section_of(const struct ckpt_s3_profiles *profiles, enum ckpt_s3_profile_file file,
	const char *profile, char section[SECTION_MAX])
{
	const struct ckpt_s3_ini *ini = &profiles->ini[file];
	const char *kind = file == CKPT_S3_FILE_CONFIG ? "profile " : "";
	int n = snprintf(section, SECTION_MAX, "%s%s", kind, profile);

	if (n > 0 && n < SECTION_MAX && ckpt_s3_ini_has(ini, section))
		return true;
	if (file != CKPT_S3_FILE_CONFIG || strcmp(profile, "default") != 0)
		return false;
	(void)snprintf(section, SECTION_MAX, "default");
	return ckpt_s3_ini_has(ini, section);
}

bool ckpt_s3_profile_in(const struct ckpt_s3_profiles *profiles, enum ckpt_s3_profile_file file,
	const char *profile)
{
	char section[SECTION_MAX];

	return section_of(profiles, file, profile, section);
}

bool ckpt_s3_profile_is(const struct ckpt_s3_profiles *profiles, const char *profile)
{
	return ckpt_s3_profile_in(profiles, CKPT_S3_FILE_CONFIG, profile) ||
	       ckpt_s3_profile_in(profiles, CKPT_S3_FILE_CREDENTIALS, profile);
}

const char *ckpt_s3_profile_in_file(const struct ckpt_s3_profiles *profiles,
	enum ckpt_s3_profile_file file, const char *profile, const char *parent, const char *name)
{
	char section[SECTION_MAX];

	if (!section_of(profiles, file, profile, section))
		return NULL;
	return ckpt_s3_ini_get(&profiles->ini[file], section, parent, name);
}

const char *ckpt_s3_profile_get(const struct ckpt_s3_profiles *profiles, const char *profile,
	const char *parent, const char *name, enum ckpt_s3_profile_file *ret_file)
{
	enum ckpt_s3_profile_file file = CKPT_S3_FILE_CREDENTIALS;
	const char *value = ckpt_s3_profile_in_file(profiles, file, profile, parent, name);

	if (!value) {
		file = CKPT_S3_FILE_CONFIG;
		value = ckpt_s3_profile_in_file(profiles, file, profile, parent, name);
	}
	if (ret_file)
		*ret_file = file;
	return value;
}

const char *ckpt_s3_profile_service(
	const struct ckpt_s3_profiles *profiles, const char *profile, const char *service)
{
	const char *services = ckpt_s3_profile_get(profiles, profile, NULL, "services", NULL);
	char section[SECTION_MAX];
	int n;

	if (!services)
		return NULL;
	n = snprintf(section, SECTION_MAX, "services %s", services);
	if (n < 0 || n >= SECTION_MAX)
		return NULL;
	return ckpt_s3_ini_get(
		&profiles->ini[CKPT_S3_FILE_CONFIG], section, service, "endpoint_url");
}
