/* SPDX-License-Identifier: Apache-2.0 */
/* For a process that ends with an engine open, on purpose: what sanitizers ask of it at its end. */
#ifndef CKPT_TESTS_LEFT_OPEN_H
#define CKPT_TESTS_LEFT_OPEN_H

#include <stdbool.h>

/* Set at its end: no leak is looked for. That threads were not joined is never one. */
extern bool left_open;

#endif
