/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: each is looked up in the same places and order. */
#include "s3/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/error.h"

#define FROM_MAX 512

/* Where a setting is looked up, and its default. */
struct place {
	size_t offset; /* in struct ckpt_s3_settings */
	const char *variables[2];
	const char *parent; /* parent of a nested name */
	const char *name;
	const char *other; /* default; NULL: none */
};

#define SETTING(member) offsetof(struct ckpt_s3_settings, member)

static const struct place places[] = {
	{SETTING(region), {"AWS_REGION", "AWS_DEFAULT_REGION"}, NULL, "region",
		CKPT_S3_REGION_NONE},
	{SETTING(ca_file), {"AWS_CA_BUNDLE"}, NULL, "ca_bundle", NULL},
	{SETTING(addressing_name), {NULL}, "s3", "addressing_style", NULL},
	{SETTING(attempts_text), {"AWS_MAX_ATTEMPTS"}, NULL, "max_attempts", NULL},
	{SETTING(retry_mode), {"AWS_RETRY_MODE"}, NULL, "retry_mode", NULL},
	{SETTING(request_checksums_name), {"AWS_REQUEST_CHECKSUM_CALCULATION"}, NULL,
		"request_checksum_calculation", NULL},
	{SETTING(response_checksums_name), {"AWS_RESPONSE_CHECKSUM_VALIDATION"}, NULL,
		"response_checksum_validation", NULL},
	{SETTING(dualstack_text), {"AWS_USE_DUALSTACK_ENDPOINT"}, NULL, "use_dualstack_endpoint",
		NULL},
	{SETTING(fips_text), {"AWS_USE_FIPS_ENDPOINT"}, NULL, "use_fips_endpoint", NULL},
};

struct resolver {
	const struct ckpt_s3_options *options;
	const struct ckpt_s3_environ *vars;
	struct ckpt_error *err;
	struct ckpt_s3_profiles profiles;
	struct ckpt_s3_settings *out;
};

static int no_memory(const struct resolver *s)
{
	return ckpt_fail(s->err, -ENOMEM, "there is no memory for the settings of S3");
}

static int set(const struct resolver *s, struct ckpt_s3_setting *setting, const char *value,
	const char *from)
{
	setting->value = ckpt_strdup(value);
	setting->from = ckpt_strdup(from);
	return setting->value && setting->from ? 0 : no_memory(s);
}

/* Looks in the profile. */
static int set_from_profile(const struct resolver *s, struct ckpt_s3_setting *setting,
	const char *value, enum ckpt_s3_profile_file file)
{
	char from[FROM_MAX];

	(void)snprintf(from, sizeof(from), "profile '%s' in %s", s->out->profile.value,
		s->profiles.path[file]);
	return set(s, setting, value, from);
}

static const char *explicit_one(const struct resolver *s, size_t offset)
{
	switch (offset) {
	case SETTING(region):
		return s->options->region;
	case SETTING(ca_file):
		return s->options->ca_file;
	case SETTING(addressing_name):
		return s->options->addressing;
	default:
		return NULL;
	}
}

static int look(const struct resolver *s, const struct place *place)
{
	struct ckpt_s3_setting *setting =
		(struct ckpt_s3_setting *)(void *)((char *)s->out + place->offset);
	const char *value = explicit_one(s, place->offset);
	enum ckpt_s3_profile_file file;

	if (value)
		return set(s, setting, value, "an option");
	for (size_t i = 0; i < CKPT_COUNT(place->variables) && place->variables[i]; i++) {
		value = ckpt_s3_var(s->vars, place->variables[i]);
		if (value)
			return set(s, setting, value, place->variables[i]);
	}
	value = ckpt_s3_profile_get(
		&s->profiles, s->out->profile.value, place->parent, place->name, &file);
	if (value)
		return set_from_profile(s, setting, value, file);
	return place->other ? set(s, setting, place->other, "the default") : 0;
}

