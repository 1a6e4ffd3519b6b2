/* SPDX-License-Identifier: Apache-2.0 */
/* A call: its tries, and the decisions between them. */
#include "s3/client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"
#include "s3/credentials.h"
#include "s3/date.h"
#include "s3/error_text.h"

#define MS       UINT64_C(1000000)
#define TOTAL_MS UINT64_C(600000)

/* Limits of requests that undo something when the engine closes. */
static const struct ckpt_http_limits last_limits = {
	.connect_ms = 2000, .first_byte_ms = 3000, .stall_ms = 3000, .total_ms = 5000};
/* Clock skew that S3 accepts, less the time that a request may take to arrive. */
#define SKEW_S  840
/* Tries of a part that are cancelled because they are slow; the next one may take as long as it needs. */
#define HURRIES 2

static struct ckpt_s3_call *call_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_s3_call, task);
}

static ckpt_task_fn keys_body;
static ckpt_task_fn send_body;

static int fail(struct ckpt_s3_call *call, int code, const char *words)
{
	const struct ckpt_s3_asked asked = {.doing = call->doing,
		.bucket = call->client->place.bucket,
		.key = call->key,
		.region = call->client->endpoint.region,
		.tries = call->tries.failed};

	return ckpt_s3_unanswered(call->err, &asked, code, words);
}

static bool is_unwanted(const struct ckpt_s3_call *call)
{
	return call->stop && *call->stop;
}

/* Requests that undo something continue when the client is stopped. */
static bool is_over(const struct ckpt_s3_call *call)
{
	return is_unwanted(call) || (call->client->stopped && call->method != CKPT_HTTP_DELETE);
}

/* Checksums of the body. */

static void hash_work(struct ckpt_job *job)
{
	struct ckpt_task_job *mine = CKPT_CONTAINER(job, struct ckpt_task_job, job);
	struct ckpt_s3_call *call = CKPT_CONTAINER(mine, struct ckpt_s3_call, hash);
	uint8_t sum[CKPT_S3_SHA256];

	if (call->proof != CKPT_S3_PROOF_SIGNED) {
		call->crc32c = ckpt_s3_crc32c(0, call->body, call->body_length);
		ckpt_s3_crc32c_text(
			call->crc32c ^ (call->proof == CKPT_S3_PROOF_WRONG), call->crc32c_text);
		memcpy(call->payload, CKPT_S3_UNSIGNED, sizeof(CKPT_S3_UNSIGNED));
		return;
	}
	mine->result = ckpt_s3_sha256(call->body, call->body_length, sum);
	if (mine->result == 0)
		ckpt_s3_hex(sum, sizeof(sum), call->payload);
}

static int begin_body(struct ckpt_task *task)
{
	struct ckpt_s3_call *call = call_of(task);

	CKPT_TASK_BEGIN(task);
	memcpy(call->payload, CKPT_S3_SHA256_NONE, sizeof(CKPT_S3_SHA256_NONE));
	if (call->body_length > 0 && !is_over(call)) {
		if (call->client->behind)
			ckpt_task_job_start_behind(&call->hash, call->client->env, task, hash_work);
		else
			ckpt_task_job_start(&call->hash, call->client->env, task, hash_work);
		CKPT_AWAIT(task, call->hash.done);
		if (call->hash.result < 0)
			return fail(call, call->hash.result, "its bytes cannot be hashed");
	}
	return ckpt_task_continue(task, keys_body);
	CKPT_TASK_END(task);
}

/* A try. */

static uint64_t server_time_s(const struct ckpt_s3_client *client)
{
	return ckpt_env_wall_ms(client->env) / 1000 + (uint64_t)client->clock_offset_s;
}

static const char *method_name(enum ckpt_http_method method)
{
	static const char *const names[] = {
		[CKPT_HTTP_GET] = "GET",
		[CKPT_HTTP_HEAD] = "HEAD",
		[CKPT_HTTP_PUT] = "PUT",
		[CKPT_HTTP_POST] = "POST",
		[CKPT_HTTP_DELETE] = "DELETE",
	};

	return names[method];
}

