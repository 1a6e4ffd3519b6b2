/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tensors to plain files: whole ones, or what one rank of a job would hold. The restore copies every box of every
 * tensor to its place in the mapped file.
 */
#include "consolidate.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "dest.h"

#define HEADER_PAGE 4096
#define HEADER_MAX  UINT64_C(100000000) /* what readers of safetensors accept */
#define INDEX_NAME  "model.safetensors.index.json"

/* Type names of safetensors, and bytes of an element. Types that it lacks are U8 with one more dimension. */
static const struct {
	const char *name;
	unsigned bytes;
	bool lacking;
} types[CKPT_DTYPE_END] = {
	[CKPT_BOOL] = {"BOOL", 1, false},
	[CKPT_U8] = {"U8", 1, false},
	[CKPT_I8] = {"I8", 1, false},
	[CKPT_U16] = {"U16", 2, false},
	[CKPT_I16] = {"I16", 2, false},
	[CKPT_U32] = {"U32", 4, false},
	[CKPT_I32] = {"I32", 4, false},
	[CKPT_U64] = {"U64", 8, false},
	[CKPT_I64] = {"I64", 8, false},
	[CKPT_F16] = {"F16", 2, false},
	[CKPT_BF16] = {"BF16", 2, false},
	[CKPT_F32] = {"F32", 4, false},
	[CKPT_F64] = {"F64", 8, false},
	[CKPT_F8_E4M3] = {"F8_E4M3", 1, false},
	[CKPT_F8_E5M2] = {"F8_E5M2", 1, false},
	[CKPT_F8_E8M0] = {"F8_E8M0", 1, false},
	[CKPT_C64] = {"C64", 8, false},
	[CKPT_C128] = {"U8", 16, true},
	[CKPT_C32] = {"U8", 4, true},
	[CKPT_F8_E4M3FNUZ] = {"U8", 1, true},
	[CKPT_F8_E5M2FNUZ] = {"U8", 1, true},
	[CKPT_F4_X2] = {"F4", 1, false},
};

/* A tensor, and the part of it that is written. */
struct item {
	struct ckpt_tensor_info info;
	int64_t start; /* in the first dimension */
	int64_t size;
	bool cut;
	uint64_t nbytes;
};

/* A further name of a tensor. */
struct alias {
	const char *name;
	const char *target;
	size_t item;
};

struct model {
	struct dest_file file;
	size_t first; /* of its tensors */
	size_t count;
	uint64_t data_bytes;
};

struct job {
	const struct cli *cli;
	struct ckpt_restore *restore;
	struct dest dest;
	struct item *items;
	size_t item_count;
	struct alias *aliases;
	size_t alias_count;
	struct model *models;
	size_t model_count;
	struct dest_file index; /* if there are several */
	struct ckpt_target *targets;
	int64_t *dims; /* shape and start of the tensors that are cut */
};

static int fail_memory(const struct job *job)
{
	return dest_fail(&job->dest, ENOMEM, "write", "");
}

/* False: no memory, also for the value. */
static bool put(json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value) == 0;
}

/* The tensors. */

/* A member of the metadata that is not the name of a tensor. */
static bool is_reserved(const struct job *job, const char *name)
{
	return strcmp(name, "format") == 0 ||
	       (job->cli->world_size &&
		       (strcmp(name, "rank") == 0 || strcmp(name, "world_size") == 0));
}

static bool stays_whole(const struct cli *cli, const struct ckpt_tensor_info *info)
{
	bool whole = cli->world_size == 0 || info->ndim == 0;

	for (size_t i = 0; i < cli->whole_count && !whole; i++)
		whole = fnmatch(cli->whole[i], info->name, 0) == 0;
	return whole;
}

