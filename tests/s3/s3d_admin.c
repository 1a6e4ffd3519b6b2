/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /_ckpt/NAME, for tests; nobody is asked who he is, because only this machine can reach it.
 *
 *   PUT rules          as faults.h reads them          GET rules         how often each has struck
 *   GET journal?from=N lines of JSON from entry N      DELETE journal    forgets it
 *   PUT capabilities   {"like": "aws", "put": "ignored", "page_most": 3, ...}
 *   PUT clock          {"offset_s": -3600}             PUT keys          [{"access": "", "secret": "",
 *   POST land          late requests land now                             "token": "", "expires_s": 0}]
 *   GET state          {"held": bytes, "connections": n, "late": n}
 */
#include "s3/s3d.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static void say(struct s3_reply *reply, int status, struct text *words)
{
	reply->status = status;
	if (words->length)
		rope_add_copy(&reply->body, words->at, words->length);
	text_clear(words);
	s3_reply_header(reply, "content-type", "application/json");
}

static void refuse(struct s3_reply *reply, const char *why)
{
	struct text words = {0};

	text_add(&words, why);
	text_add(&words, "\n");
	say(reply, 400, &words);
}

static json_t *parse(const struct bytes *body)
{
	return body ? json_loadb((const char *)body->data, body->length, 0, NULL) : NULL;
}

static void put_rules(struct s3d *s3d, const struct bytes *body, struct s3_reply *reply)
{
	char why[160] = "a body is missing";

	if (!body || !faults_read(&s3d->front.faults, (const char *)body->data, body->length, why))
		refuse(reply, why);
}

static void get_rules(const struct s3d *s3d, struct s3_reply *reply)
{
	struct text words = {0};
	const struct faults *faults = &s3d->front.faults;

	text_add(&words, "[");
	for (size_t i = 0; i < faults->count; i++)
		text_addf(&words, "%s{\"do\":\"%s\",\"seen\":%u,\"fired\":%u}", i ? "," : "",
			fault_name(faults->rules[i].kind), faults->rules[i].seen,
			faults->rules[i].fired);
	text_add(&words, "]\n");
	say(reply, 200, &words);
}

static bool set_conditions(const json_t *value, enum s3_conditions *out)
{
	static const char *const names[] = {"kept", "refused", "ignored"};
	const char *name = json_string_value(value);

	for (int i = 0; name && i < 3; i++)
		if (strcmp(names[i], name) == 0) {
			*out = (enum s3_conditions)i;
			return true;
		}
	return false;
}

static bool set_capability(struct s3_capabilities *can, const char *name, const json_t *value)
{
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {
		{"etag_not_md5", &can->etag_not_md5},
		{"checksums_ignored", &can->checksums_ignored},
		{"order_ignored", &can->order_ignored},
		{"all_parts", &can->all_parts},
		{"bare_match", &can->bare_match},
		{"complete_untagged", &can->complete_untagged},
		{"gone_is_key", &can->gone_is_key},
	};

	if (strcmp(name, "put") == 0)
		return set_conditions(value, &can->put);
	if (strcmp(name, "complete") == 0)
		return set_conditions(value, &can->complete);
	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (strcmp(flags[i].name, name) == 0) {
			*flags[i].flag = json_is_true(value);
			return json_is_boolean(value);
		}
	json_int_t number = json_integer_value(value);
	if (number < 0)
		return false;
	if (strcmp(name, "part_minimum") == 0)
		can->part_minimum = (uint64_t)number;
	else if (strcmp(name, "parts_most") == 0)
		can->parts_most = (unsigned)number;
	else if (strcmp(name, "page_most") == 0)
		can->page_most = (unsigned)number;
	else
		return strcmp(name, "like") == 0;
	return json_is_integer(value);
}

static void put_capabilities(struct s3d *s3d, const struct bytes *body, struct s3_reply *reply)
{
	json_t *root = parse(body), *value;
	const char *name, *like = json_string_value(json_object_get(root, "like"));
	struct s3_capabilities can = {0};
	bool good = json_is_object(root) && (!like || s3_capabilities_named(like, &can));

	json_object_foreach(root, name, value) good = good && set_capability(&can, name, value);
	json_decref(root);
	if (good)
		*buckets_capabilities(s3d->front.buckets) = can;
	else
		refuse(reply, "that says nothing about capabilities");
}

