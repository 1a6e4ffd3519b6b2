/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of the bucket, by its journal, and of what was told about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/naming.h"
#include "remote.h"
#include "sim_inode.h"

struct remote_record *remote_record(const struct remote *world, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < world->record_count; i++)
		if (world->records[i].generation == generation && world->records[i].step == step)
			return (struct remote_record *)&world->records[i];
	return NULL;
}

static bool newer(const struct remote_record *a, uint64_t generation, uint64_t step)
{
	return a->generation > generation || (a->generation == generation && a->step > step);
}

/* Whether who goes on from `generation`, `step` has it behind itself. */
static bool behind(const struct remote *world, uint64_t generation, uint64_t step,
	const struct remote_record *r)
{
	while (generation > r->generation && generation < REMOTE_GENS) {
		step = world->gens[generation].parent_step;
		generation = world->gens[generation].parent_generation;
	}
	return generation == r->generation && r->step <= step;
}

static uint64_t newest_there(const struct remote *world)
{
	uint64_t generation = REMOTE_GENS - 1;

	while (generation > 0 && !world->gens[generation].there)
		generation--;
	return generation;
}

bool remote_owes(const struct remote *world, const struct remote_record *r)
{
	return r->confirmed_at && !r->marked && behind(world, newest_there(world), UINT64_MAX, r);
}

/* What programs are told. */

void remote_began(struct remote_proc *p, uint64_t version)
{
	struct remote *world = p->world;
	struct remote_record *r = remote_record(world, p->core.lineage->generation, p->step);

	/* A machine may be lost before its claim was in the bucket: the next one has the same number. */
	if (!r || r->job != p->job->number) {
		if (r && r->appeared)
			sim_violation(&world->sim, "step %llu of generation %llu is saved twice",
				(unsigned long long)p->step,
				(unsigned long long)p->core.lineage->generation);
		CKPT_ASSERT(r || world->record_count < REMOTE_RECORDS);
		if (!r)
			r = &world->records[world->record_count++];
		*r = (struct remote_record){.generation = p->core.lineage->generation,
			.step = p->step,
			.job = p->job->number,
			.home = p->home,
			.ranks = p->job->ranks};
	}
	r->versions[p->rank] = version;
	r->begun++;
	p->record = r;
}

/* What was told to be in the bucket before anybody looked there is behind it. */
static void check_lineage(const struct remote_proc *p)
{
	struct remote *world = p->world;
	const struct ckpt_core *core = &p->core;
	uint64_t since = world->moved ? remote_looked_at(world, p->home) : p->began_at;
	uint64_t before = newest_there(world);

	for (size_t i = 0; i < world->record_count; i++) {
		const struct remote_record *r = &world->records[i];
		if (!r->confirmed_at || r->confirmed_at > since || r->marked ||
			!behind(world, before, UINT64_MAX, r))
			continue;
		if (!behind(world, core->lineage->parent_generation, core->lineage->parent_step, r))
			sim_violation(&world->sim,
				"step %llu of generation %llu is in the bucket, as was told, and "
				"generation %llu does not go on from it",
				(unsigned long long)r->step, (unsigned long long)r->generation,
				(unsigned long long)core->lineage->generation);
	}
}

void remote_claimed(struct remote_proc *p)
{
	struct remote *world = p->world;
	const struct ckpt_core *core = &p->core;

	CKPT_ASSERT(core->lineage->generation < REMOTE_GENS);
	struct remote_gen *gen = &world->gens[core->lineage->generation];
	bool same = gen->claimed && gen->job == p->job->number;
	if (gen->claimed && !same && !world->moved)
		sim_violation(&world->sim, "generation %llu was claimed twice",
			(unsigned long long)core->lineage->generation);
	if (same && (gen->parent_generation != core->lineage->parent_generation ||
			    gen->parent_step != core->lineage->parent_step))
		sim_violation(&world->sim,
			"rank %u claims generation %llu with another parent than others", p->rank,
			(unsigned long long)core->lineage->generation);
	if (!same)
		check_lineage(p);
	gen->claimed = true;
	gen->job = p->job->number;
	gen->parent_generation = core->lineage->parent_generation;
	gen->parent_step = core->lineage->parent_step;
	world->homes[p->home].claimed = true;
	sim_tell(&world->sim, p->id, "claimed", "", (int64_t)core->lineage->generation,
		(int64_t)core->lineage->parent_generation, (int64_t)core->lineage->parent_step);
}