/* All pieces have the same size, except the last ones, which are smaller or empty. */
static void cut_item(const struct cli *cli, struct item *item)
{
	const struct ckpt_tensor_info *info = &item->info;

	item->nbytes = info->nbytes;
	if (stays_whole(cli, info))
		return;
	uint64_t all = (uint64_t)info->shape[0];
	uint64_t each = all / cli->world_size + (all % cli->world_size > 0);
	uint64_t start = each * cli->rank < all ? each * cli->rank : all;
	uint64_t size = all - start < each ? all - start : each;
	item->cut = true;
	item->start = (int64_t)start;
	item->size = (int64_t)size;
	item->nbytes = all > 0 ? info->nbytes / all * size : 0;
}

struct named {
	const char *name;
	size_t item;
};

static int by_name(const void *a, const void *b)
{
	const struct named *x = a;
	const struct named *y = b;

	/* Every tensor has a name. NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
	return strcmp(x->name, y->name);
}

/* Finds the tensor of each alias. */
static int place_aliases(struct job *job)
{
	struct named *sorted = calloc(job->item_count + 1, sizeof(*sorted));

	if (!sorted)
		return fail_memory(job);
	for (size_t i = 0; i < job->item_count; i++)
		sorted[i] = (struct named){job->items[i].info.name, i};
	if (job->item_count > 0)
		qsort(sorted, job->item_count, sizeof(*sorted), by_name);
	for (size_t i = 0; i < job->alias_count; i++) {
		struct named key = {.name = job->aliases[i].target};
		const struct named *found =
			bsearch(&key, sorted, job->item_count, sizeof(*sorted), by_name);
		/* Not found: no file has the tensor, so none lists the alias. */
		job->aliases[i].item = found ? found->item : job->item_count;
	}
	free(sorted);
	return CLI_OK;
}

static int take_tensors(struct job *job)
{
	size_t count = ckpt_restore_count(job->restore);

	job->items = calloc(count + 1, sizeof(*job->items));
	job->aliases = calloc(count + 1, sizeof(*job->aliases));
	if (!job->items || !job->aliases)
		return fail_memory(job);
	for (size_t i = 0; i < count; i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};

		int r = ckpt_restore_tensor(job->restore, i, &info);
		if (r < 0)
			return cli_fail(job->cli, r);
		if (info.alias_of && !is_reserved(job, info.name)) {
			job->aliases[job->alias_count++] =
				(struct alias){.name = info.name, .target = info.alias_of};
			continue;
		}
		/* A reserved name cannot be listed in the metadata: such an alias gets a copy of the bytes. */
		job->items[job->item_count].info = info;
		cut_item(job->cli, &job->items[job->item_count++]);
	}
	return place_aliases(job);
}

static int name_model(struct job *job, size_t i)
{
	char name[DEST_NAME_SIZE];

	if (job->cli->world_size)
		(void)snprintf(name, sizeof(name), "rank-%05llu-of-%05llu.safetensors",
			(unsigned long long)job->cli->rank,
			(unsigned long long)job->cli->world_size);
	else if (job->model_count == 1)
		(void)snprintf(name, sizeof(name), "model.safetensors");
	else
		(void)snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1,
			job->model_count);
	return dest_file_init(&job->dest, &job->models[i].file, name);
}

static int name_models(struct job *job)
{
	int exit_code = CLI_OK;

	for (size_t i = 0; exit_code == CLI_OK && i < job->model_count; i++)
		exit_code = name_model(job, i);
	if (exit_code == CLI_OK && job->model_count > 1)
		exit_code = dest_file_init(&job->dest, &job->index, INDEX_NAME);
	return exit_code;
}

