/* SPDX-License-Identifier: Apache-2.0 */
/* Encoded shards of a step that is damaged here or in the remote store, or in both. */
#include "lib/test.h"

#include <stdlib.h>
#include <unistd.h>

#include "lib/encode_fixture.h"
#include "lib/scratch.h"
#include "repair_scene.h"

/* Encoded shards: one here, with a plain one there; one there, which comes as it is; and one here that is cut. */
static void test_encoded(void **state)
{
	struct scene *s = *state;
	struct prng prng = {29};
	struct encode_fixture made;

	encode_fixture_rank(&s->here, 0, &prng, &made);
	scratch_flip(encode_fixture_path(&s->here, 0), made.middle);
	assert_mends(s);
	assert_true(s->far_read > 0 && s->far_read < s->layout->bytes / 4);
	encode_fixture_rank(&s->there, 0, &prng, &made);
	s->encoded = load(encode_fixture_path(&s->there, 0), &s->encoded_bytes);
	damage(s, &s->here, 4, &prng);
	assert_mends(s);
	restore_files(s);
	encode_fixture_rank(&s->here, 0, &prng, &made);
	assert_int_equal(truncate(encode_fixture_path(&s->here, 0), (off_t)made.bytes / 2), 0);
	assert_mends(s);
	free(s->encoded);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_encoded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
