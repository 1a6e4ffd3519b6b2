/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogs as long as they get hostile: little memory is asked for, and reading does not take long. */
#include "format_kit.h"

#include <ckpt/version.h>

#include "format/catalog.h"
#include "format/manifest.h"

#define BYTES   ((uint64_t)8 << 20)
#define SECONDS 20 /* of CPU, with a sanitizer on a slow machine; a tenth of one is usual */

static void put_head(struct ckpt_buf *out, uint64_t tensors, uint64_t aliases, uint64_t directory,
	uint64_t lists)
{
	ckpt_buf_put(out, "CKPTCAT", 8);
	ckpt_buf_put_le32(out, CKPT_FORMAT_MAJOR);
	ckpt_buf_put_le32(out, CKPT_FORMAT_MINOR);
	ckpt_buf_put_le32(out, CKPT_CATALOG_HEAD_BYTES);
	ckpt_buf_put_le32(out, CKPT_WORLD_MAX);
	ckpt_buf_put_le64(out, tensors);
	ckpt_buf_put_le64(out, aliases);
	ckpt_buf_put_le64(out, directory);
	ckpt_buf_put_le64(out, lists);
}

/* A tensor of no dimensions. */
static void put_tensor(struct ckpt_buf *out, const char *name, uint64_t bytes, const void *list)
{
	unsigned char head[4] = {(unsigned char)strlen(name), 0, CKPT_U8, 0};
	struct ckpt_digest digest = ckpt_digest_of(list, bytes);

	ckpt_buf_put(out, head, sizeof(head));
	ckpt_buf_puts(out, name);
	ckpt_buf_put_le64(out, bytes);
	ckpt_buf_put(out, digest.bytes, sizeof(digest.bytes));
}

static void seal(struct ckpt_buf *root)
{
	struct ckpt_digest digest = ckpt_digest_of(root->data, root->len);

	ckpt_buf_put(root, digest.bytes, sizeof(digest.bytes));
	assert_false(root->failed);
}

/* Reads a root within memory and time. */
static struct ckpt_layout_catalog *read_root(const struct ckpt_buf *root, int code)
{
	struct ckpt_layout_catalog *catalog = NULL;
	struct kit_alloc alloc = {0};
	struct ckpt_error err = {0};
	double begun = kit_cpu_seconds();

	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	int r = ckpt_layout_catalog_decode(root->data, root->len, NULL, "x", &err, &catalog);
	ckpt_alloc_set_hook(NULL, NULL);
	if (r != code)
		fail_msg("%d: %s", r, err.message);
	assert_true(alloc.bytes <= 4 * (uint64_t)root->len + 4096);
	assert_true(kit_cpu_seconds() - begun < SECONDS);
	return catalog;
}

/* As many names as fit, the shortest that so many can have; the last one twice, or not. */
static void check_names(bool aliases, bool twice)
{
	struct ckpt_buf directory = {0};
	struct ckpt_buf root = {0};
	uint64_t count = 0;
	char name[16];

	if (aliases)
		put_tensor(&directory, "!", 1, "");
	while (directory.len < BYTES) {
		(void)snprintf(name, sizeof(name), "%06llx",
			(unsigned long long)(count - (twice && directory.len + 64 > BYTES)));
		if (aliases) {
			ckpt_buf_put(&directory, "\x06\0\0\0\0\0", 6);
			ckpt_buf_puts(&directory, name);
		} else {
			put_tensor(&directory, name, 1, "");
		}
		count++;
	}
	put_head(&root, aliases ? 1 : count, aliases ? count : 0, directory.len,
		aliases ? 1 : count);
	ckpt_buf_put(&root, directory.data, directory.len);
	seal(&root);
	struct ckpt_layout_catalog *catalog = read_root(&root, twice ? CKPT_EFORMAT : 0);
	if (catalog)
		assert_non_null(ckpt_layout_catalog_find(catalog, name));
	ckpt_layout_catalog_free(catalog);
	ckpt_buf_free(&directory);
	ckpt_buf_free(&root);
}

static void test_names(void **state)
{
	(void)state;
	check_names(false, false);
	check_names(false, true);
	check_names(true, false);
	check_names(true, true);
}

/* Counts that the bytes cannot hold take no memory. */
static void test_counts(void **state)
{
	static const uint64_t counts[] = {2, 1 << 20, UINT64_C(1) << 40, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < 2 * CKPT_COUNT(counts); i++) {
		struct ckpt_buf root = {0};
		uint64_t count = counts[i / 2];

		put_head(&root, i % 2 ? 1 : count, i % 2 ? count : 0, 29, 1);
		put_tensor(&root, "a", 1, "");
		seal(&root);
		assert_null(read_root(&root, CKPT_EFORMAT));
		ckpt_buf_free(&root);
	}
}

/* Opens the only list, goes over all of it, and asks for the last rank. */
static void check_list(const char *list, uint64_t bytes, uint64_t ranks)
{
	struct ckpt_buf root = {0};
	struct ckpt_catalog_list opened;
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;
	int64_t none[CKPT_NDIM_MAX];
	uint64_t count = 0;
	double begun = kit_cpu_seconds();

	put_head(&root, 1, 0, 29, bytes);
	put_tensor(&root, "a", bytes, list);
	seal(&root);
	struct ckpt_layout_catalog *catalog = read_root(&root, 0);
	assert_int_equal(
		ckpt_catalog_open_list(catalog, &catalog->tensors[0], list, "x", NULL, &opened), 0);
	assert_int_equal(opened.ranks, ranks);
	ckpt_catalog_walk_begin(&walk, &opened, NULL, none);
	while (ckpt_catalog_walk_next(&walk, &box))
		count++;
	assert_int_equal(count, ranks);
	assert_true(ckpt_catalog_box_of(&opened, box.rank, none, none));
	assert_true(kit_cpu_seconds() - begun < SECONDS);
	ckpt_layout_catalog_free(catalog);
	ckpt_buf_free(&root);
}

/* A record for each of a million ranks; and one for all of them, of three loops. */
static void test_lists(void **state)
{
	static char each[CKPT_WORLD_MAX];

	(void)state;
	check_list(each, sizeof(each), CKPT_WORLD_MAX);
	check_list("\x03\x64\x01\x64\x64\x64\x90\x4e", 8, CKPT_WORLD_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