/* Called for each try, because the keys may have changed. */
static int sign(struct ckpt_s3_call *call, const struct ckpt_s3_credentials *keys, const char *path)
{
	struct ckpt_s3_client *client = call->client;

	if (keys->token) {
		call->token = ckpt_secret_strdup(keys->token);
		if (!call->token)
			return -ENOMEM;
	}
	const struct ckpt_s3_signing signing = {.method = method_name(call->method),
		.host = client->endpoint.host,
		.path = path,
		.query = call->query,
		.headers = call->put,
		.header_count = call->req.header_count,
		.payload = call->payload,
		.payload_header = true,
		.region = client->endpoint.region,
		.service = "s3",
		.time_s = server_time_s(client),
		.access = keys->access,
		.secret = keys->secret,
		.token = call->token};
	int r = ckpt_s3_sign(&client->signing, &signing, &call->signature);

	for (size_t i = 0; i < call->signature.count && r == 0; i++)
		call->put[call->req.header_count++] = call->signature.headers[i];
	return r;
}

static int prepare(struct ckpt_s3_call *call, const struct ckpt_s3_credentials *keys)
{
	const struct ckpt_s3_endpoint *endpoint = &call->client->endpoint;
	struct ckpt_buf path = {0};
	int r = -ENOMEM;

	memcpy(call->region, endpoint->region, sizeof(call->region));
	call->req.header_count = call->header_count;
	memcpy(call->put, call->headers, sizeof(call->headers));
	/* Otherwise libcurl adds the content type of a form. */
	if (call->method == CKPT_HTTP_POST)
		call->put[call->req.header_count++] = (struct ckpt_http_header){
			.name = "content-type", .value = "application/xml"};
	if (call->crc32c_text[0])
		call->put[call->req.header_count++] = (struct ckpt_http_header){
			.name = "x-amz-checksum-crc32c", .value = call->crc32c_text};
	call->url.len = 0;
	ckpt_s3_endpoint_url(endpoint, call->key, call->query, &call->url);
	ckpt_buf_put(&call->url, "", 1);
	ckpt_s3_endpoint_path(endpoint, call->key, &path);
	ckpt_buf_put(&path, "", 1);
	if (!call->url.failed && !path.failed)
		r = keys ? sign(call, keys, path.data) : 0;
	ckpt_buf_free(&path);
	return r;
}

static void req_back(struct ckpt_node *node)
{
	struct ckpt_http_req *req = CKPT_CONTAINER(node, struct ckpt_http_req, node);
	struct ckpt_s3_call *call = CKPT_CONTAINER(req, struct ckpt_s3_call, req);

	call->answered = true;
	call->under_way = false;
	ckpt_task_wake(&call->task);
}

static void clear_answer(struct ckpt_s3_call *call)
{
	ckpt_free(call->req.reply);
	ckpt_free(call->req.header_text);
	ckpt_free(call->refusal);
	ckpt_s3_signed_clear(&call->signature);
	ckpt_secret_free(call->token);
	call->token = NULL;
	call->refusal = NULL;
	call->req = (struct ckpt_http_req){.method = call->method};
}

/* Hedging: a part that takes far longer than others is sent again over another connection. */

static struct ckpt_s3_hedge *peers_of(struct ckpt_s3_call *call)
{
	return call->method == CKPT_HTTP_PUT ? &call->client->written : &call->client->read;
}

static uint64_t length_of(const struct ckpt_s3_call *call)
{
	return call->body_length + call->room;
}

/* Parts in flight for at least half as long as this one, itself included. */
static unsigned count_lagging(const struct ckpt_s3_call *call, uint64_t now_ns)
{
	uint64_t since_ns = now_ns - (now_ns - call->begun_ns) / 2;
	unsigned count = 0;

	for (const struct ckpt_s3_call *c = call->client->calls; c; c = c->next)
		count += c->part && c->method == call->method && c->under_way &&
			 c->begun_ns <= since_ns;
	return count;
}

