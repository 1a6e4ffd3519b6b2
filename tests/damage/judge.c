/* SPDX-License-Identifier: Apache-2.0 */
#include "damage/judge.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/hang.h"
#include "lib/scratch.h"

#define FILL 0xee
#define MORE 7 /* the step that a writer saves */

#define must(judge, cond, ...)                                                                     \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			(void)fprintf(stderr, "%s\n  ", (judge)->what);                            \
			victim_die(__VA_ARGS__);                                                   \
		}                                                                                  \
	} while (0)

static int wait_for(struct ckpt_restore *restore)
{
	int r = ckpt_restore_wait(restore, HANG_LIMIT_MS);

	hang_unless(r != -ETIMEDOUT);
	return r;
}

/* What may be said of a damaged store. Anything else is an accident, not a finding. */
static bool is_finding(int r)
{
	return r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE || r == CKPT_EFORMAT ||
	       r == CKPT_EVERSION || r == CKPT_ENOSTORE || r == CKPT_ENOSTEP ||
	       r == CKPT_EQUARANTINED;
}

static struct victim_file *file_of(struct victim *v, enum victim_kind kind, unsigned step)
{
	for (unsigned i = 0; i < v->files; i++)
		if (v->file[i].kind == kind && v->file[i].step == step)
			return &v->file[i];
	victim_die("the store has no file of kind %d for step %u", kind, step);
}

static bool hurt(struct victim *v, enum victim_kind kind, unsigned step)
{
	return victim_differs(file_of(v, kind, step));
}

/* Nothing can be had without a marker that verifies, or when the newest claim was lost. */
static bool store_hurt(struct victim *v)
{
	return hurt(v, VICTIM_MARKER, 0) || file_of(v, VICTIM_CLAIM, 0)->gone;
}

/* A claim that does not verify leaves the steps of its own generation. */
static bool claim_hurt(struct victim *v)
{
	return !store_hurt(v) && hurt(v, VICTIM_CLAIM, 0);
}

static bool step_hurt(struct victim *v, unsigned step)
{
	return hurt(v, VICTIM_MANIFEST, step) || hurt(v, VICTIM_INDEX, step) ||
	       hurt(v, VICTIM_SHARD, step);
}

/* Whether a chunk of a shard of the right length holds other bytes. */
static bool chunk_hurt(const struct victim_file *shard, const struct victim_chunk *c)
{
	return memcmp(shard->now + c->offset, shard->bytes + c->offset, c->length) != 0;
}

/* A record of a bad chunk names the chunk's place and its tensor. */
static void check_chunk(
	struct judge *j, const struct ckpt_error *e, const struct victim_file *shard)
{
	const struct victim *v = j->victim;
	const struct victim_chunk *c = NULL;

	for (unsigned i = 0; i < v->chunks; i++)
		if ((int64_t)v->chunk[i].offset == e->offset)
			c = &v->chunk[i];
	must(j, e->code == CKPT_EINTEGRITY, "code %d: %s", e->code, e->message);
	must(j, strcmp(e->file, shard->path) == 0, "names %s, not %s", e->file, shard->path);
	must(j, c != NULL, "offset %lld begins no chunk", (long long)e->offset);
	must(j, chunk_hurt(shard, c), "names the good chunk at %lld", (long long)e->offset);
	if (c->first == VICTIM_TENSORS)
		return;
	must(j, strcmp(e->tensor, v->tensor[c->first].name) == 0, "names %s, not %s", e->tensor,
		v->tensor[c->first].name);
	must(j, strstr(e->message, e->tensor), "the sentence does not name %s", e->tensor);
	must(j, (strstr(e->message, "and others") != NULL) == c->shared,
		"%s, where the chunk is %s: %s", e->tensor, c->shared ? "shared" : "its own",
		e->message);
	j->named++;
}

/* Every bad chunk of the shard has a finding, and nothing else has. */
static void check_findings(
	struct judge *j, struct ckpt_restore *verify, const struct victim_file *shard)
{
	const struct victim *v = j->victim;
	unsigned bad = 0;
	unsigned found = 0;

	for (unsigned i = 0; i < v->chunks; i++)
		bad += chunk_hurt(shard, &v->chunk[i]);
	for (size_t i = 0; i < ckpt_verify_count(verify); i++) {
		struct ckpt_finding finding = {.size = sizeof(finding)};
		must(j, ckpt_verify_finding(verify, i, &finding) == 0, "%s", ckpt_last_error());
		if (finding.error.code == 0)
			continue;
		found++;
		check_chunk(j, &finding.error, shard);
	}
	must(j, found == bad, "%u findings for %u bad chunks", found, bad);
}

