/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/tls_kit.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <unistd.h>

#define DAY 86400L

static void must(bool good)
{
	if (good)
		return;
	ERR_print_errors_fp(stderr);
	_exit(1);
}

static void add_extension(X509 *certificate, int nid, const char *value)
{
	X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

	must(extension && X509_add_ext(certificate, extension, -1) == 1);
	X509_EXTENSION_free(extension);
}

static X509 *make_certificate(EVP_PKEY *key, const char *name, long from, long to)
{
	static long serial = 1;
	X509 *certificate = X509_new();
	X509_NAME *subject;

	must(certificate && X509_set_version(certificate, 2) == 1);
	must(ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++) == 1);
	must(X509_gmtime_adj(X509_getm_notBefore(certificate), from) &&
		X509_gmtime_adj(X509_getm_notAfter(certificate), to));
	subject = X509_get_subject_name(certificate);
	must(X509_NAME_add_entry_by_txt(
		     subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) == 1);
	must(X509_set_pubkey(certificate, key) == 1);
	return certificate;
}

struct tls_ca tls_ca_make(void)
{
	static unsigned number;
	struct tls_ca ca = {.key = EVP_EC_gen("P-256")};
	char name[32];

	must(ca.key != NULL);
	(void)snprintf(name, sizeof(name), "CA %u of the tests", ++number);
	ca.certificate = make_certificate(ca.key, name, -DAY, DAY);
	must(X509_set_issuer_name(ca.certificate, X509_get_subject_name(ca.certificate)) == 1);
	add_extension(ca.certificate, NID_basic_constraints, "critical,CA:TRUE");
	add_extension(ca.certificate, NID_key_usage, "critical,keyCertSign");
	must(X509_sign(ca.certificate, ca.key, EVP_sha256()) > 0);
	return ca;
}

void tls_ca_free(struct tls_ca *ca)
{
	X509_free(ca->certificate);
	EVP_PKEY_free(ca->key);
}

void tls_ca_write(const struct tls_ca *ca, const char *path)
{
	FILE *out = fopen(path, "we");

	must(out && PEM_write_X509(out, ca->certificate) == 1 && fclose(out) == 0);
}

SSL_CTX *tls_server_make(const struct tls_ca *ca, const char *names, int days)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
	X509 *certificate;

	must(key && tls);
	certificate = make_certificate(key, "a server of the tests", -10 * DAY, days * DAY);
	must(X509_set_issuer_name(certificate, X509_get_subject_name(ca->certificate)) == 1);
	add_extension(certificate, NID_subject_alt_name, names);
	must(X509_sign(certificate, ca->key, EVP_sha256()) > 0);
	must(SSL_CTX_use_certificate(tls, certificate) == 1 &&
		SSL_CTX_use_PrivateKey(tls, key) == 1);
	X509_free(certificate);
	EVP_PKEY_free(key);
	return tls;
}
