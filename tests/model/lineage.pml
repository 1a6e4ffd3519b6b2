/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which step a process goes on from, and which ones go: incarnations that open one store, restore, claim a
 * generation with that step as its parent, save, and retire old steps, and readers beside them.
 *
 * What stands for what:
 *   open      ckpt_open_hold_body (lineage/opener.c), scan_body (lineage/open.c): the newest claim is listed,
 *             locked, and still the newest
 *   pick      ckpt_scanner_start (lineage/scanner.c); ckpt_lineage_mark, ckpt_lineage_choose (lineage/lineage.c); choose,
 *             take_lock, take_manifest (lineage/select_step.c); _nothing_there (_newest.py)
 *   adopt     ckpt_adopter_body (runtime/commands.c), while the step is still open
 *   claim     look_body, parent_body, publish_body, adopt_claim (lineage/claim.c)
 *   save      publish_body, check_fence (save/publish.c); committed (save/cleanup.c)
 *   Keeper    next_retired (gc/gc.c), ckpt_retention_next (gc/retention.c); lock_body, fence_body, unlink_body,
 *             empty_body (gc/delete_step.c)
 *
 * A request to the store is one atomic step, and its process may die before each. What was not synced a power
 * cut keeps or loses, name by name. MACHINES 1: everybody sees everybody's locks. MACHINES 2: the first
 * process is on another machine, whose locks the others do not see, and lives on while they take it for dead.
 *
 * Left out: how one step is written and settled (register.pml); claims that fail (claim.pml); damage,
 * quarantine, keep_every, pins, new starts, removal on demand; several ranks.
 */
#ifndef NP
#define NP 2 /* incarnations, and so generations */
#endif
#ifndef S
#define S 3 /* steps 1..S */
#endif
#ifndef KEEP
#define KEEP 1 /* keep_last */
#endif
#ifndef MACHINES
#define MACHINES 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef READERS
#define READERS 0
#endif
#ifndef BACK
#define BACK 0 /* how often a process goes back to an older step of its own */
#endif

#define ALL        (NP + READERS)
#define AT(g, s)   (((g) - 1) * S + (s) - 1) /* newer steps have greater places */
#define BIT(i)     (1 << (i))
#define HAS(m, i)  (((m) >> (i)) & 1)
#define OWN(m, g)  (((m) >> (((g) - 1) * S)) & (BIT(S) - 1)) /* the steps of one generation */
#define SEES(p, q) (MACHINES == 1 || ((p) == 0) == ((q) == 0)) /* each other's locks */

#define NEW  0
#define LIVE 1
#define GONE 2

/* The store: what is there, and what a power cut cannot take. Steps are bits, by their places. */
bool claimed[NP + 1];
bool claimed_durable[NP + 1];
byte parent_gen[NP + 1];
byte parent_step[NP + 1];
int commits;
int commits_durable;
int files;
int files_durable;

/* The processes. Of steps: 1 + the place. */
byte state[ALL];
byte holds[ALL];  /* the claim that it has locked */
byte reads[ALL];  /* the step that it has locked to read */
byte retires[NP]; /* and to remove */
byte gen[NP];     /* its own; 0: it has not claimed */
byte seen[NP];    /* the newest claim of its scan */
byte from[NP];    /* the step that it has adopted */
int known[NP];    /* the commits of its scan */
int mine[NP];     /* those of its lineage, when that was marked last */
bool wants[NP];   /* its keeper is asked */
bool fenced[NP];

/* What only the checks know. */
int acked;
int late; /* begun after the owner of a later generation was told that it is his */
bool told[NP + 1];
byte cuts;

/* For sums inside of one atomic step. */
hidden byte g, s, k, limit;
hidden int set;

inline newest_claim(r)
{
	r = NP;
	do
	:: r > 0 && !claimed[r] -> r--
	:: else -> break
	od;
	skip
}

/* All places in the lineage of generation n. */
inline lineage(n, r)
{
	r = 0;
	g = n;
	limit = S;
	do
	:: g > 0 ->
		s = 1;
		do
		:: s <= limit -> r = r | BIT(AT(g, s)); s++
		:: else -> break
		od;
		limit = parent_step[g];
		g = parent_gen[g]
	:: else -> break
	od;
	skip
}

