/* SPDX-License-Identifier: Apache-2.0 */
/* How the shard of a rank is stored, by its table. */
#include <errno.h>

#include "api/api_restore.h"
#include "api/copyin.h"
#include "base/error.h"

#define FORMS 6 /* of enum ckpt_stored_form */

struct sums {
	struct ckpt_stored_info file;
	struct ckpt_stored_info of[FORMS][CKPT_DTYPE_END];
};

_Static_assert(1 + (FORMS - 1) * CKPT_DTYPE_END <= CKPT_STORED_INFOS_MAX, "infos of a shard");

/* That all tensors of a chunk have; 0: they have several, or it is of the header. */
static uint32_t dtype_of(const struct ckpt_layout *layout, const struct ckpt_chunk *chunk)
{
	const struct ckpt_entry *end = layout->entries + layout->entry_count;
	const struct ckpt_entry *first = ckpt_layout_at(layout, chunk->offset);

	for (const struct ckpt_entry *e = first;
		e && e < end && e->offset < chunk->offset + chunk->length; e++)
		if (e->nbytes > 0 && e->dtype != first->dtype)
			return 0;
	return first ? first->dtype : 0;
}

static enum ckpt_stored_form form_of(const struct ckpt_encoded_chunk *stored)
{
	if (stored->kind == CKPT_ENCODED_PLAIN)
		return CKPT_STORED_PLAIN;
	if (stored->kind == CKPT_ENCODED_SAME)
		return CKPT_STORED_SAME;
	if (stored->base > 0)
		return CKPT_STORED_DIFFERENCE;
	return stored->ref_count > 0 ? CKPT_STORED_ROUNDED : CKPT_STORED_COMPRESSED;
}

static void sum(const struct ckpt_index_reader *reader, struct sums *sums)
{
	const struct ckpt_layout *layout = reader->index->layout;
	const struct ckpt_encoded *encoded = reader->encoded;

	sums->file.bytes = layout->bytes;
	sums->file.bytes_stored = reader->file_bytes;
	for (size_t i = 0; encoded && i < encoded->chunk_count; i++) {
		const struct ckpt_chunk *chunk = &layout->chunks[i];
		struct ckpt_stored_info *info =
			&sums->of[form_of(&encoded->chunks[i])][dtype_of(layout, chunk)];

		info->bytes += chunk->length;
		info->bytes_stored += encoded->chunks[i].length;
	}
}

/* The infos that the caller has room for. */
struct output {
	char *to;
	size_t stride;
	size_t room;
	size_t count;
};

static int put(struct output *out, struct ckpt_stored_info info)
{
	char *to = out->to + out->count * out->stride;

	info.size = sizeof(info);
	if (out->count++ >= out->room)
		return 0;
	return ckpt_copy_out(to, &info, sizeof(info), "ckpt_stored_info");
}

static int put_sums(const struct sums *sums, struct output *out)
{
	int r = put(out, sums->file);

	for (uint32_t form = CKPT_STORED_ROUNDED; form < FORMS; form++)
		for (uint32_t dtype = 0; r == 0 && dtype < CKPT_DTYPE_END; dtype++) {
			struct ckpt_stored_info info = sums->of[form][dtype];

			info.form = form;
			info.dtype = dtype;
			if (info.bytes > 0)
				r = put(out, info);
		}
	return r;
}

int ckpt_restore_rank_stored(const struct ckpt_restore *restore, uint32_t rank,
	struct ckpt_stored_info *ret_infos, size_t room, size_t *ret_count)
{
	struct ckpt_index_reader *reader = NULL;
	struct sums sums = {0};

	if (!restore || !ret_count || (room > 0 && !ret_infos))
		return ckpt_fail(
			ckpt_error_here(), -EINVAL, "restore, ret_infos or ret_count is NULL");
	int r = ckpt_api_check_rank(restore, rank);
	if (r == 0)
		r = ckpt_restore_rank_other_node(restore, rank, ckpt_error_here());
	if (r == 0)
		reader = ckpt_api_read_rank(restore, rank, true, &r);
	if (!reader)
		return r;
	sum(reader, &sums);
	ckpt_command_unref(&reader->command);
	struct output out = {
		.to = (char *)ret_infos, .stride = room > 0 ? ret_infos->size : 0, .room = room};
	r = put_sums(&sums, &out);
	*ret_count = out.count;
	return r;
}
