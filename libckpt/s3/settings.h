/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How S3 is to be spoken to, as every program on AWS finds it out: what was asked for explicitly, else the
 * environment, else the profile in ~/.aws, else a default. Proxies are libcurl's: it reads their variables itself.
 */
#ifndef CKPT_S3_SETTINGS_H
#define CKPT_S3_SETTINGS_H

#include "s3/endpoint.h"
#include "s3/environ.h"
#include "s3/profiles.h"

/* Explicit. NULL or 0: not given. */
struct ckpt_s3_options {
	const char *profile;
	const char *region;
	const char *endpoint;   /* "https://host[:port]" of S3; not of STS */
	const char *addressing; /* "path", "virtual" or "auto" */
	const char *ca_file;
	unsigned attempts;
	bool anonymous; /* requests are not signed: a public bucket */
};

enum ckpt_s3_checksums {
	CKPT_S3_CHECKSUMS_SUPPORTED = 0, /* wherever there can be one */
	CKPT_S3_CHECKSUMS_REQUIRED,      /* only where S3 insists */
};

/* One of them, and where it is from, for messages: "region eu-x (from profile 'prod' in ~/.aws/config)". */
struct ckpt_s3_setting {
	char *value; /* NULL: there is none */
	char *from;  /* "AWS_REGION", "the default" ...; NULL where there is no value */
};

#define CKPT_S3_ATTEMPTS_MAX 1000u

struct ckpt_s3_settings {
	struct ckpt_s3_setting profile;      /* always has a value */
	struct ckpt_s3_setting region;       /* always has a value */
	struct ckpt_s3_setting endpoint;     /* NULL: AWS's own, of the region */
	struct ckpt_s3_setting sts_endpoint; /* the same */
	struct ckpt_s3_setting ca_file;      /* NULL: the system's */
	struct ckpt_s3_setting addressing_name;
	struct ckpt_s3_setting attempts_text;
	struct ckpt_s3_setting
		retry_mode; /* legacy, standard or adaptive; taken, and nothing hangs on it */
	struct ckpt_s3_setting request_checksums_name;
	struct ckpt_s3_setting response_checksums_name;
	struct ckpt_s3_setting dualstack_text;
	struct ckpt_s3_setting fips_text;
	/* What some of them mean. */
	enum ckpt_s3_addressing addressing;
	enum ckpt_s3_checksums request_checksums;
	enum ckpt_s3_checksums response_checksums;
	unsigned attempts; /* 0: not said */
	bool dualstack;
	bool fips;
	bool anonymous;
	bool profile_asked; /* explicitly: then keys in the environment do not count */
};

/*
 * On the caller's thread; reads the files, so it blocks. What is malformed is CKPT_EFORMAT or -EINVAL, with where
 * it stands. A profile that was named and is nowhere is -ENOENT.
 */
int ckpt_s3_settings_resolve(const struct ckpt_s3_options *options,
	const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_settings *ret_settings);
void ckpt_s3_settings_clear(struct ckpt_s3_settings *settings);

#endif
