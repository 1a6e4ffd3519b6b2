/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of the test's own making. */
#ifndef CKPT_TESTS_TLS_KIT_H
#define CKPT_TESTS_TLS_KIT_H

#include <openssl/ssl.h>
#include <stdbool.h>

struct tls_ca {
	EVP_PKEY *key;
	X509 *certificate;
};

/* Ends the program if that cannot be, as all here. */
struct tls_ca tls_ca_make(void);
void tls_ca_free(struct tls_ca *ca);
/* As a file of PEM. */
void tls_ca_write(const struct tls_ca *ca, const char *path);
/* A server's, for these names ("DNS:x,IP:127.0.0.1"), signed by that CA; `days` until it expires, or since. */
SSL_CTX *tls_server_make(const struct tls_ca *ca, const char *names, int days);

#endif
