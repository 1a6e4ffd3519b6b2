/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of sources: environment, a role of the profile, web identity, SSO, the credentials file, login,
 * credential_process, the config file, a container, the instance. For a source profile: its role first, then web
 * identity to config file.
 */
#include "s3/credential_chain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/error.h"

#define PROFILE_MAX 128

struct finder {
	const struct ckpt_s3_environ *vars;
	const struct ckpt_s3_settings *settings;
	const struct ckpt_s3_profiles *profiles;
	struct ckpt_error *err;
	struct ckpt_s3_credential_chain *out;
	const char *visited[CKPT_S3_ROLES_MAX + 1]; /* profiles whose role was used */
	size_t visited_count;
	char why[CKPT_S3_NOTES_MAX];
};

/* 1: found; 0: this source has none; negative: its configuration is wrong. */
typedef int finder_fn(struct finder *f, const char *profile);

static int no_memory(const struct finder *f)
{
	return ckpt_fail(f->err, -ENOMEM, "there is no memory to look for keys of S3");
}

static int copy(const struct finder *f, const char *text, char **ret_copy)
{
	if (!text)
		return 0;
	*ret_copy = ckpt_strdup(text);
	return *ret_copy ? 0 : no_memory(f);
}

/* Adds `why`, the reason why a source has no keys. What does not fit is left out. */
static int note(struct finder *f)
{
	size_t length = strlen(f->out->notes);

	(void)snprintf(f->out->notes + length, CKPT_S3_NOTES_MAX - length, "%s%s",
		length > 0 ? "; " : "", f->why);
	return 0;
}

static const char *get(const struct finder *f, const char *profile, const char *name)
{
	return ckpt_s3_profile_get(f->profiles, profile, NULL, name, NULL);
}

/* Sets `from` to "profile 'x' in FILE", by the file that contains `name`. */
static void set_from(struct finder *f, const char *profile, const char *name)
{
	enum ckpt_s3_profile_file file = CKPT_S3_FILE_CONFIG;

	(void)ckpt_s3_profile_get(f->profiles, profile, NULL, name, &file);
	(void)snprintf(f->out->from, CKPT_S3_FROM_MAX, "profile '%.*s' in %s", PROFILE_MAX, profile,
		f->profiles->path[file]);
}

/* Static keys. */

static int found_keys(struct finder *f, const char *access, const char *secret, const char *token)
{
	int r = ckpt_s3_credentials_set(access, secret, token, f->out->from, f->err, &f->out->keys);

	f->out->kind = CKPT_S3_CREDENTIAL_CHAIN_STATIC;
	return r < 0 ? r : 1;
}