/* Distributes the tensors, in their order, as many to a file as fit; at least one. */
static int share_out(struct job *job)
{
	uint64_t most = job->cli->file_size;
	uint64_t total = 0;
	size_t i = 0;

	job->models = calloc(job->item_count + 1, sizeof(*job->models));
	if (!job->models)
		return fail_memory(job);
	do {
		struct model *m = &job->models[job->model_count++];

		m->file.fd = -1;
		m->first = i;
		while (i < job->item_count &&
			(m->count == 0 || most == 0 ||
				job->items[i].nbytes <= most - m->data_bytes)) {
			if (__builtin_add_overflow(total, job->items[i].nbytes, &total) ||
				total > INT64_MAX)
				return dest_fail(&job->dest, EFBIG, "write", "");
			m->data_bytes += job->items[i++].nbytes;
			m->count++;
			/* A larger tensor has its own file. */
			if (most && m->data_bytes >= most)
				break;
		}
	} while (i < job->item_count);
	return CLI_OK;
}

/* Files. */

/* NULL: no memory. */
static json_t *describe(const struct item *item, uint64_t begin)
{
	const struct ckpt_tensor_info *t = &item->info;
	json_t *shape = json_array();
	bool packed = t->dtype == CKPT_F4_X2;
	bool good = shape != NULL;

	for (uint32_t i = 0; i < t->ndim && good; i++) {
		int64_t size = i == 0 && item->cut ? item->size : t->shape[i];

		if (packed && i + 1 == t->ndim)
			/* safetensors counts the values; an empty one may have any size */
			size = size > INT64_MAX / 2 ? INT64_MAX : size * 2;
		good = json_array_append_new(shape, json_integer((json_int_t)size)) == 0;
	}
	if (good && packed && t->ndim == 0)
		good = json_array_append_new(shape, json_integer(2)) == 0;
	if (good && types[t->dtype].lacking && types[t->dtype].bytes > 1)
		good = json_array_append_new(shape, json_integer(types[t->dtype].bytes)) == 0;
	if (!good) {
		json_decref(shape);
		return NULL;
	}
	uint64_t end = begin + item->nbytes;
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->dtype].name, "shape", shape,
		"data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* Lists further names of the tensors, in the same way as the writers of safetensors. */
static bool put_metadata(const struct job *job, const struct model *m, json_t *object)
{
	json_t *metadata = json_object();
	char number[24];
	bool good = metadata != NULL;

	for (size_t i = 0; i < job->alias_count && good; i++) {
		const struct alias *a = &job->aliases[i];
		if (a->item >= m->first && a->item < m->first + m->count)
			good = put(metadata, a->name, json_string(a->target));
	}
	if (good && job->cli->world_size) {
		(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)job->cli->rank);
		good = put(metadata, "rank", json_string(number));
		(void)snprintf(
			number, sizeof(number), "%llu", (unsigned long long)job->cli->world_size);
		good = good && put(metadata, "world_size", json_string(number));
	}
	good = good && put(metadata, "format", json_string("pt"));
	if (good)
		return put(object, "__metadata__", metadata);
	json_decref(metadata);
	return false;
}

/* The text with its length in front and padded with spaces; NULL: no memory. The caller frees it. */
static char *pad_header(const json_t *object, size_t length, size_t bytes)
{
	char *header = malloc(bytes);

	if (!header)
		return NULL;
	memset(header, ' ', bytes);
	for (unsigned i = 0; i < 8; i++)
		header[i] = (char)((bytes - 8) >> (8 * i));
	if (json_dumpb(object, header + 8, length, JSON_COMPACT) == length)
		return header;
	free(header);
	return NULL;
}

/* The header of a file. The caller frees it. */
static int make_header(
	const struct job *job, const struct model *m, char **ret_header, uint64_t *ret_bytes)
{
	json_t *object = json_object();
	uint64_t begin = 0;
	bool good = object && put_metadata(job, m, object);

	for (size_t i = m->first; i < m->first + m->count && good; i++) {
		const struct item *item = &job->items[i];
		good = put(object, item->info.name, describe(item, begin));
		begin += item->nbytes;
	}
	size_t length = good ? json_dumpb(object, NULL, 0, JSON_COMPACT) : 0;
	size_t bytes = (8 + length + HEADER_PAGE - 1) / HEADER_PAGE * HEADER_PAGE;
	bool readable = bytes - 8 <= HEADER_MAX;
	char *header = length > 0 && readable ? pad_header(object, length, bytes) : NULL;
	json_decref(object);
	if (!readable)
		return dest_fail_text(&job->dest, -E2BIG,
			"its header would be larger than 100000000 bytes, which readers of "
			"safetensors do not accept: use --file-size to write several files");
	if (!header)
		return fail_memory(job);
	*ret_header = header;
	*ret_bytes = bytes;
	return CLI_OK;
}

