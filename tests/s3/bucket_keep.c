/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept: buckets, objects, uploads, and where they are. */
#include "s3/bucket_inside.h"

#include <stdlib.h>
#include <string.h>

struct buckets *buckets_new(const struct buckets_config *config)
{
	struct buckets *all = need(sizeof(*all));

	all->guard = config->guard;
	all->journal = config->journal;
	all->region = need_text(config->region ? config->region : "us-east-1");
	all->directory = config->directory ? need_text(config->directory) : NULL;
	all->prng.state = config->seed;
	all->limit = config->memory_limit;
	if (!all->directory || disk_load(all))
		return all;
	buckets_free(all);
	return NULL;
}

static void bucket_free(struct buckets *all, struct bucket *bucket)
{
	for (size_t i = 0; i < bucket->count; i++)
		object_free(bucket->objects[i]);
	for (size_t i = 0; i < bucket->upload_count; i++)
		upload_free(all, bucket->uploads[i]);
	free(bucket->objects);
	free(bucket->uploads);
	free(bucket->name);
	free(bucket->region);
	free(bucket);
}

static void note_clear(struct note *note)
{
	free(note->bucket);
	free(note->key);
	free(note->id);
	*note = (struct note){0};
}

void buckets_free(struct buckets *all)
{
	if (!all)
		return;
	for (size_t i = 0; i < all->count; i++)
		bucket_free(all, all->at[i]);
	for (size_t i = 0; i < NOTES_MAX; i++)
		note_clear(&all->notes[i]);
	free(all->at);
	free(all->region);
	free(all->directory);
	free(all);
}

struct s3_capabilities *buckets_capabilities(struct buckets *buckets)
{
	return &buckets->can;
}

uint64_t buckets_held(const struct buckets *buckets)
{
	return buckets->held;
}

struct bucket *buckets_find(const struct buckets *all, const char *name)
{
	for (size_t i = 0; i < all->count; i++)
		if (strcmp(all->at[i]->name, name) == 0)
			return all->at[i];
	return NULL;
}

struct bucket *buckets_add(
	struct buckets *all, const char *name, const char *region, uint64_t now_ns)
{
	struct bucket *bucket = need(sizeof(*bucket));
	size_t at = 0;

	bucket->name = need_text(name);
	bucket->region = need_text(region);
	bucket->made_ns = now_ns;
	all->at = need_again(all->at, all->count + 1, sizeof(*all->at));
	while (at < all->count && strcmp(all->at[at]->name, name) < 0)
		at++;
	memmove(&all->at[at + 1], &all->at[at], (all->count - at) * sizeof(*all->at));
	all->at[at] = bucket;
	all->count++;
	return bucket;
}

void buckets_make(struct buckets *buckets, const char *name)
{
	if (!buckets_find(buckets, name))
		disk_bucket(buckets, buckets_add(buckets, name, buckets->region, 0));
}

size_t bucket_place(const struct bucket *bucket, const char *key, bool *ret_there)
{
	size_t low = 0, high = bucket->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(bucket->objects[middle]->key, key);
		if (order == 0) {
			*ret_there = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*ret_there = false;
	return low;
}

struct object *bucket_object(const struct bucket *bucket, const char *key)
{
	bool there = false;
	size_t at = bucket_place(bucket, key, &there);

	return there ? bucket->objects[at] : NULL;
}

/* What it weighs: hollow bytes weigh nothing. */
static uint64_t weight(const struct rope *rope)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < rope->count; i++)
		sum += rope->pieces[i].bytes->hollow ? 0 : rope->pieces[i].length;
	return sum;
}

void object_free(struct object *object)
{
	if (!object)
		return;
	rope_clear(&object->content);
	pairs_clear(&object->meta);
	free(object->key);
	free(object->upload);
	free(object);
}

