/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where keys come from: the environment, a NUL, ~/.aws/config, a NUL, ~/.aws/credentials. It is found or refused
 * in words, whatever stands there, and no secret is told.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "s3/credential_chain.h"

#define CANARY  "CANARY"
#define LINES   24
#define SECRETS 3

static const char *const secrets[SECRETS] = {
	"\naws_secret_access_key=" CANARY,
	"\naws_session_token=" CANARY,
	"\nAWS_SECRET_ACCESS_KEY=" CANARY,
};

/* All that there is are values of secrets; mutants may have it elsewhere, too. */
static bool all_are_secrets(const char *data, size_t size)
{
	size_t count = 0;

	for (size_t i = 0; i < SECRETS; i++)
		count += fuzz_occurrences(data, size, secrets[i]);
	return count == fuzz_occurrences(data, size, CANARY);
}

/* A file that is in memory, by the name of its descriptor. */
static void put_file(
	int *fd, const char *data, size_t size, const char *variable, char *line, size_t line_size)
{
	if (*fd == 0)
		*fd = memfd_create("fuzz", MFD_CLOEXEC);
	FUZZ_CHECK(*fd > 0 && ftruncate(*fd, 0) == 0);
	FUZZ_CHECK(size == 0 || pwrite(*fd, data, size, 0) == (ssize_t)size);
	(void)snprintf(line, line_size, "%s=/proc/self/fd/%d", variable, *fd);
}

static void check_words(const char *text, bool hidden)
{
	FUZZ_CHECK(fuzz_is_line(text, strlen(text)));
	FUZZ_CHECK(!hidden || !strstr(text, CANARY));
}

static int check_refused(const struct ckpt_error *err, int code, bool hidden)
{
	FUZZ_CHECK(err->code == code && err->message[0]);
	FUZZ_CHECK(code == CKPT_EFORMAT || code == CKPT_EAUTH || code == -EINVAL ||
		   code == -ENOENT || code == -ENOMEM);
	check_words(err->message, hidden);
	return code;
}

static void check_source(const struct ckpt_s3_credential_chain *source, bool hidden)
{
	check_words(source->from, hidden);
	check_words(source->notes, hidden);
	FUZZ_CHECK(source->role_count <= CKPT_S3_ROLES_MAX);
	for (size_t i = 0; i < source->role_count; i++)
		FUZZ_CHECK(source->roles[i].arn && source->roles[i].arn[0]);
	FUZZ_CHECK(source->kind != CKPT_S3_CREDENTIAL_CHAIN_STATIC || source->keys.secret[0]);
	FUZZ_CHECK(source->kind != CKPT_S3_CREDENTIAL_CHAIN_PROCESS || source->command);
	FUZZ_CHECK(source->kind != CKPT_S3_CREDENTIAL_CHAIN_WEB ||
		   (source->token_file && source->web.arn));
}

static void find(const struct ckpt_s3_environ *vars, bool hidden)
{
	const struct ckpt_s3_options options = {.profile = NULL};
	struct ckpt_s3_settings settings = {.attempts = 0};
	struct ckpt_s3_profiles profiles = {.missing = {0}};
	struct ckpt_s3_credential_chain source = {.kind = CKPT_S3_CREDENTIAL_CHAIN_NOBODY};
	struct ckpt_error err = {0};
	int r = ckpt_s3_settings_resolve(&options, vars, &err, &settings);

	if (r < 0) {
		(void)check_refused(&err, r, hidden);
		return;
	}
	FUZZ_CHECK(settings.profile.value && settings.region.value);
	FUZZ_CHECK(settings.attempts <= CKPT_S3_ATTEMPTS_MAX);
	r = ckpt_s3_profiles_read(vars, &err, &profiles);
	if (r == 0)
		r = ckpt_s3_credential_chain_find(vars, &settings, &profiles, &err, &source);
	if (r < 0)
		(void)check_refused(&err, r, hidden);
	else
		check_source(&source, hidden);
	ckpt_s3_credential_chain_clear(&source);
	ckpt_s3_profiles_clear(&profiles);
	ckpt_s3_settings_clear(&settings);
}

/* Variables that lead to files, or to a home, are ours. */
static bool is_ours(const char *line)
{
	return strncmp(line, "HOME=", 5) == 0 || strncmp(line, "AWS_CONFIG_FILE=", 16) == 0 ||
	       strncmp(line, "AWS_SHARED_CREDENTIALS_FILE=", 28) == 0;
}

