/* SPDX-License-Identifier: Apache-2.0 */
/* The CA certificates that servers are verified with: a file or a directory. */
#ifndef CKPT_NET_CA_BUNDLE_H
#define CKPT_NET_CA_BUNDLE_H

#include "net/http.h"

/* Advice for error messages. */
#define CKPT_CA_BUNDLE_ADVICE "AWS_CA_BUNDLE names a file of CA certificates"

struct ckpt_ca_bundle {
	char *file; /* NULL: none */
	char *directory;
};

/*
 * Looks in the configuration, then in the environment, then in the places of distributions. Finding none is no error,
 * because http needs none. A named file that cannot be read is an error.
 */
int ckpt_ca_bundle_find(const struct ckpt_http_config *config, struct ckpt_error *err,
	struct ckpt_ca_bundle *ret_trust);
void ckpt_ca_bundle_free(struct ckpt_ca_bundle *trust);

#endif
