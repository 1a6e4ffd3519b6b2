/* SPDX-License-Identifier: Apache-2.0 */
/* What scripts/wheel links against, by itself: a request over TLS, and XML read from its answer. */
#include <curl/curl.h>
#include <expat.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* 0: it has HTTP and HTTPS, and nothing else. */
int wheel_tls_start(bool load_config);
int wheel_tls_get(const char *url, const char *ca_file, int *ret_code, unsigned *ret_elements);

/* The first to name them decides: of a static OpenSSL no configuration of another one, and nothing at exit. */
int wheel_tls_start(bool load_config)
{
	uint64_t config = load_config ? OPENSSL_INIT_LOAD_CONFIG : OPENSSL_INIT_NO_LOAD_CONFIG;
	const char *const *protocol;

	OPENSSL_init_crypto(config | OPENSSL_INIT_NO_ATEXIT, NULL);
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return -1;
	for (protocol = curl_version_info(CURLVERSION_NOW)->protocols; *protocol; protocol++)
		if (strncmp(*protocol, "http", 4) != 0)
			return -1;
	return 0;
}

static void count(void *elements, const XML_Char *name, const XML_Char **attributes)
{
	(void)name;
	(void)attributes;
	++*(unsigned *)elements;
}

static size_t parse(char *bytes, size_t size, size_t length, void *parser)
{
	return XML_Parse(parser, bytes, (int)(size * length), 0) == XML_STATUS_OK ? length : 0;
}

/* libcurl's code, the status, and how many elements its body has. `ca_file`: NULL: none is named. */
int wheel_tls_get(const char *url, const char *ca_file, int *ret_code, unsigned *ret_elements)
{
	CURL *curl = curl_easy_init();
	XML_Parser parser = XML_ParserCreate("UTF-8");
	long status = 0;

	*ret_elements = 0;
	XML_SetUserData(parser, ret_elements);
	XML_SetStartElementHandler(parser, count);
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_PROXY, "");
	curl_easy_setopt(curl, CURLOPT_TIMEOUT, 60L);
	if (ca_file)
		curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, parse);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, parser);
	*ret_code = (int)curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	if (*ret_code == CURLE_OK && XML_Parse(parser, "", 0, 1) != XML_STATUS_OK)
		status = -1;
	XML_ParserFree(parser);
	curl_easy_cleanup(curl);
	return (int)status;
}
