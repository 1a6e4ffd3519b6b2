/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference model: what was saved, what was acknowledged, and what must hold of every restore. It
 * knows nothing of files. It is told what the processes were told, and judges what they get.
 *
 * - A step acknowledged as durable is restored, bit for bit, by whoever comes after, unless retention
 *   or a user let it go, its files were damaged, or its generation was left behind.
 * - Whatever is restored is exactly what was saved under that generation and step.
 * - The newest of the lineage is chosen, and nothing outside of it: neither what a fenced process
 *   published nor a branch that was rolled back.
 * - A generation is claimed once, and its claim never lost. Whoever begins a save after somebody else
 *   has claimed is not told that it is durable.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "engine/lineage/scan.h"
#include "sim.h"

#define ORACLE_RECORDS 512
#define ORACLE_GENS    128
#define ORACLE_PINS    8

/* What a disk that lies has done to a file. */
enum oracle_harm {
	ORACLE_WHOLE,
	ORACLE_DOUBTED, /* a read was answered with something else; it may be marked bad for that */
	ORACLE_DAMAGED,
};

struct oracle_record {
	uint64_t generation;
	uint64_t step;
	uint64_t version;  /* decides every byte of the state */
	unsigned shape;    /* which of the state's shapes it had */
	uint64_t begun_at; /* oracle time */
	uint64_t acked_at; /* oracle time; 0: not acknowledged, so it may be there or not */
	bool let_go;       /* retention or a user may have removed it */
	enum oracle_harm harm;
};

struct oracle_gen {
	uint64_t generation; /* 0: perhaps claimed, by a process that was not told */
	uint64_t parent_generation;
	uint64_t parent_step;
	uint64_t told_at;
	uint64_t seen_at; /* by another, before its owner was told */
	unsigned owner;
	bool left;     /* what is on the disk of it may be half done: somebody died over it */
	bool lives_on; /* its owner lived when somebody else claimed: it writes on until it looks */
};

struct oracle {
	struct sim *sim;
	uint64_t time; /* counts what it is told */
	struct oracle_record records[ORACLE_RECORDS];
	size_t record_count;
	struct oracle_gen gens[ORACLE_GENS];
	size_t gen_count;
	enum oracle_harm marker;
	enum oracle_harm claims[ORACLE_GENS]; /* by generation */
	bool any_damage;
	bool chains;   /* a step may need those before it in its generation */
	uint64_t hits; /* of lies and damage, so far */
	bool healed;
};

/* What a process may expect, from the moment at which it began to read the store. */
struct oracle_view {
	uint64_t time;
	uint64_t newest; /* claim, as it saw it; its own once it has one */
	bool alone;      /* nobody else can claim: then `newest` is the newest */
	bool locks;      /* all processes are on one machine: what it reads is not removed */
};

struct oracle_retention {
	uint64_t keep_last;
	uint64_t keep_every;
	uint64_t pins[ORACLE_PINS];
	size_t pin_count;
};

void oracle_start(struct oracle *oracle, struct sim *sim);

/* A process has read the store: every claim is known or explained, and none is lost. */
void oracle_opened(struct oracle *oracle, struct oracle_view *view, const struct ckpt_scan *scan);
/* It has listed it: whatever was owed at `since` and still is, and nothing that was never saved. */
void oracle_listed(struct oracle *oracle, uint64_t since, const struct ckpt_scan *scan);
/* It asks for a generation with this parent; then it may have got it, and been told so. */
void oracle_claiming(
	struct oracle *oracle, unsigned owner, uint64_t parent_generation, uint64_t parent_step);
/* It was told that it has not, before anything was tried. */
void oracle_not_claimed(struct oracle *oracle, unsigned owner);
void oracle_claimed(
	struct oracle *oracle, struct oracle_view *view, unsigned owner, uint64_t generation);

void oracle_saving(struct oracle *oracle, uint64_t generation, uint64_t step, uint64_t version,
	unsigned shape);
/* It is committed, and its owner was told so. */
void oracle_committed(struct oracle *oracle, uint64_t generation, uint64_t step,
	const struct oracle_retention *retention);
/* Nothing goes wrong any more: what could not be read now and then can be. */
void oracle_healed(struct oracle *oracle);
/* A user removes it; false: was told that it stays. Returns how it was before. */
bool oracle_let_go(struct oracle *oracle, uint64_t generation, uint64_t step, bool gone);
/* What has happened to its files, and to those of steps that it may need. */
enum oracle_harm oracle_harm_of(const struct oracle *oracle, const struct oracle_record *record);
/* Nothing has happened to its files, nor to what says of which run they are. */
bool oracle_whole(const struct oracle *oracle, uint64_t generation, uint64_t step);
/* Nothing else was ever saved in its lineage. */
bool oracle_only(const struct oracle *oracle, const struct oracle_view *view, uint64_t generation,
	uint64_t step);
/*
 * A file was damaged, or, `passing`, read wrongly: nothing is owed of its step any more, or not to those
 * who ask for the latest. Of all others everything is. Behind a claim nothing is owed of the generations
 * before it, and without its marker of the whole store.
 */
void oracle_damaged(struct oracle *oracle, const char *path, bool passing);

/*
 * A step was restored or chosen; `asked` as for ckpt_restore_open(). The record to compare it with, or
 * NULL: it should not have been.
 */
const struct oracle_record *oracle_chosen(struct oracle *oracle, const struct oracle_view *view,
	uint64_t asked, uint64_t generation, uint64_t step);
/* A step that was refused, as the refusal names it. */
struct oracle_named {
	uint64_t generation; /* 0: none */
	uint64_t step;
	bool said; /* in the error itself, with a file */
};
/* There was none, or it could not be read: was that right, and does it say which? */
void oracle_refused(struct oracle *oracle, const struct oracle_view *view, uint64_t asked, int code,
	const struct oracle_named *named);
/* It must be there. */
bool oracle_owes(const struct oracle *oracle, const struct oracle_view *view,
	const struct oracle_record *record);
/* Something besides steps was damaged: a claim, or the marker. */
bool oracle_shaken(const struct oracle *oracle);
/* The same, whoever was told of it, and when. */
bool oracle_owes_step(const struct oracle *oracle, const struct oracle_view *view,
	uint64_t generation, uint64_t step);
/* Somebody may have claimed after `generation`. */
bool oracle_succeeded(const struct oracle *oracle, unsigned owner, uint64_t generation);
/* When the owner of a generation was told that it has it; UINT64_MAX: not yet. */
uint64_t oracle_told(const struct oracle *oracle, uint64_t generation);
/* In the lineage of whoever holds `generation`; of it or of a branch of its run that was left behind. */
bool oracle_reaches(
	const struct oracle *oracle, uint64_t generation, const struct oracle_record *record);
bool oracle_same_run(
	const struct oracle *oracle, uint64_t generation, const struct oracle_record *record);
/* Whatever comes after it: pinned, or one of every so many of the lineage. */
bool oracle_stays(const struct oracle_retention *retention, uint64_t step, bool in_lineage);
/* A process has died or stands still over `generation`, or, UINT64_MAX, over any that there is. */
void oracle_leave(struct oracle *oracle, uint64_t generation);
bool oracle_left(const struct oracle *oracle, uint64_t generation);
/* Its owner is alive, and somebody else claims. */
void oracle_live_on(struct oracle *oracle, uint64_t generation);
bool oracle_lives_on(const struct oracle *oracle, uint64_t generation);
/* Steps that must be there, and that nobody can have marked bad. */
size_t oracle_owed(const struct oracle *oracle, const struct oracle_view *view);

#endif
