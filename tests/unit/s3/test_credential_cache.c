/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys are got from every source, got anew in time, kept while they hold when that fails, and nothing of them is ever
 * told or left behind in memory: every secret here holds CANARY, and every block that is freed is looked through.
 */
#include "lib/test.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "key_rig.h"

#define CANARY "CANARYCANARY"
#define SECRET "\"SecretAccessKey\":\"" CANARY "\""
#define MINUTE 60
#define LATER  "2027-01-15T09:00:00Z" /* an hour after the beginning */

static struct key_rig rig;
static bool looking; /* through what is freed */

/* What the linker makes of the product's names. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void __real_ckpt_free(void *ptr);
void *__real_ckpt_realloc_array(void *ptr, size_t count, size_t size);
void __wrap_ckpt_free(void *ptr);
void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size);

static void look_through(void *ptr)
{
	if (ptr && looking)
		assert_null(memmem(ptr, malloc_usable_size(ptr), CANARY, strlen(CANARY)));
}

void __wrap_ckpt_free(void *ptr)
{
	look_through(ptr);
	__real_ckpt_free(ptr);
}

void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size)
{
	look_through(ptr);
	return __real_ckpt_realloc_array(ptr, count, size);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static int setup(void **state)
{
	(void)state;
	key_rig_make(&rig);
	looking = true;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	key_rig_close(&rig, CANARY);
	looking = false;
	return 0;
}

static int want(void)
{
	int r = key_rig_want(&rig);

	assert_null(strstr(rig.err.message, CANARY));
	assert_null(strstr(ckpt_s3_credential_cache_from(rig.credentials), CANARY));
	assert_true(r == 0 || rig.err.message[0]);
	return r;
}

static const struct ckpt_s3_credentials *keys(void)
{
	return ckpt_s3_credential_cache_keys(rig.credentials);
}

static void check_keys(const char *access, const char *token)
{
	assert_int_equal(want(), 0);
	assert_string_equal(keys()->access, access);
	assert_string_equal(keys()->secret, CANARY);
	if (token)
		assert_string_equal(keys()->token, token);
	else
		assert_null(keys()->token);
}

static void check_fails(int code, const char *why)
{
	assert_int_equal(want(), code);
	if (!strstr(rig.err.message, why))
		print_error("%s\n", rig.err.message);
	assert_non_null(strstr(rig.err.message, why));
}

/* Sources. */

static void test_environment(void **state)
{
	(void)state;
	key_rig_set(&rig, "AWS_ACCESS_KEY_ID=A");
	key_rig_set(&rig, "AWS_SECRET_ACCESS_KEY=" CANARY);
	key_rig_set(&rig, "AWS_SESSION_TOKEN=" CANARY);
	assert_int_equal(key_rig_open(&rig), 0);
	check_keys("A", CANARY);
	key_rig_sleep(&rig, 100000);
	check_keys("A", CANARY);
	assert_int_equal(rig.asked, 0);
	assert_string_equal(ckpt_s3_credential_cache_from(rig.credentials), "the environment");
}

static void test_anonymous(void **state)
{
	(void)state;
	rig.options.anonymous = true;
	assert_int_equal(key_rig_open(&rig), 0);
	assert_int_equal(want(), 0);
	assert_null(keys());
}

static void test_process(void **state)
{
	(void)state;
	key_rig_put(&rig, ".aws/config",
		"[default]\ncredential_process = /bin/sh -c 'cat $HOME/out 2>&-' " CANARY "\n");
	key_rig_set(&rig, "PATH=/usr/bin:/bin");
	assert_int_equal(key_rig_open(&rig), 0);
	check_fails(
		CKPT_EAUTH, "the credential_process of profile 'default' in ~/.aws/config failed");
	key_rig_put(&rig, "out", "{\"Version\":1, \"" CANARY);
	check_fails(CKPT_EFORMAT, "malformed");
	key_rig_put(&rig, "out",
		"{\"Version\":1,\"AccessKeyId\":\"P\"," SECRET ",\"Expiration\":\"" LATER "\"}");
	check_keys("P", NULL);
	assert_int_equal(rig.asked, 0);
}

static struct key_answer container(
	struct key_rig *r, const struct ckpt_http_req *req, unsigned number)
{
	const char *token = key_rig_header(req, "authorization");

	(void)r;
	assert_non_null(token);
	assert_string_equal(token, CANARY);
	if (number == 1)
		return (struct key_answer){.status = 500, .text = CANARY};
	if (number == 2)
		return (struct key_answer){.status = 404, .text = CANARY};
	return (struct key_answer){.status = 200,
		.text = "{\"AccessKeyId\":\"C\"," SECRET ",\"Token\":\"" CANARY
			"\",\"Expiration\":\"" LATER "\"}"};
}

