/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated program does with its engine: a training that opens, resumes, saves and closes; or
 * a reader that only restores. Written as tasks of its own, which look again whenever the core has
 * run or they have slept enough. It uses the core as the runtime and the C API do.
 */
#ifndef USER_H
#define USER_H

#include "engine/gc/gc.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/open.h"
#include "engine/restore/restore.h"
#include "engine/runtime/commands.h"
#include "engine/save/save.h"
#include "oracle.h"
#include "sim_state.h"

struct sim_proc;

struct sim_user_config {
	bool reader; /* opens read only, restores, closes */
	bool careful; /* the last one of a run: everything owed is restored, and one more step saved */
	bool anew;    /* starts a lineage of its own */
	unsigned saves;
};

/* What a task waits for, and until when it must have come. */
struct sim_wait {
	uint64_t wake_ns;     /* sleeping: when it wants to be woken; UINT64_MAX: not by time */
	uint64_t deadline_ns; /* UINT64_MAX: none */
	const char *what;
};

/* One restore, from new to destroy. */
struct sim_reading {
	struct ckpt_task task;
	struct sim_user *user;
	uint64_t asked;
	uint64_t time; /* of the oracle, up to which it must know what was acknowledged */
	bool by_ranges;
	bool verify;  /* reads all of it, and restores nothing */
	bool give_up; /* soon; as everybody does in the end */
	bool gave_up;
	bool good;        /* as a verification found it */
	uint64_t hits;    /* lies so far when it began */
	uint64_t vouched; /* one more than when it was verified and found good; 0: it was not */
	uint64_t vouched_generation;
	int result;
	uint64_t generation;
	uint64_t step;
	const struct oracle_record *record;
	struct ckpt_restore *restore;
	struct sim_state into;
	struct ckpt_error error;
	struct sim_wait wait;
	struct {
		size_t tensor;
		uint64_t offset;
		uint64_t length;
		char *data;
	} ranges[4];
	size_t range_count;
};

struct sim_user {
	struct sim_proc *proc;
	struct sim_user_config config;
	struct ckpt_sched sched;
	struct ckpt_task life;
	struct sim_wait wait;
	struct sim_reading reading; /* of the life */
	struct sim_reading aside;   /* beside a save */
	bool poked;                 /* the core has run since it looked */
	bool hasty;                 /* closes without waiting for what is under way */
	bool closed;
	bool resumed;
	bool hurried;  /* has had its chance to be careless */
	bool careless; /* claims without having looked for something to resume */
	int failure;   /* it ends because of this */

	struct oracle_view view;
	struct oracle_retention retention;
	uint64_t generation; /* as it was told */
	uint64_t step;       /* of the training */
	uint64_t last_step;  /* that was begun, or resumed from */
	uint64_t version;
	unsigned tries;
	unsigned claims; /* that failed */
	uint64_t pin;
	bool pins;
	struct oracle_retention retained; /* when the last commit was acknowledged */
	bool disturbs; /* retention may have met a step that somebody read, or that it could not know of */
	uint64_t put_off;   /* saves acknowledged when retention last met a claim of this process */
	size_t next_record; /* careful: the next one to look at */

	/* Commands: one at a time. A wait for one may be given up; the core then ends it alone. */
	struct ckpt_command *command;
	struct ckpt_closer closer;
	bool claiming;
	uint64_t listing_since;
	bool was_let_go; /* what it removes, before */
	bool was_owed;
	bool used;        /* somebody may have read it since it was asked to be removed */
	bool left_behind; /* its storage did not let it close: it exits all the same */

	/* The save under way. */
	struct ckpt_task saving;
	struct sim_wait save_wait;
	struct ckpt_save *save;
	struct ckpt_plan *cache;
	struct sim_state live;
	unsigned shape;
	unsigned saved;
	unsigned begun; /* saves that were put together, or tried to be */
	uint64_t saved_step;
	uint64_t saved_generation;
	uint64_t saved_version;
	uint64_t posted_ns;
	bool fenced;
	bool streamed;     /* says in which stream of the GPU it computes */
	bool reshapes;     /* goes on with other tensors */
	bool cheats;       /* changes the tensors before it may */
	bool cheated;      /* and did so before they were staged */
	bool cheated_host; /* of the memory of the CPU, too: the fence finds it at once */
	bool cancels;
	bool cancelled;
	bool too_late;        /* the cancel came when the manifest was on its way */
	bool again;           /* of a step that was decided already */
	bool late;            /* reaches the fence only after the deadline */
	uint64_t computes_ns; /* from STAGED to the fence */
	uint64_t told;        /* event at which it was told the end */
	bool acked;
	bool committed;

	struct {
		uint64_t posted;
		uint64_t acked;
		uint64_t last_acked;
	} counts;
};

void user_start(struct sim_user *user, struct sim_proc *proc, const struct sim_user_config *config);
/* Lets it look at what has come. */
void user_turn(struct sim_user *user);
/* When it wants a turn whatever comes; UINT64_MAX: never. */
uint64_t user_next_ns(const struct sim_user *user);
/* After every step of the core: what was acknowledged, at the moment at which it was. */
void user_observe(struct sim_user *user);
/* Waits that should have ended. */
void user_check(struct sim_user *user);
/* The clock has jumped, or the process stood still: nobody could have kept a deadline. */
void user_excuse(struct sim_user *user, uint64_t ns);
/* A GPU stands still, whose memory somebody restores into: that ends no sooner, and a save does. */
void user_excuse_restores(struct sim_user *user, uint64_t ns);
/* Frees what is not the core's. */
void user_drop(struct sim_user *user);

/* restoring.c */
void reading_start(struct sim_reading *reading, struct sim_user *user, uint64_t asked);
bool reading_active(const struct sim_reading *reading);
void reading_drop(struct sim_reading *reading);

/* saving.c: one save from new to the end; its task is user->saving. */
void saving_start(struct sim_user *user);

/* Shared by the tasks. */
void user_sleep(struct sim_user *user, struct sim_wait *wait, uint64_t ns);
bool user_slept(const struct sim_user *user, const struct sim_wait *wait);
void user_expect(struct sim_user *user, struct sim_wait *wait, const char *what, uint64_t ns);
void user_done(struct sim_wait *wait);
/* It has come to an end that it can have come to alone: no more than `ns` from now on. */
void user_hurry(struct sim_user *user, struct sim_wait *wait, const char *what, uint64_t ns);
/* Something failed: may it? If not, that is a violation. */
void user_judge(struct sim_user *user, const char *what, int code, const struct ckpt_error *error);

#endif