/* 1 + the greatest place of a set; 0: it is empty. */
inline greatest(m, r)
{
	r = NP * S;
	do
	:: r > 0 && !HAS(m, r - 1) -> r--
	:: else -> break
	od;
	skip
}

/*
 * After every change. A commit has its files. Of the steps that were acknowledged and are of the newest
 * claim's lineage, the newest is there.
 */
inline check()
{
	assert((commits & ~files) == 0);
#ifndef NO_PARENT_PROMISE
	newest_claim(k);
	lineage(k, set);
	set = set & acked;
	greatest(set, k);
	assert(k == 0 || HAS(commits, k - 1));
#endif
	set = 0
}

/* Whether anybody whose locks are seen has locked the step: `lock` is a place of locks[k]. */
#define LOCKED(lock, count, who, step, r) \
	k = 0; \
	do \
	:: k < count -> r = r || (SEES(who, k) && lock == step); k++ \
	:: else -> break \
	od

inline die(p)
{
	state[p] = GONE;
	holds[p] = 0;
	reads[p] = 0;
	if
	:: p < NP -> retires[p] = 0
	:: else
	fi
}

/* The next one to go: the oldest after `tries` with KEEP of the lineage after it. 0: none. */
inline next_retired(me, tries, victim)
{
	victim = 0;
	limit = 0;
	k = NP * S;
	do
	:: k > tries ->
		k--;
		if
		:: HAS(known[me], k) && limit < KEEP -> limit = limit + HAS(mine[me], k)
		:: HAS(known[me], k) && limit >= KEEP -> victim = k + 1
		:: else
		fi
	:: else -> break
	od;
	skip
}

proctype Keeper(byte me)
{
	byte victim, tries, n;
	bool busy;
	bool outdated; /* the owner of a later generation had been told before it was chosen */

end_idle:
	do
	:: d_step { state[me] == LIVE && wants[me] -> wants[me] = false; tries = 0 };
	   do
	   :: d_step { state[me] == LIVE -> next_retired(me, tries, victim) };
	      if
	      :: victim == 0 || fenced[me] -> break
	      :: else
	      fi;
	      d_step {
		      state[me] == LIVE ->
		      tries = victim;
		      busy = false;
#ifndef NO_READER_LOCK
		      LOCKED(reads[k], ALL, me, victim, busy);
#endif
#ifndef NO_PARENT_CHECK
		      /* Adopted since it was chosen: all that there is until the next commit. */
		      busy = busy || (from[me] == victim && (gen[me] == 0 || OWN(known[me], gen[me]) == 0));
#endif
		      retires[me] = (busy -> 0 : victim);
		      outdated = false;
		      n = (gen[me] > 0 -> gen[me] : seen[me]) + 1;
		      do
		      :: n <= NP -> outdated = outdated || told[n]; n++
		      :: else -> break
		      od;
		      n = 0
	      };
#ifndef NO_LOOK
	      d_step {
		      state[me] == LIVE ->
		      newest_claim(n);
		      if
		      :: retires[me] > 0 && n > (gen[me] > 0 -> gen[me] : seen[me]) ->
			      retires[me] = 0;
			      /* Its own claim on its way. */
			      fenced[me] = holds[me] != n
		      :: else
		      fi;
		      n = 0
	      };
#endif
	      if
	      :: retires[me] > 0 ->
#ifdef FILES_FIRST
		      d_step { state[me] == LIVE -> files = files & ~BIT(victim - 1); check() };
#endif
		      d_step {
			      state[me] == LIVE ->
			      assert(!outdated);
			      commits = commits & ~BIT(victim - 1);
			      check()
		      };
#ifndef NO_REMOVE_SYNC
		      d_step { state[me] == LIVE -> commits_durable = commits_durable & ~BIT(victim - 1) };
#endif
		      d_step {
			      state[me] == LIVE ->
			      files = files & ~BIT(victim - 1);
			      known[me] = known[me] & ~BIT(victim - 1);
			      mine[me] = mine[me] & known[me];
			      retires[me] = 0
		      }
	      :: else
	      fi
	   od;
	   victim = 0;
	   tries = 0;
	   busy = false;
	   outdated = false
	od
}

