/* SPDX-License-Identifier: Apache-2.0 */
/* The scan that all JSON passes before it is parsed: without recursion or memory. */
#include "base/json_reader.h"

#define DEPTH_END 64 /* levels that fit into the bits below */

struct walk {
	struct ckpt_reader *r;
	uint64_t kinds; /* a bit per open level, the innermost lowest; 1: an object */
	unsigned depth;
	unsigned depth_max;
	size_t values;
	size_t values_max;
};

/* A key and its colon, if the innermost level is an object. */
static bool key(struct walk *w)
{
	struct ckpt_reader_string s = {0};

	return !(w->kinds & 1) || (ckpt_reader_string(w->r, &s) && ckpt_reader_take(w->r, ':'));
}

/* Opens a level. True if a value follows in it; false if it is closed at once, or on failure. */
static bool enter(struct walk *w, bool object)
{
	if (w->depth == w->depth_max)
		return ckpt_reader_fail(w->r, "nested deeper than %u levels", w->depth_max);
	w->depth++;
	w->kinds = w->kinds << 1 | object;
	w->r->at++;
	if (ckpt_reader_peek(w->r) == (object ? '}' : ']')) {
		w->r->at++;
		w->depth--;
		w->kinds >>= 1;
		return false;
	}
	return key(w);
}

/* One value, or the start of one. True if another must follow, within it. */
static bool value(struct walk *w)
{
	struct ckpt_reader_string s = {0};
	char c = ckpt_reader_peek(w->r);

	if (w->values == w->values_max)
		return ckpt_reader_fail(w->r, "more than %zu values", w->values_max);
	w->values++;
	if (c == '{' || c == '[')
		return enter(w, c == '{');
	if (c == '"')
		(void)ckpt_reader_string(w->r, &s);
	else
		(void)ckpt_reader_scalar(w->r);
	return false;
}

/* After a value: closes the levels that end here. True if another value follows. */
static bool more(struct walk *w)
{
	while (w->depth > 0 && !w->r->failed) {
		if (ckpt_reader_peek(w->r) != ((w->kinds & 1) ? '}' : ']'))
			return ckpt_reader_take(w->r, ',') && key(w);
		w->r->at++;
		w->depth--;
		w->kinds >>= 1;
	}
	return false;
}

bool ckpt_reader_walk(struct ckpt_reader *r, size_t values_max, unsigned depth_max)
{
	struct walk w = {.r = r, .depth_max = depth_max, .values_max = values_max};

	CKPT_ASSERT(depth_max <= DEPTH_END);
	while (!r->failed && (value(&w) || more(&w)))
		continue;
	return !r->failed;
}

bool ckpt_reader_skip(struct ckpt_reader *r)
{
	return ckpt_reader_walk(r, SIZE_MAX, CKPT_READER_DEPTH);
}

int ckpt_json_scan(const char *text, size_t length, size_t values_max, unsigned depth_max,
	const char *file, struct ckpt_error *err)
{
	struct ckpt_reader r;

	ckpt_reader_init(&r, text, length, 0, file, err);
	(void)ckpt_reader_walk(&r, values_max, depth_max);
	return ckpt_reader_finish(&r);
}