static void test_container(void **state)
{
	(void)state;
	key_rig_put(&rig, "token", CANARY "\n");
	key_rig_set(&rig, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/v2/x");
	key_rig_set(&rig, "AWS_CONTAINER_AUTHORIZATION_TOKEN=other");
	key_rig_set(&rig, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=~/token");
	rig.answer = container;
	assert_int_equal(key_rig_open(&rig), 0);
	check_fails(CKPT_EAUTH, "the container's credentials service answered 404");
	check_keys("C", CANARY);
	assert_string_equal(rig.urls,
		"GET http://169.254.170.2/v2/x\nGET http://169.254.170.2/v2/x\n"
		"GET http://169.254.170.2/v2/x\n");
}

static void test_hosts_of_containers(void **state)
{
	static const struct {
		const char *uri;
		bool may;
	} cases[] = {
		{"http://localhost:80/x", true},
		{"http://127.0.0.1/x", true},
		{"http://127.255.1.2:8080", true},
		{"http://[::1]:1/x", true},
		{"http://169.254.170.23/v1/credentials", true},
		{"http://[fd00:ec2::23]/v1/credentials", true},
		{"https://anything.example/x", true},
		{"http://example.com/x", false},
		{"http://127.0.0.1.example.com/x", false},
		{"http://169.254.170.2@example.com/x", false},
		{"http://localhost.example.com", false},
		{"https://@example.com", false},
		{"http://169.254.169.254/x", false},
		{"http://example.com/127.0.0.1", false},
		{"http:///x", false},
		{"ftp://localhost/x", false},
		{"http://localhost/a b", false},
	};
	char line[256];

	(void)state;
	rig.lines[1] = line;
	for (size_t i = 0; i < COUNT(cases); i++) {
		(void)snprintf(
			line, sizeof(line), "AWS_CONTAINER_CREDENTIALS_FULL_URI=%s", cases[i].uri);
		rig.asked = 0;
		rig.urls[0] = 0;
		assert_int_equal(key_rig_open(&rig), 0);
		assert_true(want() < 0);
		assert_int_equal(rig.asked, cases[i].may ? 3 : 0);
		ckpt_s3_credential_cache_close(rig.credentials);
		rig.credentials = NULL;
		ckpt_s3_settings_clear(&rig.settings);
		ckpt_s3_environ_clear(&rig.vars);
	}
}

static struct key_answer instance(
	struct key_rig *r, const struct ckpt_http_req *req, unsigned number)
{
	static const char keys_text[] = "{\"Code\":\"Success\",\"AccessKeyId\":\"I\"," SECRET
					",\"Token\":\"" CANARY "\",\"Expiration\":\"" LATER "\"}";

	(void)r;
	if (req->method == CKPT_HTTP_PUT) {
		assert_string_equal(
			key_rig_header(req, "x-aws-ec2-metadata-token-ttl-seconds"), "21600");
		return (struct key_answer){.status = number == 1 ? 503 : 200, .text = CANARY};
	}
	assert_string_equal(key_rig_header(req, "x-aws-ec2-metadata-token"), CANARY);
	if (strcmp(strrchr(req->url, '/'), "/") == 0)
		return (struct key_answer){.status = 200, .text = "my-role\n"};
	return (struct key_answer){.status = 200, .text = keys_text};
}

static void test_instance(void **state)
{
	(void)state;
	rig.answer = instance;
	assert_int_equal(key_rig_open(&rig), 0);
	check_keys("I", CANARY);
	assert_string_equal(rig.urls,
		"PUT http://169.254.169.254/latest/api/token\nPUT "
		"http://169.254.169.254/latest/api/token\n"
		"GET http://169.254.169.254/latest/meta-data/iam/security-credentials/\n"
		"GET http://169.254.169.254/latest/meta-data/iam/security-credentials/my-role\n");
}

static void test_nobody_answers(void **state)
{
	(void)state;
	key_rig_set(&rig, "AWS_METADATA_SERVICE_NUM_ATTEMPTS=3");
	key_rig_set(&rig, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6");
	assert_int_equal(key_rig_open(&rig), 0);
	check_fails(-ETIMEDOUT, "the instance metadata service did not answer (3 of 3 tries)");
	assert_non_null(strstr(rig.err.message, "the environment: AWS_ACCESS_KEY_ID is not set"));
	assert_non_null(strstr(rig.err.message, "~/.aws/credentials: No such file"));
	assert_int_equal(rig.asked, 3);
	assert_non_null(strstr(rig.urls, "PUT http://[fd00:ec2::254]/latest/api/token\n"));
}

#define STS(access)                                                                                \
	"<R><Credentials><AccessKeyId>" access "</AccessKeyId><SecretAccessKey>" CANARY            \
	"</SecretAccessKey><SessionToken>" CANARY "</SessionToken><Expiration>" LATER              \
	"</Expiration></Credentials></R>"

static struct key_answer web(struct key_rig *r, const struct ckpt_http_req *req, unsigned number)
{
	(void)r;
	assert_int_equal(req->method, CKPT_HTTP_POST);
	assert_non_null(strstr(req->body, "WebIdentityToken=" CANARY));
	assert_int_equal(req->body_length, strlen(req->body));
	assert_null(key_rig_header(req, "authorization"));
	if (number == 1)
		return (struct key_answer){.status = 400,
			.text = "<E><Error><Code>ExpiredTokenException</Code><Message>no: " CANARY
				"</Message></Error></E>"};
	return (struct key_answer){.status = 200, .text = STS("W")};
}

static void test_web_identity(void **state)
{
	(void)state;
	key_rig_set(&rig, "AWS_ROLE_ARN=arn:role");
	key_rig_set(&rig, "AWS_WEB_IDENTITY_TOKEN_FILE=~/token");
	key_rig_set(&rig, "AWS_REGION=eu-x-1");
	rig.answer = web;
	assert_int_equal(key_rig_open(&rig), 0);
	check_fails(-ENOENT, "cannot be read from ~/token");
	key_rig_put(&rig, "token", CANARY "\nx");
	check_fails(CKPT_EAUTH, "contains a line break");
	key_rig_put(&rig, "token", CANARY);
	check_fails(CKPT_EAUTH, "400 ExpiredTokenException");
	check_keys("W", CANARY);
	assert_string_equal(rig.urls,
		"POST https://sts.eu-x-1.amazonaws.com/\nPOST https://sts.eu-x-1.amazonaws.com/\n");
}

static bool second_is_good;

/* Each role with the keys of the one before. */
static struct key_answer roles(struct key_rig *r, const struct ckpt_http_req *req, unsigned number)
{
	const char *signature = key_rig_header(req, "authorization");

	(void)r;
	assert_non_null(signature);
	assert_non_null(strstr(signature, "/eu-x-1/sts/aws4_request"));
	assert_non_null(key_rig_header(req, "x-amz-date"));
	if (number == 1) {
		assert_non_null(strstr(signature, "Credential=K/"));
		assert_non_null(strstr(req->body, "Action=AssumeRole&"));
		assert_non_null(strstr(req->body, "RoleArn=rb&"));
		return (struct key_answer){.status = 200, .text = STS("B")};
	}
	assert_non_null(strstr(signature, "Credential=B/"));
	assert_string_equal(key_rig_header(req, "x-amz-security-token"), CANARY);
	assert_non_null(strstr(req->body, "RoleArn=ra&"));
	if (!second_is_good)
		return (struct key_answer){.status = 403,
			.text = "<E><Error><Code>SignatureDoesNotMatch</"
				"Code><Message>x-amz-security-token:" CANARY
				"</Message></Error></E>"};
	return (struct key_answer){.status = 200, .text = STS("A")};
}

static void test_roles(void **state)
{
	(void)state;
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nregion=eu-x-1\nrole_arn=ra\nsource_profile=b\n[profile "
		"b]\nrole_arn=rb\n"
		"source_profile=c\n[profile c]\naws_access_key_id=K\naws_secret_access_key=" CANARY
		"\n");
	rig.options.profile = "a";
	rig.answer = roles;
	assert_int_equal(key_rig_open(&rig), 0);
	check_fails(CKPT_EAUTH, "the role ra of profile 'c' in ~/.aws/config: status 403 "
				"SignatureDoesNotMatch");
	rig.answer = NULL;
	check_fails(-ETIMEDOUT, "STS did not answer (3 of 3 tries)");
	rig.answer = roles;
	rig.asked = 0;
	second_is_good = true;
	check_keys("A", CANARY);
}

/* In time. */

static char text[512];

static struct key_answer from_text(
	struct key_rig *r, const struct ckpt_http_req *req, unsigned number)
{
	(void)r;
	(void)req;
	(void)number;
	return (struct key_answer){.status = *text ? 200 : 400, .text = text};
}

/* What the container gives from now on: keys of that name, which hold for so many minutes. Negative: it fails. */
static void give(const char *access, int minutes)
{
	uint64_t s = rig.wall_s - KEY_RIG_WALL + (uint64_t)(minutes > 0 ? minutes : 0) * MINUTE;

	text[0] = 0;
	if (minutes < 0)
		return;
	assert_true(s < 16 * 3600);
	(void)snprintf(text, sizeof(text),
		"{\"AccessKeyId\":\"%s\"," SECRET ",\"Token\":\"" CANARY
		"\",\"Expiration\":\"2027-01-15T%02u:%02u:%02uZ\"}",
		access, (unsigned)(8 + s / 3600), (unsigned)(s / 60 % 60), (unsigned)(s % 60));
}

static void open_container(void)
{
	key_rig_set(&rig, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://localhost/");
	rig.answer = from_text;
	assert_int_equal(key_rig_open(&rig), 0);
}

static void test_refresh(void **state)
{
	(void)state;
	open_container();
	rig.random = 0;
	give("K1", 60);
	check_keys("K1", CANARY);
	give("K2", 105);
	key_rig_sleep(&rig, 45 * MINUTE - 1);
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 1);
	/* A quarter of an hour before: they are given out, and others are got meanwhile. */
	key_rig_sleep(&rig, 2);
	rig.hold = true;
	check_keys("K1", CANARY);
	check_keys("K1", CANARY);
	rig.hold = false;
	key_rig_run(&rig);
	assert_int_equal(rig.asked, 2);
	check_keys("K2", CANARY);
	assert_int_equal(rig.asked, 2);
}

/* Not all ranks at once. */
static void test_refresh_is_spread(void **state)
{
	(void)state;
	open_container();
	rig.random = 4 * MINUTE;
	give("K1", 60);
	check_keys("K1", CANARY);
	key_rig_sleep(&rig, 48 * MINUTE);
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 1);
	key_rig_sleep(&rig, 2 * MINUTE);
	check_keys("K1", CANARY);
	key_rig_run(&rig);
	assert_int_equal(rig.asked, 2);
}

static void test_waited_for(void **state)
{
	(void)state;
	open_container();
	give("K1", 60);
	check_keys("K1", CANARY);
	key_rig_sleep(&rig, 51 * MINUTE);
	give("K2", 60);
	check_keys("K2", CANARY);
}

static void test_kept_when_that_fails(void **state)
{
	(void)state;
	open_container();
	give("K1", 60);
	check_keys("K1", CANARY);
	give("", -1);
	key_rig_sleep(&rig, 55 * MINUTE);
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 2);
	/* And is not tried again at once. */
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 2);
	key_rig_sleep(&rig, 41);
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 3);
	/* Within their last minute they are not signed with. */
	key_rig_sleep(&rig, 3 * MINUTE + 20);
	check_fails(CKPT_EAUTH, "answered 400");
	give("K2", 60);
	check_keys("K2", CANARY);
}