void remote_confirmed(struct remote_proc *p, struct remote_record *record)
{
	struct remote *world = p->world;

	record->confirmed_at = ++world->time;
	world->confirmed++;
	sim_tell(&world->sim, p->id, "in bucket", "", (int64_t)record->generation,
		(int64_t)record->step, 0);
	if (!record->there && !record->marked)
		sim_violation(&world->sim,
			"step %llu of generation %llu is said to be in the bucket, and is not",
			(unsigned long long)record->step, (unsigned long long)record->generation);
}

/* The latest passes over what is going, as long as there is another. */
static void check_going(struct remote_proc *p)
{
	const struct remote *world = p->world;
	const struct remote_record *chosen = remote_record(world, p->generation, p->step);
	uint64_t newest = newest_there(world);

	if (!chosen || !chosen->tombstone_at || chosen->tombstone_at > p->began_at)
		return;
	for (size_t i = 0; i < world->record_count; i++) {
		const struct remote_record *r = &world->records[i];
		if (r->there && !r->marked && r->appeared_at < p->began_at &&
			behind(world, newest, UINT64_MAX, r))
			sim_violation(&p->world->sim,
				"step %llu of generation %llu has a tombstone, and is the latest",
				(unsigned long long)p->step, (unsigned long long)p->generation);
	}
}

/* All ranks of a job, or none. */
static void check_same(struct remote_proc *p)
{
	struct remote_job *job = p->job;

	if (job->chosen && (job->generation != p->generation || job->step != p->step))
		sim_violation(&p->world->sim,
			"rank %u has got back step %llu of generation %llu, and another one step "
			"%llu of generation %llu",
			p->rank, (unsigned long long)p->step, (unsigned long long)p->generation,
			(unsigned long long)job->step, (unsigned long long)job->generation);
	job->chosen = true;
	job->generation = p->generation;
	job->step = p->step;
}

uint64_t remote_looked_at(const struct remote *world, unsigned home)
{
	const struct remote_home *h = &world->homes[home];
	uint64_t at = h->looked_at[0];

	for (unsigned i = 1; i < h->stores; i++)
		at = ckpt_min_u64(at, h->looked_at[i]);
	return at;
}

void remote_restored(struct remote_proc *p)
{
	struct remote *world = p->world;

	if (p->kind == REMOTE_TRAIN)
		check_same(p);
	if (p->asked > CKPT_STEP_MAX && p->kind != REMOTE_TRAIN)
		check_going(p);

	if (p->asked <= CKPT_STEP_MAX && p->asked != p->step)
		sim_violation(&world->sim, "asked for was step %llu, and restored is %llu",
			(unsigned long long)p->asked, (unsigned long long)p->step);
	for (size_t i = 0; i < world->record_count; i++) {
		const struct remote_record *r = &world->records[i];
		if (r->confirmed_at > p->began_at || !remote_owes(world, r))
			continue;
		if (p->asked > CKPT_STEP_MAX && p->kind != REMOTE_TRAIN &&
			newer(r, p->generation, p->step))
			sim_violation(&world->sim,
				"step %llu of generation %llu is the latest, but %llu of %llu is "
				"in the bucket",
				(unsigned long long)p->step, (unsigned long long)p->generation,
				(unsigned long long)r->step, (unsigned long long)r->generation);
	}
}

/* The bucket. */

static char *text_of(const struct rope *rope)
{
	char *text = sim_alloc(rope->length + 1);

	(void)rope_read(rope, 0, text, rope->length);
	return text;
}

/* Nobody writes there any more: another machine may have made the same numbers since. */
static bool is_lost(const struct remote *world, unsigned home)
{
	bool lost = home != world->home;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		lost = lost && !(world->procs[i] && world->procs[i]->home == home);
	return lost;
}

/* The same file in the store of any machine says what it must be: as long as nothing has become of it there. */
static void check_file(struct remote *world, const char *path, const struct rope *there)
{
	char *text = text_of(there);

	for (unsigned i = 0; i < world->home_count; i++) {
		for (unsigned k = 0; !is_lost(world, i) && k < world->homes[i].stores; k++) {
			const struct sim_inode *file =
				sim_disk_find(world->homes[i].disks[k], path);
			if (file && (file->cached_size != there->length ||
					    memcmp(file->cached, text, there->length) != 0))
				sim_violation(&world->sim, "%s in the bucket is not what was saved",
					path);
		}
	}
	free(text);
}

