/* SPDX-License-Identifier: Apache-2.0 */
/* Where CA certificates are found, and which requests go by a proxy: the configuration, then its environment. */
#include "net/ca_bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "lib/scratch.h"
#include "lib/test.h"
#include "net/proxy.h"

struct variables {
	const char *pairs[8][2];
};

static const char *variable(void *user, const char *name)
{
	const struct variables *variables = user;

	for (size_t i = 0; i < COUNT(variables->pairs) && variables->pairs[i][0]; i++) {
		if (strcmp(variables->pairs[i][0], name) == 0)
			return variables->pairs[i][1];
	}
	return NULL;
}

static const char *make_file(const char *dir, const char *name)
{
	const char *path = scratch_join(dir, name);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	(void)close(fd);
	return path;
}

static void expect_file(const struct ckpt_http_config *config, const char *file)
{
	struct ckpt_ca_bundle trust;
	struct ckpt_error err = {0};

	assert_int_equal(ckpt_ca_bundle_find(config, &err, &trust), 0);
	assert_string_equal(trust.file, file);
	assert_null(trust.directory);
	ckpt_ca_bundle_free(&trust);
}

static void test_certificates(void **state)
{
	char *dir = scratch_make();
	const char *a = make_file(dir, "a.pem");
	const char *b = make_file(dir, "b.pem");
	const char *c = make_file(dir, "c.pem");
	const char *gone = scratch_join(dir, "gone.pem");
	struct variables v = {{{"SSL_CERT_FILE", c}, {"CURL_CA_BUNDLE", b}, {"AWS_CA_BUNDLE", ""}}};
	struct ckpt_http_config config = {.variable = variable, .user = &v};
	struct ckpt_ca_bundle trust;
	struct ckpt_error err = {0};

	(void)state;
	expect_file(&config, b);
	v.pairs[2][1] = a;
	expect_file(&config, a);
	config.ca_file = c;
	expect_file(&config, c);
	/* What is named and cannot be read is said: nobody else is trusted instead. */
	config.ca_file = gone;
	assert_int_equal(ckpt_ca_bundle_find(&config, &err, &trust), -ENOENT);
	assert_non_null(strstr(err.message, "gone.pem"));
	config.ca_file = NULL;
	v.pairs[2][1] = gone;
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_ca_bundle_find(&config, &err, &trust), -ENOENT);
	assert_non_null(strstr(err.message, "AWS_CA_BUNDLE"));
	v = (struct variables){{{"SSL_CERT_DIR", dir}}};
	assert_int_equal(ckpt_ca_bundle_find(&config, &err, &trust), 0);
	assert_string_equal(trust.directory, dir);
	assert_null(trust.file);
	ckpt_ca_bundle_free(&trust);
	/* Nobody says: what this machine has, or nothing, is no error. */
	v = (struct variables){0};
	assert_int_equal(ckpt_ca_bundle_find(&config, &err, &trust), 0);
	ckpt_ca_bundle_free(&trust);
	scratch_remove(dir);
}

static void test_proxies(void **state)
{
	struct variables v = {{{"https_proxy", "http://p:1"}, {"ALL_PROXY", "http://a:2"},
		{"HTTP_PROXY", "http://cgi:3"},
		{"NO_PROXY", "in.example, .dot.example,10.0.0.1 host"}}};
	struct ckpt_http_config config = {.variable = variable, .user = &v};
	static const char *const except[] = {"in.example", "b.in.example", "IN.Example",
		"dot.example", "b.dot.example", "10.0.0.1", "host"};
	static const char *const through[] = {
		"win.example", "example", "in.example.com", "110.0.0.1", "otherhost", "fd00::1"};
	struct ckpt_proxy proxy;

	(void)state;
	assert_int_equal(ckpt_proxy_find(&config, &proxy), 0);
	for (size_t i = 0; i < COUNT(except); i++)
		assert_string_equal(ckpt_proxy_of(&proxy, true, except[i]), "");
	for (size_t i = 0; i < COUNT(through); i++) {
		assert_string_equal(ckpt_proxy_of(&proxy, true, through[i]), "http://p:1");
		assert_string_equal(ckpt_proxy_of(&proxy, false, through[i]), "http://a:2");
	}
	ckpt_proxy_free(&proxy);
	v.pairs[3][1] = "*";
	assert_int_equal(ckpt_proxy_find(&config, &proxy), 0);
	assert_string_equal(ckpt_proxy_of(&proxy, true, "any"), "");
	ckpt_proxy_free(&proxy);
	/* What the configuration says, it says for all. */
	config.proxy = "http://c:4";
	assert_int_equal(ckpt_proxy_find(&config, &proxy), 0);
	assert_string_equal(ckpt_proxy_of(&proxy, false, "in.example"), "http://c:4");
	ckpt_proxy_free(&proxy);
	config.proxy = "";
	assert_int_equal(ckpt_proxy_find(&config, &proxy), 0);
	assert_string_equal(ckpt_proxy_of(&proxy, true, "any"), "");
	ckpt_proxy_free(&proxy);
	assert_int_equal(ckpt_proxy_find(&(struct ckpt_http_config){0}, &proxy), 0);
	assert_string_equal(ckpt_proxy_of(&proxy, true, "any"), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_certificates),
		cmocka_unit_test(test_proxies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