static int in_environment(struct finder *f, const char *profile)
{
	const char *access = ckpt_s3_var(f->vars, "AWS_ACCESS_KEY_ID");
	const char *secret = ckpt_s3_var(f->vars, "AWS_SECRET_ACCESS_KEY");
	const char *token = ckpt_s3_var(f->vars, "AWS_SESSION_TOKEN");

	(void)profile;
	if (!access && !secret) {
		(void)snprintf(
			f->why, sizeof(f->why), "the environment: AWS_ACCESS_KEY_ID is not set");
		return note(f);
	}
	if (!access || !secret)
		return ckpt_fail(f->err, CKPT_EAUTH,
			"the environment is incomplete: %s is set and %s is not",
			access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
			access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
	(void)snprintf(f->out->from, CKPT_S3_FROM_MAX, "the environment");
	return found_keys(
		f, access, secret, token ? token : ckpt_s3_var(f->vars, "AWS_SECURITY_TOKEN"));
}

static int in_file(struct finder *f, enum ckpt_s3_profile_file file, const char *profile)
{
	const struct ckpt_s3_profiles *p = f->profiles;
	const char *access = ckpt_s3_profile_in_file(p, file, profile, NULL, "aws_access_key_id");
	const char *secret =
		ckpt_s3_profile_in_file(p, file, profile, NULL, "aws_secret_access_key");
	const char *token = ckpt_s3_profile_in_file(p, file, profile, NULL, "aws_session_token");

	if (p->missing[file]) {
		(void)snprintf(f->why, sizeof(f->why), "%s: %s", p->path[file],
			ckpt_code_text(p->missing[file]));
		return note(f);
	}
	if (!ckpt_s3_profile_in(p, file, profile)) {
		(void)snprintf(f->why, sizeof(f->why), "%s: it has no profile '%.*s'",
			p->path[file], PROFILE_MAX, profile);
		return note(f);
	}
	if (!access && !secret) {
		(void)snprintf(f->why, sizeof(f->why),
			"%s: profile '%.*s' has no aws_access_key_id", p->path[file], PROFILE_MAX,
			profile);
		return note(f);
	}
	(void)snprintf(f->out->from, CKPT_S3_FROM_MAX, "profile '%.*s' in %s", PROFILE_MAX, profile,
		p->path[file]);
	if (!access || !secret)
		return ckpt_fail(f->err, CKPT_EAUTH, "%s is incomplete: %s is missing",
			f->out->from, access ? "aws_secret_access_key" : "aws_access_key_id");
	if (!token)
		token = ckpt_s3_profile_in_file(p, file, profile, NULL, "aws_security_token");
	return found_keys(f, access, secret, token);
}

static int in_credentials_file(struct finder *f, const char *profile)
{
	return in_file(f, CKPT_S3_FILE_CREDENTIALS, profile);
}

static int in_config_file(struct finder *f, const char *profile)
{
	return in_file(f, CKPT_S3_FILE_CONFIG, profile);
}

static bool has_keys(const struct finder *f, const char *profile)
{
	return get(f, profile, "aws_access_key_id") != NULL;
}

/* Programs. */

static int by_process(struct finder *f, const char *profile)
{
	const char *command = get(f, profile, "credential_process");

	if (!command) {
		(void)snprintf(f->why, sizeof(f->why), "profile '%.*s' has no credential_process",
			PROFILE_MAX, profile);
		return note(f);
	}
	set_from(f, profile, "credential_process");
	f->out->kind = CKPT_S3_CREDENTIAL_CHAIN_PROCESS;
	return copy(f, command, &f->out->command) < 0 ? -ENOMEM : 1;
}

/*
 * Only a person can log in. botocore looks here before the credentials file. If the profile also has keys or a program,
 * these are used, so that the advice below can be followed within the profile.
 */
static int by_person(struct finder *f, const char *profile)
{
	const char *what = get(f, profile, "sso_session") || get(f, profile, "sso_start_url")
				   ? "SSO"
			   : get(f, profile, "login_session") ? "aws login"
							      : NULL;

	if (!what || has_keys(f, profile) || get(f, profile, "credential_process"))
		return 0;
	return ckpt_fail(f->err, CKPT_EAUTH,
		"profile '%.*s' gets its keys by %s, which needs a person: add the line "
		"\"credential_process = aws configure export-credentials --profile %.*s\" to it, "
		"or export keys into the environment",
		PROFILE_MAX, profile, what, PROFILE_MAX, profile);
}

/* Roles. */

static int fill_role(
	const struct finder *f, const char *profile, const char *arn, struct ckpt_s3_role *role)
{
	const char *text = get(f, profile, "duration_seconds");
	char *end = NULL;
	unsigned long long duration = text ? strtoull(text, &end, 10) : 0;

	if (text && (*text < '0' || *text > '9' || *end != 0 || duration < 900 || duration > 43200))
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' has an invalid duration_seconds: it must be 900 to "
			"43200 is what may be",
			PROFILE_MAX, profile);
	role->duration_s = (unsigned)duration;
	if (copy(f, arn, &role->arn) < 0 ||
		copy(f, get(f, profile, "role_session_name"), &role->session) < 0 ||
		copy(f, get(f, profile, "external_id"), &role->external_id) < 0)
		return -ENOMEM;
	return 0;
}

static int by_container(struct finder *f, const char *profile);
static int by_instance(struct finder *f, const char *profile);

/* credential_source: where the keys that assume the role come from. */
static int from_credential_source(struct finder *f, const char *profile, const char *source)
{
	int r;

	if (strcasecmp(source, "Environment") == 0)
		r = in_environment(f, profile);
	else if (strcasecmp(source, "EcsContainer") == 0)
		r = by_container(f, profile);
	else if (strcasecmp(source, "Ec2InstanceMetadata") == 0)
		r = by_instance(f, profile);
	else
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' has an unknown credential_source: it must be "
			"Environment, EcsContainer or Ec2InstanceMetadata",
			PROFILE_MAX, profile);
	return r != 0 ? r
		      : ckpt_fail(f->err, CKPT_EAUTH,
				"profile '%.*s' assumes a role with the keys of its "
				"credential_source, which has none: %s",
				PROFILE_MAX, profile, f->out->notes);
}