static const char *part(char **text, const char *end, size_t *ret_length)
{
	char *begin = *text;
	char *stop = memchr(begin, 0, (size_t)(end - begin));

	*ret_length = (size_t)((stop ? stop : end) - begin);
	*text = stop ? stop + 1 : (char *)end;
	return begin;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fds[CKPT_S3_FILES];
	const char *lines[LINES + 4] = {"HOME=/nonexistent"};
	char paths[CKPT_S3_FILES][64];
	char *text = malloc(size + 2);
	char *at = text + 1;
	struct ckpt_s3_environ vars = {.lines = NULL};
	struct ckpt_error err = {0};
	size_t count = 3;
	size_t length;
	bool hidden;

	FUZZ_CHECK(text);
	text[0] = '\n';
	memcpy(text + 1, data, size);
	text[size + 1] = 0;
	hidden = all_are_secrets(text, size + 1);
	char *environment = (char *)part(&at, text + 1 + size, &length);
	const char *config = part(&at, text + 1 + size, &length);
	put_file(&fds[CKPT_S3_FILE_CONFIG], config, length, "AWS_CONFIG_FILE", paths[0],
		sizeof(paths[0]));
	put_file(&fds[CKPT_S3_FILE_CREDENTIALS], at, (size_t)(text + 1 + size - at),
		"AWS_SHARED_CREDENTIALS_FILE", paths[1], sizeof(paths[1]));
	lines[1] = paths[0];
	lines[2] = paths[1];
	for (char *line; count < LINES && (line = strsep(&environment, "\n"));) {
		if (*line && !is_ours(line))
			lines[count++] = line;
	}
	FUZZ_CHECK(ckpt_s3_environ_take(lines, &err, &vars) == 0);
	fuzz_memory_begin(0);
	find(&vars, hidden);
	/* Each file is read twice, into memory for the longest that may be. */
	count = fuzz_memory_end((UINT64_C(5) << 20) + 1024 * (uint64_t)size);
	fuzz_memory_begin(1 + size % (count + 1));
	find(&vars, hidden);
	(void)fuzz_memory_end(UINT64_MAX);
	ckpt_s3_environ_clear(&vars);
	free(text);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char *const pieces[] = {"\n[default]\n", "\n[profile a]\n", "\n[profile b]\n",
		"\n[a]\n", "\n[b]\n", "\nsource_profile=a\n", "\nsource_profile=b\n",
		"\nrole_arn=arn:aws:iam::1:role/r\n", "\ncredential_source=Environment\n",
		"\ncredential_source=Ec2InstanceMetadata\n", "\naws_access_key_id=A\n",
		"\naws_secret_access_key=" CANARY "\n", "\naws_session_token=" CANARY "\n",
		"\ncredential_process=p x\n", "\nweb_identity_token_file=/t\n", "\nsso_session=s\n",
		"\nmfa_serial=1\n", "\nduration_seconds=900\n", "\nexternal_id=x\n",
		"\nAWS_PROFILE=a\n", "\nAWS_ACCESS_KEY_ID=A\n",
		"\nAWS_SECRET_ACCESS_KEY=" CANARY "\n", "\nAWS_ROLE_ARN=arn\n",
		"\nAWS_WEB_IDENTITY_TOKEN_FILE=/t\n",
		"\nAWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1/\n",
		"\nAWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/x\n", "\nAWS_MAX_ATTEMPTS=3\n",
		"\nAWS_ENDPOINT_URL=http://h\n", "\nAWS_REGION=eu\n", "\nregion=eu\n",
		"\ns3=\n addressing_style=path\n",
		"\nservices=w\n[services w]\ns3=\n endpoint_url=http://h\n", "\nmax_attempts=9\n",
		"=", "\n"};
	struct prng prng = {seed};

	if (prng_below(&prng, 4) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 16) == 0 && size < max) {
		/* One more file. */
		size_t at = prng_below(&prng, size + 1);
		memmove(data + at + 1, data + at, size - at);
		data[at] = '\0';
		return size + 1;
	}
	return fuzz_mutate_pieces(
		data, size, max, &prng, pieces, sizeof(pieces) / sizeof(pieces[0]));
}