static void look_at_peers(struct ckpt_timer *timer)
{
	struct ckpt_s3_call *call = CKPT_CONTAINER(timer, struct ckpt_s3_call, timer);
	struct ckpt_s3_client *client = call->client;
	uint64_t now_ns = ckpt_env_now(client->env);
	uint64_t look_ns = ckpt_s3_hedge_look(peers_of(call), length_of(call), call->begun_ns,
		now_ns, count_lagging(call, now_ns));

	if (client->stopped || is_unwanted(call) || !call->under_way || call->hurries == HURRIES)
		return;
	if (look_ns <= now_ns && ckpt_s3_budget_spare(&client->budget)) {
		call->hurried = true;
		call->hurries++;
		ckpt_http_cancel(client->http, &call->req);
		return;
	}
	timer->fire = look_at_peers;
	ckpt_timer_set(client->timers, timer, ckpt_max_u64(look_ns, now_ns + 1000 * MS));
}

/* Whether the try was cancelled because it was slow. */
static bool was_hurried(struct ckpt_s3_call *call)
{
	const struct ckpt_http_req *req = &call->req;
	bool hurried = call->hurried && req->result == -ECANCELED;

	ckpt_timer_clear(call->client->timers, &call->timer);
	call->hurried = false;
	if (hurried || req->result == -ETIMEDOUT)
		memcpy(call->apart, req->peer, sizeof(call->apart));
	if (hurried && !is_over(call))
		ckpt_log(call->client->log, CKPT_LOG_INFO,
			"cannot %s %s as fast as others of its size: it is tried again over "
			"another connection",
			call->doing, call->key);
	return hurried;
}

static void submit(struct ckpt_s3_call *call)
{
	struct ckpt_http_req *req = &call->req;

	req->node.run = req_back;
	req->url = call->url.data;
	req->headers = call->put;
	req->body = call->body;
	req->body_length = call->body_length;
	req->expect = call->body_length > 1 << 20;
	req->apart = call->apart[0] ? call->apart : NULL;
	req->sink = call->sink;
	req->room = call->room;
	req->reply_limit = call->reply_limit;
	req->not_after_ns = call->not_after_ns;
	/* 64 KiB/s is slow, but no failure: a stall is found by another limit. */
	req->limits.total_ms = (uint32_t)ckpt_min_u64(
		TOTAL_MS + (call->body_length + call->room) / 64, UINT32_MAX);
	if (call->client->stopped)
		req->limits = last_limits;
	call->answered = false;
	call->under_way = true;
	call->begun_ns = ckpt_env_now(call->client->env);
	if (call->part)
		look_at_peers(&call->timer);
	ckpt_http_submit(call->client->http, req);
}

/* Errors of files and programs that the keys are read from must not look like errors of the object. */
static int keys_code(int code)
{
	switch (code) {
	case -ENOMEM:
	case -ECANCELED:
	case -ETIMEDOUT:
	case CKPT_ENETWORK:
	case CKPT_EUNSUPPORTED:
		return code;
	default:
		return CKPT_EAUTH;
	}
}

/* Ends the call. The last response does not belong to the result. */
static int give_up(struct ckpt_s3_call *call)
{
	clear_answer(call);
	return fail(call, -ECANCELED, "it was given up");
}

/* Time until the deadline of tries. */
static uint64_t left_ns(const struct ckpt_s3_call *call)
{
	uint64_t age_ns = ckpt_env_age(call->client->env);

	if (call->not_after_ns == 0)
		return UINT64_MAX;
	return ckpt_max_u64(call->not_after_ns, age_ns) - age_ns;
}

static int keys_body(struct ckpt_task *task)
{
	struct ckpt_s3_call *call = call_of(task);
	struct ckpt_s3_client *client = call->client;
	int r;

	CKPT_TASK_BEGIN(task);
	if (is_over(call))
		return give_up(call);
	call->want = (struct ckpt_s3_want){.done = false};
	/* Calls that are still allowed must use the keys that are there. */
	if (client->stopped)
		call->want.done = true;
	else
		ckpt_s3_credential_cache_want(client->credentials, &call->want, task);
	CKPT_AWAIT(task, call->want.done || is_unwanted(call));
	if (!call->want.done)
		ckpt_s3_credential_cache_unwant(client->credentials, &call->want);
	if (!call->want.done || is_over(call))
		return give_up(call);
	if (call->want.result < 0) {
		const struct ckpt_error *why = ckpt_s3_credential_cache_error(client->credentials);
		return fail(call, keys_code(call->want.result), why->message);
	}
	clear_answer(call);
	if (left_ns(call) == 0)
		return fail(call, -ETIMEDOUT, "it was not sent within its time limit");
	r = prepare(call, ckpt_s3_credential_cache_keys(client->credentials));
	if (r < 0)
		return fail(call, r, ckpt_code_text(r));
	submit(call);
	return ckpt_task_continue(task, send_body);
	CKPT_TASK_END(task);
}

