/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets in a directory, so that a server that was killed comes up again with what it has acknowledged.
 * Every file appears whole, by a rename; nothing is synced, because it is the process that is killed and
 * not the machine.
 *
 *   BUCKET/bucket           region and time
 *   BUCKET/o-SHA256         an object, by its key's digest
 *   BUCKET/u-ID/upload      a multipart upload, p-N its parts
 *
 * A file is lines of "name value", percent-encoded, an empty one, and the content.
 */
#include "s3/bucket_inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MOST 4096

static void must(bool ok, const char *path)
{
	if (ok)
		return;
	(void)fprintf(stderr, "bucket: %s: %s\n", path, strerror(errno));
	abort();
}

static void path_of(char out[PATH_MOST], const struct buckets *all, const char *bucket,
	const char *folder, const char *name)
{
	int n = snprintf(out, PATH_MOST, "%s/%s%s%s%s%s", all->directory, bucket,
		*folder ? "/" : "", folder, *name ? "/" : "", name);

	errno = ENAMETOOLONG;
	must(n > 0 && n < PATH_MOST, "path");
}

static void put_all(int fd, const void *data, size_t length, const char *path)
{
	const char *at = data;

	while (length) {
		ssize_t n = write(fd, at, length);
		must(n > 0, path);
		at += n;
		length -= (size_t)n;
	}
}

static void field(struct text *head, const char *name, const char *value)
{
	text_addf(head, "%s ", name);
	text_add_url(head, value, true);
	text_add(head, "\n");
}

static void number(struct text *head, const char *name, uint64_t value)
{
	text_addf(head, "%s %" PRIu64 "\n", name, value);
}

/* Clears `head`. */
static void put_file(const char *path, struct text *head, const struct rope *content)
{
	char temporary[PATH_MOST + 8];
	bool hollow = false;

	for (size_t i = 0; content && i < content->count; i++)
		hollow = hollow || content->pieces[i].bytes->hollow;
	if (hollow)
		number(head, "hollow", content->length);
	text_add(head, "\n");
	(void)snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	must(fd >= 0, temporary);
	put_all(fd, head->at, head->length, temporary);
	for (size_t i = 0; content && !hollow && i < content->count; i++)
		put_all(fd, content->pieces[i].bytes->data + content->pieces[i].offset,
			content->pieces[i].length, temporary);
	must(close(fd) == 0, temporary);
	must(rename(temporary, path) == 0, path);
	text_clear(head);
}

static void key_name(const char *key, char out[HASH_TEXT_MAX])
{
	uint8_t sum[HASH_MAX];

	memcpy(out, "o-", 2);
	hash_take(HASH_SHA256, key, strlen(key), sum);
	hex_put(sum, HASH_MAX, out + 2);
}

static void upload_name(const struct upload *upload, char out[HASH_TEXT_MAX])
{
	(void)snprintf(out, HASH_TEXT_MAX, "u-%s", upload->id);
}

static void sum_fields(struct text *head, const struct checksum *sum)
{
	if (sum->hash == HASH_COUNT)
		return;
	field(head, "sum", hash_name(sum->hash));
	field(head, "sum-text", sum->text);
	number(head, "sum-composite", sum->composite);
}

static void meta_fields(struct text *head, const struct pairs *meta)
{
	for (size_t i = 0; i < meta->count; i++) {
		struct text name = {0};
		text_add(&name, "meta:");
		text_add_url(&name, meta->at[i].name, false);
		text_add(head, name.at);
		text_add(head, " ");
		text_add_url(head, meta->at[i].value, true);
		text_add(head, "\n");
		text_clear(&name);
	}
}

void disk_bucket(const struct buckets *all, const struct bucket *bucket)
{
	char path[PATH_MOST];
	struct text head = {0};

	if (!all->directory)
		return;
	path_of(path, all, bucket->name, "", "");
	must(mkdir(path, 0777) == 0 || errno == EEXIST, path);
	field(&head, "region", bucket->region);
	number(&head, "made", bucket->made_ns);
	path_of(path, all, bucket->name, "", "bucket");
	put_file(path, &head, NULL);
}

