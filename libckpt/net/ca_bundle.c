/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds CA certificates. libcurl's built-in path is that of the build machine, so a program that contains libcurl looks
 * in the places of all distributions.
 */
#include "net/ca_bundle.h"

#include <errno.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

static const char *const places[] = {
	"/etc/ssl/certs/ca-certificates.crt",                /* Debian, Ubuntu, Alpine, Arch */
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* RHEL, Fedora, Amazon Linux */
	"/etc/pki/tls/certs/ca-bundle.crt",                  /* the same, older */
	"/etc/ssl/ca-bundle.pem",                            /* SUSE */
	"/var/lib/ca-certificates/ca-bundle.pem",            /* SUSE, where that is a link to */
	"/etc/ssl/cert.pem",                                 /* Alpine without its package */
};

static int keep(const char *path, char **ret_copy)
{
	*ret_copy = ckpt_strdup(path);
	return *ret_copy ? 0 : -ENOMEM;
}

static int name_file(const char *path, const char *origin, struct ckpt_error *err, char **ret_copy)
{
	if (access(path, R_OK) == 0)
		return keep(path, ret_copy);
	int code = -errno;
	return ckpt_fail(err, code, "cannot read the CA certificates in %s, which %s names: %s",
		path, origin, ckpt_code_text(code));
}

/* 1: no variable is set. */
static int by_environment(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_ca_bundle *trust)
{
	static const char *const files[] = {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"};
	static const char directory[] = "SSL_CERT_DIR";
	const char *path;

	if (!config->variable)
		return 1;
	for (size_t i = 0; i < CKPT_COUNT(files); i++) {
		path = config->variable(config->user, files[i]);
		if (path && path[0])
			return name_file(path, files[i], err, &trust->file);
	}
	path = config->variable(config->user, directory);
	if (path && path[0])
		return name_file(path, directory, err, &trust->directory);
	return 1;
}

int ckpt_ca_bundle_find(const struct ckpt_http_config *config, struct ckpt_error *err,
	struct ckpt_ca_bundle *ret_trust)
{
	*ret_trust = (struct ckpt_ca_bundle){0};
	if (config->ca_file)
		return name_file(config->ca_file, "the configuration", err, &ret_trust->file);
	int r = by_environment(config, err, ret_trust);
	if (r <= 0)
		return r;
	for (size_t i = 0; i < CKPT_COUNT(places); i++) {
		if (access(places[i], R_OK) == 0)
			return keep(places[i], &ret_trust->file);
	}
	return 0;
}

void ckpt_ca_bundle_free(struct ckpt_ca_bundle *trust)
{
	ckpt_free(trust->file);
	ckpt_free(trust->directory);
	*trust = (struct ckpt_ca_bundle){0};
}