/* After a try. */

static void read_refusal(struct ckpt_s3_call *call)
{
	struct ckpt_http_req *req = &call->req;
	bool good = req->status >= 200 && req->status < 300;

	/* A failed PUT has no body that is worth reading. */
	if (req->result < 0 || !req->reply ||
		(good && !call->documents && call->method != CKPT_HTTP_PUT))
		return;
	call->refusal = ckpt_alloc(sizeof(*call->refusal));
	if (call->refusal && ckpt_s3_error_parse(req->reply, req->reply_length, call->refusal))
		return;
	ckpt_free(call->refusal);
	call->refusal = NULL;
}

/*
 * A response to HEAD has no body, and so no error code. Assumes codes for 400 and 403, the only statuses for expired
 * keys, a wrong clock and another region.
 */
static const char *guess_code(const struct ckpt_s3_call *call)
{
	const struct ckpt_s3_client *client = call->client;
	char value[64];
	uint64_t now_s = server_time_s(client);
	uint64_t date_s;

	if (call->method != CKPT_HTTP_HEAD || (call->req.status != 400 && call->req.status != 403))
		return "";
	if (ckpt_http_header(&call->req, "x-amz-bucket-region", value, sizeof(value)) &&
		strcmp(value, client->endpoint.region) != 0)
		return "AuthorizationHeaderMalformed";
	if (ckpt_http_header(&call->req, "date", value, sizeof(value)) &&
		ckpt_s3_date_http(value, &date_s) &&
		(date_s > now_s + SKEW_S || now_s > date_s + SKEW_S))
		return "RequestTimeTooSkewed";
	return call->req.status == 400 ? "ExpiredToken" : "";
}

static bool is_of_sums(const char *code)
{
	return strcmp(code, "BadDigest") == 0 || strcmp(code, "XAmzContentChecksumMismatch") == 0;
}

/* Whether the server has received other bytes than were sent. */
static bool is_garbled(const struct ckpt_s3_call *call)
{
	uint32_t theirs;

	return call->proof == CKPT_S3_PROOF_CRC32C && call->crc32c_text[0] &&
	       call->req.result == 0 && call->req.status == 200 &&
	       ckpt_s3_call_crc32c(call, &theirs) && theirs != call->crc32c;
}

static enum ckpt_s3_verdict judge(const struct ckpt_s3_call *call)
{
	/* A success with an error in its body is a failure of the server, whatever the caller has read of it. */
	bool late = call->refusal && call->req.status >= 200 && call->req.status < 300;
	const struct ckpt_s3_outcome outcome = {.result = call->req.result,
		.status = late ? 500 : call->req.status,
		.code = call->refusal ? call->refusal->code : guess_code(call),
		.conditional = call->conditional};

	if (is_garbled(call))
		return CKPT_S3_AGAIN;
	if (call->proof == CKPT_S3_PROOF_WRONG && is_of_sums(outcome.code))
		return CKPT_S3_FAILED;
	return ckpt_s3_judge(&outcome);
}

static uint64_t header_ms(const struct ckpt_s3_call *call, const char *name, uint64_t now_s)
{
	char value[64];

	if (!ckpt_http_header(&call->req, name, value, sizeof(value)))
		return 0;
	return strcmp(name, "retry-after") == 0 ? ckpt_s3_retry_after_ms(value, now_s)
						: ckpt_s3_amz_retry_after_ms(value);
}

