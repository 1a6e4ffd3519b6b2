/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product's allocator with a fence behind each block, for a test whose linker wraps it: what is
 * written behind a block aborts the test when that is freed.
 */
#ifndef CKPT_TESTS_HEAP_H
#define CKPT_TESTS_HEAP_H

#include <stddef.h>

/* Blocks that are not freed yet. */
size_t heap_blocks(void);

#endif
