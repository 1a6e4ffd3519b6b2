/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of S3: an option goes before the environment, that before the profile; and where it was is told. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/scratch.h"
#include "s3/settings.h"

#define LINES 16

static char *dir;
static struct ckpt_error err;
static struct ckpt_s3_settings got;
static char home[512];

static void put(const char *name, const char *text)
{
	FILE *f = fopen(scratch_join(dir, name), "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	(void)snprintf(home, sizeof(home), "HOME=%s", dir);
	assert_int_equal(mkdir(scratch_join(dir, ".aws"), 0777), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(dir);
	return 0;
}

/* With these variables and HOME. */
static int resolve(const struct ckpt_s3_options *options, const char *const *variables)
{
	static const struct ckpt_s3_options none;
	const char *lines[LINES + 2] = {home};
	struct ckpt_s3_environ vars;
	int r;

	for (size_t i = 0; variables && variables[i]; i++)
		lines[i + 1] = variables[i];
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_s3_environ_take(lines, &err, &vars), 0);
	r = ckpt_s3_settings_resolve(options ? options : &none, &vars, &err, &got);
	ckpt_s3_environ_clear(&vars);
	return r;
}

#define VARIABLES(...)                                                                             \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static void check_is(const struct ckpt_s3_setting *setting, const char *value, const char *from)
{
	if (!value) {
		assert_null(setting->value);
		return;
	}
	assert_non_null(setting->value);
	assert_string_equal(setting->value, value);
	assert_string_equal(setting->from, from);
}

static void test_defaults(void **state)
{
	(void)state;
	assert_int_equal(resolve(NULL, NULL), 0);
	check_is(&got.profile, "default", "the default");
	check_is(&got.region, "us-east-1", "the default");
	check_is(&got.endpoint, NULL, NULL);
	assert_int_equal(got.addressing, CKPT_S3_ADDRESSING_AUTO);
	assert_int_equal(got.attempts, 0);
	assert_false(got.dualstack || got.fips || got.anonymous || got.profile_asked);
	ckpt_s3_settings_clear(&got);
}

static void test_order(void **state)
{
	struct ckpt_s3_options options = {.profile = "b",
		.region = "o-1",
		.endpoint = "https://o",
		.addressing = "virtual",
		.attempts = 7};

	(void)state;
	put(".aws/config",
		"[default]\nregion=d-1\n[profile b]\nregion=b-1\nendpoint_url=http://b\ns3=\n "
		"addressing_style=path\nmax_attempts=3\n[profile c]\nregion=c-1\n");
	put(".aws/credentials", "[c]\nregion=cc-1\n");
	assert_int_equal(resolve(NULL, NULL), 0);
	check_is(&got.region, "d-1", "profile 'default' in ~/.aws/config");
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_PROFILE=b", "AWS_REGION=")), 0);
	check_is(&got.profile, "b", "AWS_PROFILE");
	check_is(&got.region, "b-1", "profile 'b' in ~/.aws/config");
	check_is(&got.endpoint, "http://b", "profile 'b' in ~/.aws/config");
	check_is(&got.sts_endpoint, "http://b", "profile 'b' in ~/.aws/config");
	assert_int_equal(got.addressing, CKPT_S3_ADDRESSING_PATH);
	assert_int_equal(got.attempts, 3);
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_PROFILE=b", "AWS_DEFAULT_REGION=e-2")), 0);
	check_is(&got.region, "e-2", "AWS_DEFAULT_REGION");
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(&options, VARIABLES("AWS_PROFILE=c", "AWS_DEFAULT_REGION=e-2",
						   "AWS_REGION=e-1", "AWS_MAX_ATTEMPTS=5",
						   "AWS_ENDPOINT_URL_S3=http://e")),
		0);
	check_is(&got.profile, "b", "an option");
	assert_true(got.profile_asked);
	check_is(&got.region, "o-1", "an option");
	check_is(&got.endpoint, "https://o", "an option");
	assert_int_equal(got.addressing, CKPT_S3_ADDRESSING_VIRTUAL);
	assert_int_equal(got.attempts, 7);
	ckpt_s3_settings_clear(&got);
	/* Both files: the credentials' goes before. */
	assert_int_equal(resolve(NULL, VARIABLES("AWS_PROFILE=c")), 0);
	check_is(&got.region, "cc-1", "profile 'c' in ~/.aws/credentials");
	ckpt_s3_settings_clear(&got);
}

