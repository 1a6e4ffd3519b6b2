/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks' files are enough for a node. */
#include "lib/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/reshard/near.h"

#define WORLD 6

/* `nodes`: a letter for each rank, a blank for no name. */
static bool suffices(
	const char *nodes, bool scope, uint32_t world, const uint32_t *near, size_t count)
{
	struct ckpt_manifest_rank ranks[WORLD] = {0};
	struct ckpt_manifest manifest = {.world = WORLD, .node_stores = scope, .ranks = ranks};
	struct ckpt_rankset set = {0};
	bool enough;

	for (uint32_t i = 0; i < WORLD; i++)
		ranks[i].node[0] = (char)(nodes[i] == ' ' ? 0 : nodes[i]);
	assert_int_equal(ckpt_rankset_set(&set, near, count), 0);
	assert_int_equal(ckpt_near_suffices(&set, world, &manifest, &enough), 0);
	ckpt_rankset_clear(&set);
	return enough;
}

static void test_whole_nodes(void **state)
{
	(void)state;
	assert_true(suffices("aabbcc", true, WORLD, (uint32_t[]){2, 3}, 2));
	assert_true(suffices("abcabc", true, WORLD, (uint32_t[]){4, 1}, 2));
	assert_true(suffices("aabbcc", true, WORLD, (uint32_t[]){0, 1, 4, 5}, 4));
	/* A part of a node, beside a whole one. */
	assert_false(suffices("aabbcc", true, WORLD, (uint32_t[]){2}, 1));
	assert_false(suffices("aabbcc", true, WORLD, (uint32_t[]){0, 1, 2}, 3));
	/* Where the names do not tell. */
	assert_false(suffices("aa  cc", true, WORLD, (uint32_t[]){2, 3}, 2));
	/* One store for all, and another number of ranks, fewer or more. */
	assert_false(suffices("aabbcc", false, WORLD, (uint32_t[]){2, 3}, 2));
	assert_false(suffices("aabbcc", true, WORLD - 1, (uint32_t[]){2, 3}, 2));
	assert_false(suffices("aabbcc", true, WORLD + 4, (uint32_t[]){2, 8}, 2));
	/* All is all. */
	assert_false(suffices("aabbcc", true, WORLD, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
