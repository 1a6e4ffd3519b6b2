/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange in a directory that all ranks share: exchange/SESSION/KEY below the store. Each value is a small file,
 * published like a manifest. Slower than a server, but it needs none, and exists as long as the store. Sessions are
 * never used twice, so that values of an old session are not read.
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