static const struct rope *need_file(struct remote *world, const char *path, bool first)
{
	const struct rope *there = remote_object(world, path);

	if (!there)
		sim_violation(&world->sim, "there is a manifest in the bucket that needs %s", path);
	else if (first)
		check_file(world, path, there);
	return there;
}

/* It may be there in two forms, where it was sent by processes that differ. */
static void check_shard(struct remote *world, const struct remote_record *r,
	const struct ckpt_manifest_rank *rank, bool first)
{
	char plain[CKPT_PATH_MAX];
	char encoded[CKPT_PATH_MAX];

	ckpt_name_shard(plain, r->generation, r->step, rank->rank, rank->attempt);
	ckpt_name_encoded(encoded, r->generation, r->step, rank->rank, rank->attempt);
	bool is_encoded = remote_object(world, encoded) != NULL;

	if (is_encoded)
		(void)need_file(world, encoded, first);
	if (!is_encoded || remote_object(world, plain))
		(void)need_file(world, plain, first);
}

/* The files of one rank, as the manifest names them. */
static void check_rank(struct remote *world, const struct remote_record *r,
	const struct ckpt_manifest_rank *rank, bool first)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_index(path, r->generation, r->step, rank->rank, rank->attempt);
	const struct rope *index = need_file(world, path, first);
	char *bytes = index ? text_of(index) : NULL;
	struct ckpt_digest digest = ckpt_digest_of(bytes, index ? index->length : 0);
	if (index && !ckpt_digest_equal(&digest, &rank->index_digest))
		sim_violation(&world->sim, "%s in the bucket has another digest", path);
	free(bytes);
	check_shard(world, r, rank, first);
}

/* `first`: it has just come. */
static void check_step(struct remote *world, const struct remote_record *r, bool first)
{
	struct ckpt_manifest manifest = {0};
	struct ckpt_error err = {.size = sizeof(err)};
	char path[CKPT_PATH_MAX];

	ckpt_error_clear(&err);
	ckpt_name_manifest(path, r->generation, r->step);
	const struct rope *there = need_file(world, path, first);
	if (!there)
		return;
	char *text = text_of(there);
	int code = ckpt_manifest_decode(text, there->length, path, &err, &manifest);
	if (code < 0 || manifest.kind != CKPT_MANIFEST_COMMIT)
		sim_violation(&world->sim, "%s in the bucket is no commit: %s", path, err.message);
	else if (manifest.world != r->ranks || r->begun < r->ranks)
		sim_violation(&world->sim,
			"%s in the bucket names %u ranks, and %u of %u have saved it", path,
			manifest.world, r->begun, r->ranks);
	for (uint32_t i = 0; code == 0 && i < manifest.world; i++)
		check_rank(world, r, &manifest.ranks[i], first);
	ckpt_manifest_clear(&manifest);
	free(text);
}

static void appeared(struct remote *world, struct remote_record *r)
{
	/* A step waits until rank 0 looks for the others' parts of it again, and the next one need not. */
	bool ordered = !world->moved && !world->many;

	for (size_t i = 0; i < world->record_count && !r->appeared && ordered; i++) {
		const struct remote_record *other = &world->records[i];
		if (other->appeared && newer(other, r->generation, r->step))
			sim_violation(&world->sim,
				"step %llu of generation %llu comes after %llu of %llu",
				(unsigned long long)r->step, (unsigned long long)r->generation,
				(unsigned long long)other->step,
				(unsigned long long)other->generation);
	}
	if (r->generation >= REMOTE_GENS || !world->gens[r->generation].there)
		sim_violation(&world->sim,
			"step %llu is in the bucket, and the claim of its generation %llu is not",
			(unsigned long long)r->step, (unsigned long long)r->generation);
	check_step(world, r, !r->appeared);
	r->there = r->appeared = true;
	r->removed_at = 0;
	r->appeared_at = ++world->time;
}

