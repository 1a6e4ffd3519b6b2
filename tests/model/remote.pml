/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A remote store: two generations of a job that upload steps there, one beside the other, and remove them again;
 * somebody else who removes there; and a reader.
 *
 * What stands for what:
 *   Job      list_body, send_body (copy/upload_dest.c): the claim, by If-None-Match, before anything else; look_body
 *            (copy/upload_probe.c); ckpt_upload_rank_body, commit_body, publish_body (copy/upload.c)
 *   Remover  undertaker_body, next_act (copy/remote_gc.c), cmd_prune.c; mark_body, remove_body, take_over_body, manifest_body,
 *            indexes_body, shards_body, stone_body (gc/two_phase_delete.c)
 *   Reader   ckpt_lineage_choose (lineage/lineage.c)
 *
 * A request is one atomic step. Its process may die before it; one that is under way when its process dies lands as if that
 * had lived a little longer. A lost answer is asked for again: a manifest that is there is then found to be the
 * same, since all who send a step send the same bytes. There is no time. A grace is what it is for: it ends when
 * nobody is between his look at the tombstone and what he does after it, and who reads the step has ended.
 *
 * Steps: 1 and 2 are of generation 1; 3 is of generation 2, whose parent is 2, or with BACK 1. One newest step stays.
 * Left out: what a step consists of besides one shard, damage; ranks; the stores of the jobs (lineage.pml), what a start
 * does not send (here it sends all); places whose conditional writes do not hold; keep_every, pins.
 */
#ifndef BACK
#define BACK 0 /* 1: not while somebody is about to remove; 2: at any time */
#endif
#ifndef REMOVERS
#define REMOVERS 2 /* the first is the job of generation 1, the others are nobody's */
#endif
#ifndef ROUNDS
#define ROUNDS 1 /* of each remover */
#endif
#ifndef READERS
#define READERS 0
#endif

#define S 3
#define ALL (REMOVERS + 2)

/* The bucket. */
byte claimed = 1; /* the newest generation */
byte parent = 2;  /* of generation 2 */
bool manifest[S + 1];
bool index[S + 1];
bool shard[S + 1];
byte stone[S + 1]; /* the number of the tombstone; 0: there is none */

/* The step that a process is about to publish, change or read, since its last look. */
byte acts[ALL];
byte reads;
/* ... and is about to remove, since it looked at the steps again. */
byte removes[REMOVERS];

/* What only the checks know. */
bool was[S + 1]; /* its manifest has been there */
byte stones;

hidden byte k;

#define IN_LINEAGE(s) (claimed == 1 -> (s) <= 2 : (s) == 3 || (s) <= parent)

/* The newest of the lineage whose manifest is there; 0: none. */
inline newest(r)
{
	r = S;
	do
	:: r > 0 && !(IN_LINEAGE(r) && manifest[r]) -> r--
	:: else -> break
	od;
	skip
}

/* After every change. A commit has its files; of the commits of the lineage the newest is there. */
inline check(s)
{
	assert(!manifest[s] || (index[s] && shard[s]));
	k = S;
	do
	:: k > 0 && !(IN_LINEAGE(k) && was[k]) -> k--
	:: else -> break
	od;
	assert(k == 0 || manifest[k]);
	k = 0
}

#ifndef NO_READER_GRACE
#define READ_TO_THE_END(s) (reads != (s))
#else
#define READ_TO_THE_END(s) true
#endif

/* Nobody else is in the midst of it. */
#ifndef NO_GRACE
#define GRACE(me, s) \
	(!((me) != 0 && acts[0] == (s)) && !((me) != 1 && REMOVERS > 1 && acts[1] == (s)) && \
		acts[ALL - 2] != (s) && acts[ALL - 1] != (s) && READ_TO_THE_END(s))
#else
#define GRACE(me, s) true
#endif

/* Nor has whoever is taken over a request under way. */
#ifndef TAKE_LIVING
#define TAKEN(me, s) GRACE(me, s)
#else
#define TAKEN(me, s) true
#endif

#ifdef TRUST_INDEX
#define WHOLE(s) index[s]
#else
#define WHOLE(s) (index[s] && shard[s])
#endif

#define PUT_SHARD(s) d_step { shard[s] = true; check(s) }
#define PUT_INDEX(s) d_step { index[s] = true; check(s) }

