/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libckpt: durable and verified checkpoints of training state.
 *
 * An engine (engine.h) opens a store. A save (save.h) writes one step in the background. A restore
 * (restore.h) reads one back. A catalog (catalog.h) lists, verifies, copies and deletes steps. The
 * ranks of a job exchange messages through files of the store, or through a service of the program
 * (exchange.h).
 *
 * - Structures begin with `size`. The caller sets it to the sizeof of the structure, also of one that
 *   a function fills in. Reserved fields are 0.
 * - A tensor that is given to a save is borrowed until the save is STAGED. ckpt_save_fence() detects
 *   an earlier change only if it is in the sample that it compares.
 * - After fork() the child must not use a handle of its parent: calls return CKPT_EFORKED.
 * - One live process, or one job of several ranks, writes a store. Locks are open-file locks. On
 *   network file systems they work only if the file system supports them.
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