static void take_claim(struct remote *world, uint64_t generation, const char *path)
{
	const struct rope *there = remote_object(world, path);
	struct ckpt_claim claim;

	if (!there || generation >= REMOTE_GENS)
		return;
	char *text = text_of(there);
	if (ckpt_claim_decode(text, there->length, path, NULL, &claim) < 0) {
		sim_violation(&world->sim, "%s in the bucket is no claim", path);
	} else {
		struct remote_gen *gen = &world->gens[generation];
		gen->there = true;
		gen->parent_generation = claim.parent_generation;
		gen->parent_step = claim.parent_step;
	}
	free(text);
}

/* A file of a step has gone. */
static void take_gone(struct remote *world, struct remote_record *r, const char *name)
{
	bool manifest = strcmp(name, "manifest.json") == 0;

	if (!r->marked)
		sim_violation(&world->sim, "%s of step %llu was removed, which nobody has marked",
			name, (unsigned long long)r->step);
	if (!manifest && r->there)
		sim_violation(&world->sim, "%s of step %llu was removed before its manifest was",
			name, (unsigned long long)r->step);
	r->there = r->there && !manifest;
	if (manifest && r->removed_at == 0)
		r->removed_at = ++world->time;
}

static uint64_t hash_of(const char *text)
{
	uint64_t hash = 1;

	for (; *text; text++)
		hash = sim_mix64(hash ^ (unsigned char)*text);
	return hash;
}

/* The same that is put twice is one. */
static void take_tombstone(
	struct remote *world, struct remote_record *r, bool there, uint64_t stone)
{
	bool same = there && r->tombstone_at && r->stone == stone;

	r->marked = true;
	r->stone = stone;
	if (same)
		return;
	r->tombstone_at = there ? ++world->time : 0;
	r->tombstone_ns = world->sim.now_ns;
	r->before = r->remover ? r->remover : r->before;
	r->remover = 0;
}

/* Something was put or removed: `path` is below the prefix. */
static void take_change(struct remote *world, const struct journal_entry *e, const char *path)
{
	const char *operation = e->operation;
	unsigned long long generation;
	unsigned long long step;
	int at = 0;

	/* NOLINTBEGIN(cert-err34-c): paths that the product made, of numbers of a few digits */
	if (sscanf(path, "gens/%llu.json", &generation) == 1) {
		take_claim(world, generation, path);
		return;
	}
	if (sscanf(path, "g%llu/step-%llu%n", &generation, &step, &at) != 2)
		return;
	/* NOLINTEND(cert-err34-c) */
	struct remote_record *r = remote_record(world, generation, step);
	if (!r)
		sim_violation(&world->sim, "%s is of a step that nobody has saved", path);
	else if (strcmp(path + at, ".tombstone") == 0)
		take_tombstone(
			world, r, strcmp(operation, "DeleteObject") != 0, hash_of(e->digest));
	else if (strcmp(operation, "DeleteObject") == 0)
		take_gone(world, r, path + at + 1);
	else if (strcmp(path + at, "/manifest.json") == 0)
		appeared(world, r);
}

/* What has become of an upload: `at` is the entry's place. */
static void take_upload(struct remote *world, const struct journal_entry *e, size_t at)
{
	uint64_t id = hash_of(e->upload);

	if (strcmp(e->operation, "CreateMultipartUpload") == 0) {
		CKPT_ASSERT(world->upload_count < REMOTE_PARTS);
		world->uploads[world->upload_count++] =
			(struct remote_upload){.id = id, .key = hash_of(e->key), .at = at};
		return;
	}
	bool ends = strcmp(e->operation, "CompleteMultipartUpload") == 0 ||
		    strcmp(e->operation, "AbortMultipartUpload") == 0;
	for (size_t i = 0; ends && i < world->upload_count; i++)
		world->uploads[i].ended = world->uploads[i].ended || world->uploads[i].id == id;
}

/* One that was begun, and that it has heard of, is gone on with. */
static void check_anew(struct remote_proc *p, const char *key)
{
	const struct remote *world = p->world;
	uint64_t hash = hash_of(key);

	for (size_t i = 0; i < world->upload_count && p->listed_of == hash; i++) {
		const struct remote_upload *u = &world->uploads[i];
		if (u->key == hash && !u->ended && u->at < p->listed)
			sim_violation(&p->world->sim,
				"an upload of %s is begun anew, and one is there", key);
	}
}