proctype Job(byte me; byte gen)
{
	byte s, n;
	bool whole;

	if
	:: gen == 2 ->
		atomic {
			if
			:: true
			:: BACK == 1 && removes[0] == 0 && removes[REMOVERS - 1] == 0 -> parent = 1
			:: BACK == 2 -> parent = 1
			fi;
			d_step {
				/* It goes on from a step that is there. */
				if
				:: manifest[parent] -> claimed = 2
				:: else -> n = 1
				fi
			}
		};
		if
		:: n == 1 -> goto end
		:: else
		fi
	:: else
	fi;
	s = 0;
next:	s++;
	if
	:: s > S || (gen == 1 && s == 3) -> goto end
	:: gen == 2 && s < 3 && s > parent -> goto next
	:: else
	fi;
	/* look_body */
	if
	:: d_step { manifest[s] -> skip }; goto next
	:: else
	fi;
	if
	:: d_step { stone[s] > 0 -> skip }; goto next
	:: else
	fi;
	whole = WHOLE(s);
#ifdef MANIFEST_FIRST
	d_step { manifest[s] = true; was[s] = true; check(s) };
#endif
	if
	:: !whole ->
#ifdef INDEX_FIRST
		PUT_INDEX(s);
		PUT_SHARD(s)
#else
		PUT_SHARD(s);
		PUT_INDEX(s)
#endif
	:: else
	fi;
	/* commit_body */
#ifndef NO_LAST_LOOK
	d_step {
		if
		:: stone[s] == 0 -> acts[me] = s
		:: else
		fi
	};
	if
	:: acts[me] == 0 -> goto next
	:: else
	fi;
	d_step {
		if
		:: !WHOLE(s) -> acts[me] = 0
		:: else
		fi
	};
	if
	:: acts[me] == 0 -> goto next
	:: else
	fi;
#endif
	/* publish_body */
#ifndef NO_FENCE
	d_step { n = claimed };
	if
	:: n > gen -> acts[me] = 0; goto end
	:: else
	fi;
#endif
	if
	:: d_step { manifest[s] = true; was[s] = true; acts[me] = 0; check(s) }
	:: acts[me] = 0; goto end /* it dies */
	fi;
	goto next;
end:	acts[me] = 0
}

/* It is still the tombstone: until the next request is done. */
inline look(me, s, mark, still)
{
	d_step {
#ifdef NO_LOOK_AT_STONE
		still = true;
#else
		still = stone[s] == mark;
#endif
		acts[me] = (still -> s : 0)
	}
}

#define ERASE(me, s, what) \
	if \
	:: d_step { what[s] = false; acts[me] = 0; check(s) } \
	:: acts[me] = 0; goto end /* it dies */ \
	fi

proctype Remover(byte me; byte gen)
{
	byte s, mark, n, rounds;
	bool mine, still, stays;
	bool outdated; /* a later generation had claimed when it looked at the steps again */

again:
	if
	:: rounds == ROUNDS -> goto end
	:: else -> rounds++
	fi;
	/* What is to go, and was there. */
	atomic {
		newest(n);
		if
		:: n > 1 && (manifest[1] || shard[1] || stone[1] > 0) -> s = 1
		:: n > 2 && (manifest[2] || shard[2] || stone[2] > 0) -> s = 2
		:: n == 0 || !(n > 1) -> goto end
#ifdef NEWEST
		:: n > 0 -> s = n
#endif
		fi;
		n = 0
	};
	/* mark_body */
	d_step {
		mine = stone[s] == 0;
		if
		:: mine -> stones++; stone[s] = stones
		:: else
		fi;
		mark = stone[s]
	};
grace:	GRACE(me, s);
	/* What is to go once more. */
#ifndef NO_LOOK_AGAIN
	d_step {
		newest(n);
		outdated = gen > 0 && claimed > gen;
		removes[me] = (n > s || !manifest[s] -> s : 0);
		n = 0
	};
#ifdef NEWEST
	removes[me] = s;
#endif
	stays = removes[me] == 0;
#endif
	/* remove_body */
	look(me, s, mark, still);
	if
	:: !still -> goto end
	:: else
	fi;
#ifndef NO_OWNER
	if
	:: !mine ->
		/* take_over_body: of one who has died, or stands between two requests. */
		atomic {
			TAKEN(me, s);
#ifdef TAKE_GAP
			d_step { stone[s] = 0; acts[me] = 0; removes[me] = 0 }
		};
		atomic {
#endif
			d_step {
				mine = true;
				stones++;
				stone[s] = stones;
				mark = stones;
				acts[me] = 0;
				removes[me] = 0
			}
		};
		goto grace
	:: else
	fi;
#endif
	if
	:: stays -> d_step { stone[s] = 0; acts[me] = 0 }; goto again
	:: else
	fi;
#ifndef NO_FENCE
	d_step { n = (gen > 0 && claimed > gen) };
	if
	:: n -> acts[me] = 0; goto end
	:: else
	fi;
#endif
#ifndef SHARDS_FIRST
	assert(!outdated);
	ERASE(me, s, manifest);
#endif
	removes[me] = 0;
	look(me, s, mark, still);
	if
	:: !still -> goto end
	:: else
	fi;
	ERASE(me, s, index);
	look(me, s, mark, still);
	if
	:: !still -> goto end
	:: else
	fi;
	ERASE(me, s, shard);
#ifdef SHARDS_FIRST
	ERASE(me, s, manifest);
#endif
	look(me, s, mark, still);
	if
	:: !still -> goto end
	:: else
	fi;
	if
	:: d_step { stone[s] = 0; acts[me] = 0 }
	:: acts[me] = 0
	fi;
	goto again;
end:	acts[me] = 0;
	removes[me] = 0
}

/* The newest that stays is whole as long as it is read. */
proctype Reader()
{
	byte s;

	d_step {
		s = S;
		do
		:: s > 0 && !(IN_LINEAGE(s) && manifest[s] && stone[s] == 0) -> s--
		:: else -> break
		od;
		reads = s
	};
	if
	:: s > 0 -> d_step { assert(index[s] && shard[s] && reads == s); reads = 0 }
	:: else
	fi
}

init {
	atomic {
		run Job(ALL - 2, 1);
		run Job(ALL - 1, 2);
		run Remover(0, 1);
		if
		:: REMOVERS > 1 -> run Remover(1, 0)
		:: else
		fi;
		if
		:: READERS > 0 -> run Reader()
		:: else
		fi
	}
}
