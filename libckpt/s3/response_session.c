/* SPDX-License-Identifier: Apache-2.0 */
/* Parses keys in responses of STS. */
#include "s3/response_session.h"

#include <string.h>

#include "base/alloc.h"
#include "s3/response_field.h"

struct session_read {
	const char *file;
	struct ckpt_error *err;
	struct ckpt_s3_session session;
};

/* The path below the two outer elements, which are named after the action; NULL: another path. */
static const char *below(const char *path)
{
	static const char *const roots[] = {"AssumeRoleResponse/AssumeRoleResult/",
		"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/"};

	for (size_t i = 0; i < CKPT_COUNT(roots); i++) {
		if (strncmp(path, roots[i], strlen(roots[i])) == 0)
			return path + strlen(roots[i]);
	}
	return NULL;
}

static int end(void *user, const char *path, const char *text, size_t length)
{
	struct session_read *s = user;
	struct ckpt_s3_session *session = &s->session;
	const struct ckpt_s3_field field = {s->file, s->err, path, text, length};
	const char *name = below(path);

	if (!name)
		return 0;
	if (strcmp(name, "Credentials/AccessKeyId") == 0)
		return ckpt_s3_field_line(&field, session->access, sizeof(session->access));
	if (strcmp(name, "Credentials/SecretAccessKey") == 0)
		return ckpt_s3_field_line(&field, session->secret, sizeof(session->secret));
	if (strcmp(name, "Credentials/SessionToken") == 0) {
		ckpt_s3_session_clear(&(struct ckpt_s3_session){.token = session->token});
		session->token = NULL;
		return ckpt_s3_field_copy(&field, &session->token);
	}
	if (strcmp(name, "Credentials/Expiration") == 0)
		ckpt_s3_field_date(&field, &session->expires_s);
	return 0;
}

/* Whether all fields are there. */
static int check(const struct session_read *s)
{
	const struct ckpt_s3_session *session = &s->session;
	const struct ckpt_s3_field field = {.file = s->file, .err = s->err, .path = "Credentials"};

	if (!session->access[0] || !session->secret[0] || !session->token || !session->token[0])
		return ckpt_s3_field_fail(&field, "are incomplete");
	if (session->expires_s == 0)
		return ckpt_s3_field_fail(&field, "have no expiry date");
	return 0;
}

int ckpt_s3_session_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_session *ret_session)
{
	static const struct ckpt_s3_xml_calls calls = {NULL, end};
	struct session_read s = {.file = file, .err = err};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &s, err);

	if (r == 0)
		r = check(&s);
	if (r == 0)
		*ret_session = s.session;
	else
		ckpt_s3_session_clear(&s.session);
	explicit_bzero(&s, sizeof(s));
	return r;
}

void ckpt_s3_session_clear(struct ckpt_s3_session *session)
{
	if (session->token)
		explicit_bzero(session->token, strlen(session->token));
	ckpt_free(session->token);
	explicit_bzero(session, sizeof(*session));
}
