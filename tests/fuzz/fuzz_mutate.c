/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutating JSON by its structure: values are swapped, repeated, nested, taken out, given edges. The text
 * need not be JSON: what looks like a value is one. So mutants of mutants keep some shape.
 */
#include "fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

#define SPANS_MAX 512
#define OPEN_MAX  64
#define SEAL_HEAD ",\"digest\":\""
#define SEAL_END  "\"}\n"
#define SEAL_SIZE 46

/* A value, or a member with its key. */
struct span {
	size_t begin;
	size_t end;
	char kind; /* its first byte; '0': a number; 'm': a member */
};

struct spans {
	struct span list[SPANS_MAX];
	size_t count;
	struct {
		size_t begin;
		size_t key; /* SIZE_MAX: none */
	} open[OPEN_MAX];
	size_t depth;
	size_t key;
};

static bool is_space(uint8_t c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_word(uint8_t c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       c == '-' || c == '+' || c == '.';
}

static void note(struct spans *s, size_t begin, size_t end, char kind)
{
	if (s->count < SPANS_MAX)
		s->list[s->count++] = (struct span){begin, end, kind};
}

/* A value has ended; with its key it is a member. */
static void note_value(struct spans *s, size_t begin, size_t end, char kind, size_t key)
{
	note(s, begin, end, kind);
	if (key != SIZE_MAX)
		note(s, key, end, 'm');
}

static size_t string_end(const uint8_t *text, size_t size, size_t at)
{
	for (at++; at < size && text[at] != '"'; at++) {
		if (text[at] == '\\')
			at++;
	}
	return at < size ? at + 1 : size;
}

/* At a quote: a key, or a text. Returns where it goes on. */
static size_t take_string(struct spans *s, const uint8_t *text, size_t size, size_t at)
{
	size_t end = string_end(text, size, at);
	size_t next = end;

	while (next < size && is_space(text[next]))
		next++;
	if (next < size && text[next] == ':') {
		note(s, at, end, '"');
		s->key = at;
		return next + 1;
	}
	note_value(s, at, end, '"', s->key);
	s->key = SIZE_MAX;
	return end;
}

static void find_spans(struct spans *s, const uint8_t *text, size_t size)
{
	s->count = 0;
	s->depth = 0;
	s->key = SIZE_MAX;
	for (size_t at = 0; at < size;) {
		size_t begin = at;
		uint8_t c = text[at];

		if (c == '"') {
			at = take_string(s, text, size, at);
			continue;
		}
		at++;
		if ((c == '{' || c == '[') && s->depth < OPEN_MAX) {
			s->open[s->depth].begin = begin;
			s->open[s->depth++].key = s->key;
			s->key = SIZE_MAX;
		} else if ((c == '}' || c == ']') && s->depth > 0) {
			s->depth--;
			note_value(s, s->open[s->depth].begin, at,
				(char)text[s->open[s->depth].begin], s->open[s->depth].key);
		} else if (in_word(c)) {
			while (at < size && in_word(text[at]))
				at++;
			note_value(s, begin, at, (c >= '0' && c <= '9') || c == '-' ? '0' : 't',
				s->key);
			s->key = SIZE_MAX;
		}
	}
}

/* Puts `length` bytes in place of those from begin to end. Returns the new size; the old one: no room. */
static size_t splice(uint8_t *text, size_t size, size_t max, size_t begin, size_t end,
	const void *with, size_t length)
{
	if (size - (end - begin) + length > max)
		return size;
	memmove(text + begin + length, text + end, size - end);
	if (length > 0)
		memcpy(text + begin, with, length);
	return size - (end - begin) + length;
}

uint64_t fuzz_edge(struct prng *prng)
{
	static const uint64_t edges[] = {0, 1, 2, 8, 16, 17, 28, 31, 32, 33, 63, 64, 65, 72, 127,
		128, 255, 256, 511, 512, 1023, 1024, 4088, 4095, 4096, 4097, 8192, 65535, 65536,
		999999, 1000000, 1048576, INT32_MAX, UINT64_C(1) << 31, UINT32_MAX,
		UINT64_C(1) << 32, 9999999999, 10000000000, UINT64_C(1) << 24, UINT64_C(1) << 30,
		UINT64_C(1) << 46, UINT64_C(1) << 53, UINT64_C(100000000), INT64_MAX,
		UINT64_C(1) << 63, UINT64_MAX};

	return edges[prng_below(prng, sizeof(edges) / sizeof(edges[0]))] + prng_below(prng, 3) - 1;
}

static const char *const odd_values[] = {"null", "true", "false", "[]", "{}", "\"\"", "-1", "-0",
	"0.5", "1e3", "1e999", "01", "1.", "[[]]", "{\"\":0}", "[1,0]", "[2,0]", "[1,1]", "[0,0]",
	"\"a\"", "99999999999999999999999999", "nul", "", "\"", "{", "]"};

static const char *const odd_texts[] = {"\\u0000", "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\n",
	"\\\"", "\\\\", "\\u001b[2J", "\x7f", "\xc2\x85", "\xc3\xa4", "\xed\xa0\x80", "\xff",
	"\xf0\x9f\x98\x80", "../", "/", "\x01", "0", "f", "__metadata__", "digest", "%s", "\\u0061",
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

/* Words that mean something somewhere. */
static const char *const known_texts[] = {"format", "kind", "run_id", "scope", "wall_ms",
	"generation", "parent", "step", "nonce", "world", "node", "outcome", "commit", "abort",
	"attempt", "ranks", "rank", "reason", "index_digest", "index_bytes", "shard_bytes", "plan",
	"code", "store", "claim", "manifest", "quarantine", "verdict", "shared", "tensors",
	"aliases", "name", "target", "dtype", "shape", "offset", "global_shape", "global_start",
	"data_offsets", "__metadata__", "U8", "BF16", "F32", "F64", "C128", "C32", "BOOL", "I8",
	"F8_E4M3FNUZ", "digest"};

#define PICK(list, prng) (list)[prng_below((prng), sizeof(list) / sizeof((list)[0]))]

static size_t put_text(
	uint8_t *text, size_t size, size_t max, const struct span *span, const char *with)
{
	return splice(text, size, max, span->begin, span->end, with, strlen(with));
}

/* Another number, or an odd value. */
static size_t change_value(
	uint8_t *text, size_t size, size_t max, const struct span *span, struct prng *prng)
{
	char number[32];
	uint64_t value;

	if (span->kind != '0' || prng_below(prng, 4) == 0)
		return put_text(text, size, max, span, PICK(odd_values, prng));
	value = strtoull((const char *)text + span->begin, NULL, 10);
	if (prng_below(prng, 2) == 0)
		value = fuzz_edge(prng);
	else
		value += prng_below(prng, 17) - 8;
	(void)snprintf(number, sizeof(number), "%" PRIu64, value);
	return put_text(text, size, max, span, number);
}

/* Something odd within a text, or another word in its place. */
static size_t change_text(
	uint8_t *text, size_t size, size_t max, const struct span *span, struct prng *prng)
{
	const char *odd = PICK(odd_texts, prng);
	size_t length = span->end - span->begin;
	size_t at = span->begin + 1;

	if (length < 2)
		return size;
	if (prng_below(prng, 3) == 0) {
		odd = PICK(known_texts, prng);
		return splice(text, size, max, at, span->end - 1, odd, strlen(odd));
	}
	at += prng_below(prng, length - 1);
	return splice(text, size, max, at, at, odd, strlen(odd));
}

/* One copy or many, with commas between. */
static size_t repeat(
	uint8_t *text, size_t size, size_t max, const struct span *span, struct prng *prng)
{
	size_t times = prng_below(prng, 3) > 0 ? 1 : 1 + prng_below(prng, 40);
	size_t length = span->end - span->begin;

	for (size_t i = 0; i < times && size + length + 1 <= max; i++) {
		memmove(text + span->end + length + 1, text + span->end, size - span->end);
		text[span->end] = ',';
		memmove(text + span->end + 1, text + span->begin, length);
		size += length + 1;
	}
	return size;
}

static size_t nest(
	uint8_t *text, size_t size, size_t max, const struct span *span, struct prng *prng)
{
	static const char *const heads[] = {"[", "{\"a\":", "[0,"};
	static const char *const tails[] = {"]", "}", "]"};
	size_t times = prng_below(prng, 3) > 0 ? 1 : 1 + prng_below(prng, 40);
	size_t which = prng_below(prng, sizeof(heads) / sizeof(heads[0]));
	size_t head = strlen(heads[which]);
	size_t end = span->end;

	for (size_t i = 0; i < times && size + head + 1 <= max; i++) {
		size = splice(text, size, max, end, end, tails[which], 1);
		size = splice(text, size, max, span->begin, span->begin, heads[which], head);
		end += head + 1;
	}
	return size;
}

/* With the comma beside it. */
static size_t take_out(uint8_t *text, size_t size, const struct span *span)
{
	size_t begin = span->begin;
	size_t end = span->end;

	if (end < size && text[end] == ',')
		end++;
	else if (begin > 0 && text[begin - 1] == ',')
		begin--;
	memmove(text + begin, text + end, size - end);
	return size - (end - begin);
}

/* Two that do not overlap change places; the size stays. */
static void swap(uint8_t *text, const struct span *first, const struct span *last)
{
	size_t length = last->end - first->begin;
	size_t head = first->end - first->begin;
	size_t tail = last->end - last->begin;
	uint8_t *copy = malloc(length);

	FUZZ_CHECK(copy);
	memcpy(copy, text + first->begin, length);
	memcpy(text + first->begin, copy + length - tail, tail);
	memcpy(text + first->begin + tail, copy + head, length - head - tail);
	memcpy(text + last->end - head, copy, head);
	free(copy);
}

/* One in the place of another as well. */
static size_t overwrite(
	uint8_t *text, size_t size, size_t max, const struct span *to, const struct span *from)
{
	size_t length = from->end - from->begin;
	uint8_t *copy = malloc(length);

	FUZZ_CHECK(copy);
	memcpy(copy, text + from->begin, length);
	size = splice(text, size, max, to->begin, to->end, copy, length);
	free(copy);
	return size;
}

/* libFuzzer's own mutations, within one value or over all. */
static size_t plain(uint8_t *text, size_t size, size_t max, const struct span *span)
{
	size_t begin = span ? span->begin : 0;
	size_t end = span ? span->end : size;
	size_t room = max - size + (end - begin);
	uint8_t *copy;
	size_t length;

	if (room == 0)
		return size;
	if (room > end - begin + 64)
		room = end - begin + 64;
	copy = malloc(room);
	FUZZ_CHECK(copy);
	memcpy(copy, text + begin, end - begin);
	length = LLVMFuzzerMutate(copy, end - begin, room);
	size = splice(text, size, max, begin, end, copy, length);
	free(copy);
	return size;
}

static size_t mutate_once(uint8_t *text, size_t size, size_t max, struct prng *prng)
{
	static struct spans spans;
	const struct span *one;
	const struct span *other;

	find_spans(&spans, text, size);
	if (spans.count == 0 || prng_below(prng, 20) == 0)
		return plain(text, size, max, NULL);
	one = &spans.list[prng_below(prng, spans.count)];
	other = &spans.list[prng_below(prng, spans.count)];
	switch (prng_below(prng, 10)) {
	case 0:
		return repeat(text, size, max, one, prng);
	case 1:
		return nest(text, size, max, one, prng);
	case 2:
		return take_out(text, size, one);
	case 3:
		if (one->end <= other->begin)
			swap(text, one, other);
		else if (other->end <= one->begin)
			swap(text, other, one);
		return size;
	case 4:
		return overwrite(text, size, max, one, other);
	case 5:
		return plain(text, size, max, one);
	case 6:
		return splice(text, size, max, one->begin, one->begin, " ", 1);
	default:
		return one->kind == '"' ? change_text(text, size, max, one, prng)
					: change_value(text, size, max, one, prng);
	}
}

size_t fuzz_mutate_json(uint8_t *text, size_t size, size_t max, struct prng *prng)
{
	size_t times = 1 + prng_below(prng, 3);

	for (size_t i = 0; i < times; i++)
		size = mutate_once(text, size, max, prng);
	return size;
}

/* Sealed files: the body is mutated, and sealed again. */

static bool ends_sealed(const uint8_t *data, size_t size)
{
	return size > SEAL_SIZE &&
	       memcmp(data + size - SEAL_SIZE, SEAL_HEAD, sizeof(SEAL_HEAD) - 1) == 0;
}

static size_t seal(uint8_t *data, size_t body)
{
	struct ckpt_digest digest = ckpt_digest_of(data, body);
	char end[SEAL_SIZE + CKPT_DIGEST_HEX];
	char hex[CKPT_DIGEST_HEX];

	ckpt_digest_hex(&digest, hex);
	(void)snprintf(end, sizeof(end), "%s%s%s", SEAL_HEAD, hex, SEAL_END);
	memcpy(data + body, end, SEAL_SIZE);
	return body + SEAL_SIZE;
}

size_t fuzz_mutate_sealed(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};
	size_t body = ends_sealed(data, size) ? size - SEAL_SIZE : size;

	/* What is not sealed, or not right, is refused early: seldom. */
	if (max <= SEAL_SIZE || prng_below(&prng, 32) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (body > max - SEAL_SIZE)
		body = max - SEAL_SIZE;
	body = fuzz_mutate_json(data, body, max - SEAL_SIZE, &prng);
	return seal(data, body);
}

size_t fuzz_mutate_pieces(uint8_t *data, size_t size, size_t max, struct prng *prng,
	const char *const *pieces, size_t count)
{
	const char *piece = pieces[prng_below(prng, count)];
	size_t length = strlen(piece);
	size_t at = prng_below(prng, size + 1);

	if (size + length > max)
		return LLVMFuzzerMutate(data, size, max);
	memmove(data + at + length, data + at, size - at);
	memcpy(data + at, piece, length);
	return size + length;
}
