/* SPDX-License-Identifier: Apache-2.0 */
/* Randomness, history and verdict of a simulated run. */
#include "sim.h"

#include <stdarg.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

uint64_t sim_mix64(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static const char *const fault_names[SIM_FAULTS] = {
	[SIM_EIO_WRITE] = "eio-write",
	[SIM_EIO_READ] = "eio-read",
	[SIM_EIO_SYNC] = "eio-sync",
	[SIM_EIO_DIR] = "eio-dir",
	[SIM_EIO_OTHER] = "eio-other",
	[SIM_EIO_FILE] = "eio-file",
	[SIM_SHORT_IO] = "short-io",
	[SIM_STUCK] = "stuck",
	[SIM_SLOW] = "slow",
	[SIM_HANG] = "hang",
	[SIM_JOB_SLOW] = "job-slow",
	[SIM_DEVICE_FAIL] = "device-fail",
	[SIM_NO_MEMORY] = "no-memory",
	[SIM_KILL] = "kill",
	[SIM_CUT] = "cut",
	[SIM_JUMP] = "jump",
	[SIM_FREEZE] = "freeze",
	[SIM_EARLY] = "early",
	[SIM_CANCEL] = "cancel",
	[SIM_FULL] = "full",
	[SIM_ROT] = "rot",
	[SIM_LOST_WRITE] = "lost-write",
	[SIM_ASTRAY] = "astray",
	[SIM_STALE_READ] = "stale-read",
	[SIM_READERS] = "readers",
	[SIM_RIVALS] = "rivals",
	[SIM_ZOMBIES] = "zombies",
	[SIM_RACES] = "races",
	[SIM_SISTERS] = "sisters",
	[SIM_GPU_STILL] = "gpu-still",
	[SIM_NET_DROP] = "net-drop",
	[SIM_NET_REPLY] = "net-reply",
	[SIM_NET_LATE] = "net-late",
	[SIM_NET_TWICE] = "net-twice",
	[SIM_NET_ERROR] = "net-error",
	[SIM_NET_STALL] = "net-stall",
	[SIM_NET_DOWN] = "net-down",
	[SIM_HOME_LOST] = "machine-lost",
	[SIM_PRUNE] = "prune",
};

const char *sim_fault_name(enum sim_fault kind)
{
	CKPT_ASSERT(kind < SIM_FAULTS);
	return fault_names[kind];
}

void sim_start(struct sim *sim, uint64_t seed, const struct sim_options *options)
{
	*sim = (struct sim){.seed = seed, .without = options->without, .verbose = options->verbose};
	sim->random = sim_mix64(seed + UINT64_C(0x9e3779b97f4a7c15));
	/* Not zero: a clock that starts at zero hides missing initialisations. */
	sim->now_ns = UINT64_C(1000000000);
}

uint64_t sim_random(struct sim *sim)
{
	sim->random += UINT64_C(0x9e3779b97f4a7c15);
	return sim_mix64(sim->random);
}

uint64_t sim_below(struct sim *sim, uint64_t n)
{
	CKPT_ASSERT(n > 0);
	return sim_random(sim) % n;
}

uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high)
{
	return low + sim_below(sim, high - low + 1);
}

bool sim_chance(struct sim *sim, unsigned per_10000)
{
	return per_10000 > 0 && sim_below(sim, 10000) < per_10000;
}

bool sim_fault_times(struct sim *sim, enum sim_fault kind, unsigned times)
{
	if (!sim_chance(sim, sim->mix[kind] * times) || (sim->without >> kind & 1))
		return false;
	sim->fired[kind]++;
	return true;
}

bool sim_fault(struct sim *sim, enum sim_fault kind)
{
	return sim_fault_times(sim, kind, 1);
}

static void print_event(const struct sim_event *e)
{
	char who[16] = "-";

	if (e->who)
		(void)snprintf(who, sizeof(who), "p%u", e->who);
	(void)fprintf(stderr, "%6llu %12.6f  %-4s %-12s %-64s %lld %lld -> %lld\n",
		(unsigned long long)e->number, (double)e->now_ns / 1e9, who, e->what, e->text,
		(long long)e->a, (long long)e->b, (long long)e->result);
}

void sim_note(struct sim *sim, unsigned who, const char *what, const char *text, int64_t a,
	int64_t b, int64_t result)
{
	struct sim_event *e = &sim->kept[sim->events % SIM_KEPT];
	size_t length = text ? strlen(text) : 0;

	*e = (struct sim_event){.number = sim->events,
		.now_ns = sim->now_ns,
		.what = what,
		.a = a,
		.b = b,
		.result = result,
		.who = who};
	if (length >= sizeof(e->text)) {
		text += length - (sizeof(e->text) - 1);
		length = sizeof(e->text) - 1;
	}
	if (length)
		memcpy(e->text, text, length);
	uint64_t words[] = {e->now_ns, (uint64_t)a, (uint64_t)b, (uint64_t)result, who,
		ckpt_hash64(what, strlen(what), 0), ckpt_hash64(e->text, length, 0)};
	if (result == -EIO || result == -EROFS || result == -ENOSPC)
		sim->trouble_at = sim->events;
	sim->hash = ckpt_hash64(words, sizeof(words), sim->hash);
	sim->events++;
	if (sim->verbose)
		print_event(e);
}

void sim_tell(struct sim *sim, unsigned who, const char *what, const char *text, int64_t a,
	int64_t b, int64_t result)
{
	sim_note(sim, who, what, text, a, b, result);
	sim->story[sim->story_count++ % SIM_STORY] = sim->kept[(sim->events - 1) % SIM_KEPT];
}

void sim_violation(struct sim *sim, const char *fmt, ...)
{
	va_list args;

	if (sim->failed)
		return;
	sim->failed = true;
	va_start(args, fmt);
	(void)vsnprintf(sim->why, sizeof(sim->why), fmt, args);
	va_end(args);
	sim_note(sim, 0, "VIOLATION", sim->why, 0, 0, 0);
}

/* The last of a ring's events before number `before`. */
static void print_ring(
	const struct sim_event *ring, uint64_t room, uint64_t count, uint64_t most, uint64_t before)
{
	uint64_t kept = ckpt_min_u64(ckpt_min_u64(most, room), count);

	for (uint64_t i = count - kept; i < count; i++)
		if (ring[i % room].number < before)
			print_event(&ring[i % room]);
}

void sim_print_history(const struct sim *sim, unsigned count)
{
	uint64_t from = sim->events - ckpt_min_u64(count, sim->events);

	print_ring(sim->story, SIM_STORY, sim->story_count, count, from);
	(void)fputs("   ...\n", stderr);
	print_ring(sim->kept, SIM_KEPT, sim->events, count, UINT64_MAX);
	(void)fputs("went wrong:", stderr);
	for (unsigned i = 0; i < SIM_FAULTS; i++)
		if (sim->fired[i])
			(void)fprintf(stderr, " %s %llu", fault_names[i],
				(unsigned long long)sim->fired[i]);
	(void)fputs("\n", stderr);
}

void *sim_alloc(size_t size)
{
	void *memory = calloc(1, size ? size : 1);

	if (!memory) {
		(void)fputs("sim: out of memory\n", stderr);
		exit(1);
	}
	return memory;
}
