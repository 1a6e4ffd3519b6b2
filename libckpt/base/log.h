/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's log: a ring of lines, read with ckpt_engine_log(). */
#ifndef CKPT_BASE_LOG_H
#define CKPT_BASE_LOG_H

#include <pthread.h>
#include <ckpt/engine.h>
#include "base/compiler.h"

#define CKPT_LOG_KEPT 256

struct ckpt_log;

int ckpt_log_open(enum ckpt_log_level level, struct ckpt_log **ret_log);
void ckpt_log_close(struct ckpt_log *log);
/* Adds a line; drops the oldest one if the ring is full. `log` may be NULL. Any thread. */
CKPT_PRINTF(3, 4)
void ckpt_log(struct ckpt_log *log, enum ckpt_log_level level, const char *fmt, ...);
/* See ckpt_engine_log() and ckpt_engine_stop_log(). */
int ckpt_log_next(struct ckpt_log *log, int timeout_ms, struct ckpt_log_record *ret_record);
void ckpt_log_quiet(struct ckpt_log *log);
/* An eventfd to write to when a line is added; -1: none. */
void ckpt_log_set_eventfd(struct ckpt_log *log, int fd);

#endif
