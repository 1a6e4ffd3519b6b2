/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of log lines. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "base/utf8.h"

struct ckpt_log {
	pthread_mutex_t lock;
	pthread_cond_t arrived;
	enum ckpt_log_level level;
	unsigned first;   /* the oldest in `lines`; guarded by lock */
	unsigned count;   /* guarded by lock */
	uint64_t dropped; /* since the last line that was read; guarded by lock */
	bool quiet;       /* guarded by lock */
	int eventfd;      /* guarded by lock */
	struct ckpt_log_record lines[CKPT_LOG_KEPT]; /* guarded by lock */
};

int ckpt_log_open(enum ckpt_log_level level, struct ckpt_log **ret_log)
{
	struct ckpt_log *log;
	int r;

	log = ckpt_alloc(sizeof(*log));
	if (!log)
		return -ENOMEM;
	log->level = level ? level : CKPT_LOG_INFO;
	log->eventfd = -1;
	r = -pthread_mutex_init(&log->lock, NULL);
	if (r < 0)
		goto free_log;
	r = ckpt_cond_init(&log->arrived);
	if (r < 0)
		goto destroy_lock;
	*ret_log = log;
	return 0;

destroy_lock:
	(void)pthread_mutex_destroy(&log->lock);
free_log:
	ckpt_free(log);
	return r;
}

void ckpt_log_close(struct ckpt_log *log)
{
	if (!log)
		return;
	(void)pthread_cond_destroy(&log->arrived);
	(void)pthread_mutex_destroy(&log->lock);
	ckpt_free(log);
}

static uint64_t wall_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Called with the lock held. */
static void append(struct ckpt_log *log, enum ckpt_log_level level, const char *message)
{
	const uint64_t one = 1;
	struct ckpt_log_record *line;

	if (log->count == CKPT_LOG_KEPT) {
		log->first = (log->first + 1) % CKPT_LOG_KEPT;
		log->count--;
		log->dropped++;
	}
	line = &log->lines[(log->first + log->count) % CKPT_LOG_KEPT];
	line->size = sizeof(*line);
	line->level = level;
	line->wall_ms = wall_ms();
	memcpy(line->message, message, strlen(message) + 1);
	log->count++;
	pthread_cond_signal(&log->arrived);
	/* If the counter is full, the eventfd is readable anyway. */
	if (log->eventfd >= 0 && write(log->eventfd, &one, sizeof(one)) < 0)
		return;
}

void ckpt_log(struct ckpt_log *log, enum ckpt_log_level level, const char *fmt, ...)
{
	char message[sizeof(log->lines[0].message)];
	char text[sizeof(message) + 4];
	size_t len;
	va_list args;
	int saved = errno;

	if (!log || level > log->level)
		return;
	va_start(args, fmt);
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		text[0] = 0;
	va_end(args);
	len = ckpt_utf8_cut(text, strlen(text), sizeof(message) - 1);
	memcpy(message, text, len);
	message[len] = 0;
	ckpt_utf8_line(message);
	pthread_mutex_lock(&log->lock);
	append(log, level, message);
	pthread_mutex_unlock(&log->lock);
	errno = saved;
}

/* Called with the lock held: copies the oldest line, as much as the caller's struct has. */
static void take(struct ckpt_log *log, struct ckpt_log_record *ret_record)
{
	struct ckpt_log_record *line = &log->lines[log->first];
	size_t size = ret_record->size;

	line->dropped = log->dropped;
	if (size > sizeof(*line))
		memset((char *)ret_record + sizeof(*line), 0, size - sizeof(*line));
	if (size >= sizeof(line->size)) {
		memcpy(ret_record, line, ckpt_min_u64(size, sizeof(*line)));
		ret_record->size = (uint32_t)size;
	}
	log->first = (log->first + 1) % CKPT_LOG_KEPT;
	log->count--;
	log->dropped = 0;
}

int ckpt_log_next(struct ckpt_log *log, int timeout_ms, struct ckpt_log_record *ret_record)
{
	uint64_t deadline = ckpt_deadline(timeout_ms);
	int r = 0;

	pthread_mutex_lock(&log->lock);
	while (log->count == 0 && !log->quiet && timeout_ms != 0) {
		if (!ckpt_cond_wait_until(&log->arrived, &log->lock, deadline))
			break;
	}
	if (log->count > 0)
		take(log, ret_record);
	else
		r = log->quiet ? CKPT_ECLOSED : -ETIMEDOUT;
	pthread_mutex_unlock(&log->lock);
	return r;
}

void ckpt_log_quiet(struct ckpt_log *log)
{
	pthread_mutex_lock(&log->lock);
	log->quiet = true;
	pthread_cond_broadcast(&log->arrived);
	pthread_mutex_unlock(&log->lock);
}

void ckpt_log_set_eventfd(struct ckpt_log *log, int fd)
{
	pthread_mutex_lock(&log->lock);
	log->eventfd = fd;
	pthread_mutex_unlock(&log->lock);
}
