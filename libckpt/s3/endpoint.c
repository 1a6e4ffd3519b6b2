/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints of buckets. */
#include "s3/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "s3/escape.h"

#define LOWER  "abcdefghijklmnopqrstuvwxyz"
#define UPPER  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

#define LABEL_MAX 63

static const char *text_or_none(const char *text)
{
	return text ? text : "";
}

/* Domains of the AWS partitions, by the prefix of their regions. */
static const char *aws_domain(const char *region)
{
	static const struct {
		const char *begins;
		const char *domain;
	} others[] = {
		{"cn-", "amazonaws.com.cn"},
		{"us-iso-", "c2s.ic.gov"},
		{"us-isob-", "sc2s.sgov.gov"},
		{"eu-isoe-", "cloud.adc-e.uk"},
		{"us-isof-", "csp.hci.ic.gov"},
		{"eusc-", "amazonaws.eu"},
	};

	for (size_t i = 0; i < CKPT_COUNT(others); i++) {
		if (strncmp(region, others[i].begins, strlen(others[i].begins)) == 0)
			return others[i].domain;
	}
	return "amazonaws.com";
}

/* Non-empty labels of letters, digits, '-', and '_' (used in the DNS of containers). */
static bool is_host_name(const char *host)
{
	size_t length = strlen(host);

	if (length == 0 || length > CKPT_S3_HOST_MAX)
		return false;
	for (;;) {
		length = strspn(host, LOWER UPPER DIGITS "-_");
		if (length == 0 || length > LABEL_MAX || host[0] == '-' || host[length - 1] == '-')
			return false;
		if (host[length] == 0)
			return true;
		if (host[length] != '.')
			return false;
		host += length + 1;
	}
}

/* Whether the bucket can be part of a host name, by AWS's rules. */
static bool is_label(const char *bucket)
{
	size_t length = strlen(bucket);

	return length >= 3 && length <= LABEL_MAX && strspn(bucket, LOWER DIGITS "-.") == length &&
	       is_host_name(bucket);
}

static bool is_ip(const char *host)
{
	struct in6_addr address;
	char text[INET6_ADDRSTRLEN];
	size_t length = strlen(host);

	if (host[0] != '[')
		return inet_pton(AF_INET, host, &address) == 1;
	if (host[length - 1] != ']' || length - 2 >= sizeof(text))
		return false;
	memcpy(text, host + 1, length - 2);
	text[length - 2] = 0;
	return inet_pton(AF_INET6, text, &address) == 1;
}

/* The parts of a user's URL. */
struct parts {
	bool tls;
	char host[CKPT_S3_HOST_MAX + 1];
	unsigned port; /* 0: the default of the scheme */
	char base[CKPT_S3_BASE_MAX + 1];
};

static int parse_port(const char *url, const char *text, size_t length, struct ckpt_error *err,
	struct parts *parts)
{
	unsigned port = 0;

	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9' || port > UINT16_MAX)
			port = UINT16_MAX + 1;
		else
			port = port * 10 + (unsigned)(text[i] - '0');
	}
	if (port == 0 || port > UINT16_MAX)
		return ckpt_fail(err, -EINVAL,
			"the endpoint '%s' has an invalid port '%.*s': it must be 1 to 65535", url,
			(int)length, text);
	parts->port = port == (parts->tls ? 443 : 80) ? 0 : port;
	return 0;
}

static int parse_authority(const char *url, const char *text, size_t length, struct ckpt_error *err,
	struct parts *parts)
{
	const char *bracket = memchr(text, ']', length);
	const char *colon = bracket ? memchr(bracket, ':', length - (size_t)(bracket - text))
				    : memchr(text, ':', length);
	size_t host = colon ? (size_t)(colon - text) : length;