/* Sets the target of one tensor. Returns the unused rest of `dims`. */
static int64_t *aim(const struct item *item, void *to, int64_t *dims, struct ckpt_target *target)
{
	const struct ckpt_tensor_info *t = &item->info;

	*target = (struct ckpt_target){
		.size = sizeof(*target), .dtype = t->dtype, .name = t->name, .data = to};
	if (!item->cut)
		return dims;
	target->ndim = t->ndim;
	target->shape = dims;
	target->start = dims + t->ndim;
	memcpy(dims, t->shape, t->ndim * sizeof(*dims));
	memset(dims + t->ndim, 0, t->ndim * sizeof(*dims));
	dims[0] = item->size;
	dims[t->ndim] = item->start;
	return dims + (size_t)2 * t->ndim;
}

static int make_model(struct job *job, struct model *m, int64_t **dims)
{
	uint64_t header_bytes = 0;
	char *header = NULL;
	int exit_code = make_header(job, m, &header, &header_bytes);

	if (!header)
		return exit_code;
	exit_code = dest_file_make(&job->dest, &m->file, header_bytes + m->data_bytes);
	if (exit_code == CLI_OK) {
		char *at = m->file.map + header_bytes;
		memcpy(m->file.map, header, header_bytes);
		for (size_t i = m->first; i < m->first + m->count; i++) {
			*dims = aim(&job->items[i], at, *dims, &job->targets[i]);
			at += job->items[i].nbytes;
		}
	}
	free(header);
	return exit_code;
}

static int make_models(struct job *job)
{
	size_t dims = 0;
	int exit_code = CLI_OK;

	for (size_t i = 0; i < job->item_count; i++)
		dims += job->items[i].cut ? (size_t)2 * job->items[i].info.ndim : 0;
	job->targets = calloc(job->item_count + 1, sizeof(*job->targets));
	job->dims = calloc(dims + 1, sizeof(*job->dims));
	if (!job->targets || !job->dims)
		return fail_memory(job);
	int64_t *left = job->dims;
	for (size_t i = 0; exit_code == CLI_OK && i < job->model_count; i++)
		exit_code = make_model(job, &job->models[i], &left);
	return exit_code;
}

/* The index: the file of each tensor, as Hugging Face has it; NULL: no memory. */
static char *make_index_text(const struct job *job)
{
	json_t *names = json_object();
	uint64_t total = 0;
	bool good = names != NULL;

	for (size_t k = 0; k < job->model_count && good; k++) {
		const struct model *m = &job->models[k];
		for (size_t i = m->first; i < m->first + m->count && good; i++)
			good = put(names, job->items[i].info.name, json_string(m->file.name));
		total += m->data_bytes;
	}
	if (!good) {
		json_decref(names);
		return NULL;
	}
	json_t *object = json_pack(
		"{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", names);
	char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
	json_decref(object);
	return text;
}

static int make_index(struct job *job)
{
	char *text = make_index_text(job);

	if (!text)
		return fail_memory(job);
	size_t length = strlen(text);
	int exit_code = dest_file_make(&job->dest, &job->index, length + 1);
	if (exit_code == CLI_OK) {
		memcpy(job->index.map, text, length);
		job->index.map[length] = '\n';
	}
	free(text);
	return exit_code;
}

