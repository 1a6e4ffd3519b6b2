/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns a generation: processes that open one store at once or after each other, claim, fail to, and try
 * again.
 *
 * What stands for what:
 *   open     ckpt_open_hold_body (lineage/opener.c), scan_body (lineage/open.c)
 *   look     look_body, take_own_try (lineage/claim.c)
 *   publish  last_taken, prepare, publish_body, adopt_claim (lineage/claim.c); publish_body, publish_sync_body
 *            (store_file_small.c), which take the new claim's lock before anybody knows its name
 *
 * Every request may fail. A rename that answered with an error may have been made, or be made later. A claim
 * whose sync failed is there, and a power cut may take it. MACHINES 1: everybody sees everybody's locks.
 * MACHINES 2: the first process is on another machine, whose locks the others do not see.
 *
 * Left out: the parent (lineage.pml), directories without a claim, the marker, several ranks.
 */
#ifndef NP
#define NP 3
#endif
#ifndef MACHINES
#define MACHINES 1
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef TRIES
#define TRIES 2
#endif

#define NUMBERS    (NP * TRIES)
#define SEES(p, q) (MACHINES == 1 || ((p) == 0) == ((q) == 0))
#define OP(p)      state[p] == LIVE ->

#define NEW  0
#define LIVE 1
#define GONE 2

/* Whose claim a number has: 1 + the process, which its nonce tells; 0: it is free. */
byte owner[NUMBERS + 1];
byte owner_kept[NUMBERS + 1];

byte state[NP];
byte before[NP]; /* the predecessor's claim that it has locked */
byte own[NP];    /* and its own */
byte gen[NP];    /* what it was told to have */
byte later[NP];  /* a rename that has not been made yet, though it was answered */
byte cuts;

/* What only the checks know. */
byte told[NUMBERS + 1]; /* 1 + the process that was told that the number is its own */

hidden byte k, r;

inline newest_claim(to)
{
	to = NUMBERS;
	do
	:: to > 0 && owner[to] == 0 -> to--
	:: else -> break
	od;
	skip
}

inline die(p)
{
	state[p] = GONE;
	before[p] = 0;
	own[p] = 0
}

inline open_store(me, seen)
{
	d_step { OP(me) newest_claim(seen) };
	d_step {
		OP(me)
		r = 0;
#ifndef NO_HOLDER
		k = 0;
		do
		:: k < NP ->
			r = r || (seen > 0 && SEES(me, k) && (before[k] == seen || own[k] == seen));
			k++
		:: else -> break
		od;
#endif
		if
		:: r -> die(me)
		:: else -> before[me] = seen
		fi
	};
	d_step {
		OP(me)
		newest_claim(r);
		if
		:: r > seen -> die(me)
		:: else
		fi
	}
}

/* Goes on with the number after the newest, or dies: it has lost. */
inline look(me, seen, tried, number)
{
	d_step {
		OP(me)
		newest_claim(r);
		if
		:: r == seen
#ifdef NO_NONCE
		:: r != seen && r == tried -> seen = r
#else
		:: r != seen && r == tried && owner[r] == me + 1 -> seen = r
#endif
		:: else -> die(me)
		fi;
#ifdef LEAP
		/* Past what it has tried before, although that place is free. */
		number = (tried > seen -> tried : seen) + 1;
#else
		number = seen + 1;
#endif
		tried = number
	}
}

/* What is told, and to whom, when a claim is durable. */
inline own_generation(me, scanned, number)
{
	assert(told[number] == 0);
	/* Whoever came before was in its scan, or it would leave their steps behind unseen. */
	k = 1;
	do
	:: k < number -> assert(told[k] == 0 || told[k] == me + 1 || k <= scanned); k++
	:: else -> break
	od;
	k = 0;
	do
	:: k < NP -> assert(MACHINES > 1 || k == me || state[k] != LIVE || gen[k] == 0); k++
	:: else -> break
	od;
	told[number] = me + 1;
	gen[me] = number;
	before[me] = 0
}

inline sync_claims()
{
	k = 1;
	do
	:: k <= NUMBERS -> owner_kept[k] = owner[k]; k++
	:: else -> break
	od
}

proctype Process(byte me)
{
	byte scanned, seen, tried, number, tries;

	state[me] == NEW -> state[me] = LIVE;
	open_store(me, seen);
	scanned = seen;
	do
	:: tries < TRIES && gen[me] == 0 ->
		tries++;
		look(me, seen, tried, number);
		atomic {
			OP(me)
			if
#ifndef NO_NOREPLACE
			:: owner[number] != 0 -> die(me)
#endif
			:: else ->
				if
				:: owner[number] = me + 1;
#ifndef LOCK_LATE
				   own[me] = number
#endif
				:: owner[number] = me + 1; number = 0 /* it answers with an error all the same */
				:: later[me] = number; number = 0
				:: number = 0
				fi
			fi
		};
		if
		:: number > 0 ->
#ifdef NO_SYNC
			d_step { OP(me) own_generation(me, scanned, number) }
#else
			if
			:: d_step { OP(me) sync_claims(); own_generation(me, scanned, number) }
			:: d_step { OP(me) own[me] = 0; number = 0 }
			fi
#endif
		:: else
		fi
	:: else -> break
	od;
#ifdef LOCK_LATE
	skip;
	d_step { OP(me) own[me] = gen[me] }
#endif
}

proctype Trouble()
{
	byte i;

end_idle:
	do
	:: d_step { state[0] == LIVE -> die(0) }
	:: d_step { state[1] == LIVE -> die(1) }
#if NP > 2
	:: d_step { state[2] == LIVE -> die(2) }
#endif
#if NP > 3
	:: d_step { state[3] == LIVE -> die(3) }
#endif
	:: d_step {
		later[0] > 0 ->
		owner[later[0]] = (owner[later[0]] == 0 -> 1 : owner[later[0]]);
		later[0] = 0
	   }
	:: d_step {
		later[1] > 0 ->
		owner[later[1]] = (owner[later[1]] == 0 -> 2 : owner[later[1]]);
		later[1] = 0
	   }
	:: atomic {
		cuts < CUTS ->
		cuts++;
		do
		:: i < NP ->
			if
			:: state[i] == LIVE -> die(i)
			:: else
			fi;
			later[i] = 0;
			i++
		:: else -> break
		od;
		i = 1;
		do
		:: i <= NUMBERS ->
			if
			:: owner[i] == owner_kept[i]
			:: owner[i] != owner_kept[i] -> owner[i] = owner_kept[i]
			:: owner[i] != owner_kept[i] -> owner_kept[i] = owner[i]
			fi;
			assert(told[i] == 0 || owner[i] == told[i]);
			i++
		:: else -> break
		od;
		i = 0
	   }
	od
}

init {
	byte p;

	atomic {
		do
		:: p < NP -> run Process(p); p++
		:: else -> break
		od;
		run Trouble()
	}
}
