/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job whose nodes have a store each: the outcome of its steps, and what the next start of the job makes of
 * what the last one has left, with ranks that die at any moment, an exchange that does, and power cuts of one
 * node.
 *
 * What stands for what:
 *   Rank     one keeper. Opening: ckpt_open_hello_body (lineage/opener.c), round_body (lineage/open_sync.c; the round itself is
 *            round.pml), ckpt_node_union_finish (lineage/node_union.c), fetch_body with is_new, is_lacking and
 *            look_at_files (lineage/open_catchup.c). Settling: next_unsettled (gc/gc.c),
 *            settle_body, empty_body (gc/delete_step.c). A save: save_body, ckpt_save_commit_nodes_body, ckpt_save_ask_body,
 *            read_body, install_body (save/commit_nodes.c), and what ckpt_save_end_body does with the files
 *   put      the outcome's key in the exchange, which is put once; the answer may be lost
 *   publish  ckpt_file_put_body, publish_body, publish_sync_body (store_file_small.c)
 *   Starts   the launcher: what is left of a start is dead, as the stores' locks see to, when the next begins
 *
 * Steps are numbered in the order of the lineage, (generation, step) being one number: each is tried by one
 * start only. Names that were not synced are each lost or kept by a power cut, on their own; a file's contents
 * are taken to be as durable as its name.
 *
 * Left out: claims, which the keepers make alike (claim.pml is about one store); retention; several ranks of
 * a node, of which one may outlive the keeper; stores that are lost as a whole; that a store tells of so many
 * commits only. CALM: nobody dies but by a power cut, or of what has gone wrong with a store.
 */
#ifndef STARTS
#define STARTS 2
#endif
#ifndef STEPS
#define STEPS 2 /* of all starts */
#endif
#ifndef CUTS
#define CUTS 1
#endif

#define NODES  2
#define NONE   0
#define COMMIT 1
#define ABORT  2
#define NOBODY 3 /* what became of it is not known */

#define AT(n, k) ((n) * STEPS + (k))

/* In the stores. `kept` is what a cut cannot take. */
byte record[NODES * STEPS];
byte record_kept[NODES * STEPS];
bool here[NODES * STEPS]; /* the rank's files */
bool here_kept[NODES * STEPS];

/* In the exchange of one start. */
bool up;
bool hello[NODES];
bool told[NODES * STEPS];
byte outcome[STEPS];

bool alive[NODES];
byte starts;
byte next; /* the first step that no start has tried */
bool tried[STEPS];

/* What only the checks know. */
bool acked[STEPS]; /* some rank was told that it is durable */
bool over[STEPS];  /* some rank was told that it is of no rank */
byte cuts;

inline check(k)
{
	/* One outcome for all stores, and it is what was said. */
	assert(record[AT(0, k)] != COMMIT || record[AT(1, k)] != ABORT);
	assert(record[AT(0, k)] != ABORT || record[AT(1, k)] != COMMIT);
	assert(!acked[k] || !over[k]);
	assert(!over[k] || (record[AT(0, k)] != COMMIT && record[AT(1, k)] != COMMIT));
	/* What a manifest names is there. */
	assert(record[AT(0, k)] != COMMIT || here[AT(0, k)]);
	assert(record[AT(1, k)] != COMMIT || here[AT(1, k)])
}

#define LIVES(n) (alive[n] && starts == me)
#define OP(n)    LIVES(n) ->

inline die(n)
{
	alive[n] = false;
	/* Rank 0 serves the exchange. */
	if
	:: n == 0 -> up = false
	:: else
	fi
}

inline sync_step(n, k)
{
	record_kept[AT(n, k)] = record[AT(n, k)];
	here_kept[AT(n, k)] = here[AT(n, k)]
}

/*
 * `ok`: it is there, of this kind, and durable. What is there already is left. Nobody else looks into this
 * store before all are dead: so what comes in between is no step of its own.
 */
inline publish(n, k, what, ok)
{
	if
	:: ok = false
	:: true ->
		d_step {
			ok = true;
			if
			:: record[AT(n, k)] == NONE -> record[AT(n, k)] = what
			:: else -> ok = (record[AT(n, k)] == what)
			fi;
			check(k)
		};
		if
		:: d_step { sync_step(n, k) }
		:: ok = false
		fi
	fi
}

/* The rank may die before it. */
inline remove_files(n, k)
{
	if
	:: d_step { here[AT(n, k)] = false; check(k) }
	:: true
	fi
}

/* `is` becomes the outcome as it is there, or NOBODY: the answer does not come, whatever was done. */
inline put(n, k, what, is)
{
	is = NOBODY;
	if
	:: up ->
		if
		:: true
		:: true ->
#ifndef PUT_TWICE
			d_step {
				if
				:: outcome[k] == NONE -> outcome[k] = what
				:: else
				fi
			};
#else
			outcome[k] = what;
#endif
			if
			:: is = outcome[k]
			:: true
			fi
		fi
	:: else
	fi
}

/* Newer than all that this store has; else it has left files there without an outcome. */
inline bring(n, k, ok)
{
	atomic {
		OP(n)
		d_step {
			i = k + 1;
			lacking = (record[AT(n, k)] == NONE && record[AT(1 - n, k)] == COMMIT);
			newer = true;
			do
			:: i < STEPS -> newer = newer && record[AT(n, i)] != COMMIT; i++
			:: else -> break
			od;
			i = 0
		};
		if
#ifdef ONLY_NEWER
		:: lacking && newer -> publish(n, k, COMMIT, ok)
#else
		:: lacking && (newer || here[AT(n, k)]) -> publish(n, k, COMMIT, ok)
#endif
		:: else
		fi;
		d_step { lacking = false; newer = false; k++ }
	}
}