static void test_expired_already(void **state)
{
	(void)state;
	open_container();
	give("K1", 0);
	check_fails(CKPT_EAUTH, "by the clock of this machine");
	give("K1", 2);
	check_keys("K1", CANARY);
}

/* Short-lived keys are not got anew for every request. */
static void test_short_lived(void **state)
{
	(void)state;
	open_container();
	give("K1", 12);
	check_keys("K1", CANARY);
	key_rig_sleep(&rig, 7 * MINUTE);
	check_keys("K1", CANARY);
	assert_int_equal(rig.asked, 1);
	key_rig_sleep(&rig, 3 * MINUTE);
	give("K2", 12);
	check_keys("K2", CANARY);
}

static uint64_t serial(void)
{
	struct ckpt_s3_want w;

	ckpt_s3_credential_cache_want(rig.credentials, &w, NULL);
	assert_true(w.done && w.result == 0);
	return w.serial;
}

static void test_server_calls_them_expired(void **state)
{
	uint64_t first;

	(void)state;
	open_container();
	give("K1", 60);
	check_keys("K1", CANARY);
	first = serial();
	ckpt_s3_credential_cache_expired(rig.credentials, first);
	give("K2", 60);
	check_keys("K2", CANARY);
	assert_int_equal(rig.asked, 2);
	/* Others were sent with the first ones, and hear of it later. */
	ckpt_s3_credential_cache_expired(rig.credentials, first);
	check_keys("K2", CANARY);
	assert_int_equal(rig.asked, 2);
	/* The same again are no help, and neither are none: old ones are not given out. */
	ckpt_s3_credential_cache_expired(rig.credentials, serial());
	check_fails(CKPT_EAUTH, "the server says that the keys");
	give("", -1);
	check_fails(CKPT_EAUTH, "answered 400");
	give("K3", 60);
	check_keys("K3", CANARY);
}

