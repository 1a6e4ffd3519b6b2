/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libckpt: checkpoints of training state, durable and verified.
 *
 * An engine (engine.h) holds a store. A save (save.h) puts one step into it behind the caller's back;
 * a restore (restore.h) brings one back; a catalog (catalog.h) says what is there. Ranks of one job find
 * each other through an exchange (exchange.h).
 *
 * Caveats.
 * - A tensor handed to a save is borrowed until the save is STAGED. Changing it before that is
 *   noticed by ckpt_save_fence() only as well as a sample can.
 * - After fork() the child must not use a handle of its parent: calls return CKPT_EFORKED.
 * - One live process writes a store. Locks are open-file locks: on network file systems they hold
 *   only as far as the file system honours them.
 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <ckpt/version.h>
#include <ckpt/types.h>
#include <ckpt/error.h>
#include <ckpt/exchange.h>
#include <ckpt/engine.h>
#include <ckpt/save.h>
#include <ckpt/restore.h>
#include <ckpt/catalog.h>

#endif