static int look_for_profile(const struct resolver *s)
{
	static const char *const variables[] = {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"};
	struct ckpt_s3_setting *profile = &s->out->profile;
	int r = 0;

	s->out->profile_asked = s->options->profile != NULL;
	if (s->options->profile)
		r = set(s, profile, s->options->profile, "an option");
	for (size_t i = 0; i < CKPT_COUNT(variables) && r == 0 && !profile->value; i++) {
		const char *value = ckpt_s3_var(s->vars, variables[i]);

		if (value)
			r = set(s, profile, value, variables[i]);
	}
	if (r < 0)
		return r;
	if (!profile->value)
		return set(s, profile, "default", "the default");
	if (ckpt_s3_profile_is(&s->profiles, profile->value))
		return 0;
	return ckpt_fail(s->err, -ENOENT,
		"there is no AWS profile '%s' (from %s) in %s%s or %s%s: give another one, or "
		"write it there",
		profile->value, profile->from, s->profiles.path[CKPT_S3_FILE_CONFIG],
		s->profiles.missing[CKPT_S3_FILE_CONFIG] ? " (which cannot be read)" : "",
		s->profiles.path[CKPT_S3_FILE_CREDENTIALS],
		s->profiles.missing[CKPT_S3_FILE_CREDENTIALS] ? " (which cannot be read)" : "");
}

static int refuse(const struct resolver *s, const char *what, const struct ckpt_s3_setting *setting,
	const char *may)
{
	return ckpt_fail(s->err, -EINVAL, "the %s '%s' (from %s) is invalid: it must be %s", what,
		setting->value, setting->from, may);
}

/* "true" or "false"; an empty setting is false. */
static int truth(const struct resolver *s, const char *what, const struct ckpt_s3_setting *setting,
	bool *ret_truth)
{
	*ret_truth = setting->value && strcasecmp(setting->value, "true") == 0;
	if (!setting->value || *ret_truth || strcasecmp(setting->value, "false") == 0)
		return 0;
	return refuse(s, what, setting, "true or false");
}

/* Its index in `names`, which ends with NULL; 0 if it is not set. */
static int choose(const struct resolver *s, const char *what, const struct ckpt_s3_setting *setting,
	const char *const *names, const char *may)
{
	if (!setting->value)
		return 0;
	for (int i = 0; names[i]; i++) {
		if (strcasecmp(setting->value, names[i]) == 0)
			return i;
	}
	return refuse(s, what, setting, may);
}

/* Endpoints. */

/*
 * It is shown in messages and sent with every request, so it must not contain a user, a password or invisible
 * characters.
 */
static int check_endpoint(const struct resolver *s, const struct ckpt_s3_setting *endpoint)
{
	const char *host = endpoint->value;

	if (!host)
		return 0;
	if (strncasecmp(host, "https://", 8) == 0)
		host += 8;
	else if (strncasecmp(host, "http://", 7) == 0)
		host += 7;
	else
		host = "";
	for (const char *c = host; *c; c++) {
		if (*c <= ' ' || *c > '~' || *c == '@')
			host = "";
	}
	if (*host && *host != '/')
		return 0;
	return ckpt_fail(s->err, -EINVAL,
		"the endpoint from %s is invalid: it must be \"https://HOST\" or "
		"\"https://HOST:PORT\" (or http), without a user or a password",
		endpoint->from);
}

static int look_for_endpoint(const struct resolver *s, const char *explicit, const char *variable,
	const char *service, bool ignored, struct ckpt_s3_setting *setting)
{
	const char *profile = s->out->profile.value;
	const char *const variables[] = {variable, "AWS_ENDPOINT_URL"};
	enum ckpt_s3_profile_file file = CKPT_S3_FILE_CONFIG;
	const char *value = NULL;

	if (explicit)
		return set(s, setting, explicit, "an option");
	if (ignored)
		return 0;
	for (size_t i = 0; i < CKPT_COUNT(variables); i++) {
		value = ckpt_s3_var(s->vars, variables[i]);
		if (value)
			return set(s, setting, value, variables[i]);
	}
	value = ckpt_s3_profile_service(&s->profiles, profile, service);
	if (!value)
		value = ckpt_s3_profile_get(&s->profiles, profile, NULL, "endpoint_url", &file);
	return value ? set_from_profile(s, setting, value, file) : 0;
}

static int look_for_endpoints(const struct resolver *s)
{
	static const char what[] = "wish to ignore configured endpoints";
	static const char variable[] = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS";
	const char *said = ckpt_s3_var(s->vars, variable);
	const char *value = said ? said
				 : ckpt_s3_profile_get(&s->profiles, s->out->profile.value, NULL,
					   "ignore_configured_endpoint_urls", NULL);
	/* Borrowed, for the error message. */
	struct ckpt_s3_setting ignore = {
		.value = (char *)value, .from = said ? (char *)variable : s->out->profile.value};
	bool ignored;
	int r = truth(s, what, &ignore, &ignored);

	if (r == 0)
		r = look_for_endpoint(s, s->options->endpoint, "AWS_ENDPOINT_URL_S3", "s3", ignored,
			&s->out->endpoint);
	if (r == 0)
		r = look_for_endpoint(
			s, NULL, "AWS_ENDPOINT_URL_STS", "sts", ignored, &s->out->sts_endpoint);
	if (r == 0)
		r = check_endpoint(s, &s->out->endpoint);
	return r == 0 ? check_endpoint(s, &s->out->sts_endpoint) : r;
}

/* Values. */

/* It is used in host names and signatures. */
static int check_region(const struct resolver *s)
{
	const struct ckpt_s3_setting *region = &s->out->region;
	size_t good = strspn(
		region->value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");

	if (good > 0 && good <= 63 && region->value[good] == 0)
		return 0;
	return ckpt_fail(s->err, -EINVAL,
		"the region '%s' (from %s) is invalid: only letters, digits and '-' are allowed, "
		"at hold",
		region->value, region->from);
}

static int read_attempts(const struct resolver *s)
{
	const struct ckpt_s3_setting *text = &s->out->attempts_text;
	char *end = NULL;
	unsigned long long number;

	s->out->attempts = s->options->attempts;
	if (s->out->attempts > 0 || !text->value)
		return 0;
	errno = 0;
	number = strtoull(text->value, &end, 10);
	if (errno == 0 && *end == 0 && *text->value != '-' && number >= 1 &&
		number <= CKPT_S3_ATTEMPTS_MAX) {
		s->out->attempts = (unsigned)number;
		return 0;
	}
	return refuse(s, "number of attempts", text, "1 to 1000");
}

static int read_names(const struct resolver *s)
{
	static const char *const styles[] = {"auto", "path", "virtual", NULL};
	static const char *const sums[] = {"when_supported", "when_required", NULL};
	static const char *const modes[] = {"legacy", "standard", "adaptive", NULL};
	static const char may[] = "when_supported or when_required";
	struct ckpt_s3_settings *out = s->out;
	int style = choose(
		s, "addressing style", &out->addressing_name, styles, "auto, path or virtual");
	int request =
		choose(s, "request checksum calculation", &out->request_checksums_name, sums, may);
	int response =
		choose(s, "response checksum validation", &out->response_checksums_name, sums, may);
	int mode = choose(s, "retry mode", &out->retry_mode, modes, "legacy, standard or adaptive");

	if (style < 0 || request < 0 || response < 0 || mode < 0)
		return -EINVAL;
	out->addressing = (enum ckpt_s3_addressing)style;
	out->request_checksums = (enum ckpt_s3_checksums)request;
	out->response_checksums = (enum ckpt_s3_checksums)response;
	return 0;
}

/* Expands "~", which no shell has expanded. */
static int expand_ca_file(const struct resolver *s)
{
	struct ckpt_s3_setting *ca = &s->out->ca_file;
	char *path = NULL;
	int r = ca->value ? ckpt_s3_environ_path(s->vars, ca->value, &path) : 0;

	if (r == -ENOMEM)
		return no_memory(s);
	if (r < 0)
		return ckpt_fail(s->err, r,
			"the CA bundle %s (from %s) cannot be found: HOME is not set", ca->value,
			ca->from);
	if (path) {
		ckpt_free(ca->value);
		ca->value = path;
	}
	return 0;
}

static int resolve(const struct resolver *s)
{
	int r = look_for_profile(s);

	for (size_t i = 0; i < CKPT_COUNT(places) && r == 0; i++)
		r = look(s, &places[i]);
	if (r == 0)
		r = look_for_endpoints(s);
	if (r == 0)
		r = check_region(s);
	if (r == 0)
		r = read_attempts(s);
	if (r == 0)
		r = read_names(s);
	if (r == 0)
		r = truth(s, "use of dual-stack endpoints", &s->out->dualstack_text,
			&s->out->dualstack);
	if (r == 0)
		r = truth(s, "use of FIPS endpoints", &s->out->fips_text, &s->out->fips);
	if (r == 0)
		r = expand_ca_file(s);
	return r;
}

int ckpt_s3_settings_resolve(const struct ckpt_s3_options *options,
	const struct ckpt_s3_environ *vars, struct ckpt_error *err,
	struct ckpt_s3_settings *ret_settings)
{
	struct resolver s = {.options = options, .vars = vars, .err = err, .out = ret_settings};
	int r;

	*ret_settings = (struct ckpt_s3_settings){.anonymous = options->anonymous};
	r = ckpt_s3_profiles_read(vars, err, &s.profiles);
	if (r == 0)
		r = resolve(&s);
	ckpt_s3_profiles_clear(&s.profiles);
	if (r < 0)
		ckpt_s3_settings_clear(ret_settings);
	return r;
}

void ckpt_s3_settings_clear(struct ckpt_s3_settings *settings)
{
	struct ckpt_s3_setting *const all[] = {&settings->profile, &settings->region,
		&settings->endpoint, &settings->sts_endpoint, &settings->ca_file,
		&settings->addressing_name, &settings->attempts_text, &settings->retry_mode,
		&settings->request_checksums_name, &settings->response_checksums_name,
		&settings->dualstack_text, &settings->fips_text};

	for (size_t i = 0; i < CKPT_COUNT(all); i++) {
		ckpt_free(all[i]->value);
		ckpt_free(all[i]->from);
	}
	*settings = (struct ckpt_s3_settings){0};
}
