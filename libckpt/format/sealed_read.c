/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the members of a sealed file. */
#include "format/sealed.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "format/manifest.h"

int ckpt_sealed_read(const void *data, size_t length, const char *const *names,
	ckpt_sealed_read_fn *read, void *user, const char *file, struct ckpt_error *err)
{
	struct ckpt_reader r;
	uint32_t seen = 0;
	int member;

	ckpt_reader_init(&r, data, length, 0, file, err);
	(void)ckpt_reader_open(&r, '{');
	while ((member = ckpt_reader_member(&r, names, &seen)) != CKPT_READER_END) {
		if (member == CKPT_READER_OTHER) {
			(void)ckpt_reader_skip(&r);
			continue;
		}
		/* The caller reports an invalid value by its name. */
		r.err = NULL;
		if (!read(&r, member, user) || r.failed)
			return ckpt_sealed_lacks(names[member], file, err);
		r.err = err;
	}
	for (int i = 0; names[i] && !r.failed; i++) {
		if (!(seen & UINT32_C(1) << i))
			return ckpt_sealed_lacks(names[i], file, err);
	}
	return ckpt_reader_finish(&r);
}

bool ckpt_sealed_number(struct ckpt_reader *r, uint64_t min, uint64_t max, uint64_t *ret)
{
	uint64_t value;

	if (!ckpt_reader_u64(r, &value))
		return false;
	if (value < min || value > max)
		return ckpt_reader_fail(
			r, "%" PRIu64 " is not between %" PRIu64 " and %" PRIu64, value, min, max);
	*ret = value;
	return true;
}

bool ckpt_sealed_run_id(struct ckpt_reader *r, char *ret_run_id)
{
	return ckpt_reader_text(r, ret_run_id, CKPT_RUN_ID_CHARS, NULL) &&
	       (ckpt_run_id_valid(ret_run_id) ||
		       ckpt_reader_fail(r, "its run_id is not 32 lower-case hexadecimal digits"));
}

bool ckpt_sealed_attempt(struct ckpt_reader *r, char ret_attempt[CKPT_ATTEMPT_CHARS])
{
	return ckpt_reader_text(r, ret_attempt, CKPT_ATTEMPT_CHARS, NULL) &&
	       (ckpt_attempt_valid(ret_attempt) ||
		       ckpt_reader_fail(r, "an attempt is not 16 lower-case hexadecimal digits"));
}

bool ckpt_sealed_nonce(struct ckpt_reader *r, uint64_t *ret_nonce)
{
	char nonce[CKPT_ATTEMPT_CHARS];

	if (!ckpt_sealed_attempt(r, nonce))
		return false;
	*ret_nonce = strtoull(nonce, NULL, 16);
	return true;
}

bool ckpt_sealed_line(struct ckpt_reader *r, char *ret_line, size_t size)
{
	return ckpt_reader_text(r, ret_line, size, NULL) &&
	       (ckpt_utf8_is_line(ret_line) ||
		       ckpt_reader_fail(r, "a text contains a control character"));
}
