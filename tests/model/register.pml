/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register of one (generation, step): its writer, which commits or aborts, may be dead, or a zombie that
 * goes on while later generations settle what it left undecided, and power cuts.
 *
 * What stands for what:
 *   Writer   save_body, file_body, index_body (save/save.c); publish_body, check_fence (save/publish.c);
 *            ckpt_save_end_body, abort_body (save/cleanup.c)
 *   publish  ckpt_file_put_body, put_write_body, publish_body, publish_sync_body (store_file_small.c)
 *   Settler  ckpt_scanner_start (lineage/scanner.c), next_unsettled (gc/gc.c), fence_body, settle_body, empty_body
 *            (gc/delete_step.c); with TIDY also next_retired, lock_body, unlink_body for the record of an abort
 *   Reader   pick_body (lineage/select_step.c) and what reads the files that the manifest names
 *
 * Every request may fail, and a rename that answers with an error may have been made. Names and contents that
 * were not synced are each lost or kept by a power cut, on their own.
 *
 * Left out: which generation's steps are chosen (lineage.pml); writing a shard again under another name; how
 * directories are made; several ranks.
 */
#ifndef SETTLERS
#define SETTLERS 2
#endif
#ifndef CUTS
#define CUTS 1
#endif

#define NONE   0
#define COMMIT 1
#define ABORT  2
#define BROKEN 3 /* it is there, and does not verify */

#define SHARD 0
#define INDEX 1

/* The step's directory. `kept` is what a cut cannot take. */
bool here[2];
bool kept[2];
bool whole[2];  /* the contents are durable */
byte record;
byte record_kept;
bool temporary; /* of the writer's manifest, on its way to its name */
bool directory;

byte claimed = 1; /* the newest claim; the writer's is 1 */
bool alive[SETTLERS + 2];
bool tidying;     /* the record's lock */

/* What only the checks know. */
bool acked;       /* the caller was told that the step is durable */
bool aborted;     /* whoever published an abort was told that it won */
byte cuts;

inline check()
{
	assert(record != COMMIT || (here[SHARD] && here[INDEX]));
#ifndef TIDY
	assert(!(acked && aborted));
	assert(!aborted || record == ABORT);
#endif
	assert(!acked || record == COMMIT)
}

inline sync_directory()
{
	kept[SHARD] = here[SHARD];
	kept[INDEX] = here[INDEX];
	record_kept = record
}

#define OP(p) alive[p] ->

/* `what` takes the register, or finds it taken; `ok` says what the publisher is told. */
inline publish(me, what, mine, ok)
{
	if
	/* The temporary file cannot be made or synced. */
	:: atomic { OP(me) ok = false }
	:: d_step {
		OP(me)
		ok = directory;
		if
		:: mine && ok -> temporary = true
		:: else
		fi
	   };
	   if
	   :: ok ->
		atomic {
			OP(me)
			if
#ifndef NO_NOREPLACE
			:: record != NONE -> ok = false
#endif
			:: mine && !temporary -> ok = false
			:: !directory -> ok = false
			:: else ->
				if
				:: record = what
				:: record = what; ok = false /* it answers with an error all the same */
				:: ok = false
				fi
			fi;
			if
			:: mine -> temporary = false
			:: else
			fi;
			check()
		};
		if
		:: ok ->
			if
			:: d_step { OP(me) sync_directory() }
#ifdef NO_PUBLISH_SYNC
			:: OP(me) skip
#else
			:: OP(me) ok = false
#endif
			fi
		:: else
		fi
	   :: else
	   fi
	fi
}

inline unlink_files(me)
{
	d_step { OP(me) here[SHARD] = false; check() };
	d_step { OP(me) here[INDEX] = false; check() }
}

/* Writes one file and syncs its contents. */
inline write_file(me, which, ok)
{
	d_step { OP(me) here[which] = directory; ok = directory };
	if
#ifdef NO_FILE_SYNC
	:: OP(me) skip
#else
	:: d_step { OP(me) whole[which] = ok }
#endif
#ifdef SYNC_TWICE
	/* It fails, and a second one answers that all is well. */
	:: OP(me) skip
#else
	:: OP(me) ok = false
#endif
	fi
}