static void test_endpoints(void **state)
{
	(void)state;
	put(".aws/config",
		"[default]\nservices = w\nendpoint_url = http://global\n[services w]\ns3 "
		"=\n  endpoint_url = http://service\n");
	assert_int_equal(resolve(NULL, NULL), 0);
	check_is(&got.endpoint, "http://service", "profile 'default' in ~/.aws/config");
	check_is(&got.sts_endpoint, "http://global", "profile 'default' in ~/.aws/config");
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_ENDPOINT_URL=http://all")), 0);
	check_is(&got.endpoint, "http://all", "AWS_ENDPOINT_URL");
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_ENDPOINT_URL=http://all",
					       "AWS_ENDPOINT_URL_S3=http://s3",
					       "AWS_ENDPOINT_URL_STS=http://sts")),
		0);
	check_is(&got.endpoint, "http://s3", "AWS_ENDPOINT_URL_S3");
	check_is(&got.sts_endpoint, "http://sts", "AWS_ENDPOINT_URL_STS");
	ckpt_s3_settings_clear(&got);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_ENDPOINT_URL_S3=http://s3",
					       "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=True")),
		0);
	check_is(&got.endpoint, NULL, NULL);
	ckpt_s3_settings_clear(&got);
}

static void test_names(void **state)
{
	(void)state;
	assert_int_equal(
		resolve(NULL, VARIABLES("AWS_RETRY_MODE=adaptive",
				      "AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
				      "AWS_RESPONSE_CHECKSUM_VALIDATION=WHEN_SUPPORTED",
				      "AWS_USE_DUALSTACK_ENDPOINT=true",
				      "AWS_USE_FIPS_ENDPOINT=TRUE", "AWS_CA_BUNDLE=~/ca.pem")),
		0);
	assert_int_equal(got.request_checksums, CKPT_S3_CHECKSUMS_REQUIRED);
	assert_int_equal(got.response_checksums, CKPT_S3_CHECKSUMS_SUPPORTED);
	assert_true(got.dualstack && got.fips);
	assert_string_equal(got.ca_file.value, scratch_join(dir, "ca.pem"));
	ckpt_s3_settings_clear(&got);
}

