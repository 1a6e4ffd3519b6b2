/* SPDX-License-Identifier: Apache-2.0 */
/* AWS's configuration files: what they say is found, and what is malformed is told without what stands there. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "s3/ini.h"

static struct ckpt_error err;
static struct ckpt_s3_ini ini;

static int parse(const char *text)
{
	ckpt_error_clear(&err);
	return ckpt_s3_ini_parse(text, strlen(text), "F", &err, &ini);
}

static void check_is(const char *section, const char *parent, const char *name, const char *value)
{
	const char *found = ckpt_s3_ini_get(&ini, section, parent, name);

	if (value) {
		assert_non_null(found);
		assert_string_equal(found, value);
	} else {
		assert_null(found);
	}
}

static void test_what_people_write(void **state)
{
	(void)state;
	assert_int_equal(parse("\xef\xbb\xbf# mine\r\n"
			       "[default]\r\n"
			       "region = eu-west-1\r\n"
			       "  ; indented comment\r\n"
			       "\r\n"
			       "[profile   \"my run\"]  # why\n"
			       "REGION=a=b # not a comment\n"
			       "credential_process = /bin/x\n"
			       "   --more\n"
			       "\t--and more\n"
			       "empty =\n"
			       "s3 =\n"
			       "  addressing_style = path\n"
			       "  max = 3\n"
			       "last: colon\n"
			       "[services w]\n"
			       "s3 = \n"
			       "  endpoint_url = http://h:1/p"),
		0);
	check_is("default", NULL, "region", "eu-west-1");
	check_is("profile my run", NULL, "region", "a=b # not a comment");
	check_is("profile my run", NULL, "credential_process", "/bin/x\n--more\n--and more");
	check_is("profile my run", NULL, "empty", NULL);
	check_is("profile my run", "s3", "addressing_style", "path");
	check_is("profile my run", "s3", "max", "3");
	check_is("profile my run", NULL, "addressing_style", NULL);
	check_is("profile my run", NULL, "last", "colon");
	check_is("services w", "s3", "endpoint_url", "http://h:1/p");
	check_is("profile other", NULL, "region", NULL);
	assert_true(ckpt_s3_ini_has(&ini, "services w"));
	assert_false(ckpt_s3_ini_has(&ini, "w"));
	ckpt_s3_ini_clear(&ini);
}

static void test_the_last_counts(void **state)
{
	(void)state;
	assert_int_equal(parse("[a]\nx=1\nx=2\ns3=\n y=1\n y=2\n[b]\nx=3\n[a]\nx=4\n"), 0);
	check_is("a", NULL, "x", "4");
	check_is("a", "s3", "y", "2");
	check_is("b", NULL, "x", "3");
	ckpt_s3_ini_clear(&ini);
	assert_int_equal(parse(""), 0);
	check_is("a", NULL, "x", NULL);
	ckpt_s3_ini_clear(&ini);
}

static void test_malformed(void **state)
{
	static const struct {
		const char *text;
		const char *why;
	} cases[] = {
		{"CANARY=1\n", "line 1 of F is invalid: it is in no [section]"},
		{"[a]\nx=1\nCANARY\n", "line 3 of F"},
		{"[a]\n=CANARY\n", "line 2 of F"},
		{"\n\n[CANARY\n", "line 3 of F is invalid: the name of a section has no ']'"},
		{"[ ]\n", "a section has no name"},
		{"[a]\ns3=\n CANARY\n", "line 3 of F is invalid: it is not \"name = value\""},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(parse(cases[i].text), CKPT_EFORMAT);
		assert_non_null(strstr(err.message, cases[i].why));
		assert_null(strstr(err.message, "CANARY"));
		assert_string_equal(err.file, "F");
		assert_null(ini.text);
	}
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_s3_ini_parse("[a]\0x=1", 7, "F", &err, &ini), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "NUL"));
}

static void test_bounds(void **state)
{
	size_t size = CKPT_S3_INI_MAX + 1;
	char *text = malloc(size + 1);

	(void)state;
	assert_non_null(text);
	memset(text, 'x', size);
	text[size] = 0;
	assert_int_equal(parse(text), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "bytes"));
	memcpy(text, "[a]\nx=", 6);
	text[6 + CKPT_S3_INI_LINE_MAX] = 0;
	assert_int_equal(parse(text), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "line 2 of F is invalid: the value is too long"));
	text[4 + CKPT_S3_INI_LINE_MAX] = 0;
	assert_int_equal(parse(text), 0);
	assert_int_equal(strlen(ckpt_s3_ini_get(&ini, "a", NULL, "x")), CKPT_S3_INI_LINE_MAX - 2);
	ckpt_s3_ini_clear(&ini);
	for (size_t i = 0; i < CKPT_S3_INI_ENTRIES; i++)
		memcpy(text + 4 * i, i == 0 ? "[a]\n" : "b=1\n", 4);
	text[4 * CKPT_S3_INI_ENTRIES] = 0;
	assert_int_equal(parse(text), 0);
	ckpt_s3_ini_clear(&ini);
	memcpy(text + 4 * CKPT_S3_INI_ENTRIES, "c=1", 4);
	assert_int_equal(parse(text), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "too many"));
	free(text);
}

static bool fail_one(void *user, size_t size)
{
	(void)size;
	return (*(int *)user)-- == 0;
}

static void test_no_memory(void **state)
{
	int r = -ENOMEM;

	(void)state;
	for (int at = 0; r < 0; at++) {
		int left = at;

		assert_true(at < 10);
		ckpt_alloc_set_hook(fail_one, &left);
		r = parse("[a]\nx=1\n");
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || (r == -ENOMEM && err.message[0]));
	}
	ckpt_s3_ini_clear(&ini);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_people_write),
		cmocka_unit_test(test_the_last_counts),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
