/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 in untrusted texts: names, paths, messages. */
#ifndef CKPT_BASE_UTF8_H
#define CKPT_BASE_UTF8_H

#include "base/compiler.h"

/* Bytes of the character at `text`, of which `left` may be read; 0 if it is invalid. */
size_t ckpt_utf8_char(const char *text, size_t left);

/* The longest length up to `max` at which valid text of `len` bytes can be cut. */
size_t ckpt_utf8_cut(const char *text, size_t len, size_t max);

/*
 * Makes `text` one printable line of UTF-8, in place: control characters and invalid bytes become '?'. So a hostile
 * name can neither forge a log line nor control a terminal.
 */
void ckpt_utf8_line(char *text);
/* Whether it is one already. */
bool ckpt_utf8_is_line(const char *text);

#endif
