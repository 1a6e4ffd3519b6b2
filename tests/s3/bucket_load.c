/* SPDX-License-Identifier: Apache-2.0 */
/* What bucket_disk.c has written, read again. */
#include "s3/bucket_inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MOST 4096

struct file {
	struct pairs head;
	struct bytes *content;
};

static void file_clear(struct file *file)
{
	pairs_clear(&file->head);
	bytes_let_go(file->content);
	*file = (struct file){0};
}

static const char *words(const struct file *file, const char *name)
{
	const char *value = pairs_get(&file->head, name);

	return value ? value : "";
}

static uint64_t number(const struct file *file, const char *name)
{
	return strtoull(words(file, name), NULL, 10);
}

/* Takes the head out of `text`; how long it was, or 0. */
static size_t read_head(const char *text, size_t length, struct pairs *head)
{
	for (size_t at = 0; at < length;) {
		const char *line = text + at;
		const char *end = memchr(line, '\n', length - at);
		if (!end)
			return 0;
		at += (size_t)(end - line) + 1;
		if (end == line)
			return at;
		const char *space = memchr(line, ' ', (size_t)(end - line));
		if (!space)
			return 0;
		char *name = url_decode(line, (size_t)(space - line), false);
		char *value = url_decode(space + 1, (size_t)(end - space - 1), false);
		if (name && value)
			pairs_add(head, name, value);
		free(name);
		free(value);
	}
	return 0;
}

static bool read_file(const char *path, struct file *file)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	*file = (struct file){0};
	if (fd < 0 || fstat(fd, &st) < 0) {
		if (fd >= 0)
			(void)close(fd);
		return false;
	}
	size_t size = (size_t)st.st_size, done = 0;
	char *text = need(size);
	for (ssize_t n = 1; done < size && n > 0; done += n > 0 ? (size_t)n : 0)
		n = read(fd, text + done, size - done);
	(void)close(fd);
	size_t head = done == size ? read_head(text, size, &file->head) : 0;
	if (head) {
		uint64_t hollow = number(file, "hollow");
		file->content = hollow ? bytes_hollow((size_t)hollow)
				       : bytes_copy(text + head, size - head);
	}
	free(text);
	if (!head)
		file_clear(file);
	return head > 0;
}

static void read_sum(const struct file *file, struct checksum *sum)
{
	sum->hash = hash_named(words(file, "sum"));
	sum->composite = number(file, "sum-composite");
	(void)snprintf(sum->text, sizeof(sum->text), "%s", words(file, "sum-text"));
}

static void read_meta(const struct file *file, struct pairs *meta)
{
	for (size_t i = 0; i < file->head.count; i++)
		if (strncmp(file->head.at[i].name, "meta:", 5) == 0)
			pairs_add(meta, file->head.at[i].name + 5, file->head.at[i].value);
}

static void load_object(struct buckets *all, struct bucket *bucket, const char *path)
{
	struct file file;

	if (!read_file(path, &file))
		return;
	struct object *object = need(sizeof(*object));
	object->key = need_text(words(&file, "key"));
	(void)snprintf(object->etag, sizeof(object->etag), "%s", words(&file, "etag"));
	object->modified_ns = number(&file, "time");
	if (*words(&file, "upload"))
		object->upload = need_text(words(&file, "upload"));
	read_sum(&file, &object->sum);
	read_meta(&file, &object->meta);
	rope_add(&object->content, file.content, 0, file.content->length);
	bucket_keep(all, bucket, object);
	if (object->upload)
		upload_note(all, bucket->name, object);
	file_clear(&file);
}

static void load_part(struct buckets *all, struct upload *upload, const char *path)
{
	struct file file;
	struct part part = {0};

	if (!read_file(path, &file))
		return;
	part.number = (unsigned)number(&file, "number");
	part.modified_ns = number(&file, "time");
	(void)snprintf(part.etag, sizeof(part.etag), "%s", words(&file, "etag"));
	read_sum(&file, &part.sum);
	part.bytes = bytes_hold(file.content);
	hash_take(
		HASH_MD5, part.bytes->data, part.bytes->hollow ? 0 : part.bytes->length, part.md5);
	upload_part(all, upload, &part);
	file_clear(&file);
}

/* Calls `each` for every name in a directory that begins with `prefix`; false: there is none. */
static bool for_each(const char *folder, const char *prefix,
	void (*each)(void *user, const char *name, const char *path), void *user)
{
	DIR *dir = opendir(folder);
	const struct dirent *entry;

	if (!dir)
		return false;
	while ((entry = readdir(dir))) {
		char path[PATH_MOST];
		size_t length = strlen(entry->d_name);
		if (entry->d_name[0] == '.' ||
			strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
			(length > 4 && strcmp(entry->d_name + length - 4, ".tmp") == 0))
			continue;
		int n = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (n > 0 && n < PATH_MOST)
			each(user, entry->d_name, path);
	}
	(void)closedir(dir);
	return true;
}

struct loading {
	struct buckets *all;
	struct bucket *bucket;
	struct upload *upload;
};

static void each_part(void *user, const char *name, const char *path)
{
	struct loading *l = user;

	(void)name;
	load_part(l->all, l->upload, path);
}

static bool was_completed(const struct bucket *bucket, const char *id)
{
	for (size_t i = 0; i < bucket->count; i++)
		if (bucket->objects[i]->upload && strcmp(bucket->objects[i]->upload, id) == 0)
			return true;
	return false;
}

static void each_upload(void *user, const char *name, const char *path)
{
	struct loading *l = user;
	struct file file;
	char inner[PATH_MOST + 16];

	(void)snprintf(inner, sizeof(inner), "%s/upload", path);
	if (!read_file(inner, &file))
		return; /* it was being aborted */
	struct upload *upload = need(sizeof(*upload));
	upload->id = need_text(name + 2);
	upload->key = need_text(words(&file, "key"));
	upload->started_ns = number(&file, "time");
	upload->hash = hash_named(words(&file, "sum"));
	upload->whole = number(&file, "sum-whole");
	read_meta(&file, &upload->meta);
	file_clear(&file);
	/* It was killed after the object was there, and before this was gone. */
	if (was_completed(l->bucket, upload->id)) {
		disk_no_upload(l->all, l->bucket, upload);
		upload_free(l->all, upload);
		return;
	}
	l->upload = upload;
	(void)for_each(path, "p-", each_part, l);
	upload_keep(l->bucket, upload);
}

static void each_object(void *user, const char *name, const char *path)
{
	struct loading *l = user;

	(void)name;
	load_object(l->all, l->bucket, path);
}

static void each_bucket(void *user, const char *name, const char *path)
{
	struct loading *l = user;
	struct file file;
	char inner[PATH_MOST + 16];

	(void)snprintf(inner, sizeof(inner), "%s/bucket", path);
	if (!read_file(inner, &file))
		return;
	l->bucket = buckets_add(l->all, name, words(&file, "region"), number(&file, "made"));
	file_clear(&file);
	(void)for_each(path, "o-", each_object, l);
	(void)for_each(path, "u-", each_upload, l);
}

bool disk_load(struct buckets *all)
{
	struct loading l = {.all = all};

	if (mkdir(all->directory, 0777) < 0 && errno != EEXIST) {
		(void)fprintf(stderr, "%s: %s\n", all->directory, strerror(errno));
		return false;
	}
	if (for_each(all->directory, "", each_bucket, &l))
		return true;
	(void)fprintf(stderr, "%s: %s\n", all->directory, strerror(errno));
	return false;
}