static int check_role(const struct finder *f, const char *profile)
{
	bool named = get(f, profile, "source_profile");
	bool service = get(f, profile, "credential_source");

	if (get(f, profile, "mfa_serial"))
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' assumes a role with mfa_serial, and nobody can type "
			"a code: use a profile "
			"whose credential_process does it, or export keys into the environment",
			PROFILE_MAX, profile);
	if (named == service)
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' has a role_arn and %s: it needs one of them", PROFILE_MAX,
			profile,
			named ? "both source_profile and credential_source"
			      : "neither source_profile nor credential_source");
	if (f->out->role_count == CKPT_S3_ROLES_MAX)
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' ends a chain of more than %d roles that assume one another",
			PROFILE_MAX, profile, CKPT_S3_ROLES_MAX);
	for (size_t i = 0; i < f->visited_count; i++) {
		if (strcmp(f->visited[i], profile) == 0)
			return ckpt_fail(f->err, CKPT_EAUTH,
				"profile '%.*s' assumes a role with its own keys, through "
				"its source_profile",
				PROFILE_MAX, profile);
	}
	return 0;
}

/*
 * Takes the role that a profile assumes, and the profile whose keys it needs; NULL: credential_source. 1: taken; 0: it
 * assumes none.
 */
static int take_role(struct finder *f, const char *profile, const char **ret_source)
{
	const char *arn = get(f, profile, "role_arn");
	const char *source = get(f, profile, "source_profile");
	int r;

	if (!arn || get(f, profile, "web_identity_token_file"))
		return 0;
	r = check_role(f, profile);
	if (r < 0)
		return r;
	f->visited[f->visited_count++] = profile;
	r = fill_role(f, profile, arn, &f->out->roles[f->out->role_count++]);
	if (r < 0)
		return r;
	if (source && !ckpt_s3_profile_is(f->profiles, source))
		return ckpt_fail(f->err, CKPT_EAUTH,
			"profile '%.*s' assumes a role with the keys of profile '%.*s', which is "
			"not there",
			PROFILE_MAX, profile, PROFILE_MAX, source);
	*ret_source = source;
	return 1;
}

/* The variables count only for the profile in use, and only if it was not given explicitly. */
static int by_web(struct finder *f, const char *profile, bool variables)
{
	const char *file = variables ? ckpt_s3_var(f->vars, "AWS_WEB_IDENTITY_TOKEN_FILE") : NULL;
	const char *arn = variables ? ckpt_s3_var(f->vars, "AWS_ROLE_ARN") : NULL;
	const char *session = variables ? ckpt_s3_var(f->vars, "AWS_ROLE_SESSION_NAME") : NULL;
	bool in_variables = file;
	int r;

	if (!file)
		file = get(f, profile, "web_identity_token_file");
	if (!file) {
		(void)snprintf(f->why, sizeof(f->why),
			"there is no web identity (AWS_WEB_IDENTITY_TOKEN_FILE)");
		return note(f);
	}
	if (!arn)
		arn = get(f, profile, "role_arn");
	if (!arn)
		return ckpt_fail(f->err, CKPT_EAUTH,
			"there is a web identity in %s, but no role: set AWS_ROLE_ARN, or "
			"role_arn in profile '%.*s'",
			file, PROFILE_MAX, profile);
	if (in_variables)
		(void)snprintf(f->out->from, CKPT_S3_FROM_MAX,
			"the web identity of AWS_WEB_IDENTITY_TOKEN_FILE");
	else
		set_from(f, profile, "web_identity_token_file");
	f->out->kind = CKPT_S3_CREDENTIAL_CHAIN_WEB;
	r = fill_role(f, profile, arn, &f->out->web);
	if (r < 0)
		return r;
	if (session) {
		ckpt_free(f->out->web.session);
		f->out->web.session = NULL;
		if (copy(f, session, &f->out->web.session) < 0)
			return -ENOMEM;
	}
	return copy(f, file, &f->out->token_file) < 0 ? -ENOMEM : 1;
}

static int by_web_of_profile(struct finder *f, const char *profile)
{
	return by_web(f, profile, false);
}

static int by_web_of_all(struct finder *f, const char *profile)
{
	return by_web(f, profile, !f->settings->profile_asked);
}

static int in_source_profile(struct finder *f, const char *profile)
{
	static finder_fn *const order[] = {
		by_web_of_profile, by_person, in_credentials_file, by_process, in_config_file};
	int r = 0;

	for (size_t i = 0; i < CKPT_COUNT(order) && r == 0; i++)
		r = order[i](f, profile);
	if (r != 0)
		return r;
	return ckpt_fail(f->err, CKPT_EAUTH,
		"profile '%.*s', with whose keys a role is to be assumed, has none", PROFILE_MAX,
		profile);
}

