/* SPDX-License-Identifier: Apache-2.0 */
/* Proxies from the configuration or the environment, by curl's rules. */
#include "net/proxy.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/secret.h"

/* The first of `names` that is set, copied; NULL if none is. */
static int copy_variable(
	const struct ckpt_http_config *config, const char *const *names, char **ret_copy)
{
	*ret_copy = NULL;
	for (; *names; names++) {
		const char *value = config->variable(config->user, *names);
		if (!value || !value[0])
			continue;
		*ret_copy = ckpt_secret_strdup(value);
		return *ret_copy ? 0 : -ENOMEM;
	}
	return 0;
}

static int by_environment(const struct ckpt_http_config *config, struct ckpt_proxy *proxy)
{
	/* Not HTTP_PROXY: in a CGI program it is set by the client. */
	static const char *const http[] = {"http_proxy", "all_proxy", "ALL_PROXY", NULL};
	static const char *const https[] = {
		"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", NULL};
	static const char *const except[] = {"no_proxy", "NO_PROXY", NULL};

	int r = copy_variable(config, http, &proxy->http);
	if (r == 0)
		r = copy_variable(config, https, &proxy->https);
	if (r == 0)
		r = copy_variable(config, except, &proxy->except);
	return r;
}

int ckpt_proxy_find(const struct ckpt_http_config *config, struct ckpt_proxy *ret_proxy)
{
	int r = 0;

	*ret_proxy = (struct ckpt_proxy){0};
	if (config->proxy && config->proxy[0]) {
		ret_proxy->http = ckpt_secret_strdup(config->proxy);
		ret_proxy->https = ckpt_secret_strdup(config->proxy);
		r = ret_proxy->http && ret_proxy->https ? 0 : -ENOMEM;
	} else if (!config->proxy && config->variable) {
		r = by_environment(config, ret_proxy);
	}
	if (r < 0)
		ckpt_proxy_free(ret_proxy);
	return r;
}

void ckpt_proxy_free(struct ckpt_proxy *proxy)
{
	ckpt_secret_free(proxy->http);
	ckpt_secret_free(proxy->https);
	ckpt_secret_free(proxy->except);
	*proxy = (struct ckpt_proxy){0};
}

/* Whether an entry of the list, a host or a domain, matches the host. */
static bool matches(const char *pattern, size_t length, const char *host)
{
	size_t host_length = strlen(host);

	if (length > 0 && pattern[0] == '.') {
		pattern++;
		length--;
	}
	if (length == 1 && pattern[0] == '*')
		return true;
	if (length == 0 || length > host_length)
		return false;
	if (strncasecmp(host + host_length - length, pattern, length) != 0)
		return false;
	return length == host_length || host[host_length - length - 1] == '.';
}

static bool is_excepted(const char *list, const char *host)
{
	static const char between[] = ", \t";

	while (list && *list) {
		list += strspn(list, between);
		size_t length = strcspn(list, between);
		if (matches(list, length, host))
			return true;
		list += length;
	}
	return false;
}

const char *ckpt_proxy_of(const struct ckpt_proxy *proxy, bool https, const char *host)
{
	const char *url = https ? proxy->https : proxy->http;

	return url && !is_excepted(proxy->except, host) ? url : "";
}
