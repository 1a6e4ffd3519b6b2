/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/faults.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "s3/bucket.h"

static const char *const names[FAULT_KINDS] = {
	[FAULT_NONE] = "whole",
	[FAULT_DELAY] = "delay",
	[FAULT_REFUSE] = "refuse",
	[FAULT_DROP] = "drop",
	[FAULT_LATE] = "late",
	[FAULT_DROP_REPLY] = "drop_reply",
	[FAULT_STALL] = "stall",
	[FAULT_STALL_BODY] = "stall_body",
	[FAULT_TRUNCATE] = "truncate",
	[FAULT_CORRUPT] = "corrupt",
	[FAULT_LENGTH] = "length",
	[FAULT_ANSWER] = "answer",
	[FAULT_ERROR_IN_OK] = "error_in_ok",
	[FAULT_TWICE] = "twice",
};

const char *fault_name(enum fault_kind kind)
{
	return names[kind];
}

void faults_add(struct faults *faults, const struct fault_rule *rule)
{
	faults->rules = need_again(faults->rules, faults->count + 1, sizeof(*faults->rules));
	faults->rules[faults->count++] = *rule;
}

void faults_clear(struct faults *faults)
{
	free(faults->rules);
	faults->rules = NULL;
	faults->count = 0;
}

static bool wanted(const struct fault_rule *rule, const struct s3_request *req)
{
	if (rule->kind == FAULT_REFUSE)
		return false;
	if (*rule->method && strcmp(rule->method, req->method) != 0)
		return false;
	if (*rule->operation && strcmp(rule->operation, s3_operation(req)) != 0)
		return false;
	if (*rule->bucket && strcmp(rule->bucket, req->bucket) != 0)
		return false;
	if (*rule->key && fnmatch(rule->key, req->key, 0) != 0)
		return false;
	return !rule->part || rule->part == s3_part_number(req);
}

/* Counts it; whether it is this one's turn. */
static bool turn(struct faults *faults, struct fault_rule *rule)
{
	rule->seen++;
	if (rule->nth && rule->seen < rule->nth)
		return false;
	if (rule->times && rule->fired >= rule->times)
		return false;
	if (rule->chance && prng_below(&faults->prng, 10000) >= rule->chance)
		return false;
	rule->fired++;
	return true;
}

struct fault_rule faults_judge(struct faults *faults, const struct s3_request *req)
{
	for (size_t i = 0; i < faults->count; i++) {
		struct fault_rule *rule = &faults->rules[i];
		if (wanted(rule, req) && turn(faults, rule))
			return *rule;
	}
	return (struct fault_rule){0};
}

bool faults_refuse(struct faults *faults)
{
	for (size_t i = 0; i < faults->count; i++)
		if (faults->rules[i].kind == FAULT_REFUSE && turn(faults, &faults->rules[i]))
			return true;
	return false;
}

void fault_reply(const struct fault_rule *rule, struct s3_reply *reply)
{
	char seconds[16];
	bool inside = rule->kind == FAULT_ERROR_IN_OK;

	s3_reply_refuse(reply, inside ? 200 : rule->status,
		*rule->code ? rule->code : "InternalError",
		"We encountered an internal error. Please try again.", NULL);
	if (rule->retry_after_s) {
		(void)snprintf(seconds, sizeof(seconds), "%u", rule->retry_after_s);
		s3_reply_header(reply, "retry-after", seconds);
	}
}

static void corrupt(const struct fault_rule *rule, struct prng *prng, struct rope *body)
{
	size_t length = (size_t)body->length;

	if (!length)
		return;
	struct bytes *copy = bytes_new(length);
	(void)rope_read(body, 0, copy->data, length);
	size_t at = rule->bytes < length ? (size_t)rule->bytes : (size_t)prng_below(prng, length);
	copy->data[at] ^= (uint8_t)(1u << prng_below(prng, 8));
	rope_clear(body);
	rope_add(body, copy, 0, length);
	bytes_let_go(copy);
}

void fault_spoil(const struct fault_rule *rule, struct prng *prng, struct s3_reply *reply)
{
	if (rule->kind == FAULT_CORRUPT)
		corrupt(rule, prng, &reply->body);
	if (rule->kind == FAULT_LENGTH) {
		reply->missing = rule->bytes;
		reply->close = true;
	}
	if (rule->kind == FAULT_TRUNCATE && rule->bytes < reply->body.length) {
		struct rope left = {0};
		rope_add_part(&left, &reply->body, 0, rule->bytes);
		reply->missing = reply->body.length - rule->bytes;
		reply->close = true;
		rope_clear(&reply->body);
		reply->body = left;
	}
}

