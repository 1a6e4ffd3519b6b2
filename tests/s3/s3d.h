/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the server share. */
#ifndef S3_S3D_H
#define S3_S3D_H

#include <pthread.h>

#include "s3/front.h"
#include "s3/wire.h"

struct s3d_options {
	const char *domain; /* of virtual hosts: BUCKET.domain */
	int idle_ms;        /* a connection without a request for so long is closed */
	uint64_t body_most;
	bool null_sink; /* bodies are read, and neither kept nor summed */
};

struct s3d {
	struct s3d_options options;
	pthread_mutex_t lock; /* of all that follows */
	struct front front;
	struct guard guard;
	int64_t clock_offset_ns;
	struct s3d_connection *connections;
	struct s3d_connection *over; /* their threads want to be joined */
	unsigned connection_count;
	pthread_cond_t ended; /* a connection has */
	/* Constant. */
	SSL_CTX *tls;
	int stop;  /* becomes readable when all shall end */
	int again; /* is written when a late request was put off */
};

struct s3d_connection {
	struct s3d_connection *next;
	struct s3d *s3d;
	pthread_t thread;
	struct wire wire;
};

uint64_t s3d_now(const struct s3d *s3d); /* Unix time in ns, with the lock held */
/* Waits; less long if the server ends. */
void s3d_wait(const struct s3d *s3d, uint32_t ms);
/* The thread of a connection. */
void *s3d_connection_run(void *connection);

/* /_ckpt/...: the tests' way in. `body` may be NULL. */
void s3d_admin(struct s3d *s3d, const char *method, const char *target, const struct bytes *body,
	struct s3_reply *reply);

#endif
