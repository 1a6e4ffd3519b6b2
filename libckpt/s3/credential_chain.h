/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source of keys: the first in botocore's order that is configured. It is determined from the environment and the
 * profiles, without any request.
 */
#ifndef CKPT_S3_CREDENTIAL_CHAIN_H
#define CKPT_S3_CREDENTIAL_CHAIN_H

#include "s3/credentials.h"
#include "s3/profiles.h"
#include "s3/settings.h"

enum ckpt_s3_credential_chain_kind {
	CKPT_S3_CREDENTIAL_CHAIN_NOBODY = 0, /* requests are not signed */
	CKPT_S3_CREDENTIAL_CHAIN_STATIC,     /* in `keys` */
	CKPT_S3_CREDENTIAL_CHAIN_PROCESS,    /* printed by `command` */
	/* AssumeRoleWithWebIdentity of `web`, with the token in `token_file`. */
	CKPT_S3_CREDENTIAL_CHAIN_WEB,
	CKPT_S3_CREDENTIAL_CHAIN_CONTAINER, /* the service of ECS or EKS */
	CKPT_S3_CREDENTIAL_CHAIN_INSTANCE,  /* the metadata service of EC2 */
};

#define CKPT_S3_ROLES_MAX 8
#define CKPT_S3_FROM_MAX  320
#define CKPT_S3_NOTES_MAX 768

/* A role to assume; its strings belong to the source. */
struct ckpt_s3_role {
	char *arn;
	char *session;       /* NULL: generated */
	char *external_id;   /* NULL: none */
	unsigned duration_s; /* 0: AWS's default */
};

struct ckpt_s3_credential_chain {
	enum ckpt_s3_credential_chain_kind kind;
	char from[CKPT_S3_FROM_MAX]; /* "profile 'x' in ~/.aws/config" */
	struct ckpt_s3_credentials keys;
	char *command;
	char *token_file;
	struct ckpt_s3_role web;
	struct ckpt_s3_role roles
		/* In this order, each assumed with the keys of the previous one. */
		[CKPT_S3_ROLES_MAX];
	size_t role_count;
	char notes
		/* Sources that have none, and why: "the environment: ...; ...". */
		[CKPT_S3_NOTES_MAX];
};

/*
 * CKPT_EAUTH, with advice, for an incomplete configuration or one that needs a person (MFA, SSO, login). No message
 * contains a secret. In the source only `keys` and `command` may.
 */
int ckpt_s3_credential_chain_find(const struct ckpt_s3_environ *vars,
	const struct ckpt_s3_settings *settings, const struct ckpt_s3_profiles *profiles,
	struct ckpt_error *err, struct ckpt_s3_credential_chain *ret_source);
void ckpt_s3_credential_chain_clear(struct ckpt_s3_credential_chain *source);

#endif