inline settle(n, k, ok)
{
	atomic {
		OP(n)
		if
		:: here[AT(n, k)] && record[AT(n, k)] == NONE ->
			publish(n, k, ABORT, ok);
			if
			:: ok -> remove_files(n, k)
			:: else
			fi;
			ok = true
		:: else
		fi;
		k++
	}
}

/* What was acknowledged to anybody is in this store when it is open. */
inline check_open(n)
{
	i = 0;
	do
	:: i < STEPS -> assert(!acked[i] || record[AT(n, i)] == COMMIT); i++
	:: else -> break
	od;
	i = 0
}

/* Its files, durable; then it tells its part. */
inline write_and_tell(n, k, ok)
{
	d_step { here[AT(n, k)] = true; tried[k] = true };
	if
	:: ok = false
	:: d_step {
		ok = true;
#ifndef TELL_EARLY
		here_kept[AT(n, k)] = true;
#endif
		told[AT(n, k)] = up
	   }
	fi
}

inline decide(n, k, ok, is)
{
	if
	/* It has told no part, and nobody will commit; it says so. */
	:: atomic { LIVES(n) && !ok -> put(n, k, ABORT, is); is = ABORT }
	/* Rank 0 has heard all. */
	:: atomic {
		LIVES(n) && ok && n == 0 && told[AT(0, k)] && told[AT(1, k)] ->
#ifdef INSTALL_FIRST
		publish(n, k, COMMIT, ok);
#endif
		put(n, k, COMMIT, is)
	   }
	/* Another hears the outcome. */
	:: atomic { LIVES(n) && ok && n > 0 && up && outcome[k] != NONE -> is = outcome[k] }
	/* It has waited in vain. */
	:: atomic { LIVES(n) && ok -> put(n, k, ABORT, is) }
	fi
}

inline end_save(n, k, ok, is)
{
	atomic {
		OP(n)
		if
		:: is == COMMIT ->
#ifdef ACK_EARLY
			acked[k] = true;
#endif
			publish(n, k, COMMIT, ok);
			d_step { acked[k] = acked[k] || ok; check(k) }
		:: is == ABORT ->
			d_step { over[k] = true; check(k) };
			remove_files(n, k)
		:: is == NOBODY ->
#ifdef FILES_ANYWAY
			remove_files(n, k);
#endif
			/* The next step is another matter; or the program ends. */
			if
			:: d_step { die(n) }
			:: true
			fi
		fi;
		d_step { is = NONE; ok = true; k++ }
	}
}

inline save(n, k, ok, is)
{
	atomic { OP(n) write_and_tell(n, k, ok) };
	decide(n, k, ok, is);
	end_save(n, k, ok, is)
}

proctype Rank(byte n, me, first)
{
	bool ok = true;
	bool lacking, newer;
	byte is, i, k;

	{
		d_step { OP(n) hello[n] = true };
		LIVES(n) && hello[0] && hello[1];
		/* The oldest first. */
		do
#ifndef NO_BRING
		:: ok && k < first -> bring(n, k, ok)
#endif
		:: else -> break
		od;
		if
		:: d_step { LIVES(n) && ok -> check_open(n); k = 0 }
		:: d_step { LIVES(n) && !ok -> die(n) }
		fi;
		do
		:: k < first -> settle(n, k, ok)
		:: else -> break
		od;
		do
		:: k < STEPS -> save(n, k, ok, is)
		:: else -> break
		od;
		atomic { OP(n) die(n) }
	} unless {
		/* The dead do nothing, and know nothing. */
		!LIVES(n) ->
		d_step { ok = false; lacking = false; newer = false; is = 0; i = 0; k = 0; first = 0 }
	}
}

inline start()
{
	next = 0;
	k = 0;
	do
	:: k < STEPS ->
		/* Whatever was begun: its number is of no use any more. */
		if
		:: tried[k] -> next = k + 1
		:: else
		fi;
		told[AT(0, k)] = false;
		told[AT(1, k)] = false;
		outcome[k] = NONE;
		k++
	:: else -> break
	od;
	hello[0] = false;
	hello[1] = false;
	up = true;
	alive[0] = true;
	alive[1] = true;
	run Rank(0, starts, next);
	run Rank(1, starts, next);
	k = 0
}

proctype Starts()
{
	byte k;

end_enough:
	do
	:: atomic {
		starts < STARTS && !alive[0] && !alive[1] ->
		starts++;
		start()
	   }
	od
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
	byte n, k;

end_idle:
	do
#ifndef CALM
	:: d_step { alive[0] -> die(0) }
	:: d_step { alive[1] -> die(1) }
	:: d_step { up -> up = false }
#endif
	:: atomic {
		cuts < CUTS ->
		cuts++;
		if
		:: n = 0
		:: n = 1
		fi;
		die(n);
		k = 0;
		do
		:: k < STEPS ->
			cut_name(record[AT(n, k)], record_kept[AT(n, k)]);
			cut_name(here[AT(n, k)], here_kept[AT(n, k)]);
			check(k);
			k++
		:: else -> break
		od;
		n = 0;
		k = 0
	   }
	od
}

init {
	atomic {
		run Starts();
		run Trouble()
	}
}