/* Keys in a source profile come before its role, so a profile may name itself. */
static int by_role(struct finder *f, const char *profile)
{
	const char *source = NULL;
	int r = take_role(f, profile, &source);

	if (r == 0)
		return 0;
	while (r == 1 && source) {
		profile = source;
		r = has_keys(f, profile) ? 0 : take_role(f, profile, &source);
	}
	if (r < 0)
		return r;
	return r == 0 ? in_source_profile(f, profile)
		      : from_credential_source(f, profile, get(f, profile, "credential_source"));
}

/* Services. */

static int by_container(struct finder *f, const char *profile)
{
	(void)profile;
	if (!ckpt_s3_var(f->vars, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") &&
		!ckpt_s3_var(f->vars, "AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
		(void)snprintf(f->why, sizeof(f->why),
			"no container (AWS_CONTAINER_CREDENTIALS_FULL_URI is not set)");
		return note(f);
	}
	f->out->kind = CKPT_S3_CREDENTIAL_CHAIN_CONTAINER;
	(void)snprintf(f->out->from, CKPT_S3_FROM_MAX, "the container's credentials service");
	return 1;
}

static int by_instance(struct finder *f, const char *profile)
{
	const char *off = ckpt_s3_var(f->vars, "AWS_EC2_METADATA_DISABLED");

	(void)profile;
	if (off && strcasecmp(off, "true") == 0) {
		(void)snprintf(f->why, sizeof(f->why),
			"the instance metadata service: AWS_EC2_METADATA_DISABLED says not to ask");
		return note(f);
	}
	f->out->kind = CKPT_S3_CREDENTIAL_CHAIN_INSTANCE;
	(void)snprintf(f->out->from, CKPT_S3_FROM_MAX, "the instance metadata service");
	return 1;
}

static int find(struct finder *f)
{
	static finder_fn *const order[] = {by_role, by_web_of_all, by_person, in_credentials_file,
		by_process, in_config_file, by_container, by_instance};
	const char *profile = f->settings->profile.value;
	int r = 0;

	if (!f->settings->profile_asked)
		r = in_environment(f, profile);
	for (size_t i = 0; i < CKPT_COUNT(order) && r == 0; i++)
		r = order[i](f, profile);
	if (r != 0)
		return r < 0 ? r : 0;
	return ckpt_fail(f->err, CKPT_EAUTH,
		"there are no keys for S3: %s. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
		"a profile",
		f->out->notes);
}

int ckpt_s3_credential_chain_find(const struct ckpt_s3_environ *vars,
	const struct ckpt_s3_settings *settings, const struct ckpt_s3_profiles *profiles,
	struct ckpt_error *err, struct ckpt_s3_credential_chain *ret_source)
{
	struct finder f = {.vars = vars,
		.settings = settings,
		.profiles = profiles,
		.err = err,
		.out = ret_source};
	int r;

	*ret_source = (struct ckpt_s3_credential_chain){0};
	if (settings->anonymous) {
		(void)snprintf(ret_source->from, CKPT_S3_FROM_MAX, "nobody: no keys are wanted");
		return 0;
	}
	r = find(&f);
	/* They were found from the last role to the first. */
	for (size_t i = 0; i < ret_source->role_count / 2; i++) {
		struct ckpt_s3_role *a = &ret_source->roles[i];
		struct ckpt_s3_role *b = &ret_source->roles[ret_source->role_count - 1 - i];
		struct ckpt_s3_role other = *a;

		*a = *b;
		*b = other;
	}
	if (r < 0)
		ckpt_s3_credential_chain_clear(ret_source);
	return r;
}

static void clear_role(struct ckpt_s3_role *role)
{
	ckpt_free(role->arn);
	ckpt_free(role->session);
	ckpt_s3_forget(role->external_id);
}

void ckpt_s3_credential_chain_clear(struct ckpt_s3_credential_chain *source)
{
	ckpt_s3_credentials_clear(&source->keys);
	ckpt_s3_forget(source->command);
	ckpt_free(source->token_file);
	clear_role(&source->web);
	for (size_t i = 0; i < source->role_count; i++)
		clear_role(&source->roles[i]);
	*source = (struct ckpt_s3_credential_chain){0};
}
