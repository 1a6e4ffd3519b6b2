/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange in a directory that all ranks share: exchange/SESSION/KEY below the store, each value a small
 * file that is published as manifests are. Slow beside a server, but it needs none, and it lives as long as
 * the store does. Nobody may take values for truth that a dead session has left: sessions are never used
 * twice.
 */
#ifndef CKPT_EXCHANGE_EXCHANGE_DIR_H
#define CKPT_EXCHANGE_EXCHANGE_DIR_H

#include "exchange/exchange.h"
#include "store/store.h"

#define CKPT_NAME_EXCHANGE "exchange"

/* `store` is borrowed; `session` is valid, and copied. -ENOMEM. */
int ckpt_exchange_dir_open(struct ckpt_sched *sched, struct ckpt_store *store, const char *session,
	struct ckpt_exchange **ret_exchange);

#endif