static void verify_step(struct judge *j, struct ckpt_engine *engine, unsigned step)
{
	struct victim *v = j->victim;
	const struct victim_file *shard = file_of(v, VICTIM_SHARD, step);
	struct ckpt_error error = {.size = sizeof(error)};
	struct ckpt_restore *verify = NULL;
	int r = ckpt_verify_start(engine, step, &verify);

	must(j, r == 0, "verify_start: %s", ckpt_last_error());
	r = wait_for(verify);
	if (!store_hurt(v) && !step_hurt(v, step)) {
		must(j, r == 0, "step %u is called bad (%d): %s", step, r, ckpt_last_error());
		ckpt_restore_free(verify);
		return;
	}
	must(j, r < 0, "verification says that step %u is good", step);
	must(j, is_finding(r), "verification of step %u ends with %d: %s", step, r,
		ckpt_last_error());
	(void)ckpt_restore_error(verify, &error);
	must(j, error.code == r, "the record says %d, the call %d", error.code, r);
	if (store_hurt(v)) {
		ckpt_restore_free(verify);
		return;
	}
	if (hurt(v, VICTIM_MANIFEST, step) || hurt(v, VICTIM_INDEX, step)) {
		bool manifest = hurt(v, VICTIM_MANIFEST, step);
		const struct victim_file *f =
			file_of(v, manifest ? VICTIM_MANIFEST : VICTIM_INDEX, step);
		must(j, (manifest && f->gone) || strcmp(error.file, f->path) == 0,
			"names \"%s\", not %s: %s", error.file, f->path, error.message);
	} else if (shard->gone || shard->now_size != shard->size) {
		must(j, strcmp(error.file, shard->path) == 0, "names \"%s\", not %s: %s",
			error.file, shard->path, error.message);
	} else {
		check_findings(j, verify, shard);
	}
	ckpt_restore_free(verify);
}

/* Binds tensors [from, to), in memory that shows where nothing was put. */
static void bind(struct judge *j, struct ckpt_restore *restore, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++) {
		struct victim_tensor *t = &j->victim->tensor[i];
		struct ckpt_target target = {.size = sizeof(target),
			.name = t->name,
			.dtype = t->dtype,
			.ndim = 1,
			.shape = &t->count,
			.data = t->back};
		memset(t->back, FILL, t->bytes);
		int r = ckpt_restore_bind(restore, &target, 1);
		must(j, r == 0, "%s cannot be bound: %s", t->name, ckpt_last_error());
	}
}

/* No byte but those that were saved has come to the memory; of a success, all of them. */
static void compare(struct judge *j, uint64_t step, unsigned from, unsigned to, bool all)
{
	const struct victim *v = j->victim;

	must(j, step >= 1 && step <= VICTIM_STEPS, "step %llu", (unsigned long long)step);
	for (unsigned i = from; i < to; i++) {
		const struct victim_tensor *t = &v->tensor[i];
		const unsigned char *want = t->want[step];
		if (memcmp(t->back, want, t->bytes) == 0)
			continue;
		must(j, !all, "step %llu is restored with wrong bytes in %s",
			(unsigned long long)step, t->name);
		for (size_t k = 0; k < t->bytes; k++)
			must(j, t->back[k] == want[k] || t->back[k] == FILL,
				"byte %zu of %s was handed out without being compared", k, t->name);
	}
}

/* Restores tensors [from, to) of `step`. What comes is right, or nothing comes and it is said why. */
static int restore_some(
	struct judge *j, struct ckpt_engine *engine, uint64_t step, unsigned from, unsigned to)
{
	struct victim *v = j->victim;
	struct ckpt_restore *restore = NULL;
	struct ckpt_error error = {.size = sizeof(error)};
	int r = ckpt_restore_open(engine, step, &restore);

	if (r < 0) {
		must(j, is_finding(r), "restore_open: %d: %s", r, ckpt_last_error());
		must(j, r != CKPT_ENOSTEP || step != CKPT_STEP_LATEST,
			"a store of two commits says that it has none");
		return r;
	}
	uint64_t chosen = ckpt_restore_step(restore);
	bind(j, restore, from, to);
	r = ckpt_restore_start(restore);
	if (r == 0)
		r = wait_for(restore);
	must(j, r == 0 || is_finding(r), "restore: %d: %s", r, ckpt_last_error());
	(void)ckpt_restore_error(restore, &error);
	compare(j, chosen, from, to, r == 0);
	const struct victim_file *shard = file_of(v, VICTIM_SHARD, (unsigned)chosen);
	if (r < 0 && !shard->gone && shard->now_size == shard->size)
		check_chunk(j, &error, shard);
	ckpt_restore_free(restore);
	return r < 0 ? r : (int)chosen;
}

/* What does not fail a restore is said in the log. */
static void check_log(struct judge *j, struct ckpt_engine *engine)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	const char *path = file_of(j->victim, VICTIM_CLAIM, 0)->path;
	bool said = false;

	while (ckpt_engine_log(engine, 0, &record) == 0)
		said |= strstr(record.message, path) != NULL;
	must(j, said || !claim_hurt(j->victim), "nobody says that %s is damaged", path);
}

