/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/io_fault.h"

#include <string.h>

#include "base/alloc.h"

static bool matches(const struct io_fault_rule *rule, const struct io_tap_req *r)
{
	if (rule->op && rule->op != r->req.op)
		return false;
	return !rule->path || strstr(r->path, rule->path);
}

static enum io_tap_way apply(const struct io_fault_rule *rule, struct io_tap_req *r)
{
	if (rule->error && !rule->late) {
		r->req.result = rule->error;
		return IO_TAP_ANSWER;
	}
	if (rule->nothing) {
		r->req.result = 0;
		return IO_TAP_ANSWER;
	}
	if (rule->shorten)
		r->req.len = ckpt_min_u64(r->req.len, rule->shorten);
	r->verdict = rule->error;
	if (rule->hold_answer)
		return IO_TAP_KEEP;
	return rule->hold ? IO_TAP_HOLD : IO_TAP_PASS;
}

static enum io_tap_way before(struct io_tap *tap, struct io_tap_req *r)
{
	struct io_fault *fault = CKPT_CONTAINER(tap, struct io_fault, tap);
	const struct io_fault_rule *hit = NULL;

	if (++fault->requests == fault->fail_at) {
		r->req.result = fault->fail_error;
		return IO_TAP_ANSWER;
	}
	for (unsigned i = 0; i < fault->rule_count; i++) {
		const struct io_fault_rule *rule = &fault->rules[i];
		if (!matches(rule, r))
			continue;
		unsigned n = ++fault->seen[i];
		unsigned first = rule->nth ? rule->nth : 1;
		unsigned count = rule->count ? rule->count : 1;
		if (hit || n < first || n - first >= count)
			continue;
		fault->hits[i]++;
		hit = rule;
	}
	return hit ? apply(hit, r) : IO_TAP_PASS;
}

static void after(struct io_tap *tap, struct io_tap_req *r)
{
	(void)tap;
	if (!r->verdict)
		return;
	if (r->req.op == CKPT_IO_OP_OPEN && r->req.result >= 0) {
		struct ckpt_io_req shut = {
			.op = CKPT_IO_OP_CLOSE, .fd = (int)r->req.result, .slot = -1};
		ckpt_io_exec(&shut);
	}
	if (r->req.op == CKPT_IO_OP_LIST) {
		ckpt_free(r->req.listing.names);
		r->req.listing = (struct ckpt_listing){0};
	}
	r->req.result = r->verdict;
}

void io_fault_init(struct io_fault *fault, struct ckpt_io *inner)
{
	memset(fault, 0, sizeof(*fault));
	io_tap_init(&fault->tap, inner);
	fault->tap.before = before;
	fault->tap.after = after;
}

unsigned io_fault_add(struct io_fault *fault, struct io_fault_rule rule)
{
	CKPT_ASSERT(fault->rule_count < IO_FAULT_RULES);
	fault->rules[fault->rule_count] = rule;
	return fault->rule_count++;
}

void io_fault_clear(struct io_fault *fault)
{
	memset(fault->seen, 0, sizeof(fault->seen));
	memset(fault->hits, 0, sizeof(fault->hits));
	fault->rule_count = 0;
	fault->requests = 0;
	fault->fail_at = 0;
}