/* Who has looked at the claims, and has a successor, publishes nothing. */
static void check_fence(struct remote_proc *p, const char *key)
{
	size_t length = strlen(key);
	size_t suffix = strlen("/manifest.json");
	uint64_t own = ckpt_scan_newest_claim(&p->core.lineage->scan);

	if (p->looked > own && length > suffix &&
		strcmp(key + length - suffix, "/manifest.json") == 0)
		sim_violation(&p->world->sim,
			"%s is sent, and generation %llu is seen to have taken over", key,
			(unsigned long long)p->looked);
}

/* How many of the lineage are newer, and have been in the bucket since `before`; `stay`: and are not to go from there. */
static uint64_t count_newer(
	const struct remote *world, const struct remote_record *r, uint64_t before, bool stay)
{
	uint64_t newest = newest_there(world);
	uint64_t count = 0;

	for (size_t i = 0; i < world->record_count; i++) {
		const struct remote_record *other = &world->records[i];
		count += other->appeared && (!stay || (other->there && !other->marked)) &&
			 other->appeared_at < before && newer(other, r->generation, r->step) &&
			 behind(world, newest, UINT64_MAX, other);
	}
	return count;
}

static bool is_kept(const struct remote *world, const struct remote_record *r)
{
	return world->remote_keep_every && r->step % world->remote_keep_every == 0;
}

static bool is_outlived(const struct remote *world, const struct remote_record *r)
{
	return world->remote_keep_last && !is_kept(world, r) &&
	       count_newer(world, r, UINT64_MAX, false) >= world->remote_keep_last;
}

/* The training marks what its retention lets go, of the lineage that it knows; and what is left of a step without a manifest. */
static void check_mark(const struct remote_proc *p, const struct remote_record *r)
{
	struct remote *world = p->world;

	if (newest_there(world) != p->core.lineage->generation ||
		(r->appeared && !behind(world, p->core.lineage->generation, UINT64_MAX, r)))
		return;
	if (world->remote_keep_last == 0 ||
		count_newer(world, r, UINT64_MAX, false) < world->remote_keep_last ||
		(r->there && is_kept(world, r)))
		sim_violation(&world->sim, "step %llu of generation %llu is marked, and is to stay",
			(unsigned long long)r->step, (unsigned long long)r->generation);
}

/*
 * A request that its sender began under the tombstone before, and tries again, or that it makes when it has been
 * frozen since it looked: the maker of this one waits a grace.
 */
static bool is_belated(const struct remote_proc *p, const struct remote_record *r)
{
	bool before = p->id == r->before || (p->id != r->maker && p->stone_at < r->tombstone_at);

	return before &&
	       p->world->sim.now_ns < r->tombstone_ns + REMOTE_GRACE_S * UINT64_C(1000000000);
}

/* One at a time removes a step; the training when it has looked for a successor, and a grace is over. */
static void check_deletion(struct remote_proc *p, struct remote_record *r, const char *name)
{
	struct remote *world = p->world;
	bool manifest = strcmp(name, "manifest.json") == 0;

	if (r->tombstone_at && r->remover && r->remover != p->id && !is_belated(p, r))
		sim_violation(&world->sim, "p%u and p%u remove step %llu under one tombstone",
			r->remover, p->id, (unsigned long long)r->step);
	if (r->tombstone_at && !is_belated(p, r))
		r->remover = p->id;
	if (p->kind != REMOTE_TRAIN || !manifest)
		return;
	/* Between that look and this it may have looked at other steps, to send them. */
	if ((r->seen_by == p->id && p->looked_at < r->seen_at) ||
		p->looked > p->core.lineage->generation)
		sim_violation(&world->sim,
			"step %llu is removed without a look for a later generation",
			(unsigned long long)r->step);
	if (r->tombstone_at &&
		world->sim.now_ns < r->tombstone_ns + REMOTE_GRACE_S * UINT64_C(1000000000))
		sim_violation(&world->sim, "step %llu is removed before its grace is over",
			(unsigned long long)r->step);
}

/* What its retention had removed before, and would again, a start does not send. */
static void check_sent(const struct remote_proc *p, const struct remote_record *r)
{
	const struct remote *world = p->world;

	if (r->removed_at && r->removed_at < p->born_at && world->remote_keep_last &&
		!is_kept(world, r) && r->generation != p->core.lineage->generation &&
		count_newer(world, r, p->born_at, true) >= world->remote_keep_last)
		sim_violation(&p->world->sim, "step %llu is sent again, and was removed",
			(unsigned long long)r->step);
}