/* Reads the claims, then the steps, and chooses one: 0, there is none; ERROR, that is not how it should be. */
#define ERROR 255
inline pick(me, older, n, choice, step)
{
	d_step { state[me] == LIVE -> newest_claim(n) };
	atomic {
		state[me] == LIVE ->
		d_step {
#ifndef ANY_GENERATION
			lineage(n, choice);
			choice = choice & commits;
#else
			choice = commits;
#endif
			greatest(choice, step)
		};
		do
		:: step == 0 -> break
		:: step > 0 && HAS(choice, step - 1) -> break
		:: older && step > 0 && (choice & (BIT(step - 1) - 1)) != 0 -> step--
		od;
		d_step {
			choice = 0;
			newest_claim(k);
			lineage(n, set);
			if
			:: step > 0 -> assert(HAS(set, step - 1) && !HAS(late, step - 1))
#ifndef SILENT
			:: step == 0 && commits != 0 -> step = ERROR
#endif
			/* Nobody is told that there is nothing where something was acknowledged. */
			:: step == 0 && k == n -> assert((set & acked) == 0)
			:: else
			fi;
			set = 0
		}
	}
}

/* The step is locked, and its manifest read under the lock; 0: it has gone meanwhile. */
inline lock_step(me, step)
{
	d_step {
		state[me] == LIVE ->
		limit = 0;
		LOCKED(retires[k], NP, me, step, limit);
		if
		:: limit == 0 && HAS(commits, step - 1) -> reads[me] = step
		:: else -> step = 0
		fi
	}
}

proctype Incarnation(byte me)
{
	byte step, n, backs;
	int choice;

	state[me] == NEW -> state[me] = LIVE;
	/* open */
	d_step { state[me] == LIVE -> newest_claim(seen[me]) };
	d_step {
		state[me] == LIVE ->
		n = 0;
		do
		:: n < ALL && !(SEES(me, n) && seen[me] > 0 && holds[n] == seen[me]) -> n++
		:: else -> break
		od;
		if
		:: n < ALL -> state[me] = GONE
		:: else -> holds[me] = seen[me]
		fi;
		n = 0
	};
	d_step {
		state[me] == LIVE ->
		newest_claim(n);
		if
		:: n != seen[me] -> die(me)
		:: else
		fi;
		n = 0
	};
	d_step {
		state[me] == LIVE ->
		known[me] = commits;
		lineage(seen[me], set);
		mine[me] = known[me] & set;
		set = 0
	};
again:	/* restore */
	do
	:: pick(me, backs > 0, n, choice, step);
	   n = 0;
	   if
	   :: step == 0 || step == ERROR -> break
	   :: else
	   fi;
	   lock_step(me, step);
	   if
	   :: step > 0 -> break
	   :: else
	   fi
	od;
	if
	:: step == ERROR -> d_step { state[me] == LIVE -> die(me) }; goto end
	:: step == 0 && mine[me] != 0 -> d_step { state[me] == LIVE -> die(me) }; goto end
	:: step > 0 && step != ERROR ->
		d_step {
			state[me] == LIVE ->
			if
			:: HAS(files, step - 1) -> from[me] = step; gen[me] = 0
			:: else -> assert(MACHINES > 1); die(me)
			fi
		};
		d_step { state[me] == LIVE -> reads[me] = 0 }
	:: else
	fi;
	/* claim */
	d_step {
		state[me] == LIVE ->
		newest_claim(n);
		if
		:: n != seen[me] || n == NP -> die(me)
		:: else
		fi;
		n = 0
	};
#ifndef NO_PARENT_CHECK
	d_step {
		state[me] == LIVE ->
		if
		:: from[me] > 0 && !HAS(commits, from[me] - 1) -> die(me)
		:: else
		fi
	};
#endif
	d_step {
		state[me] == LIVE ->
		seen[me]++;
		if
		:: claimed[seen[me]] -> die(me)
		:: else ->
			claimed[seen[me]] = true;
			parent_gen[seen[me]] = (from[me] > 0 -> (from[me] - 1) / S + 1 : 0);
			parent_step[seen[me]] = (from[me] > 0 -> (from[me] - 1) % S + 1 : 0);
			holds[me] = seen[me];
			check()
		fi
	};
	d_step {
		state[me] == LIVE ->
		claimed_durable[seen[me]] = true;
		gen[me] = seen[me];
		told[gen[me]] = true;
		lineage(gen[me], set);
		mine[me] = known[me] & set;
		set = 0
	};
	/* save */
	step = parent_step[gen[me]];
	do
	:: step < S && !fenced[me] ->
		step++;
		d_step {
			state[me] == LIVE ->
			files = files | BIT(AT(gen[me], step) );
			files_durable = files_durable | BIT(AT(gen[me], step));
			n = gen[me] + 1;
			do
			:: n <= NP ->
				if
				:: told[n] -> late = late | BIT(AT(gen[me], step))
				:: else
				fi;
				n++
			:: else -> break
			od;
			n = 0
		};
#ifndef NO_FENCE
		d_step {
			state[me] == LIVE ->
			newest_claim(n);
			fenced[me] = n > gen[me];
			n = 0
		};
		if
		:: fenced[me] -> break
		:: else
		fi;
#endif
		d_step { state[me] == LIVE -> commits = commits | BIT(AT(gen[me], step)); check() };
		d_step {
			state[me] == LIVE ->
#ifndef NO_PUBLISH_SYNC
			commits_durable = commits_durable | BIT(AT(gen[me], step));
#endif
			assert(!HAS(late, AT(gen[me], step)));
			acked = acked | BIT(AT(gen[me], step));
			known[me] = known[me] | BIT(AT(gen[me], step));
			mine[me] = mine[me] | BIT(AT(gen[me], step));
			wants[me] = true;
			check()
		}
	:: step > parent_step[gen[me]] && backs < BACK && gen[me] < NP -> backs++; goto again
	:: break
	od;
end:	skip
}

