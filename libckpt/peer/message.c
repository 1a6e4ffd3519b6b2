/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and checks messages, by one table of what each type has. */
#include "peer/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "peer/little_endian.h"

#define MAGIC   UINT32_C(0x54504b43) /* "CKPT" */
#define VERSION 1

#define AT_VERSION 4
#define AT_TYPE    8
#define AT_LENGTH  12

struct field {
	uint16_t offset; /* in the struct */
	uint16_t bytes;  /* 4 or 8: a number; 16: bytes as they are */
};

#define FIELD(member)                                                                              \
	{                                                                                          \
		offsetof(struct ckpt_peer_message, member),                                        \
			sizeof(((struct ckpt_peer_message *)0)->member)                            \
	}
#define FIELDS_MAX 10

/* The fields of a body, in order. An ERROR has its text behind them. */
static const struct layout {
	uint32_t type;
	struct field fields[FIELDS_MAX]; /* up to one of 0 bytes */
} layouts[] = {
	{CKPT_PEER_ATTACH, {FIELD(job), FIELD(generation), FIELD(writer), FIELD(capacity),
				   FIELD(rank), FIELD(slots), FIELD(node_ranks)}},
	{CKPT_PEER_FILL, {FIELD(step), FIELD(keep_generation), FIELD(keep_step)}},
	{CKPT_PEER_SEAL, {FIELD(slot), FIELD(step), FIELD(length), FIELD(digest)}},
	{CKPT_PEER_DETACH, {{0}}},
	{CKPT_PEER_NEXT, {FIELD(job), FIELD(slot)}},
	{CKPT_PEER_FETCH, {FIELD(slot), FIELD(generation), FIELD(step)}},
	{CKPT_PEER_RELEASE, {FIELD(slot)}},
	{CKPT_PEER_STATUS, {{0}}},
	{CKPT_PEER_UNMAPPED, {{0}}},
	{CKPT_PEER_OK, {{0}}},
	{CKPT_PEER_ATTACHED, {FIELD(writer)}},
	{CKPT_PEER_FILLED, {FIELD(slot), FIELD(capacity)}},
	{CKPT_PEER_SLOT, {FIELD(job), FIELD(slot), FIELD(generation), FIELD(step), FIELD(length),
				 FIELD(capacity), FIELD(rank), FIELD(state), FIELD(attached)}},
	{CKPT_PEER_FETCHED, {FIELD(slot), FIELD(length)}},
	{CKPT_PEER_STATE, {FIELD(memory), FIELD(used), FIELD(linger_s), FIELD(slots), FIELD(jobs),
				  FIELD(attached), FIELD(pid)}},
	{CKPT_PEER_ERROR, {FIELD(code)}},
};

_Static_assert(CKPT_PEER_MESSAGE_HEAD + 4 + CKPT_PEER_TEXT_MAX <= CKPT_PEER_MESSAGE_MAX,
	"the longest message");

static const struct layout *layout_of(uint32_t type)
{
	for (size_t i = 0; i < CKPT_COUNT(layouts); i++)
		if (layouts[i].type == type)
			return &layouts[i];
	return NULL;
}

static void put_field(uint8_t *to, const uint8_t *from, size_t bytes)
{
	uint32_t small;
	uint64_t large;

	if (bytes == sizeof(small)) {
		memcpy(&small, from, sizeof(small));
		ckpt_peer_put32(to, small);
	} else if (bytes == sizeof(large)) {
		memcpy(&large, from, sizeof(large));
		ckpt_peer_put64(to, large);
	} else {
		memcpy(to, from, bytes);
	}
}

static void get_field(uint8_t *to, const uint8_t *from, size_t bytes)
{
	uint32_t small;
	uint64_t large;

	if (bytes == sizeof(small)) {
		small = ckpt_peer_get32(from);
		memcpy(to, &small, sizeof(small));
	} else if (bytes == sizeof(large)) {
		large = ckpt_peer_get64(from);
		memcpy(to, &large, sizeof(large));
	} else {
		memcpy(to, from, bytes);
	}
}