static void asked_of_step(struct remote_proc *p, const struct s3_request *asked)
{
	unsigned long long generation;
	unsigned long long step;
	int at = 0;

	/* NOLINTNEXTLINE(cert-err34-c): paths that the product made, of numbers of a few digits */
	if (sscanf(asked->key, REMOTE_PREFIX "g%llu/step-%llu%n", &generation, &step, &at) != 2)
		return;
	struct remote_record *r = remote_record(p->world, generation, step);
	const char *name = asked->key + at;
	bool stone = strcmp(name, ".tombstone") == 0;
	if (stone && strcmp(asked->method, "GET") == 0)
		p->stone_at = ++p->world->time;
	if (!r)
		return;
	if (stone && strcmp(asked->method, "GET") == 0) {
		r->seen_at = p->stone_at;
		r->seen_by = p->id;
	}
	bool marks = stone && strcmp(asked->method, "PUT") == 0;
	/* What it takes over from somebody else may be to stay. */
	bool takes = marks && !pairs_get(&asked->headers, "if-none-match");
	if (takes || (marks && !r->tombstone_at))
		r->maker = p->id;
	if (marks && !takes && p->kind == REMOTE_TRAIN && !r->tombstone_at)
		check_mark(p, r);
	if (!stone && strcmp(asked->method, "DELETE") == 0 && !asked->query.count)
		check_deletion(p, r, name + 1);
	if (!stone && strcmp(asked->method, "PUT") == 0 && p->kind == REMOTE_TRAIN)
		check_sent(p, r);
}

static struct remote_part *find_part(struct remote_part *parts, uint64_t upload, unsigned number)
{
	size_t i = sim_mix64(upload + number) % REMOTE_PARTS;

	for (size_t n = 0; n < REMOTE_PARTS; n++, i = (i + 1) % REMOTE_PARTS)
		if (parts[i].upload == 0 ||
			(parts[i].upload == upload && parts[i].number == number))
			return &parts[i];
	CKPT_ASSERT(false);
	return NULL;
}

static bool has_sums(const struct remote_proc *p)
{
	return p->client.endpoint.tls &&
	       !buckets_capabilities(p->world->front.buckets)->checksums_ignored;
}

/* What the server has, and has told a process, that one does not send again. Nodes may send one file side by side. */
static void check_part(struct remote_proc *p, const struct s3_request *asked)
{
	struct remote *world = p->world;
	const char *id = pairs_get(&asked->query, "uploadId");
	const char *number = pairs_get(&asked->query, "partNumber");
	bool list = strcmp(s3_operation(asked), "ListParts") == 0;

	if (!id || (!list && strcmp(s3_operation(asked), "UploadPart") != 0))
		return;
	uint64_t upload = hash_of(id);
	struct remote_part *told = find_part(world->lists, upload, 0);
	if (list) {
		told->upload = upload;
		told->by = p->id;
		return;
	}
	/* Of an encoded shard a part is known to be the same by its sum alone. */
	if (strstr(asked->key, ".encoded") && !has_sums(p))
		return;
	const struct remote_part *part =
		find_part(world->parts, upload, (unsigned)strtoul(number, NULL, 10));
	if (part->upload && told->upload && told->at > part->at && told->by == p->id)
		sim_violation(&world->sim, "part %s of %s is sent again, which the server has told",
			number, asked->key);
}