proctype Reader(byte me)
{
	byte step, n;
	int choice;

	state[me] == NEW -> state[me] = LIVE;
	pick(me, true, n, choice, step);
	if
	:: step > 0 && step != ERROR -> lock_step(me, step)
	:: else
	fi;
	if
	:: step > 0 && step != ERROR ->
		d_step {
			state[me] == LIVE ->
			assert(MACHINES > 1 || (HAS(commits, step - 1) && HAS(files, step - 1)));
			die(me)
		}
	:: else
	fi
}

/* What was not synced is there afterwards, or is not. */
inline cut_name(now, durable)
{
	if
	:: now == durable
	:: now != durable -> now = durable
	:: now != durable -> durable = now
	fi
}

inline cut_bit(now, durable, i)
{
	if
	:: HAS(now, i) == HAS(durable, i)
	:: HAS(now, i) != HAS(durable, i) -> now = now ^ BIT(i)
	:: HAS(now, i) != HAS(durable, i) -> durable = durable ^ BIT(i)
	fi
}

proctype Trouble()
{
	byte i;

end_idle:
	do
	:: d_step { state[0] == LIVE -> die(0) }
	:: d_step { state[1] == LIVE -> die(1) }
#if NP + READERS > 2
	:: d_step { state[2] == LIVE -> die(2) }
#endif
#if NP + READERS > 3
	:: d_step { state[3] == LIVE -> die(3) }
#endif
	:: atomic {
		cuts < CUTS && claimed[1] ->
		cuts++;
		do
		:: i < ALL ->
			if
			:: state[i] == LIVE -> die(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 1;
		do
		:: i <= NP -> cut_name(claimed[i], claimed_durable[i]); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NP * S -> cut_bit(commits, commits_durable, i); cut_bit(files, files_durable, i); i++
		:: else -> break
		od;
		i = 0;
		d_step { check() }
	   }
	od
}

init {
	byte p;

	atomic {
		do
		:: p < NP -> run Incarnation(p); run Keeper(p); p++
		:: p >= NP && p < ALL -> run Reader(p); p++
		:: else -> break
		od;
		run Trouble()
	}
}