void disk_no_bucket(const struct buckets *all, const struct bucket *bucket)
{
	char path[PATH_MOST];

	if (!all->directory)
		return;
	for (size_t i = 0; i < bucket->upload_count; i++)
		disk_no_upload(all, bucket, bucket->uploads[i]);
	path_of(path, all, bucket->name, "", "bucket");
	must(unlink(path) == 0, path);
	path_of(path, all, bucket->name, "", "");
	must(rmdir(path) == 0, path);
}

void disk_object(
	const struct buckets *all, const struct bucket *bucket, const struct object *object)
{
	char path[PATH_MOST], name[HASH_TEXT_MAX];
	struct text head = {0};

	if (!all->directory)
		return;
	field(&head, "key", object->key);
	field(&head, "etag", object->etag);
	number(&head, "time", object->modified_ns);
	if (object->upload)
		field(&head, "upload", object->upload);
	sum_fields(&head, &object->sum);
	meta_fields(&head, &object->meta);
	key_name(object->key, name);
	path_of(path, all, bucket->name, "", name);
	put_file(path, &head, &object->content);
}

void disk_no_object(const struct buckets *all, const struct bucket *bucket, const char *key)
{
	char path[PATH_MOST], name[HASH_TEXT_MAX];

	if (!all->directory)
		return;
	key_name(key, name);
	path_of(path, all, bucket->name, "", name);
	must(unlink(path) == 0 || errno == ENOENT, path);
}

void disk_upload(
	const struct buckets *all, const struct bucket *bucket, const struct upload *upload)
{
	char path[PATH_MOST], name[HASH_TEXT_MAX];
	struct text head = {0};

	if (!all->directory)
		return;
	upload_name(upload, name);
	path_of(path, all, bucket->name, name, "");
	must(mkdir(path, 0777) == 0, path);
	field(&head, "key", upload->key);
	number(&head, "time", upload->started_ns);
	if (upload->hash != HASH_COUNT)
		field(&head, "sum", hash_name(upload->hash));
	number(&head, "sum-whole", upload->whole);
	meta_fields(&head, &upload->meta);
	path_of(path, all, bucket->name, name, "upload");
	put_file(path, &head, NULL);
}

void disk_part(const struct buckets *all, const struct bucket *bucket, const struct upload *upload,
	const struct part *part)
{
	char path[PATH_MOST], folder[HASH_TEXT_MAX], name[16];
	struct text head = {0};
	struct rope content = {0};

	if (!all->directory)
		return;
	upload_name(upload, folder);
	(void)snprintf(name, sizeof(name), "p-%u", part->number);
	number(&head, "number", part->number);
	field(&head, "etag", part->etag);
	number(&head, "time", part->modified_ns);
	sum_fields(&head, &part->sum);
	path_of(path, all, bucket->name, folder, name);
	rope_add(&content, part->bytes, 0, part->bytes->length);
	put_file(path, &head, &content);
	rope_clear(&content);
}

void disk_no_upload(
	const struct buckets *all, const struct bucket *bucket, const struct upload *upload)
{
	char path[PATH_MOST], folder[HASH_TEXT_MAX];
	const struct dirent *entry;

	if (!all->directory)
		return;
	upload_name(upload, folder);
	/* Without this one the rest is nothing. */
	path_of(path, all, bucket->name, folder, "upload");
	must(unlink(path) == 0 || errno == ENOENT, path);
	path_of(path, all, bucket->name, folder, "");
	DIR *dir = opendir(path);
	must(dir != NULL, path);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		must(unlinkat(dirfd(dir), entry->d_name, 0) == 0, entry->d_name);
	}
	(void)closedir(dir);
	must(rmdir(path) == 0, path);
}