static bool changed(struct judge *j)
{
	bool any = false;

	for (unsigned i = 0; i < j->victim->files; i++)
		any |= victim_differs(&j->victim->file[i]);
	j->judged += any;
	j->unchanged += !any;
	return any;
}

void judge_look(struct judge *judge)
{
	struct victim *v = judge->victim;
	struct ckpt_engine *engine = judge->reader;

	if (!changed(judge))
		return;
	if (!engine) {
		must(judge, !judge->brief, "a brief look needs an open engine");
		engine = victim_engine(v, CKPT_ENGINE_READ_ONLY);
		int r = ckpt_last_error_record(
			&(struct ckpt_error){.size = sizeof(struct ckpt_error)});
		must(judge, engine || (store_hurt(v) && is_finding(r)), "open: %d: %s", r,
			ckpt_last_error());
		if (!engine)
			return;
	}
	for (unsigned step = 1; step <= VICTIM_STEPS; step++)
		if (!judge->brief || step_hurt(v, step) || store_hurt(v))
			verify_step(judge, engine, step);
	if (judge->brief && !claim_hurt(v))
		return;
	int r = restore_some(judge, engine, CKPT_STEP_LATEST, 0, v->tensors);
	must(judge, r < 0 || !store_hurt(v), "a store that is not one is restored from");
	if (r > 0)
		check_log(judge, engine);
	judge->older += r == 1;
	judge->whole += r == 2;
	if (engine != judge->reader)
		ckpt_engine_close(engine);
}

void judge_one(struct judge *judge, unsigned tensor)
{
	struct victim *v = judge->victim;
	const struct victim_tensor *t = &v->tensor[tensor];
	const struct victim_file *shard = file_of(v, VICTIM_SHARD, VICTIM_STEPS);
	bool bad = shard->gone || shard->now_size != shard->size;

	if (store_hurt(v) || hurt(v, VICTIM_MANIFEST, VICTIM_STEPS) ||
		hurt(v, VICTIM_INDEX, VICTIM_STEPS))
		return;
	for (unsigned i = 0; i < v->chunks && !bad; i++) {
		const struct victim_chunk *c = &v->chunk[i];
		bad = c->offset < t->offset + t->bytes && t->offset < c->offset + c->length &&
		      chunk_hurt(shard, c);
	}
	int r = restore_some(judge, judge->reader, VICTIM_STEPS, tensor, tensor + 1);
	must(judge, (r < 0) == bad, "%s alone, whose chunks are %s: %d", t->name,
		bad ? "damaged" : "good", r);
}

static int try_resume(struct judge *j, struct ckpt_engine *engine, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	int r = restore_some(j, engine, step, 0, j->victim->tensors);

	if (r < 0)
		return r;
	must(j, ckpt_restore_open(engine, (uint64_t)r, &restore) == 0, "%s", ckpt_last_error());
	bind(j, restore, 0, j->victim->tensors);
	must(j, ckpt_restore_start(restore) == 0, "%s", ckpt_last_error());
	must(j, wait_for(restore) == 0, "%s", ckpt_last_error());
	must(j, ckpt_restore_adopt(restore) == 0, "%s", ckpt_last_error());
	ckpt_restore_free(restore);
	return r;
}

static void save_more(struct judge *j, struct ckpt_engine *engine)
{
	struct ckpt_restore *verify = NULL;
	int r = victim_save(j->victim, engine, 1, MORE);

	must(j, r == 0, "save after resuming: %d: %s", r, ckpt_last_error());
	must(j, ckpt_verify_start(engine, MORE, &verify) == 0, "%s", ckpt_last_error());
	r = wait_for(verify);
	must(j, r == 0, "the step saved after resuming: %d: %s", r, ckpt_last_error());
	ckpt_restore_free(verify);
}

void judge_writer(struct judge *judge)
{
	struct victim *v = judge->victim;
	size_t before = scratch_count(v->dir);

	if (!changed(judge))
		return;
	struct ckpt_engine *engine = victim_engine(v, 0);
	if (!engine) {
		must(judge, store_hurt(v), "open: %s", ckpt_last_error());
		must(judge, scratch_count(v->dir) == before, "a refused open has left something");
		return;
	}
	int r = try_resume(judge, engine, CKPT_STEP_LATEST);
	if (r < 0)
		r = try_resume(judge, engine, CKPT_STEP_LATEST);
	if (r < 0)
		r = try_resume(judge, engine, 1);
	if (r > 0) {
		judge->older += r == 1;
		judge->whole += r == 2;
		save_more(judge, engine);
	} else {
		must(judge, store_hurt(v) || step_hurt(v, 1), "nothing can be had: %d: %s", r,
			ckpt_last_error());
	}
	ckpt_engine_close(engine);
}
