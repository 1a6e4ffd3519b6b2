/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What encoding would save: one line in the log of rank 0, after the first step of an engine that stores its shards
 * plain. About one chunk in a hundred is encoded by a worker that has nothing urgent to do, from staging, as long as its
 * bytes still lie there. No save waits for more than one of them. Master weights are not looked for, so the shard may
 * become smaller than it says.
 */
#ifndef CKPT_ENGINE_SAVE_ESTIMATE_H
#define CKPT_ENGINE_SAVE_ESTIMATE_H

struct ckpt_estimate;
struct ckpt_save;

/* Its blocks are about to be put back: chooses what will be encoded, into save->estimate; NULL: nothing will. */
void ckpt_estimate_choose(struct ckpt_save *save);
/* The step is committed. It goes on behind the save. */
void ckpt_estimate_start(struct ckpt_save *save);
/* It was not. */
void ckpt_estimate_drop(struct ckpt_save *save);

#endif
