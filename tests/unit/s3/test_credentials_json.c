/* SPDX-License-Identifier: Apache-2.0 */
/* Keys as they are given: by programs and services in JSON, by STS in XML. What is wrong is told without them. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "s3/credentials_json.h"
#include "s3/sts.h"

static struct ckpt_error err;
static struct ckpt_s3_credentials keys;

static int json(const char *text, enum ckpt_s3_credentials_kind kind)
{
	int r;

	ckpt_error_clear(&err);
	r = ckpt_s3_credentials_json(text, strlen(text), kind, "W", &err, &keys);
	assert_true(
		r == 0 || (err.message[0] && !keys.access[0] && !keys.secret[0] && !keys.token));
	assert_null(strstr(err.message, "CANARY"));
	return r;
}

static void test_json(void **state)
{
	(void)state;
	assert_int_equal(
		json("{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\\u002f\","
		     "\"SessionToken\":\"T\",\"Expiration\":\"2027-01-15T09:00:00+00:00\",\"x\":[{}"
		     "]}\n",
			CKPT_S3_CREDENTIALS_PROCESS),
		0);
	assert_string_equal(keys.access, "A");
	assert_string_equal(keys.secret, "S/");
	assert_string_equal(keys.token, "T");
	assert_true(keys.expires_s == 1800003600);
	ckpt_s3_credentials_clear(&keys);
	assert_int_equal(keys.secret[0], 0);
	assert_int_equal(json("{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\","
			      "\"SessionToken\":null,\"Token\":\"no\"}",
				 CKPT_S3_CREDENTIALS_PROCESS),
		0);
	assert_null(keys.token);
	assert_true(keys.expires_s == 0);
	ckpt_s3_credentials_clear(&keys);
	assert_int_equal(json("{\"Code\":\"Success\",\"LastUpdated\":\"x\",\"Type\":\"AWS-HMAC\","
			      "\"AccessKeyId\":\"A\","
			      "\"SecretAccessKey\":\"S\",\"Token\":\"T\",\"Expiration\":\"2027-01-"
			      "15T08:00:00Z\"}",
				 CKPT_S3_CREDENTIALS_SERVER),
		0);
	assert_string_equal(keys.token, "T");
	ckpt_s3_credentials_clear(&keys);
}

static void test_json_refused(void **state)
{
	static const struct {
		const char *text;
		enum ckpt_s3_credentials_kind kind;
		int code;
		const char *why;
	} cases[] = {
		{"", CKPT_S3_CREDENTIALS_SERVER, CKPT_EFORMAT, "malformed"},
		{"CANARY", CKPT_S3_CREDENTIALS_SERVER, CKPT_EFORMAT, "malformed"},
		{"{\"AccessKeyId\":\"CANARY\"}", CKPT_S3_CREDENTIALS_SERVER, CKPT_EFORMAT,
			"missing"},
		{"{\"AccessKeyId\":\"CANARY\",\"SecretAccessKey\":\"CANARY\"}",
			CKPT_S3_CREDENTIALS_PROCESS, CKPT_EFORMAT, "Version"},
		{"{\"Version\":2,\"AccessKeyId\":\"CANARY\",\"SecretAccessKey\":\"CANARY\"}",
			CKPT_S3_CREDENTIALS_PROCESS, CKPT_EFORMAT, "Version"},
		{"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"CANARY\\n\"}",
			CKPT_S3_CREDENTIALS_SERVER, CKPT_EAUTH,
			"secret access key contains a line break"},
		{"{\"AccessKeyId\":\"CANARY/x\",\"SecretAccessKey\":\"S\"}",
			CKPT_S3_CREDENTIALS_SERVER, CKPT_EAUTH, "access key id contains a '/'"},
		{"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":\"CANARY x\"}",
			CKPT_S3_CREDENTIALS_SERVER, CKPT_EAUTH, "session token holds a character"},
		{"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Expiration\":\"CANARY\"}",
			CKPT_S3_CREDENTIALS_SERVER, CKPT_EFORMAT, "Expiration"},
		{"{\"Code\":\"AssumeRoleUnauthorizedAccess\"}", CKPT_S3_CREDENTIALS_SERVER,
			CKPT_EAUTH, "'AssumeRoleUnauthorizedAccess'"},
		{"{\"Code\":\"CANARY <x>\"}", CKPT_S3_CREDENTIALS_SERVER, CKPT_EAUTH, "refused"},
		{"{\"AccessKeyId\":\"A\",\"AccessKeyId\":\"B\"}", CKPT_S3_CREDENTIALS_SERVER,
			CKPT_EFORMAT, "twice"},
		{"{\"AccessKeyId\":[\"CANARY\"]}", CKPT_S3_CREDENTIALS_SERVER, CKPT_EFORMAT,
			"malformed"},
	};
	char longest[2 * CKPT_S3_TOKEN_MAX];
	char *at = longest;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(json(cases[i].text, cases[i].kind), cases[i].code);
		assert_non_null(strstr(err.message, cases[i].why));
		assert_non_null(strstr(err.message, "W"));
	}
	at += snprintf(longest, sizeof(longest),
		"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":\"");
	memset(at, 't', CKPT_S3_TOKEN_MAX);
	(void)snprintf(at + CKPT_S3_TOKEN_MAX, 8, "\"}");
	assert_int_equal(json(longest, CKPT_S3_CREDENTIALS_SERVER), 0);
	assert_int_equal(strlen(keys.token), CKPT_S3_TOKEN_MAX);
	ckpt_s3_credentials_clear(&keys);
	(void)snprintf(at + CKPT_S3_TOKEN_MAX, 8, "t\"}");
	assert_int_equal(json(longest, CKPT_S3_CREDENTIALS_SERVER), CKPT_EAUTH);
	assert_non_null(strstr(err.message, "too long"));
	memset(longest, '[', 1000);
	longest[1000] = 0;
	assert_int_equal(json(longest, CKPT_S3_CREDENTIALS_SERVER), CKPT_EFORMAT);
}

#define CREDENTIALS(token, date)                                                                   \
	"<R xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>"   \
	"<AccessKeyId>A</AccessKeyId><SecretAccessKey>S/&amp;+</"                                  \
	"SecretAccessKey><SessionToken>" token "</SessionToken><Expiration>" date                  \
	"</Expiration></Credentials></AssumeRoleResult></R>"

static int xml(int status, const char *text, const char *token)
{
	int r;

	ckpt_error_clear(&err);
	r = ckpt_s3_sts_reply(status, text, text ? strlen(text) : 0, token, "W", &err, &keys);
	assert_true(
		r == 0 || (err.message[0] && !keys.access[0] && !keys.secret[0] && !keys.token));
	assert_null(strstr(err.message, "CANARY"));
	return r;
}

static void test_sts(void **state)
{
	(void)state;
	assert_int_equal(xml(200, CREDENTIALS("T==", "2027-01-15T08:00:01Z"), NULL), 0);
	assert_string_equal(keys.access, "A");
	assert_string_equal(keys.secret, "S/&+");
	assert_string_equal(keys.token, "T==");
	assert_true(keys.expires_s == 1800000001);
	ckpt_s3_credentials_clear(&keys);
	assert_int_equal(xml(200, CREDENTIALS("T", "CANARY"), NULL), CKPT_EFORMAT);
	assert_int_equal(xml(200, CREDENTIALS("", "2027-01-15T08:00:01Z"), NULL), CKPT_EFORMAT);
	assert_int_equal(xml(200, "<CANARY", NULL), CKPT_EFORMAT);
	assert_int_equal(xml(200, NULL, NULL), CKPT_EFORMAT);
	assert_int_equal(
		xml(200,
			"<!DOCTYPE a [<!ENTITY x \"y\">]>" CREDENTIALS("T", "2027-01-15T08:00:01Z"),
			NULL),
		CKPT_EFORMAT);
	assert_int_equal(
		xml(200, CREDENTIALS("CANARY CANARY", "2027-01-15T08:00:01Z"), NULL), CKPT_EAUTH);
}

static void test_sts_refuses(void **state)
{
	static const char plain[] = "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</"
				    "Code><Message>User: u is not "
				    "authorized\nfor CANARY</Message></Error></ErrorResponse>";
	static const char quoting[] = "<ErrorResponse><Error><Code>InvalidIdentityToken</"
				      "Code><Message>it was: eyJ0123456789CANARY"
				      "</Message></Error></ErrorResponse>";

	(void)state;
	assert_int_equal(xml(403, plain, NULL), CKPT_EAUTH);
	assert_non_null(strstr(err.message, "403 AccessDenied: User: u is not authorized"));
	assert_int_equal(xml(400, quoting, "eyJ0123456789CANARY0123456789"), CKPT_EAUTH);
	assert_non_null(strstr(err.message, "400 InvalidIdentityToken"));
	assert_int_equal(xml(503, "busy", NULL), CKPT_ENETWORK);
	assert_int_equal(xml(302, NULL, NULL), CKPT_EAUTH);
}

static void test_sts_form(void **state)
{
	char arn[] = "arn:aws:iam::1:role/r x";
	char id[] = "e&d";
	struct ckpt_s3_role role = {.arn = arn, .external_id = id, .duration_s = 900};
	char *form = ckpt_s3_sts_form(&role, "name", NULL);

	(void)state;
	assert_string_equal(form, "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%"
				  "3A1%3Arole%2Fr%20x&"
				  "RoleSessionName=name&DurationSeconds=900&ExternalId=e%26d");
	ckpt_s3_forget(form);
	role = (struct ckpt_s3_role){.arn = arn, .session = id};
	form = ckpt_s3_sts_form(&role, "name", "a.b+c");
	assert_string_equal(form, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%"
				  "3Aaws%3Aiam%3A%3A1%3Arole%2Fr%20x&"
				  "RoleSessionName=e%26d&WebIdentityToken=a.b%2Bc");
	ckpt_s3_forget(form);
}

static void test_sts_place(void **state)
{
	char region[] = "eu-west-1";
	char china[] = "cn-north-1";
	char url[] = "http://127.0.0.1:9000/";
	char deep[] = "http://h/x";
	char from[] = "F";
	struct ckpt_s3_settings settings = {.region = {.value = region}};
	struct ckpt_s3_sts_place place;

	(void)state;
	assert_int_equal(ckpt_s3_sts_place(&settings, &err, &place), 0);
	assert_string_equal(place.url, "https://sts.eu-west-1.amazonaws.com/");
	settings.fips = true;
	settings.region.value = china;
	assert_int_equal(ckpt_s3_sts_place(&settings, &err, &place), 0);
	assert_string_equal(place.host, "sts-fips.cn-north-1.amazonaws.com.cn");
	settings.sts_endpoint = (struct ckpt_s3_setting){.value = url, .from = from};
	assert_int_equal(ckpt_s3_sts_place(&settings, &err, &place), 0);
	assert_string_equal(place.host, "127.0.0.1:9000");
	assert_string_equal(place.url, url);
	settings.sts_endpoint.value = deep;
	assert_int_equal(ckpt_s3_sts_place(&settings, &err, &place), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_refused),
		cmocka_unit_test(test_sts),
		cmocka_unit_test(test_sts_refuses),
		cmocka_unit_test(test_sts_form),
		cmocka_unit_test(test_sts_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