/* The bucket is in another region, which the server names. */
static bool move(struct ckpt_s3_call *call)
{
	struct ckpt_s3_client *client = call->client;
	struct ckpt_s3_endpoint_config config = client->asked;
	struct ckpt_s3_endpoint moved;
	char region[CKPT_S3_REGION_MAX + 1] = "";

	if (!ckpt_http_header(&call->req, "x-amz-bucket-region", region, sizeof(region)) &&
		call->refusal)
		(void)snprintf(
			region, sizeof(region), "%.*s", CKPT_S3_REGION_MAX, call->refusal->region);
	if (!*region || strcmp(region, call->region) == 0)
		return false;
	/* Another call has found it out meanwhile. */
	if (strcmp(region, client->endpoint.region) == 0)
		return true;
	config.region = region;
	if (ckpt_s3_endpoint_make(&config, NULL, &moved) < 0)
		return false;
	ckpt_log(client->log, CKPT_LOG_WARN,
		"the bucket %s is in region %s, and not in %s: name that region (AWS_REGION), it "
		"saves a request",
		client->place.bucket, region, client->endpoint.region);
	client->endpoint = moved;
	return true;
}

/* Corrects what made the try fail, before the next one. False: it cannot be corrected. */
static bool mend(struct ckpt_s3_call *call, enum ckpt_s3_verdict verdict)
{
	struct ckpt_s3_client *client = call->client;
	char value[64];
	uint64_t date_s;

	switch (verdict) {
	case CKPT_S3_REFRESH:
		ckpt_s3_credential_cache_expired(client->credentials, call->want.serial);
		return true;
	case CKPT_S3_CLOCK:
		if (!ckpt_http_header(&call->req, "date", value, sizeof(value)) ||
			!ckpt_s3_date_http(value, &date_s))
			return false;
		client->clock_offset_s =
			(int64_t)date_s - (int64_t)(ckpt_env_wall_ms(client->env) / 1000);
		ckpt_s3_credential_cache_clock(client->credentials, client->clock_offset_s);
		ckpt_log(client->log, CKPT_LOG_WARN,
			"this machine's clock is %" PRId64
			" s %s that of %s: requests are signed with the server's",
			client->clock_offset_s < 0 ? -client->clock_offset_s
						   : client->clock_offset_s,
			client->clock_offset_s < 0 ? "ahead of" : "behind", client->endpoint.host);
		return true;
	case CKPT_S3_MOVED:
		return move(call);
	default:
		return true;
	}
}

static int refuse(struct ckpt_s3_call *call)
{
	const struct ckpt_http_req *req = &call->req;
	struct ckpt_error quiet = {.size = sizeof(quiet)};
	char id[128];
	bool named = ckpt_http_header(req, "x-amz-request-id", id, sizeof(id));
	const struct ckpt_s3_asked asked = {.request_id = named ? id : NULL,
		.doing = call->doing,
		.bucket = call->client->place.bucket,
		.key = call->key,
		.region = call->client->endpoint.region,
		.tries = call->tries.failed};
	struct ckpt_error *err = call->quiet ? &quiet : call->err;

	if (is_garbled(call))
		return ckpt_s3_unanswered(call->err, &asked, CKPT_EINTEGRITY,
			"the server says another CRC32C of what it has than was sent");
	/* A response that is not HTTP says nothing about the object's format. */
	int result = req->result == CKPT_EFORMAT ? CKPT_ENETWORK : req->result;
	int r = result < 0 ? ckpt_s3_unanswered(err, &asked, result, req->words)
			   : ckpt_s3_refused(err, &asked, req->status, call->refusal);

	if (call->quiet && r != -ENOENT && r != -EEXIST && call->err && call->err->code == 0)
		*call->err = quiet;
	return r;
}

static void wake_up(struct ckpt_timer *timer)
{
	struct ckpt_s3_call *call = CKPT_CONTAINER(timer, struct ckpt_s3_call, timer);

	call->sleeping = false;
	ckpt_task_wake(&call->task);
}

