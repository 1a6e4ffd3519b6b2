/* SPDX-License-Identifier: Apache-2.0 */
#include "stored.h"

static const char *const form_names[] = {
	"file", "rounded", "compressed", "plain", "same", "difference"};

static void add_rank(
	struct stored *stored, uint32_t rank, const struct ckpt_stored_info *infos, size_t count)
{
	stored->ranks++;
	stored->encoded += count > 1;
	stored->bytes += infos[0].bytes;
	stored->file_bytes += infos[0].bytes_stored;
	(void)json_array_append_new(
		stored->by_rank, json_pack("{s:i, s:b, s:I, s:I}", "rank", (int)rank, "encoded",
					 count > 1, "bytes", (json_int_t)infos[0].bytes,
					 "bytes_stored", (json_int_t)infos[0].bytes_stored));
	for (size_t i = 1; i < count; i++) {
		/* A later library may know more. */
		if (infos[i].form > CKPT_STORED_DIFFERENCE || infos[i].dtype >= CKPT_DTYPE_END)
			continue;
		struct ckpt_stored_info *sum = &stored->chunks[infos[i].form][infos[i].dtype];
		sum->bytes += infos[i].bytes;
		sum->bytes_stored += infos[i].bytes_stored;
	}
}

int stored_read(
	const struct cli *cli, const struct ckpt_restore *restore, struct stored *ret_stored)
{
	struct ckpt_stored_info infos[CKPT_STORED_INFOS_MAX];
	int r = 0;

	*ret_stored = (struct stored){.by_rank = json_array()};
	for (uint32_t rank = 0; r == 0 && rank < ckpt_restore_world(restore); rank++) {
		const char *node = "";
		uint32_t other_node = 0;
		size_t count = 0;

		(void)ckpt_restore_rank_node(restore, rank, &node, &other_node);
		if (other_node)
			continue;
		for (size_t i = 0; i < CKPT_STORED_INFOS_MAX; i++)
			infos[i] = (struct ckpt_stored_info){.size = sizeof(infos[i])};
		cli_watch(cli, NULL, NULL);
		r = ckpt_restore_rank_stored(restore, rank, infos, CKPT_STORED_INFOS_MAX, &count);
		cli_unwatch();
		if (r == 0)
			add_rank(ret_stored, rank, infos, count);
	}
	return r;
}

void stored_free(struct stored *stored)
{
	json_decref(stored->by_rank);
}

double stored_ratio(uint64_t bytes, uint64_t file_bytes)
{
	return file_bytes > 0 ? (double)bytes / (double)file_bytes : 0;
}

/* Of some chunks. */
static const char *type_name(uint32_t dtype)
{
	return dtype ? cli_dtype(dtype) : "mixed";
}

json_t *stored_object(const struct stored *stored)
{
	json_t *chunks = json_array();

	for (uint32_t form = CKPT_STORED_ROUNDED; form <= CKPT_STORED_DIFFERENCE; form++)
		for (uint32_t dtype = 0; dtype < CKPT_DTYPE_END; dtype++) {
			const struct ckpt_stored_info *sum = &stored->chunks[form][dtype];
			if (sum->bytes > 0)
				(void)json_array_append_new(chunks,
					json_pack("{s:s, s:s, s:I, s:I}", "form", form_names[form],
						"dtype", type_name(dtype), "bytes",
						(json_int_t)sum->bytes, "bytes_stored",
						(json_int_t)sum->bytes_stored));
		}
	json_t *object = json_pack("{s:I, s:I, s:o}", "bytes", (json_int_t)stored->bytes,
		"bytes_stored", (json_int_t)stored->file_bytes, "chunks", chunks);
	(void)json_object_set(object, "ranks", stored->by_rank);
	return object;
}

void stored_print(const struct stored *stored)
{
	char bytes[32];
	char file_bytes[32];

	(void)printf("stored: %s in files of %s", cli_bytes(stored->bytes, bytes),
		cli_bytes(stored->file_bytes, file_bytes));
	if (stored->encoded == 0) {
		(void)fputs(", plain\n", stdout);
		return;
	}
	(void)printf(", %.2f times smaller", stored_ratio(stored->bytes, stored->file_bytes));
	if (stored->encoded < stored->ranks)
		(void)printf("; %u of %u ranks are encoded", stored->encoded, stored->ranks);
	(void)printf("\n%-11s  %10s  %10s  %6s  STORED\n", "DTYPE", "SIZE", "IN FILE", "RATIO");
	for (uint32_t form = CKPT_STORED_ROUNDED; form <= CKPT_STORED_DIFFERENCE; form++)
		for (uint32_t dtype = 0; dtype < CKPT_DTYPE_END; dtype++) {
			const struct ckpt_stored_info *sum = &stored->chunks[form][dtype];
			if (sum->bytes > 0)
				(void)printf("%-11s  %10s  %10s  %6.2f  %s\n", type_name(dtype),
					cli_bytes(sum->bytes, bytes),
					cli_bytes(sum->bytes_stored, file_bytes),
					stored_ratio(sum->bytes, sum->bytes_stored),
					form_names[form]);
		}
}
