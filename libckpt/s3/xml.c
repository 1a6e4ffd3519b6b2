/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded XML parser. */
#include "s3/xml.h"

#include <errno.h>
#include <expat.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct reader {
	XML_Parser parser;
	const struct ckpt_s3_xml_calls *calls;
	void *user;
	const char *file;
	struct ckpt_error *err;
	int code; /* the first failure */

	unsigned depth;
	uint64_t elements;
	char path[CKPT_S3_XML_PATH_MAX];
	size_t path_length;
	size_t starts
		[CKPT_S3_XML_DEPTH_MAX]; /* length of the path before the element at that depth */
	/* Text of the innermost element; a parent's text is dropped when a child begins. */
	char *text;
	size_t text_length;
};

/* A block of expat's memory with its size, so that it can be cleared. */
union block {
	size_t size;
	max_align_t align;
};

static void *take(size_t size)
{
	union block *block =
		size > SIZE_MAX - sizeof(*block) ? NULL : ckpt_alloc(sizeof(*block) + size);

	if (!block)
		return NULL;
	block->size = size;
	return block + 1;
}

static void give(void *ptr)
{
	union block *block = ptr;

	if (!block)
		return;
	block--;
	explicit_bzero(block + 1, block->size);
	ckpt_free(block);
}

static void *move(void *ptr, size_t size)
{
	void *to = take(size);

	if (to && ptr) {
		memcpy(to, ptr, ckpt_min_u64(((union block *)ptr - 1)->size, size));
		give(ptr);
	}
	return to;
}

static const XML_Memory_Handling_Suite memory = {take, move, give};

int ckpt_s3_xml_no_memory(struct ckpt_error *err, const char *file)
{
	const struct ckpt_where where = {.tier = "remote", .file = file};

	return ckpt_fail_at(err, -ENOMEM, &where, "no memory to read the answer to %s", file);
}

static void refuse(struct reader *r, const char *why)
{
	XML_Index at = XML_GetCurrentByteIndex(r->parser);
	struct ckpt_where where = {.tier = "remote",
		.file = r->file,
		.has_offset = at >= 0,
		.offset = at >= 0 ? (uint64_t)at : 0};

	if (r->code != 0)
		return;
	r->code = ckpt_fail_at(r->err, CKPT_EFORMAT, &where,
		"the answer to %s is invalid at byte %lld: %s", r->file, (long long)at, why);
	(void)XML_StopParser(r->parser, XML_FALSE);
}

static void stop(struct reader *r, int code)
{
	if (code == 0 || r->code != 0)
		return;
	r->code = code;
	(void)XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL begin(void *user, const XML_Char *name, const XML_Char **attributes)
{
	struct reader *r = user;
	const char *colon = strrchr(name, ':');
	const char *local = colon ? colon + 1 : name;
	size_t length = strlen(local);

	(void)attributes;
	if (r->code != 0)
		return;
	if (++r->elements > CKPT_S3_XML_ELEMENTS_MAX) {
		refuse(r, "too many elements");
		return;
	}
	if (r->depth == CKPT_S3_XML_DEPTH_MAX || r->path_length + 1 + length >= sizeof(r->path)) {
		refuse(r, "elements are nested too deeply");
		return;
	}
	/* An empty name would make two paths equal. */
	if (length == 0 || strchr(local, '/')) {
		refuse(r, "an element has no name");
		return;
	}
	r->starts[r->depth++] = r->path_length;
	if (r->path_length > 0)
		r->path[r->path_length++] = '/';
	memcpy(r->path + r->path_length, local, length + 1);
	r->path_length += length;
	r->text_length = 0;
	if (r->calls->begin)
		stop(r, r->calls->begin(r->user, r->path));
}

static void XMLCALL end(void *user, const XML_Char *name)
{
	struct reader *r = user;

	(void)name;
	if (r->code != 0)
		return;
	r->text[r->text_length] = 0;
	stop(r, r->calls->end(r->user, r->path, r->text, r->text_length));
	r->path_length = r->starts[--r->depth];
	r->path[r->path_length] = 0;
	r->text_length = 0;
}

static void XMLCALL text(void *user, const XML_Char *bytes, int count)
{
	struct reader *r = user;

	if (r->code != 0)
		return;
	if ((size_t)count > CKPT_S3_XML_TEXT_MAX - r->text_length) {
		refuse(r, "a text is too long");
		return;
	}
	memcpy(r->text + r->text_length, bytes, (size_t)count);
	r->text_length += (size_t)count;
}

static void XMLCALL doctype(void *user, const XML_Char *name, const XML_Char *system_id,
	const XML_Char *public_id, int internal)
{
	(void)name;
	(void)system_id;
	(void)public_id;
	(void)internal;
	refuse(user, "it has a document type");
}

static int parse(struct reader *r, const char *data, size_t length)
{
	XML_SetUserData(r->parser, r);
	XML_SetElementHandler(r->parser, begin, end);
	XML_SetCharacterDataHandler(r->parser, text);
	XML_SetStartDoctypeDeclHandler(r->parser, doctype);
	if (XML_Parse(r->parser, data, (int)length, XML_TRUE) == XML_STATUS_OK)
		return r->code;
	if (r->code == 0 && XML_GetErrorCode(r->parser) == XML_ERROR_NO_MEMORY)
		return ckpt_s3_xml_no_memory(r->err, r->file);
	refuse(r, XML_ErrorString(XML_GetErrorCode(r->parser)));
	return r->code;
}

int ckpt_s3_xml_read(const void *data, size_t length, const char *file,
	const struct ckpt_s3_xml_calls *calls, void *user, struct ckpt_error *err)
{
	struct reader r = {.calls = calls, .user = user, .file = file, .err = err};
	const char *at = data;
	int code = -ENOMEM;

	/* Sent to keep a connection open, by some servers before the declaration. */
	while (length > 0 && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
		at++, length--;
	if (length > CKPT_S3_XML_BYTES_MAX) {
		struct ckpt_where where = {.tier = "remote", .file = file};

		return ckpt_fail_at(err, CKPT_EFORMAT, &where,
			"the answer to %s is too long: %zu bytes", file, length);
	}
	r.text = ckpt_alloc(CKPT_S3_XML_TEXT_MAX + 1);
	r.parser = XML_ParserCreate_MM("UTF-8", &memory, NULL);
	if (r.text && r.parser)
		code = parse(&r, at, length);
	else
		(void)ckpt_s3_xml_no_memory(err, file);
	if (r.parser)
		XML_ParserFree(r.parser);
	if (r.text)
		explicit_bzero(r.text, CKPT_S3_XML_TEXT_MAX + 1);
	ckpt_free(r.text);
	return code;
}