size_t ckpt_peer_message_put(
	const struct ckpt_peer_message *message, uint8_t ret_data[CKPT_PEER_MESSAGE_MAX])
{
	const struct layout *layout = layout_of(message->type);
	size_t at = CKPT_PEER_MESSAGE_HEAD;

	CKPT_ASSERT(layout);
	for (const struct field *f = layout->fields; f->bytes; f++) {
		put_field(ret_data + at, (const uint8_t *)message + f->offset, f->bytes);
		at += f->bytes;
	}
	if (message->type == CKPT_PEER_ERROR) {
		size_t length = strnlen(message->text, sizeof(message->text) - 1);

		memcpy(ret_data + at, message->text, length);
		at += length;
	}
	ckpt_peer_put32(ret_data, MAGIC);
	ckpt_peer_put32(ret_data + AT_VERSION, VERSION);
	ckpt_peer_put32(ret_data + AT_TYPE, message->type);
	ckpt_peer_put32(ret_data + AT_LENGTH, (uint32_t)(at - CKPT_PEER_MESSAGE_HEAD));
	return at;
}

static int bad(struct ckpt_error *err, const char *why)
{
	return ckpt_fail(err, -EPROTO, "a message over the agent's socket is malformed: %s", why);
}

/* The head. */
static int get_head(const uint8_t *data, size_t length, struct ckpt_error *err, uint32_t *ret_type)
{
	if (length < CKPT_PEER_MESSAGE_HEAD || ckpt_peer_get32(data) != MAGIC)
		return bad(err, "it does not begin with CKPT");
	if (ckpt_peer_get32(data + AT_VERSION) != VERSION)
		return ckpt_fail(err, CKPT_EVERSION,
			"ckptd and the program speak different versions over its socket: %u and "
			"%u; use both of "
			"one version of libckpt",
			ckpt_peer_get32(data + AT_VERSION), VERSION);
	if (ckpt_peer_get32(data + AT_LENGTH) != length - CKPT_PEER_MESSAGE_HEAD)
		return bad(err, "its length is not what it says");
	*ret_type = ckpt_peer_get32(data + AT_TYPE);
	return 0;
}

/* What an ERROR says is put into messages, so it is text. */
static void get_text(const uint8_t *data, size_t length, char *ret_text)
{
	memcpy(ret_text, data, length);
	for (size_t i = 0; i < length; i++)
		if (data[i] < ' ' || data[i] == 0x7f)
			ret_text[i] = '?';
	ret_text[length] = 0;
}

/* It stands for any job. */
static bool is_any(const struct ckpt_peer_job *job)
{
	static const struct ckpt_peer_job any = {{0}};

	return memcmp(job, &any, sizeof(any)) == 0;
}

static const char *out_of_range(const struct ckpt_peer_message *m)
{
	if (m->rank >= CKPT_PEER_RANKS)
		return "a rank is too large";
	if (m->type == CKPT_PEER_ATTACH &&
		(m->slots < CKPT_PEER_SLOTS_MIN || m->slots > CKPT_PEER_SLOTS_MAX))
		return "a rank wants fewer than 2 slots, or more than 8";
	if (m->node_ranks > CKPT_PEER_NODE_RANKS)
		return "there are too many ranks on one node";
	if (m->capacity > CKPT_PEER_SLOT_CAPACITY || m->length > CKPT_PEER_SLOT_CAPACITY)
		return "a slot is too large";
	if (m->type == CKPT_PEER_ATTACH &&
		(m->capacity == 0 || m->generation == 0 || is_any(&m->job)))
		return "a rank attaches without a job, a generation or a size";
	if (m->state > CKPT_PEER_SEALED)
		return "a slot is in no known state";
	if (m->type == CKPT_PEER_ERROR && m->code >= 0)
		return "an error has no code";
	return NULL;
}

int ckpt_peer_message_get(const uint8_t *data, size_t length, struct ckpt_error *err,
	struct ckpt_peer_message *ret_message)
{
	struct ckpt_peer_message m = {.type = 0};
	const struct layout *layout;
	size_t at = CKPT_PEER_MESSAGE_HEAD;
	const char *why;
	int r = get_head(data, length, err, &m.type);

	if (r < 0)
		return r;
	layout = layout_of(m.type);
	if (!layout)
		return bad(err, "its type is unknown");
	for (const struct field *f = layout->fields; f->bytes; f++) {
		if (length - at < f->bytes)
			return bad(err, "it is too short for its type");
		get_field((uint8_t *)&m + f->offset, data + at, f->bytes);
		at += f->bytes;
	}
	if (m.type == CKPT_PEER_ERROR && length - at < sizeof(m.text)) {
		get_text(data + at, length - at, m.text);
		at = length;
	}
	if (at != length)
		return bad(err, "it is too long for its type");
	why = out_of_range(&m);
	if (why)
		return bad(err, why);
	*ret_message = m;
	return 0;
}