	if (host == 0 || host > CKPT_S3_HOST_MAX)
		return ckpt_fail(err, -EINVAL, "the endpoint '%s' names no host", url);
	for (size_t i = 0; i < host; i++)
		parts->host[i] =
			(char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a' : text[i]);
	parts->host[host] = 0;
	if (!is_ip(parts->host) && !is_host_name(parts->host))
		return ckpt_fail(err, -EINVAL, "the endpoint '%s' has an invalid host name: '%s'",
			url, parts->host);
	if (!colon)
		return 0;
	return parse_port(url, colon + 1, length - host - 1, err, parts);
}

/* Only characters that need no encoding, so that nothing on the way changes them. */
static int parse_base(
	const char *url, const char *path, struct ckpt_error *err, struct parts *parts)
{
	size_t length = strlen(path);

	while (length > 0 && path[length - 1] == '/')
		length--;
	if (length > CKPT_S3_BASE_MAX)
		return ckpt_fail(err, -EINVAL,
			"the path of the endpoint '%s' is longer than %d bytes", url,
			CKPT_S3_BASE_MAX);
	memcpy(parts->base, path, length);
	parts->base[length] = 0;
	for (const char *at = parts->base; *at;) {
		size_t name = strspn(at + 1, LOWER UPPER DIGITS "-._~");

		if (*at != '/' || name == 0 || (at[1 + name] && at[1 + name] != '/') ||
			(name <= 2 && strspn(at + 1, ".") >= name))
			return ckpt_fail(err, -EINVAL,
				"the path of the endpoint '%s' can hold letters, digits, '-', '.', "
				"'_' and '~' between single slashes; no query, no '%%'",
				url);
		at += 1 + name;
	}
	return 0;
}

static int parse_url(const char *url, struct ckpt_error *err, struct parts *parts)
{
	const char *rest;
	size_t length;
	int r;

	/* It may contain a password, so it is not shown. */
	if (strchr(url, '@'))
		return ckpt_fail(err, -EINVAL,
			"the endpoint contains an '@': remove the user name and password");
	if (strncasecmp(url, "https://", 8) == 0) {
		parts->tls = true;
		rest = url + 8;
	} else if (strncasecmp(url, "http://", 7) == 0) {
		rest = url + 7;
	} else {
		return ckpt_fail(
			err, -EINVAL, "the endpoint '%s' must begin with https:// or http://", url);
	}
	length = strcspn(rest, "/?#");
	r = parse_authority(url, rest, length, err, parts);
	return r < 0 ? r : parse_base(url, rest + length, err, parts);
}

static int check_region(const char *region, bool aws, struct ckpt_error *err)
{
	size_t length = strlen(region);
	const char *allowed = aws ? LOWER DIGITS "-" : LOWER UPPER DIGITS "-._";

	/* It is used in host names and signatures. */
	if (length == 0 || length > CKPT_S3_REGION_MAX || strspn(region, allowed) != length ||
		region[0] == '-' || region[length - 1] == '-')
		return ckpt_fail(err, -EINVAL, "'%s' is not a region%s", region,
			aws ? ": AWS has regions such as eu-central-1" : "");
	return 0;
}

static int aws_host(const struct ckpt_s3_endpoint_config *config, const char *region,
	struct ckpt_error *err, struct parts *parts)
{
	const char *domain = aws_domain(region);
	const char *bucket = text_or_none(config->bucket);
	size_t length = strlen(bucket);

	if (config->fips && strcmp(domain, "amazonaws.com.cn") == 0)
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"AWS has no FIPS endpoints in China (region %s): switch them off", region);
	if (length > 6 && strcmp(bucket + length - 6, "--x-s3") == 0)
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"'%s' is a directory bucket of S3 Express, which is not supported: use a "
			"general purpose bucket",
			bucket);
	parts->tls = true;
	(void)snprintf(parts->host, sizeof(parts->host), "s3%s%s.%s.%s",
		config->fips ? "-fips" : "", config->dualstack ? ".dualstack" : "", region, domain);
	return 0;
}

static int choose_style(const struct ckpt_s3_endpoint_config *config, const struct parts *parts,
	struct ckpt_error *err, struct ckpt_s3_endpoint *endpoint)
{
	const char *bucket = endpoint->bucket;

