/* SPDX-License-Identifier: Apache-2.0 */
/* A table of values behind an exchange that the program serves: each key is put once. */
#ifndef CKPT_TESTS_API_TABLE_H
#define CKPT_TESTS_API_TABLE_H

#include <pthread.h>
#include <stdbool.h>

#include "api/kit.h"

#define TABLE_ENTRIES   1024
#define TABLE_VALUE_MAX 65536 /* of what the ranks say here */

struct table_entry {
	char key[CKPT_EXCHANGE_NAME_MAX];
	void *value;
	uint64_t length;
};

struct table {
	pthread_mutex_t lock;
	/* It refuses everything from the moment at which this key is put; "": it lives. */
	char fatal[CKPT_EXCHANGE_NAME_MAX]; /* guarded by lock */
	bool mute; /* guarded by lock: that put is done, and not answered either */
	bool dead; /* guarded by lock */
	struct table_entry entries[TABLE_ENTRIES]; /* guarded by lock */
};

/* What a request is answered with. */
struct table_reply {
	const void *values[CKPT_EXCHANGE_BATCH];
	uint64_t lengths[CKPT_EXCHANGE_BATCH];
	char memory[TABLE_VALUE_MAX];
	size_t used;
};

void table_init(struct table *table);
void table_clear(struct table *table);
/* While nobody is served. */
unsigned table_count(const struct table *table);
bool table_has(struct table *table, const char *key);
/* It refuses everything from now on, or from when `key` is put, with its answer or without. */
void table_kill(struct table *table, const char *key, bool mute);
void table_revive(struct table *table);
/* Does what is asked. The request's result. */
int table_apply(struct table *table, const struct ckpt_exchange_request *request,
	struct table_reply *reply);
/* A thread's body: serves one engine until there is nothing more to serve. */
struct table_service {
	struct table *table;
	struct ckpt_exchange_server *server;
};
void *table_serve(void *service);

#endif
