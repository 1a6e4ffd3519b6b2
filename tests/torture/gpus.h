/* SPDX-License-Identifier: Apache-2.0 */
/* What a trial does with tensors on GPUs, of a CUDA runtime that has none (tests/cuda). */
#ifndef CKPT_TESTS_GPUS_H
#define CKPT_TESTS_GPUS_H

#include "torture/torture.h"

/* Files that say which node each GPU is at, made under `root` once for all runs; where they are, "" before. */
void gpus_make_machine(const char *root);
const char *gpus_machine(void);

/* Saves with streams and a fence, and without; resumes from that. */
void trial_gpus(struct workload *d);
/* Resumes on GPUs from what was saved of the CPU, and goes on. */
void trial_gpus_resume(struct workload *d);

#endif
