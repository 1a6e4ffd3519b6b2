/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/rope.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *or_die(void *ptr)
{
	if (ptr)
		return ptr;
	perror("memory");
	abort();
}

void *need(size_t size)
{
	return or_die(calloc(1, size ? size : 1));
}

void *need_again(void *ptr, size_t count, size_t size)
{
	return or_die(reallocarray(ptr, count ? count : 1, size));
}

char *need_text(const char *text)
{
	return or_die(strdup(text));
}

struct bytes *bytes_new(size_t length)
{
	struct bytes *bytes = or_die(malloc(sizeof(*bytes) + length));

	atomic_init(&bytes->holders, 1);
	bytes->hollow = false;
	bytes->length = length;
	return bytes;
}

struct bytes *bytes_copy(const void *data, size_t length)
{
	struct bytes *bytes = bytes_new(length);

	if (length)
		memcpy(bytes->data, data, length);
	return bytes;
}

struct bytes *bytes_hollow(size_t length)
{
	struct bytes *bytes = bytes_new(0);

	bytes->hollow = true;
	bytes->length = length;
	return bytes;
}

struct bytes *bytes_hold(struct bytes *bytes)
{
	if (bytes)
		atomic_fetch_add(&bytes->holders, 1);
	return bytes;
}

void bytes_let_go(struct bytes *bytes)
{
	if (bytes && atomic_fetch_sub(&bytes->holders, 1) == 1)
		free(bytes);
}

void rope_add(struct rope *rope, struct bytes *bytes, size_t offset, size_t length)
{
	if (length == 0)
		return;
	rope->pieces = need_again(rope->pieces, rope->count + 1, sizeof(*rope->pieces));
	rope->pieces[rope->count++] = (struct rope_piece){bytes_hold(bytes), offset, length};
	rope->length += length;
}

void rope_add_copy(struct rope *rope, const void *data, size_t length)
{
	struct bytes *bytes = bytes_copy(data, length);

	rope_add(rope, bytes, 0, length);
	bytes_let_go(bytes);
}

void rope_add_part(struct rope *rope, const struct rope *from, uint64_t offset, uint64_t length)
{
	for (size_t i = 0; i < from->count && length; i++) {
		const struct rope_piece *piece = &from->pieces[i];
		if (offset >= piece->length) {
			offset -= piece->length;
			continue;
		}
		size_t there = piece->length - (size_t)offset;
		size_t take = length < there ? (size_t)length : there;
		rope_add(rope, piece->bytes, piece->offset + (size_t)offset, take);
		length -= take;
		offset = 0;
	}
}

size_t rope_read(const struct rope *rope, uint64_t offset, void *data, size_t length)
{
	uint8_t *to = data;
	size_t done = 0;

	for (size_t i = 0; i < rope->count && done < length; i++) {
		const struct rope_piece *piece = &rope->pieces[i];
		if (offset >= piece->length) {
			offset -= piece->length;
			continue;
		}
		size_t there = piece->length - (size_t)offset;
		size_t take = length - done < there ? length - done : there;
		if (piece->bytes->hollow)
			memset(to + done, 0, take);
		else
			memcpy(to + done, piece->bytes->data + piece->offset + offset, take);
		done += take;
		offset = 0;
	}
	return done;
}

void rope_clear(struct rope *rope)
{
	for (size_t i = 0; i < rope->count; i++)
		bytes_let_go(rope->pieces[i].bytes);
	free(rope->pieces);
	*rope = (struct rope){0};
}