#define WRITER 1

proctype Writer()
{
	bool ok, tried;

	write_file(WRITER, SHARD, ok);
	if
	:: ok -> write_file(WRITER, INDEX, ok)
	:: else
	fi;
#ifndef NO_NAME_SYNC
	if
	:: ok ->
		if
		:: d_step { OP(WRITER) sync_directory() }
		:: OP(WRITER) ok = false
		fi
	:: else
	fi;
#endif
	if
	:: ok ->
		if
		:: d_step {
			OP(WRITER)
			if
			:: claimed > 1 -> alive[WRITER] = false /* fenced: it stops */
			:: else -> tried = true
			fi
		   }
		:: OP(WRITER) ok = false
		fi
	:: else
	fi;
	if
	:: ok -> publish(WRITER, COMMIT, true, ok)
	:: else
	fi;
	if
	:: ok -> d_step { OP(WRITER) acked = true; check() }
	:: else ->
		if
#ifdef FILES_ANYWAY
		:: true -> unlink_files(WRITER)
#else
		:: !tried -> unlink_files(WRITER)
#endif
		:: tried
		fi;
		publish(WRITER, ABORT, true, ok);
		if
		:: ok ->
			d_step { OP(WRITER) aborted = true; check() };
			unlink_files(WRITER)
		:: else
		fi
	fi
}

/* A later generation. The writer is dead, or it is taken for it. */
proctype Settler(byte me)
{
	bool ok, there;
	byte found;

	d_step { claimed == me - 1 -> claimed = me };
	d_step { OP(me) found = record; there = directory };
	if
	:: there && found == NONE ->
		d_step {
			OP(me)
			if
			:: claimed > me -> alive[me] = false
			:: else
			fi
		};
#ifdef SETTLE_FILES_FIRST
		unlink_files(me);
#endif
		publish(me, ABORT, false, ok);
		if
		:: ok ->
			d_step { OP(me) aborted = true; check() };
			d_step { OP(me) temporary = false };
			unlink_files(me)
		:: else
		fi
	:: else
	fi;
#ifdef TIDY
	if
	:: atomic { OP(me) !tidying && record == ABORT -> tidying = true };
	   d_step {
		   OP(me)
		   if
		   :: claimed > me -> alive[me] = false
		   :: else
		   fi
	   };
	   d_step { OP(me) record = NONE; check() };
	   d_step { OP(me) sync_directory() };
	   d_step { OP(me) there = temporary; found = record };
	   if
	   :: there -> d_step { OP(me) temporary = false }
	   :: else
	   fi;
	   unlink_files(me);
	   if
	   :: found != NONE -> d_step { OP(me) record = NONE }
	   :: else
	   fi;
	   d_step { OP(me) directory = temporary || record != NONE; tidying = false }
	:: OP(me) skip
	fi
#endif
}

inline cut_name(now, durable)
{
	if
	:: now == durable
	:: now != durable -> now = durable
	:: now != durable -> durable = now
	fi
}

proctype Trouble()
{
	byte i;

end_idle:
	do
	:: alive[WRITER] = false; break /* it may die at any moment, and only once */
	:: break
	od;
	do
	:: atomic {
		cuts < CUTS ->
		cuts++;
		i = 1;
		do
		:: i <= claimed -> alive[i] = false; i++
		:: else -> break
		od;
		cut_name(here[SHARD], kept[SHARD]);
		cut_name(here[INDEX], kept[INDEX]);
		cut_name(record, record_kept);
		temporary = false;
		/* What the manifest names is there, and so are its bytes. */
		assert(record != COMMIT || (whole[SHARD] && whole[INDEX]));
		check()
	   }
	:: break
	od
}

init {
	byte p;

	atomic {
		directory = true;
		p = 1;
		do
		:: p <= SETTLERS + 1 -> alive[p] = true; p++
		:: else -> break
		od;
		run Writer();
		p = 2;
		do
		:: p <= SETTLERS + 1 -> run Settler(p); p++
		:: else -> break
		od;
		run Trouble()
	}
}