static bool read_number(const json_t *value, uint64_t most, uint64_t *out)
{
	json_int_t number = json_integer_value(value);

	if (json_is_boolean(value))
		number = json_is_true(value);
	else if (!json_is_integer(value) || number < 0 || (uint64_t)number > most)
		return false;
	*out = (uint64_t)number;
	return true;
}

static bool read_words(const json_t *value, char *out, size_t size)
{
	const char *words = json_string_value(value);

	return words && snprintf(out, size, "%s", words) < (int)size;
}

/* One member of a rule; false: there is none of that name, or not of that kind. */
static bool read_member(struct fault_rule *rule, const char *name, const json_t *value)
{
	const struct {
		const char *name;
		char *words;
		size_t size;
	} texts[] = {
		{"method", rule->method, sizeof(rule->method)},
		{"operation", rule->operation, sizeof(rule->operation)},
		{"bucket", rule->bucket, sizeof(rule->bucket)},
		{"key", rule->key, sizeof(rule->key)},
		{"code", rule->code, sizeof(rule->code)},
	};
	const struct {
		const char *name;
		unsigned *number;
	} numbers[] = {
		{"part", &rule->part},
		{"nth", &rule->nth},
		{"times", &rule->times},
		{"chance", &rule->chance},
		{"delay_ms", &rule->delay_ms},
		{"reply_delay_ms", &rule->reply_delay_ms},
		{"retry_after_s", &rule->retry_after_s},
	};
	uint64_t number = 0;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (strcmp(texts[i].name, name) == 0)
			return read_words(value, texts[i].words, texts[i].size);
	if (strcmp(name, "bytes") == 0)
		return read_number(value, INT64_MAX, &rule->bytes);
	if (!read_number(value, UINT32_MAX, &number))
		return false;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (strcmp(numbers[i].name, name) == 0) {
			*numbers[i].number = (unsigned)number;
			return true;
		}
	if (strcmp(name, "status") == 0)
		rule->status = (int)(number % 1000);
	else if (strcmp(name, "applied") == 0)
		rule->applied = number;
	else
		return false;
	return true;
}

static bool read_rule(const json_t *object, struct fault_rule *rule, char why[160])
{
	const char *name, *kind = json_string_value(json_object_get(object, "do"));
	json_t *value;

	*rule = (struct fault_rule){0};
	for (int i = FAULT_DELAY; kind && i < FAULT_KINDS; i++)
		if (strcmp(names[i], kind) == 0)
			rule->kind = (enum fault_kind)i;
	if (rule->kind == FAULT_NONE) {
		(void)snprintf(why, 160, "nothing is called \"%.40s\"", kind ? kind : "(do)");
		return false;
	}
	json_object_foreach((json_t *)object, name, value)
	{
		if (strcmp(name, "do") == 0 || read_member(rule, name, value))
			continue;
		(void)snprintf(why, 160, "%s: \"%.40s\" is not known, or not so", kind, name);
		return false;
	}
	if (rule->kind == FAULT_ANSWER && rule->status < 200) {
		(void)snprintf(why, 160, "answer: which status?");
		return false;
	}
	return true;
}

bool faults_read(struct faults *faults, const char *json, size_t length, char why[160])
{
	struct faults fresh = {0};
	json_error_t error;
	json_t *root = json_loadb(json, length, 0, &error);
	const json_t *rules = json_object_get(root, "rules");
	bool good = json_is_array(rules);

	(void)snprintf(why, 160, "%s", root ? "there is no array of \"rules\"" : error.text);
	fresh.prng.state = (uint64_t)json_integer_value(json_object_get(root, "seed"));
	for (size_t i = 0; good && i < json_array_size(rules); i++) {
		struct fault_rule rule;
		good = read_rule(json_array_get(rules, i), &rule, why);
		if (good)
			faults_add(&fresh, &rule);
	}
	json_decref(root);
	if (!good) {
		faults_clear(&fresh);
		return false;
	}
	faults_clear(faults);
	*faults = fresh;
	return true;
}
