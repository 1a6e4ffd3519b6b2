/* SPDX-License-Identifier: Apache-2.0 */
/* Parses in place: all names and values point into one copy, which is cleared as a whole. */
#include "s3/ini.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"

struct parser {
	struct ckpt_s3_ini *ini;
	const char *file;
	struct ckpt_error *err;
	unsigned long line;
	const char *section; /* NULL: none yet */
	size_t property;     /* entry that an indented line belongs to; SIZE_MAX: none */
	char *value_end;     /* end of that entry's value */
};

static bool blank(char c)
{
	return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r';
}

static int refuse(const struct parser *p, const char *why)
{
	const struct ckpt_where where = {.file = p->file};

	return ckpt_fail_at(p->err, CKPT_EFORMAT, &where, "line %lu of %s is invalid: %s", p->line,
		p->file, why);
}

static int add(struct parser *p, const char *parent, const char *name, const char *value)
{
	struct ckpt_s3_ini *ini = p->ini;

	if (ini->count == CKPT_S3_INI_ENTRIES)
		return refuse(p, "too many sections and names");
	if (ini->count == ini->room) {
		size_t room = ini->room ? ini->room * 2 : 32;
		void *grown = ckpt_realloc_array(ini->entries, room, sizeof(*ini->entries));

		if (!grown)
			return ckpt_fail(p->err, -ENOMEM, "there is no memory to read %s", p->file);
		ini->entries = grown;
		ini->room = room;
	}
	ini->entries[ini->count++] = (struct ckpt_s3_ini_entry){
		.section = p->section, .parent = parent, .name = name, .value = value};
	return 0;
}

/* Trims both ends; `end` is the end of the text. */
static char *trim(char *text, char *end)
{
	while (text < end && blank(*text))
		text++;
	while (end > text && blank(end[-1]))
		end--;
	*end = 0;
	return text;
}

/* `profile  "my run"` becomes `profile my run`. */
static char *section_name(char *text, char *end)
{
	char *name = trim(text, end);
	size_t kind = strcspn(name, " \t");
	char *rest = name + kind;
	size_t length;

	if (*rest == 0)
		return name;
	rest = trim(rest, rest + strlen(rest));
	length = strlen(rest);
	if (length >= 2 && (*rest == '"' || *rest == '\'') && rest[length - 1] == *rest) {
		rest++;
		length -= 2;
	}
	name[kind] = ' ';
	memmove(name + kind + 1, rest, length);
	name[kind + 1 + length] = 0;
	return name;
}

static int take_section(struct parser *p, char *line, char *end)
{
	char *close = memchr(line, ']', (size_t)(end - line));

	if (!close)
		return refuse(p, "the name of a section has no ']'");
	p->section = section_name(line + 1, close);
	p->property = SIZE_MAX;
	if (*p->section == 0)
		return refuse(p, "a section has no name");
	return add(p, NULL, NULL, NULL);
}

/* Splits "name = value"; false: it is not that, and nothing was changed. */
static bool split(char *line, char *end, const char *marks, char **ret_name, char **ret_value)
{
	char *mark = line;

	while (mark < end && !strchr(marks, *mark))
		mark++;
	if (mark == end || mark == line)
		return false;
	*ret_value = trim(mark + 1, end);
	*ret_name = trim(line, mark);
	for (char *c = *ret_name; *c; c++) {
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	}
	return true;
}

static int take_property(struct parser *p, char *line, char *end)
{
	char *name;
	char *value;
	int r;

	if (!p->section)
		return refuse(p, "it is in no [section]");
	if (!split(line, end, "=:", &name, &value))
		return refuse(p, "it is neither a [section] nor \"name = value\"");
	r = add(p, NULL, name, value);
	if (r < 0)
		return r;
	p->property = p->ini->count - 1;
	p->value_end = value + strlen(value);
	return 0;
}

/* An indented line: it continues the value, or is a name and value nested below an empty one. */
static int take_indented(struct parser *p, char *line, char *end)
{
	const struct ckpt_s3_ini_entry *property = &p->ini->entries[p->property];
	char *name;
	char *value;

	if (*property->value == 0) {
		if (!split(line, end, "=", &name, &value))
			return refuse(p, "it is not \"name = value\"");
		return add(p, property->name, name, value);
	}
	*p->value_end++ = '\n';
	memmove(p->value_end, line, (size_t)(end - line));
	p->value_end += end - line;
	*p->value_end = 0;
	return 0;
}

static int take_line(struct parser *p, char *line, char *end)
{
	char *text = line;

	if ((size_t)(end - line) > CKPT_S3_INI_LINE_MAX)
		return refuse(p, "the value is too long");
	while (text < end && blank(*text))
		text++;
	while (end > text && blank(end[-1]))
		end--;
	if (text == end || *text == '#' || *text == ';')
		return 0;
	if (text > line && p->property != SIZE_MAX)
		return take_indented(p, text, end);
	if (*text == '[')
		return take_section(p, text, end);
	return take_property(p, text, end);
}

static int take_lines(struct parser *p)
{
	char *at = p->ini->text;
	char *end = at + p->ini->size - 1;
	int r = 0;

	if (end - at >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
		at += 3;
	while (at < end && r == 0) {
		char *eol = memchr(at, '\n', (size_t)(end - at));

		if (!eol)
			eol = end;
		p->line++;
		r = take_line(p, at, eol);
		at = eol + 1;
	}
	return r;
}

int ckpt_s3_ini_parse(const char *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_ini *ret_ini)
{
	struct parser p = {.ini = ret_ini, .file = file, .err = err, .property = SIZE_MAX};
	const struct ckpt_where where = {.file = file};
	int r;

	*ret_ini = (struct ckpt_s3_ini){0};
	if (length > CKPT_S3_INI_MAX)
		return ckpt_fail_at(err, CKPT_EFORMAT, &where,
			"%s is not a configuration file: it has more than %u bytes", file,
			CKPT_S3_INI_MAX);
	if (length > 0 && memchr(data, 0, length))
		return ckpt_fail_at(err, CKPT_EFORMAT, &where,
			"%s is not a configuration file: it contains a NUL", file);
	ret_ini->size = length + 1;
	ret_ini->text = ckpt_secret_alloc(ret_ini->size);
	if (!ret_ini->text)
		return ckpt_fail(err, -ENOMEM, "there is no memory to read %s", file);
	if (length > 0)
		memcpy(ret_ini->text, data, length);
	r = take_lines(&p);
	if (r < 0)
		ckpt_s3_ini_clear(ret_ini);
	return r;
}

bool ckpt_s3_ini_has(const struct ckpt_s3_ini *ini, const char *section)
{
	for (size_t i = 0; i < ini->count; i++) {
		if (!ini->entries[i].name && strcmp(ini->entries[i].section, section) == 0)
			return true;
	}
	return false;
}

static bool same(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

const char *ckpt_s3_ini_get(
	const struct ckpt_s3_ini *ini, const char *section, const char *parent, const char *name)
{
	for (size_t i = ini->count; i > 0; i--) {
		const struct ckpt_s3_ini_entry *e = &ini->entries[i - 1];

		if (e->name && same(e->parent, parent) && strcmp(e->name, name) == 0 &&
			strcmp(e->section, section) == 0)
			return *e->value ? e->value : NULL;
	}
	return NULL;
}

void ckpt_s3_ini_clear(struct ckpt_s3_ini *ini)
{
	ckpt_secret_free(ini->text);
	ckpt_free(ini->entries);
	*ini = (struct ckpt_s3_ini){0};
}