/* Somebody has written others into the file. */
static void test_file_is_read_again(void **state)
{
	(void)state;
	key_rig_put(&rig, ".aws/credentials",
		"[default]\naws_access_key_id=F1\naws_secret_access_key=" CANARY "\n");
	assert_int_equal(key_rig_open(&rig), 0);
	check_keys("F1", NULL);
	key_rig_put(&rig, ".aws/credentials",
		"[default]\naws_access_key_id=F2\naws_secret_access_key=" CANARY "\n");
	check_keys("F1", NULL);
	ckpt_s3_credential_cache_expired(rig.credentials, serial());
	check_keys("F2", NULL);
}

static void test_one_for_all(void **state)
{
	struct ckpt_s3_want wants[3];

	(void)state;
	open_container();
	give("K1", 60);
	for (size_t i = 0; i < COUNT(wants); i++)
		ckpt_s3_credential_cache_want(rig.credentials, &wants[i], NULL);
	ckpt_s3_credential_cache_unwant(rig.credentials, &wants[1]);
	key_rig_run(&rig);
	assert_int_equal(rig.asked, 1);
	assert_true(wants[0].done && !wants[1].done && wants[2].done);
	ckpt_s3_credential_cache_unwant(rig.credentials, &wants[0]);
}

static void test_stop(void **state)
{
	struct ckpt_s3_want w;

	(void)state;
	open_container();
	give("K1", 60);
	rig.hold = true;
	ckpt_s3_credential_cache_want(rig.credentials, &w, NULL);
	key_rig_run(&rig);
	assert_false(w.done || ckpt_s3_credential_cache_idle(rig.credentials, NULL));
	ckpt_s3_credential_cache_stop(rig.credentials);
	key_rig_run(&rig);
	assert_true(w.done && ckpt_s3_credential_cache_idle(rig.credentials, NULL));
	assert_int_equal(w.result, -ECANCELED);
	ckpt_s3_credential_cache_want(rig.credentials, &w, NULL);
	assert_true(w.done && w.result == -ECANCELED);
}