/* Sets the timer for the next try; false: there is none. */
static bool try_again(struct ckpt_s3_call *call, enum ckpt_s3_verdict verdict)
{
	struct ckpt_s3_client *client = call->client;
	uint64_t now_ns = ckpt_env_now(client->env);
	uint64_t now_s = server_time_s(client);

	if (!call->deadline_ns)
		call->deadline_ns = now_ns + CKPT_S3_CALL_MS * MS;
	uint64_t wait_ms = 0;
	uint64_t until_ns = ckpt_max_u64(call->deadline_ns, now_ns) - now_ns;
	const struct ckpt_s3_delays delays = {
		.retry_after_ms = header_ms(call, "retry-after", now_s),
		.amz_retry_after_ms = header_ms(call, "x-amz-retry-after", now_s),
		.left_ms = ckpt_min_u64(until_ns, left_ns(call)) / MS,
		.random = ckpt_env_random(client->env)};

	call->tries.patient =
		client->patient && client->attempts == 0 && client->heard && call->req.result < 0;
	if (client->stopped || is_unwanted(call) ||
		ckpt_s3_tries_next(&call->tries, &client->budget, verdict, &delays, &wait_ms) !=
			CKPT_S3_GO)
		return false;
	if (!mend(call, verdict))
		return false;
	call->sleeping = true;
	call->timer.fire = wake_up;
	ckpt_timer_set(client->timers, &call->timer, now_ns + wait_ms * MS);
	return true;
}

static void keep_pace(struct ckpt_s3_call *call, enum ckpt_s3_verdict verdict)
{
	struct ckpt_s3_client *client = call->client;
	uint64_t now_ns = ckpt_env_now(client->env);
	bool changed = false;

	if (verdict == CKPT_S3_DONE) {
		ckpt_s3_budget_earn(&client->budget);
		changed = ckpt_s3_concurrency_success(&client->pace, now_ns);
		if (call->part)
			ckpt_s3_hedge_ended(
				peers_of(call), length_of(call), call->begun_ns, now_ns);
	} else if (verdict == CKPT_S3_THROTTLED) {
		changed = ckpt_s3_concurrency_throttled(&client->pace, now_ns);
	}
	if (changed)
		ckpt_http_widen(client->http, client->pace.now);
}

/*
 * Whether the server may still carry out the request. A server that refuses sends an error of its own. A proxy that has
 * forwarded the request and got no response sends 500, 502 or 504, and some send 503.
 */
static bool may_linger(const struct ckpt_s3_call *call)
{
	const struct ckpt_http_req *req = &call->req;

	if (req->resent)
		return true;
	if (req->result < 0)
		return req->reach == CKPT_HTTP_SENT;
	return req->status == 500 || req->status == 502 || req->status == 504 ||
	       (req->status == 503 && !call->refusal);
}

static int send_body(struct ckpt_task *task)
{
	struct ckpt_s3_call *call = call_of(task);
	enum ckpt_s3_verdict verdict;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, call->answered);
	read_refusal(call);
	call->uncertain = call->uncertain || may_linger(call);
	if (was_hurried(call))
		return ckpt_task_continue(task, keys_body);
	call->client->heard = call->client->heard || call->req.result == 0;
	verdict = judge(call);
	keep_pace(call, verdict);
	if (verdict == CKPT_S3_DONE)
		return 0;
	if (!try_again(call, verdict))
		return is_unwanted(call) && verdict != CKPT_S3_FAILED ? give_up(call)
								      : refuse(call);
	CKPT_AWAIT(task, !call->sleeping);
	return ckpt_task_continue(task, keys_body);
	CKPT_TASK_END(task);
}

static void call_done(struct ckpt_task *task)
{
	struct ckpt_s3_call *call = call_of(task);
	struct ckpt_s3_call **at = &call->client->calls;

	while (*at != call)
		at = &(*at)->next;
	*at = call->next;
	call->result = task->result;
	call->done = true;
	ckpt_task_wake(call->waiter);
	if (!call->client->calls)
		ckpt_task_wake(call->client->idler);
}

void ckpt_s3_call_start(struct ckpt_s3_client *client, struct ckpt_s3_call *call)
{
	CKPT_ASSERT(client->sched && call->name && call->query && call->doing);
	call->client = client;
	call->tries.most = client->attempts;
	if (*call->name)
		ckpt_s3_uri_key(&client->place, call->name, call->key);
	call->next = client->calls;
	client->calls = call;
	ckpt_task_start(&call->task, client->sched, begin_body, call_done);
}

