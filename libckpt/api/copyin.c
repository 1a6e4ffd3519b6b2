/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that begin with their size. */
#include "api/copyin.h"

#include <errno.h>
#include <string.h>

#include <ckpt/version.h>
#include "base/alloc.h"
#include "base/error.h"

static int size_of(const void *with_size, const char *what, uint32_t *ret_size)
{
	if (!with_size)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "%s is NULL", what);
	memcpy(ret_size, with_size, sizeof(*ret_size));
	if (*ret_size < sizeof(*ret_size))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"%s.size is %u: set it to sizeof(struct %s)", what, *ret_size, what);
	return 0;
}

int ckpt_copy_in(void *to, size_t size, const void *from, const char *what)
{
	uint32_t given = 0;
	int r = size_of(from, what, &given);

	if (r < 0)
		return r;
	const unsigned char *bytes = from;
	for (size_t i = size; i < given; i++)
		if (bytes[i])
			return ckpt_fail(ckpt_error_here(), -E2BIG,
				"%s has fields that this library (" CKPT_VERSION ") does not know",
				what);
	memset(to, 0, size);
	memcpy(to, from, given < size ? given : size);
	return 0;
}

/* A struct of a later version is not likely to have more; a size of rubbish is. */
#define STRUCT_MAX 4096

int ckpt_copy_in_all(void **ret_copies, size_t size, size_t least, const void *from, size_t count,
	const char *what)
{
	const char *at = from;
	uint32_t first = 0;
	uint32_t each = 0;
	int r = size_of(from, what, &first);

	if (r < 0)
		return r;
	if (first < least || first > STRUCT_MAX)
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"%s.size must be sizeof(struct %s) of each, and is %u", what, what, first);
	for (size_t i = 0; i < count; i++, at += first) {
		memcpy(&each, at, sizeof(each));
		if (each != first)
			return ckpt_fail(ckpt_error_here(), -EINVAL,
				"%s.size of number %zu is %u, and %u of the first", what, i, each,
				first);
	}
	if (first == size)
		return 0;
	char *copies = ckpt_alloc_array(count, size);
	if (!copies)
		return ckpt_fail(ckpt_error_here(), -ENOMEM, "out of memory");
	for (size_t i = 0; r == 0 && i < count; i++)
		r = ckpt_copy_in(copies + i * size, size, (const char *)from + i * first, what);
	if (r < 0)
		ckpt_free(copies);
	else
		*ret_copies = copies;
	return r;
}

int ckpt_copy_out(void *to, const void *from, size_t size, const char *what)
{
	uint32_t given = 0;
	int r = size_of(to, what, &given);

	if (r < 0)
		return r;
	size_t shared = given < size ? given : size;
	memcpy((char *)to + sizeof(given), (const char *)from + sizeof(given),
		shared - sizeof(given));
	if (given > shared)
		memset((char *)to + shared, 0, given - shared);
	return 0;
}

int ckpt_check_fork(const struct ckpt_engine *engine)
{
	if (!engine)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "engine is NULL");
	if (!ckpt_runtime_forked(engine))
		return 0;
	return ckpt_fail(ckpt_error_here(), CKPT_EFORKED,
		"this handle belongs to the parent of a fork: open the store again in the child");
}