/* Who came when the tombstone was there lets the step alone. */
void remote_asked(struct remote_proc *p, const struct s3_request *asked)
{
	const char *prefix = pairs_get(&asked->query, "prefix");
	bool puts = strcmp(asked->method, "PUT") == 0 || strcmp(asked->method, "POST") == 0;
	unsigned long long generation;
	unsigned long long step;

	if (prefix && strcmp(s3_operation(asked), "ListMultipartUploads") == 0) {
		p->listed = p->world->front.journal.count;
		p->listed_of = hash_of(prefix);
	}
	if (strcmp(s3_operation(asked), "CreateMultipartUpload") == 0)
		check_anew(p, asked->key);
	check_part(p, asked);
	if (prefix && strcmp(prefix, REMOTE_PREFIX CKPT_NAME_GENS "/") == 0) {
		p->looked = newest_there(p->world);
		p->looked_at = ++p->world->time;
	}
	asked_of_step(p, asked);
	/* NOLINTBEGIN(cert-err34-c): paths that the product made, of numbers of a few digits */
	if (!puts || p->kind != REMOTE_TRAIN || strstr(asked->key, ".tombstone") ||
		sscanf(asked->key, REMOTE_PREFIX "g%llu/step-%llu/", &generation, &step) != 2)
		return;
	/* NOLINTEND(cert-err34-c) */
	check_fence(p, asked->key);
	const struct remote_record *r = remote_record(p->world, generation, step);
	if (r && r->tombstone_at && r->tombstone_at < p->born_at)
		sim_violation(&p->world->sim, "%s is sent, and the step has a tombstone there",
			asked->key);
}

static void take_part(struct remote *world, const struct journal_entry *e, size_t at)
{
	bool list = strcmp(e->operation, "ListParts") == 0;

	if (!list && strcmp(e->operation, "UploadPart") != 0)
		return;
	if (e->status != 200 || strcmp(e->how, list ? "whole" : e->how) != 0 ||
		strcmp(e->how, "landed") == 0)
		return;
	uint64_t upload = hash_of(e->upload);
	struct remote_part *part =
		find_part(list ? world->lists : world->parts, upload, list ? 0 : e->part);
	world->resumed += list;
	if (list || !part->upload)
		*part = (struct remote_part){upload, list ? 0 : e->part, at, part->by};
}

void remote_look(struct remote *world)
{
	const struct journal *journal = &world->front.journal;

	for (; world->seen < journal->count && !world->sim.failed; world->seen++) {
		const struct journal_entry *e = &journal->entries[world->seen];
		if (e->kind == JOURNAL_ANSWERED) {
			take_part(world, e, world->seen);
			continue;
		}
		if (strncmp(e->key, REMOTE_PREFIX, strlen(REMOTE_PREFIX)) != 0) {
			sim_violation(&world->sim, "%s, which is another's, was changed", e->key);
			continue;
		}
		sim_note(&world->sim, 0, e->operation, e->key, e->part, 0, 0);
		take_upload(world, e, world->seen);
		take_change(world, e, e->key + strlen(REMOTE_PREFIX));
	}
}

void remote_check_drained(struct remote_proc *p)
{
	struct remote *world = p->world;
	const struct ckpt_scan *scan = &p->core.lineage->scan;
	bool keeps = p->rank == p->store;

	for (size_t i = 0; i < scan->step_count && keeps; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		const struct remote_record *r = remote_record(world, s->generation, s->step);
		if (s->state == CKPT_STEP_COMMITTED && s->in_lineage && !(r && r->there) &&
			!(r && r->marked) && !(r && is_outlived(world, r)))
			sim_violation(&world->sim,
				"step %llu of generation %llu is not in the bucket, and nothing "
				"keeps it "
				"from there",
				(unsigned long long)s->step, (unsigned long long)s->generation);
	}
	world->saved_last = true;
}

void remote_check_kept(struct remote_proc *p)
{
	struct remote *world = p->world;
	uint64_t newest = newest_there(world);

	for (size_t i = 0; i < world->record_count; i++) {
		const struct remote_record *r = &world->records[i];
		if (r->there && behind(world, newest, UINT64_MAX, r) && !is_kept(world, r) &&
			count_newer(world, r, UINT64_MAX, true) >= world->remote_keep_last)
			sim_violation(&world->sim,
				"step %llu of generation %llu is in the bucket still, and nothing "
				"keeps it",
				(unsigned long long)r->step, (unsigned long long)r->generation);
		if (r->tombstone_at)
			sim_violation(&world->sim, "the tombstone of step %llu is still there",
				(unsigned long long)r->step);
	}
}

void remote_check_all(struct remote *world)
{
	remote_look(world);
	for (size_t i = 0; i < world->record_count && !world->sim.failed; i++) {
		const struct remote_record *r = &world->records[i];
		if (r->there)
			check_step(world, r, false);
		if (r->confirmed_at && !r->marked && !r->there)
			sim_violation(&world->sim,
				"step %llu of generation %llu was in the bucket, and is lost",
				(unsigned long long)r->step, (unsigned long long)r->generation);
	}
}