static void test_refused(void **state)
{
	static const struct {
		const char *variable;
		const char *words[2];
	} cases[] = {
		{"AWS_REGION=eu west", {"region 'eu west'", "AWS_REGION"}},
		{"AWS_REGION=us-east-1/../x", {"region", "AWS_REGION"}},
		{"AWS_MAX_ATTEMPTS=0", {"number of attempts '0'", "1 to 1000"}},
		{"AWS_MAX_ATTEMPTS=-1", {"number of attempts '-1'", "1 to 1000"}},
		{"AWS_MAX_ATTEMPTS=3x", {"number of attempts", "AWS_MAX_ATTEMPTS"}},
		{"AWS_RETRY_MODE=often", {"retry mode 'often'", "adaptive"}},
		{"AWS_REQUEST_CHECKSUM_CALCULATION=no", {"'no'", "when_required"}},
		{"AWS_USE_FIPS_ENDPOINT=1", {"FIPS", "true or false"}},
		{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=x", {"endpoints 'x'", "true or false"}},
		{"AWS_ENDPOINT_URL=host:9000", {"AWS_ENDPOINT_URL", "https://HOST"}},
		{"AWS_ENDPOINT_URL=https://", {"AWS_ENDPOINT_URL", "https://HOST"}},
		{"AWS_ENDPOINT_URL_STS=ftp://h", {"AWS_ENDPOINT_URL_STS", "https://HOST"}},
		{"AWS_PROFILE=nobody", {"no AWS profile 'nobody'", "~/.aws/config"}},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		int r = resolve(NULL, VARIABLES(cases[i].variable));

		assert_int_equal(r, strstr(cases[i].variable, "PROFILE") ? -ENOENT : -EINVAL);
		for (size_t w = 0; w < 2; w++)
			assert_non_null(strstr(err.message, cases[i].words[w]));
	}
	/* A password in an endpoint is told to nobody. */
	assert_int_equal(
		resolve(NULL, VARIABLES("AWS_ENDPOINT_URL=https://me:CANARY@host")), -EINVAL);
	assert_null(strstr(err.message, "CANARY"));
}

static void test_files_that_are_none(void **state)
{
	char config[600];
	char credentials[600];

	(void)state;
	(void)snprintf(config, sizeof(config), "AWS_CONFIG_FILE=%s", dir);
	(void)snprintf(credentials, sizeof(credentials), "AWS_SHARED_CREDENTIALS_FILE=/dev/null");
	assert_int_equal(resolve(NULL, VARIABLES(config, credentials)), 0);
	ckpt_s3_settings_clear(&got);
	/* A pipe that nobody writes to holds nobody up. */
	assert_int_equal(mkfifo(scratch_join(dir, "pipe"), 0600), 0);
	(void)snprintf(config, sizeof(config), "AWS_CONFIG_FILE=~/pipe");
	assert_int_equal(resolve(NULL, VARIABLES(config)), 0);
	ckpt_s3_settings_clear(&got);
	(void)snprintf(config, sizeof(config), "AWS_CONFIG_FILE=/dev/zero");
	assert_int_equal(resolve(NULL, VARIABLES(config)), CKPT_EFORMAT);
	/* Anybody may read it: that is between its owner and them. */
	put("odd", "[default]\nregion=odd-1\n");
	assert_int_equal(chmod(scratch_join(dir, "odd"), 0777), 0);
	assert_int_equal(resolve(NULL, VARIABLES("AWS_CONFIG_FILE=~/odd")), 0);
	check_is(&got.region, "odd-1", "profile 'default' in ~/odd");
	ckpt_s3_settings_clear(&got);
	put("bad", "[default]\nCANARY\n");
	assert_int_equal(resolve(NULL, VARIABLES("AWS_CONFIG_FILE=~/bad")), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "line 2 of ~/bad"));
	assert_null(strstr(err.message, "CANARY"));
}

static bool fail_one(void *user, size_t size)
{
	(void)size;
	return (*(int *)user)-- == 0;
}

static void test_no_memory(void **state)
{
	static const char *const lines[] = {"HOME=/nonexistent", "AWS_REGION=e-1",
		"AWS_CA_BUNDLE=~/x", "AWS_ENDPOINT_URL=http://h", NULL};
	const struct ckpt_s3_options options = {.addressing = "path"};
	struct ckpt_s3_environ vars;
	int r = -ENOMEM;

	(void)state;
	for (int at = 0; r < 0; at++) {
		int left = at;

		assert_true(at < 100);
		ckpt_error_clear(&err);
		ckpt_alloc_set_hook(fail_one, &left);
		r = ckpt_s3_environ_take(lines, &err, &vars);
		if (r == 0) {
			r = ckpt_s3_settings_resolve(&options, &vars, &err, &got);
			ckpt_s3_environ_clear(&vars);
		}
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || (r == -ENOMEM && err.message[0]));
	}
	ckpt_s3_settings_clear(&got);
}

static void test_home_of_the_list_of_users(void **state)
{
	struct ckpt_s3_environ vars = {0};
	char *path = NULL;

	(void)state;
	assert_int_equal(ckpt_s3_environ_path(&vars, "~x/y", &path), 0);
	assert_string_equal(path, "~x/y");
	ckpt_free(path);
	path = NULL;
	if (ckpt_s3_environ_path(&vars, "~/y", &path) == 0)
		assert_true(path[0] == '/' && strcmp(path + strlen(path) - 2, "/y") == 0);
	ckpt_free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
		cmocka_unit_test_setup_teardown(test_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_endpoints, setup, teardown),
		cmocka_unit_test_setup_teardown(test_names, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files_that_are_none, setup, teardown),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_home_of_the_list_of_users),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