static void put_clock(struct s3d *s3d, const struct bytes *body, struct s3_reply *reply)
{
	json_t *root = parse(body);
	const json_t *offset = json_object_get(root, "offset_s");

	if (json_is_number(offset))
		s3d->clock_offset_ns = (int64_t)(json_number_value(offset) * 1e9);
	else
		refuse(reply, "offset_s is missing");
	json_decref(root);
}

static void put_keys(struct s3d *s3d, const struct bytes *body, struct s3_reply *reply)
{
	json_t *root = parse(body);
	struct guard fresh = {.region = need_text(s3d->guard.region), .skew_s = s3d->guard.skew_s};
	bool good = json_is_array(root);

	for (size_t i = 0; good && i < json_array_size(root); i++) {
		const json_t *key = json_array_get(root, i);
		const char *access = json_string_value(json_object_get(key, "access"));
		const char *secret = json_string_value(json_object_get(key, "secret"));
		good = access && secret;
		if (good)
			guard_add(&fresh, access, secret,
				json_string_value(json_object_get(key, "token")),
				(uint64_t)json_integer_value(json_object_get(key, "expires_s")));
	}
	json_decref(root);
	if (!good) {
		guard_clear(&fresh);
		refuse(reply, "a key has an access and a secret");
		return;
	}
	guard_clear(&s3d->guard);
	s3d->guard = fresh;
}

static void get_journal(const struct s3d *s3d, const char *query, struct s3_reply *reply)
{
	struct text words = {0};
	const char *from = strstr(query, "from=");

	journal_write(&s3d->front.journal, from ? strtoull(from + 5, NULL, 10) : 0, &words);
	say(reply, 200, &words);
}

static void get_state(const struct s3d *s3d, struct s3_reply *reply)
{
	struct text words = {0};
	size_t late = 0;

	for (const struct late *l = s3d->front.late; l; l = l->next)
		late++;
	text_addf(&words, "{\"held\":%" PRIu64 ",\"connections\":%u,\"late\":%zu}\n",
		buckets_held(s3d->front.buckets), s3d->connection_count, late);
	say(reply, 200, &words);
}

static void land(struct s3d *s3d, struct s3_reply *reply)
{
	struct text words = {0};

	text_addf(&words, "{\"landed\":%zu}\n", front_land_all(&s3d->front, s3d_now(s3d)));
	say(reply, 200, &words);
}

/* False: there is nothing of that name. */
static bool answer(struct s3d *s3d, const char *what, const char *query, const struct bytes *body,
	struct s3_reply *reply)
{
	if (strcmp(what, "PUT rules") == 0)
		put_rules(s3d, body, reply);
	else if (strcmp(what, "GET rules") == 0)
		get_rules(s3d, reply);
	else if (strcmp(what, "GET journal") == 0)
		get_journal(s3d, query, reply);
	else if (strcmp(what, "DELETE journal") == 0)
		journal_clear(&s3d->front.journal);
	else if (strcmp(what, "PUT capabilities") == 0)
		put_capabilities(s3d, body, reply);
	else if (strcmp(what, "PUT clock") == 0)
		put_clock(s3d, body, reply);
	else if (strcmp(what, "PUT keys") == 0)
		put_keys(s3d, body, reply);
	else if (strcmp(what, "POST land") == 0)
		land(s3d, reply);
	else if (strcmp(what, "GET state") == 0)
		get_state(s3d, reply);
	else
		return false;
	return true;
}

void s3d_admin(struct s3d *s3d, const char *method, const char *target, const struct bytes *body,
	struct s3_reply *reply)
{
	const char *name = target + strlen("/_ckpt/");
	size_t length = strcspn(name, "?");
	struct text what = {0};

	text_add(&what, method);
	text_add(&what, " ");
	text_add_bytes(&what, name, length);
	(void)pthread_mutex_lock(&s3d->lock);
	bool known = answer(s3d, what.at, name + length, body, reply);
	(void)pthread_mutex_unlock(&s3d->lock);
	text_clear(&what);
	if (!known)
		s3_reply_refuse(reply, 404, "NoSuchThing", "s3d_admin.c says what there is.", NULL);
	else if (!reply->status)
		reply->status = 204;
}
