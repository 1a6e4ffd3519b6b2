/* SPDX-License-Identifier: Apache-2.0 */
#include "api/table.h"

static struct table_entry *find(struct table *table, const char *key, bool make)
{
	struct table_entry *free_one = NULL;

	for (size_t i = 0; i < TABLE_ENTRIES; i++) {
		struct table_entry *e = &table->entries[i];
		if (e->key[0] && strcmp(e->key, key) == 0)
			return e;
		if (!e->key[0] && !free_one)
			free_one = e;
	}
	if (!make)
		return NULL;
	assert_non_null(free_one);
	(void)snprintf(free_one->key, sizeof(free_one->key), "%s", key);
	return free_one;
}

static void clear(struct table_entry *e)
{
	free(e->value);
	*e = (struct table_entry){0};
}

static int put(struct table *table, const char *key, const void *value, uint64_t length)
{
	struct table_entry *e = find(table, key, true);

	if (e->value)
		return e->length == length && memcmp(e->value, value, length) == 0 ? 0 : -EEXIST;
	e->value = malloc(length + 1);
	memcpy(e->value, value, length);
	e->length = length;
	return 0;
}

static void get(struct table *table, const char *key, struct table_reply *reply, uint32_t i)
{
	const struct table_entry *e = find(table, key, false);

	reply->values[i] = NULL;
	if (!e)
		return;
	assert_true(reply->used + e->length <= sizeof(reply->memory));
	memcpy(reply->memory + reply->used, e->value, e->length);
	reply->values[i] = reply->memory + reply->used;
	reply->lengths[i] = e->length;
	reply->used += e->length;
}

int table_apply(
	struct table *table, const struct ckpt_exchange_request *request, struct table_reply *reply)
{
	int r = 0;

	reply->used = 0;
	(void)pthread_mutex_lock(&table->lock);
	if (table->dead)
		r = -EPIPE;
	for (uint32_t i = 0; i < request->count && !table->dead; i++) {
		struct table_entry *e;
		if (request->verb == CKPT_EXCHANGE_PUT) {
			int worse = put(
				table, request->keys[i], request->values[i], request->lengths[i]);
			r = r < 0 ? r : worse;
			table->dead =
				table->fatal[0] && strcmp(table->fatal, request->keys[i]) == 0;
			r = table->dead && table->mute ? -EPIPE : r;
		} else if (request->verb == CKPT_EXCHANGE_GET) {
			get(table, request->keys[i], reply, i);
		} else if ((e = find(table, request->keys[i], false))) {
			clear(e);
		}
	}
	(void)pthread_mutex_unlock(&table->lock);
	return r;
}

void *table_serve(void *argument)
{
	const struct table_service *service = argument;
	struct table_reply *reply = calloc(1, sizeof(*reply));
	struct ckpt_exchange_request request = {.size = sizeof(request)};

	while (ckpt_exchange_next(service->server, CKPT_FOREVER, &request) == 0) {
		const struct ckpt_exchange_answer answer = {.size = sizeof(answer),
			.id = request.id,
			.result = table_apply(service->table, &request, reply),
			.values = reply->values,
			.lengths = reply->lengths};
		(void)ckpt_exchange_reply(service->server, &answer);
	}
	free(reply);
	return NULL;
}

void table_kill(struct table *table, const char *key, bool mute)
{
	(void)pthread_mutex_lock(&table->lock);
	(void)snprintf(table->fatal, sizeof(table->fatal), "%s", key);
	table->mute = mute;
	table->dead = !*key;
	(void)pthread_mutex_unlock(&table->lock);
}

void table_revive(struct table *table)
{
	(void)pthread_mutex_lock(&table->lock);
	table->fatal[0] = '\0';
	table->dead = false;
	(void)pthread_mutex_unlock(&table->lock);
}

unsigned table_count(const struct table *table)
{
	unsigned count = 0;

	for (size_t i = 0; i < TABLE_ENTRIES; i++)
		count += table->entries[i].key[0] != '\0';
	return count;
}

bool table_has(struct table *table, const char *key)
{
	return find(table, key, false) != NULL;
}

void table_init(struct table *table)
{
	(void)pthread_mutex_init(&table->lock, NULL);
}

void table_clear(struct table *table)
{
	for (size_t i = 0; i < TABLE_ENTRIES; i++)
		clear(&table->entries[i]);
	(void)pthread_mutex_destroy(&table->lock);
}