static void test_stop_between_tries(void **state)
{
	struct ckpt_s3_want w;

	(void)state;
	open_container();
	rig.answer = NULL;
	ckpt_s3_credential_cache_want(rig.credentials, &w, NULL);
	key_rig_run(&rig);
	assert_int_equal(rig.asked, 1);
	assert_false(w.done);
	ckpt_s3_credential_cache_stop(rig.credentials);
	key_rig_run(&rig);
	assert_true(w.done && w.result == -ECANCELED);
}

static bool fail_one(void *user, size_t size)
{
	(void)size;
	return (*(int *)user)-- == 0;
}

/* Whichever allocation fails: it is said, nothing stays behind, and the next time it goes well. */
static void test_no_memory(void **state)
{
	int r = -ENOMEM;

	(void)state;
	key_rig_put(&rig, "token", CANARY);
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nrole_arn=ra\nsource_profile=b\n[profile b]\nrole_arn=rb\n"
		"web_identity_token_file=~/token\n");
	rig.options.profile = "a";
	rig.answer = from_text;
	(void)snprintf(text, sizeof(text), "%s", STS("W"));
	assert_int_equal(key_rig_open(&rig), 0);
	for (int at = 0; r < 0; at++) {
		int left = at;

		assert_true(at < 400);
		ckpt_alloc_set_hook(fail_one, &left);
		r = want();
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		if (left >= 0)
			break;
		ckpt_s3_credential_cache_expired(rig.credentials, 1);
		/* Others than these. */
		text[strlen("<R><Credentials><AccessKeyId>")] ^= 1;
		r = -ENOMEM;
	}
	check_keys(keys()->access, CANARY);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_environment),
		T(test_anonymous),
		T(test_process),
		T(test_container),
		T(test_hosts_of_containers),
		T(test_instance),
		T(test_nobody_answers),
		T(test_web_identity),
		T(test_roles),
		T(test_refresh),
		T(test_refresh_is_spread),
		T(test_waited_for),
		T(test_kept_when_that_fails),
		T(test_expired_already),
		T(test_short_lived),
		T(test_server_calls_them_expired),
		T(test_file_is_read_again),
		T(test_one_for_all),
		T(test_stop),
		T(test_stop_between_tries),
		T(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