void ckpt_s3_call_clear(struct ckpt_s3_call *call)
{
	CKPT_ASSERT(!ckpt_task_active(&call->task));
	clear_answer(call);
	ckpt_buf_free(&call->url);
}

void ckpt_s3_client_begin(struct ckpt_s3_client *client)
{
	CKPT_ASSERT(client->sched && client->timers && client->credentials);
	ckpt_s3_concurrency_init(
		&client->pace, client->http->connections, ckpt_env_now(client->env));
}

void ckpt_s3_client_link(struct ckpt_s3_client **list, struct ckpt_s3_client *client)
{
	if (client->linked)
		return;
	client->linked = true;
	client->next = *list;
	*list = client;
}

void ckpt_s3_client_unlink(struct ckpt_s3_client **list, struct ckpt_s3_client *client)
{
	while (*list && *list != client)
		list = &(*list)->next;
	if (*list)
		*list = client->next;
	client->linked = false;
}

static void last_wait_over(struct ckpt_timer *timer)
{
	struct ckpt_s3_call *call = CKPT_CONTAINER(timer, struct ckpt_s3_call, timer);

	if (call->under_way)
		ckpt_http_cancel(call->client->http, &call->req);
}

/* A request that undoes something gets as much time as one that begins now. */
static void wait_last(struct ckpt_s3_call *call)
{
	const struct ckpt_s3_client *client = call->client;

	if (!client->stopped || call->timer.set)
		return;
	call->timer.fire = last_wait_over;
	ckpt_timer_set(client->timers, &call->timer,
		ckpt_env_now(client->env) + last_limits.total_ms * MS);
}

/* Wakes the call, which then finds that it must end. */
static void hasten(struct ckpt_s3_call *call)
{
	if (call->under_way && is_over(call))
		ckpt_http_cancel(call->client->http, &call->req);
	else if (call->under_way)
		wait_last(call);
	if (call->sleeping) {
		ckpt_timer_clear(call->client->timers, &call->timer);
		call->sleeping = false;
	}
	ckpt_task_wake(&call->task);
}

void ckpt_s3_client_stop(struct ckpt_s3_client *client)
{
	client->stopped = true;
	ckpt_s3_credential_cache_stop(client->credentials);
	for (struct ckpt_s3_call *call = client->calls; call; call = call->next)
		hasten(call);
}

void ckpt_s3_client_look(struct ckpt_s3_client *client)
{
	for (struct ckpt_s3_call *call = client->calls; call; call = call->next)
		if (is_unwanted(call))
			hasten(call);
}

bool ckpt_s3_client_idle(struct ckpt_s3_client *client, struct ckpt_task *task)
{
	client->idler = task;
	return !client->calls && ckpt_s3_credential_cache_idle(client->credentials, task);
}

bool ckpt_s3_call_crc32c(const struct ckpt_s3_call *call, uint32_t *ret_crc32c)
{
	char value[32];
	uint32_t parts;

	return ckpt_http_header(&call->req, "x-amz-checksum-crc32c", value, sizeof(value)) &&
	       ckpt_s3_crc32c_parse(value, ret_crc32c, &parts) == CKPT_S3_SUM_WHOLE;
}

bool ckpt_s3_call_length(const struct ckpt_s3_call *call, uint64_t *ret_length)
{
	char value[32];
	uint64_t length = 0;

	if (!ckpt_http_header(&call->req, "content-length", value, sizeof(value)) || !*value)
		return false;
	for (const char *c = value; *c; c++) {
		if (*c < '0' || *c > '9' || length > (INT64_MAX - 9) / 10)
			return false;
		length = length * 10 + (uint64_t)(*c - '0');
	}
	*ret_length = length;
	return true;
}

void ckpt_s3_call_etag(const struct ckpt_s3_call *call, char ret_etag[CKPT_S3_ETAG_MAX + 1])
{
	char value[CKPT_S3_ETAG_MAX + 2];

	ret_etag[0] = '\0';
	if (ckpt_http_header(&call->req, "etag", value, sizeof(value)) &&
		strlen(value) <= CKPT_S3_ETAG_MAX)
		memcpy(ret_etag, value, strlen(value) + 1);
}
