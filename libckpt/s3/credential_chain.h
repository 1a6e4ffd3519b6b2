/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where keys come from: the first in botocore's order that is configured. Finding it asks nobody: it looks at the
 * environment and the profiles, and says what is to be done.
 */
#ifndef CKPT_S3_CREDENTIAL_CHAIN_H
#define CKPT_S3_CREDENTIAL_CHAIN_H

#include "s3/credentials.h"
#include "s3/profiles.h"
#include "s3/settings.h"

enum ckpt_s3_credential_chain_kind {
	CKPT_S3_CREDENTIAL_CHAIN_NOBODY = 0, /* requests are not signed */
	CKPT_S3_CREDENTIAL_CHAIN_STATIC,     /* `keys` */
	CKPT_S3_CREDENTIAL_CHAIN_PROCESS,    /* what `command` prints */
	CKPT_S3_CREDENTIAL_CHAIN_WEB, /* AssumeRoleWithWebIdentity of `web`, with what is in `token_file` */
	CKPT_S3_CREDENTIAL_CHAIN_CONTAINER, /* the service of ECS or EKS */
	CKPT_S3_CREDENTIAL_CHAIN_INSTANCE,  /* the metadata service of EC2 */
};

#define CKPT_S3_ROLES_MAX 8
#define CKPT_S3_FROM_MAX  320
#define CKPT_S3_NOTES_MAX 768

/* A role that is assumed; pieces of memory that the source owns. */
struct ckpt_s3_role {
	char *arn;
	char *session;       /* NULL: one is made up */
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
		[CKPT_S3_ROLES_MAX]; /* to be assumed one with the keys of the other, in this order */
	size_t role_count;
	char notes
		[CKPT_S3_NOTES_MAX]; /* who was asked before, and why it gives none: "the environment: ...; ..." */
};

/*
 * What is half configured, or can only be used by a person (MFA, SSO, login), is CKPT_EAUTH in words that say what to
 * do. No secret is in a message, nor in anything of the source but `keys`; `command` may hold one.
 */
int ckpt_s3_credential_chain_find(const struct ckpt_s3_environ *vars,
	const struct ckpt_s3_settings *settings, const struct ckpt_s3_profiles *profiles,
	struct ckpt_error *err, struct ckpt_s3_credential_chain *ret_source);
void ckpt_s3_credential_chain_clear(struct ckpt_s3_credential_chain *source);

#endif
