/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3 settings in the order of all AWS programs: explicit options, the environment, the profile in ~/.aws, a default.
 * libcurl reads the proxy variables itself.
 */
#ifndef CKPT_S3_SETTINGS_H
#define CKPT_S3_SETTINGS_H

#include "s3/endpoint.h"
#include "s3/environ.h"
#include "s3/profiles.h"

/* Explicit options. NULL or 0: not given. */
struct ckpt_s3_options {
	const char *profile;
	const char *region;
	const char *endpoint;   /* "https://host[:port]" of S3; not of STS */
	const char *addressing; /* "path", "virtual" or "auto" */
	const char *ca_file;
	unsigned attempts;
	bool anonymous; /* do not sign: a public bucket */
};

enum ckpt_s3_checksums {
	CKPT_S3_CHECKSUMS_SUPPORTED = 0, /* wherever possible */
	CKPT_S3_CHECKSUMS_REQUIRED,      /* only where S3 requires it */
};

/* A setting and its source, for messages: "region eu-x (from profile 'prod' in ~/.aws/config)". */
struct ckpt_s3_setting {
	char *value; /* NULL: not set */
	char *from;  /* "AWS_REGION", "the default" ...; NULL if not set */
};

#define CKPT_S3_ATTEMPTS_MAX 1000u

struct ckpt_s3_settings {
	struct ckpt_s3_setting profile;      /* always has a value */
	struct ckpt_s3_setting region;       /* always has a value */
	struct ckpt_s3_setting endpoint;     /* NULL: AWS's endpoint of the region */
	struct ckpt_s3_setting sts_endpoint; /* the same */
	struct ckpt_s3_setting ca_file;      /* NULL: the system's */
	struct ckpt_s3_setting addressing_name;
	struct ckpt_s3_setting attempts_text;
	struct ckpt_s3_setting
		retry_mode; /* legacy, standard or adaptive; accepted, and has no effect */
	struct ckpt_s3_setting request_checksums_name;
	struct ckpt_s3_setting response_checksums_name;
	struct ckpt_s3_setting dualstack_text;
	struct ckpt_s3_setting fips_text;
	/* Parsed values. */
	enum ckpt_s3_addressing addressing;
	enum ckpt_s3_checksums request_checksums;
	enum ckpt_s3_checksums response_checksums;
	unsigned attempts; /* 0: not set */
	bool dualstack;
	bool fips;
	bool anonymous;
	/* The profile was given explicitly: keys in the environment are ignored. */
	bool profile_asked;
};

/*
 * On the caller's thread; blocks, because it reads files. CKPT_EFORMAT or -EINVAL for invalid settings, with their
 * source. -ENOENT: the named profile does not exist.
 */
int ckpt_s3_settings_resolve(const struct ckpt_s3_options *options,
	const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_settings *ret_settings);
void ckpt_s3_settings_clear(struct ckpt_s3_settings *settings);

#endif