/* Restores all tensors into the mapped files. */
static int fill(struct job *job)
{
	int r = ckpt_restore_bind(job->restore, job->targets, job->item_count);

	if (r == 0)
		r = ckpt_restore_start(job->restore);
	if (r == 0)
		r = cli_wait(job->cli, job->restore, "restoring");
	return r < 0 ? cli_fail(job->cli, r) : CLI_OK;
}

/* Renames the files when every byte is durable, the index last. */
static int finish(struct job *job)
{
	int exit_code = CLI_OK;

	for (size_t i = 0; exit_code == CLI_OK && i < job->model_count; i++)
		exit_code = dest_file_sync(&job->dest, &job->models[i].file);
	if (exit_code == CLI_OK && job->index.made)
		exit_code = dest_file_sync(&job->dest, &job->index);
	for (size_t i = 0; exit_code == CLI_OK && i < job->model_count; i++)
		exit_code = dest_file_name(&job->dest, &job->models[i].file);
	if (exit_code == CLI_OK && job->index.made)
		exit_code = dest_file_name(&job->dest, &job->index);
	return exit_code == CLI_OK ? dest_sync(&job->dest) : exit_code;
}

static int write_all(struct job *job)
{
	int exit_code = dest_open(&job->dest);

	if (exit_code == CLI_OK)
		exit_code = name_models(job);
	if (exit_code == CLI_OK)
		exit_code = make_models(job);
	if (exit_code == CLI_OK && job->model_count > 1)
		exit_code = make_index(job);
	if (exit_code == CLI_OK)
		exit_code = fill(job);
	return exit_code == CLI_OK ? finish(job) : exit_code;
}

static bool list_files(const struct job *job, json_t *files)
{
	bool good = true;

	for (size_t i = 0; i < job->model_count && good; i++)
		good = json_array_append_new(files, json_string(job->models[i].file.name)) == 0;
	if (good && job->model_count > 1)
		good = json_array_append_new(files, json_string(job->index.name)) == 0;
	return good;
}

/* The restore no longer uses the maps. After a failure all files are deleted. */
static void clean_up(struct job *job, bool keep)
{
	for (size_t i = 0; i < job->model_count; i++)
		dest_file_end(&job->dest, &job->models[i].file, keep);
	dest_file_end(&job->dest, &job->index, keep);
	dest_end(&job->dest, keep);
	free(job->models);
	free(job->items);
	free(job->aliases);
	free(job->targets);
	free(job->dims);
}

/* Refuses if ranks are on other nodes: the files would lack their tensors, and look complete. */
static int check_all_here(const struct job *job)
{
	const char *text = NULL;
	size_t length = 0;
	uint32_t other_node = 0;

	for (uint32_t i = 0; i < ckpt_restore_world(job->restore); i++) {
		int r = ckpt_restore_rank_node(job->restore, i, &text, &other_node);
		/* Its error names the node. */
		if (r == 0 && other_node)
			r = ckpt_restore_rank_meta(job->restore, i, &text, &length);
		if (r < 0)
			return cli_fail(job->cli, r);
	}
	return CLI_OK;
}

int consolidate(const struct cli *cli, struct ckpt_engine *engine,
	struct ckpt_restore **ret_restore, json_t *ret_files)
{
	struct job job = {.cli = cli,
		.dest = {.cli = cli, .path = cli->operand[1], .dir = -1},
		.index.fd = -1};

	int r = cli_open_step(cli, engine, cli->step, &job.restore);
	if (r < 0)
		return cli_fail(cli, r);
	*ret_restore = job.restore;
	int exit_code = check_all_here(&job);
	if (exit_code == CLI_OK)
		exit_code = take_tensors(&job);
	if (exit_code == CLI_OK)
		exit_code = share_out(&job);
	if (exit_code == CLI_OK)
		exit_code = write_all(&job);
	if (exit_code == CLI_OK && !list_files(&job, ret_files))
		exit_code = fail_memory(&job);
	clean_up(&job, exit_code == CLI_OK);
	return exit_code;
}
