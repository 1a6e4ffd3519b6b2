/* SPDX-License-Identifier: Apache-2.0 */
/* Whose word servers' certificates are taken on: a file of CA certificates, or a directory of them. */
#ifndef CKPT_NET_CA_BUNDLE_H
#define CKPT_NET_CA_BUNDLE_H

#include "net/http.h"

/* What people can do about it. */
#define CKPT_CA_BUNDLE_ADVICE "AWS_CA_BUNDLE names a file of CA certificates"

struct ckpt_ca_bundle {
	char *file; /* NULL: none */
	char *directory;
};

/*
 * What the configuration names, else its environment, else where distributions have it. That there is none is no
 * error: http needs none. That what is named cannot be read is one.
 */
int ckpt_ca_bundle_find(const struct ckpt_http_config *config, struct ckpt_error *err,
	struct ckpt_ca_bundle *ret_trust);
void ckpt_ca_bundle_free(struct ckpt_ca_bundle *trust);

#endif
