/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's allocator with a count of what was not given back, and a page after every array that
 * nobody may touch: whoever reads past the end is stopped there. The linker puts it in place (see
 * tests/unit/engine/meson.build). One thread at a time.
 */
#ifndef CKPT_TESTS_FENCE_H
#define CKPT_TESTS_FENCE_H

#include <stddef.h>

size_t fence_blocks(void);

#endif