	if (config->addressing == CKPT_S3_ADDRESSING_AUTO) {
		/* A certificate for *.host covers one label. */
		endpoint->virtual_host =
			endpoint->aws && is_label(bucket) && !(parts->tls && strchr(bucket, '.'));
		return 0;
	}
	endpoint->virtual_host = config->addressing == CKPT_S3_ADDRESSING_VIRTUAL;
	if (!endpoint->virtual_host)
		return 0;
	if (is_ip(parts->host))
		return ckpt_fail(err, -EINVAL,
			"the endpoint %s is an IP address, which cannot have a bucket in front: "
			"use path addressing, or the host's name",
			parts->host);
	if (!is_label(bucket) || strlen(bucket) + 1 + strlen(parts->host) > CKPT_S3_HOST_MAX)
		return ckpt_fail(err, -EINVAL,
			"the bucket '%s' cannot be part of a host name: use path addressing",
			bucket);
	return 0;
}

int ckpt_s3_endpoint_make(const struct ckpt_s3_endpoint_config *config, struct ckpt_error *err,
	struct ckpt_s3_endpoint *ret_endpoint)
{
	const char *url = text_or_none(config->url);
	const char *region = text_or_none(config->region);
	struct ckpt_s3_endpoint endpoint = {.aws = *url == 0};
	struct parts parts = {.tls = false};
	char port[8] = "";
	int r;

	if (*region == 0)
		region = CKPT_S3_REGION_NONE;
	r = check_region(region, endpoint.aws, err);
	if (r < 0)
		return r;
	CKPT_ASSERT(config->bucket && strlen(config->bucket) <= CKPT_S3_BUCKET_MAX);
	if (!endpoint.aws && (config->dualstack || config->fips))
		return ckpt_fail(err, -EINVAL,
			"dual-stack and FIPS select AWS's own endpoints: they cannot be combined "
			"with the endpoint that is given");
	r = endpoint.aws ? aws_host(config, region, err, &parts) : parse_url(url, err, &parts);
	if (r < 0)
		return r;
	(void)snprintf(endpoint.region, sizeof(endpoint.region), "%s", region);
	(void)snprintf(endpoint.bucket, sizeof(endpoint.bucket), "%s", config->bucket);
	(void)snprintf(endpoint.base, sizeof(endpoint.base), "%s", parts.base);
	endpoint.tls = parts.tls;
	r = choose_style(config, &parts, err, &endpoint);
	if (r < 0)
		return r;
	if (parts.port > 0)
		(void)snprintf(port, sizeof(port), ":%u", parts.port);
	(void)snprintf(endpoint.host, sizeof(endpoint.host), "%s%s%s%s",
		endpoint.virtual_host ? endpoint.bucket : "", endpoint.virtual_host ? "." : "",
		parts.host, port);
	*ret_endpoint = endpoint;
	return 0;
}

void ckpt_s3_endpoint_path(
	const struct ckpt_s3_endpoint *endpoint, const char *key, struct ckpt_buf *out)
{
	ckpt_buf_puts(out, endpoint->base);
	if (!endpoint->virtual_host) {
		ckpt_buf_puts(out, "/");
		ckpt_buf_puts(out, endpoint->bucket);
		if (*key == 0)
			return;
	}
	ckpt_buf_puts(out, "/");
	ckpt_s3_escape_path(out, key);
}

void ckpt_s3_endpoint_url(const struct ckpt_s3_endpoint *endpoint, const char *key,
	const char *query, struct ckpt_buf *out)
{
	ckpt_buf_puts(out, endpoint->tls ? "https://" : "http://");
	ckpt_buf_puts(out, endpoint->host);
	ckpt_s3_endpoint_path(endpoint, key, out);
	if (*query) {
		ckpt_buf_puts(out, "?");
		ckpt_buf_puts(out, query);
	}
}
