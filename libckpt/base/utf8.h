/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 in texts that came from elsewhere: names, paths, messages. */
#ifndef CKPT_BASE_UTF8_H
#define CKPT_BASE_UTF8_H

#include "base/compiler.h"

/* Bytes of the character at `text`, of which `left` may be read; 0 if what is there is not valid. */
size_t ckpt_utf8_char(const char *text, size_t left);

/* The greatest length, at most `max`, at which valid text of `len` bytes can be cut. */
size_t ckpt_utf8_cut(const char *text, size_t len, size_t max);

/*
 * Makes `text` one printable line of UTF-8, in place: control characters and bytes that are not valid
 * become '?'. What a hostile name holds can then neither forge a line of a log nor steer a terminal.
 */
void ckpt_utf8_line(char *text);
/* Whether it is one already. */
bool ckpt_utf8_is_line(const char *text);

#endif
