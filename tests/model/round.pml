/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round of three ranks: who may say that it went well, and what each of them takes for the outcome. Ranks fail before
 * or after they have put their value, die, and come to their deadline at any moment; what they put is lost, comes late, or
 * is done without an answer; the exchange dies. Rank 0 may work with the values of all for as long as it likes before it puts
 * the outcome.
 *
 * What stands for what:
 *   Rank     round_body, settle_body, read_body, limit_fired, ckpt_round_put, ckpt_round_release (ranks/round.c), with the
 *            rule of receive() that only a rank that has passed takes a success (restore/vote.c, lineage/open_sync.c)
 *   Network  what a request for the outcome's key does there, whenever it arrives, and however often
 *
 * A value of a rank is put by one step, as it is the same each time. Left out: values that are not of this round, used
 * sessions (ckpt_open_hello_body in lineage/opener.c), and that a rank drops its value when it has the outcome.
 */
#define RANKS 3
#define NONE  0
#define WELL  1
#define FAIL  2 /* and the rank that has failed */
#define KINDS (FAIL + RANKS)
#define ALONE KINDS /* its own failure, without an answer of the exchange */

/* The exchange. */
bool up = true;
bool value[RANKS];
byte outcome;
bool sent[KINDS]; /* as the outcome: it may be there already, or come yet */

/* What only the checks know. */
bool passed[RANKS];
byte got[RANKS];

/* What arrives behind the first changes nothing. */
#ifdef PUT_TWICE
#define SENDS true
#else
#define SENDS (outcome == NONE)
#endif

#define DIFFER(a, b)                                                                               \
	(got[a] != NONE && got[b] != NONE && got[a] != ALONE && got[b] != ALONE && got[a] != got[b])

inline receive(n, what)
{
	got[n] = what;
	assert(got[n] != WELL || (passed[0] && passed[1] && passed[2]));
	assert(!DIFFER(0, 1) && !DIFFER(0, 2) && !DIFFER(1, 2));
#ifdef STRICT
	/* A rank that the exchange does not answer cannot know what the others have received. */
	assert(got[n] != ALONE || (got[0] != WELL && got[1] != WELL && got[2] != WELL));
#endif
}

/* It is what this rank has put, or was there before; whatever this rank has come to since. */
inline settle(n, failed)
{
#ifdef NEWEST
	receive(n, (failed && outcome == WELL && n == 0 -> FAIL + n : outcome))
#else
	receive(n, outcome)
#endif
}

proctype Rank(byte n)
{
	bool failed;
	bool complete; /* rank 0 has the values of all */
	byte putting;

	do
	:: got[n] != NONE -> break
	/* It dies. */
	:: break
	:: d_step { !failed && !passed[n] -> passed[n] = true }
	/* Also of a rank that has passed: it changes its mind, or has waited in vain. */
	:: d_step { !failed -> failed = true }
	:: d_step {
		n > 0 && passed[n] && !failed && up && !value[n] ->
		value[n] = true;
#ifdef OWN_VALUE
		receive(n, WELL)
#endif
	   }
#ifndef DECIDE_EARLY
	/* It has asked for them. */
	:: d_step { n == 0 && passed[0] && !complete && up && value[1] && value[2] -> complete = true }
#else
	:: d_step { n == 0 && passed[0] && !complete -> complete = true }
#endif
	/* It is not held any more, and has not failed. */
	:: d_step { complete && !failed && putting == NONE -> putting = WELL; sent[WELL] = SENDS }
	/* Instead of what it was putting: that may be on its way all the same. */
	:: d_step { failed && putting < FAIL -> putting = FAIL + n; sent[putting] = SENDS }
	/* It is answered, finds another outcome, or hears of it. */
	:: d_step { up && outcome != NONE -> settle(n, failed) }
	:: d_step { failed -> receive(n, ALONE) }
	od;
	/* The dead know nothing. */
	atomic { failed = false; complete = false; putting = NONE }
}

#ifdef PUT_TWICE
#define ARRIVES(what) d_step { up && sent[what] -> outcome = what }
#else
#define ARRIVES(what)                                                                              \
	d_step {                                                                                   \
		up && sent[what] && outcome == NONE ->                                             \
		outcome = what;                                                                    \
		sent[WELL] = false;                                                                \
		sent[FAIL] = false;                                                                \
		sent[FAIL + 1] = false;                                                            \
		sent[FAIL + 2] = false                                                             \
	}
#endif

proctype Network()
{
end_idle:
	do
	:: d_step { up -> up = false }
	:: ARRIVES(WELL)
	:: ARRIVES(FAIL)
	:: ARRIVES(FAIL + 1)
	:: ARRIVES(FAIL + 2)
	od
}

init
{
	atomic {
		run Rank(0);
		run Rank(1);
		run Rank(2);
		run Network()
	}
}