void bucket_keep(struct buckets *all, struct bucket *bucket, struct object *object)
{
	bool there = false;
	size_t at = bucket_place(bucket, object->key, &there);

	all->held += weight(&object->content);
	if (there) {
		all->held -= weight(&bucket->objects[at]->content);
		object_free(bucket->objects[at]);
		bucket->objects[at] = object;
		return;
	}
	bucket->objects = need_again(bucket->objects, bucket->count + 1, sizeof(struct object *));
	memmove(&bucket->objects[at + 1], &bucket->objects[at],
		(bucket->count - at) * sizeof(struct object *));
	bucket->objects[at] = object;
	bucket->count++;
}

void bucket_drop(struct buckets *all, struct bucket *bucket, const char *key)
{
	bool there = false;
	size_t at = bucket_place(bucket, key, &there);

	if (!there)
		return;
	all->held -= weight(&bucket->objects[at]->content);
	object_free(bucket->objects[at]);
	bucket->count--;
	memmove(&bucket->objects[at], &bucket->objects[at + 1],
		(bucket->count - at) * sizeof(struct object *));
}

struct upload *upload_find(const struct bucket *bucket, const char *id)
{
	for (size_t i = 0; i < bucket->upload_count; i++)
		if (strcmp(bucket->uploads[i]->id, id) == 0)
			return bucket->uploads[i];
	return NULL;
}

static int upload_order(const struct upload *a, const struct upload *b)
{
	int order = strcmp(a->key, b->key);

	return order ? order : strcmp(a->id, b->id);
}

void upload_keep(struct bucket *bucket, struct upload *upload)
{
	size_t at = 0;

	bucket->uploads =
		need_again(bucket->uploads, bucket->upload_count + 1, sizeof(struct upload *));
	while (at < bucket->upload_count && upload_order(bucket->uploads[at], upload) < 0)
		at++;
	memmove(&bucket->uploads[at + 1], &bucket->uploads[at],
		(bucket->upload_count - at) * sizeof(struct upload *));
	bucket->uploads[at] = upload;
	bucket->upload_count++;
}

static uint64_t part_weight(const struct part *part)
{
	return part->bytes->hollow ? 0 : part->bytes->length;
}

void upload_part(struct buckets *all, struct upload *upload, const struct part *part)
{
	size_t at = 0;

	while (at < upload->count && upload->parts[at].number < part->number)
		at++;
	all->held += part_weight(part);
	if (at < upload->count && upload->parts[at].number == part->number) {
		all->held -= part_weight(&upload->parts[at]);
		bytes_let_go(upload->parts[at].bytes);
		upload->parts[at] = *part;
		return;
	}
	upload->parts = need_again(upload->parts, upload->count + 1, sizeof(*upload->parts));
	memmove(&upload->parts[at + 1], &upload->parts[at],
		(upload->count - at) * sizeof(*upload->parts));
	upload->parts[at] = *part;
	upload->count++;
}

void upload_free(struct buckets *all, struct upload *upload)
{
	for (size_t i = 0; i < upload->count; i++) {
		all->held -= part_weight(&upload->parts[i]);
		bytes_let_go(upload->parts[i].bytes);
	}
	free(upload->parts);
	pairs_clear(&upload->meta);
	free(upload->id);
	free(upload->key);
	free(upload);
}

void upload_note(struct buckets *all, const char *bucket, const struct object *object)
{
	struct note *note = &all->notes[all->noted++ % NOTES_MAX];

	note_clear(note);
	note->bucket = need_text(bucket);
	note->key = need_text(object->key);
	note->id = need_text(object->upload);
	memcpy(note->etag, object->etag, sizeof(note->etag));
}

const struct rope *buckets_content(struct buckets *buckets, const char *bucket, const char *key)
{
	const struct bucket *b = buckets_find(buckets, bucket);
	const struct object *object = b ? bucket_object(b, key) : NULL;

	return object ? &object->content : NULL;
}

size_t buckets_uploads(const struct buckets *buckets, const char *bucket)
{
	const struct bucket *b = buckets_find(buckets, bucket);

	return b ? b->upload_count : 0;
}
