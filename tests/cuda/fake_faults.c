/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the fake: counted, held up, made to fail; what is forbidden; the control interface. */
#include "cuda/fake_inside.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS 64
#define FAILURES  4 /* at once */

struct fake_state fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.die_after = UINT64_MAX,
	.queue = FAKE_QUEUE,
};

static struct {
	const char *name;
	uint64_t calls;
} functions[FUNCTIONS];

static const char *blocking; /* calls of it stand still */
static unsigned blocked;
static struct {
	const char *function; /* NULL: none, or it has failed */
	unsigned in;
	int error;
} failures[FAILURES];
static bool failure_asked;
static bool forgiving;
static char forbidden_text[256];
static atomic_int owner; /* the process that may call */
static atomic_bool ended;
static _Thread_local int last_error;
static _Thread_local int thread_mode;
static _Thread_local int current_device;

int *fake_thread_mode(void)
{
	return &thread_mode;
}

int *fake_current_device(void)
{
	return &current_device;
}

void fake_forbid(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(forbidden_text, sizeof(forbidden_text), fmt, args);
	va_end(args);
	if (forgiving)
		return;
	(void)fprintf(stderr, "fake cuda: %s\n", forbidden_text);
	abort();
}

static void count(const char *function)
{
	for (size_t i = 0; i < FUNCTIONS; i++) {
		if (!functions[i].name)
			functions[i].name = function;
		if (strcmp(functions[i].name, function) != 0)
			continue;
		functions[i].calls++;
		return;
	}
	abort();
}

static uint64_t calls_of(const char *function)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < FUNCTIONS && functions[i].name; i++)
		if (!function || strcmp(functions[i].name, function) == 0)
			sum += functions[i].calls;
	return sum;
}

/* The error that a test wants of this call, or 0. */
static int wanted_failure(const char *function)
{
	int error = 0;

	for (size_t i = 0; i < FAILURES; i++) {
		if (!failures[i].function || strcmp(failures[i].function, function) != 0 ||
			--failures[i].in > 0)
			continue;
		failures[i].function = NULL;
		error = failures[i].error;
	}
	return error;
}

int fake_gone(void)
{
	return fake.dead ? fake.death : fake.loss;
}

int fake_enter_waiting(const char *function)
{
	int none = 0;

	if (!atomic_compare_exchange_strong(&owner, &none, (int)getpid()) &&
		none != (int)getpid()) {
		(void)fprintf(stderr, "fake cuda: %s() in a fork's child\n", function);
		abort();
	}
	if (atomic_load(&ended)) {
		(void)fprintf(stderr, "fake cuda: %s() at the process's end\n", function);
		abort();
	}
	pthread_mutex_lock(&fake.lock);
	count(function);
	blocked++;
	while (blocking && strcmp(blocking, function) == 0) {
		pthread_cond_broadcast(&fake.changed);
		pthread_cond_wait(&fake.changed, &fake.lock);
	}
	blocked--;
	return wanted_failure(function);
}

int fake_enter(const char *function)
{
	int error = fake_enter_waiting(function);

	return error ? error : fake_gone();
}

int fake_leave(int error)
{
	pthread_mutex_unlock(&fake.lock);
	if (error)
		last_error = error;
	return error;
}

int fake_last_error(bool clear)
{
	int error = fake_gone() ? fake_gone() : last_error;

	if (clear)
		last_error = 0;
	return error;
}

int fake_unsafe(void)
{
	int error = 0;

	for (struct CUstream_st *s = fake.streams; s; s = s->next) {
		bool own = s->capture && pthread_equal(s->capturer, pthread_self());

		if (!s->capture || s->destroyed || thread_mode == CKPT_CUDA_MODE_RELAXED ||
			s->capture_mode == CKPT_CUDA_MODE_RELAXED)
			continue;
		if (!own && (s->capture_mode != CKPT_CUDA_MODE_GLOBAL ||
				    thread_mode != CKPT_CUDA_MODE_GLOBAL))
			continue;
		s->capture = CKPT_CUDA_CAPTURE_INVALIDATED;
		error = CKPT_CUDA_STREAM_CAPTURE_UNSUPPORTED;
	}
	return error;
}

static void control_reset(uint64_t seed)
{
	pthread_mutex_lock(&fake.lock);
	fake.dead = false;
	fake.loss = 0;
	fake.stopped = 0;
	fake.allowed = 0;
	blocking = NULL;
	pthread_cond_broadcast(&fake.changed);
	fake_end_streams();
	fake_forget_memory();
	fake_forget_modules();
	memset(fake.live, 0, sizeof(fake.live));
	memset(fake.notes, 0, sizeof(fake.notes));
	memset(functions, 0, sizeof(functions));
	fake.prng.state = seed;
	fake.die_after = UINT64_MAX;
	fake.queue = FAKE_QUEUE;
	memset(failures, 0, sizeof(failures));
	failure_asked = false;
	forgiving = false;
	forbidden_text[0] = 0;
	last_error = 0;
	current_device = 0;
	pthread_mutex_unlock(&fake.lock);
}

static size_t control_live(enum fake_kind kind)
{
	size_t n;

	pthread_mutex_lock(&fake.lock);
	n = fake.live[kind];
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static uint64_t control_notes(enum fake_note note)
{
	uint64_t n;

	pthread_mutex_lock(&fake.lock);
	n = fake.notes[note];
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static uint64_t control_calls(const char *function)
{
	uint64_t n;

	pthread_mutex_lock(&fake.lock);
	n = calls_of(function);
	pthread_mutex_unlock(&fake.lock);
	return n;
}

/* Under the lock. NULL: it has been said that this is none. */
static char *shadow_for(const char *function, const void *device, size_t size)
{
	char *shadow = fake_shadow(device, size);

	if (!shadow)
		fake_forbid("%s() at what is no device memory", function);
	return shadow;
}

static void control_peek(const void *device, void *out, size_t size)
{
	char *shadow;

	pthread_mutex_lock(&fake.lock);
	shadow = shadow_for("peek", device, size);
	if (shadow)
		memcpy(out, shadow, size);
	pthread_mutex_unlock(&fake.lock);
}

static void control_poke(void *device, const void *in, size_t size)
{
	char *shadow;

	pthread_mutex_lock(&fake.lock);
	shadow = shadow_for("poke", device, size);
	if (shadow)
		memcpy(shadow, in, size);
	pthread_mutex_unlock(&fake.lock);
}

static int control_fill(void *device, int byte, size_t size, struct CUstream_st *stream)
{
	struct fake_op op = {.kind = FAKE_OP_FILL, .device = device, .byte = byte, .width = size};

	pthread_mutex_lock(&fake.lock);
	if (!fake.dead && fake_shadow(device, size))
		(void)fake_add(fake_stream(stream, "fill"), &op);
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

static void control_stop(unsigned work)
{
	pthread_mutex_lock(&fake.lock);
	fake.stopped = work;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static void control_allow(unsigned copies)
{
	pthread_mutex_lock(&fake.lock);
	fake.allowed = copies;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static void control_block(const char *function)
{
	pthread_mutex_lock(&fake.lock);
	blocking = function;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static void control_await_blocked(void)
{
	pthread_mutex_lock(&fake.lock);
	while (!blocked)
		pthread_cond_wait(&fake.changed, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
}

static void control_fail(const char *function, unsigned nth, int error)
{
	size_t i = 0;

	pthread_mutex_lock(&fake.lock);
	failure_asked = function != NULL;
	if (!function)
		memset(failures, 0, sizeof(failures));
	while (i < FAILURES && failures[i].function)
		i++;
	if (i == FAILURES)
		abort();
	failures[i].function = function;
	failures[i].in = nth;
	failures[i].error = error;
	pthread_mutex_unlock(&fake.lock);
}

static bool control_failed(void)
{
	bool yes;

	pthread_mutex_lock(&fake.lock);
	yes = failure_asked;
	for (size_t i = 0; i < FAILURES; i++)
		yes = yes && !failures[i].function;
	pthread_mutex_unlock(&fake.lock);
	return yes;
}

static void control_die(unsigned work, int error)
{
	pthread_mutex_lock(&fake.lock);
	fake.death = error;
	fake.die_after = work;
	fake.dead = work == 0;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static void control_lose(int error)
{
	pthread_mutex_lock(&fake.lock);
	fake.loss = error;
	pthread_mutex_unlock(&fake.lock);
}

static void control_limit(size_t bytes)
{
	pthread_mutex_lock(&fake.lock);
	fake_limit_pinned(bytes);
	pthread_mutex_unlock(&fake.lock);
}

static void control_limit_queue(unsigned entries)
{
	pthread_mutex_lock(&fake.lock);
	fake.queue = entries;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static void control_end(void)
{
	atomic_store(&ended, true);
}

static void control_forgive(bool yes)
{
	pthread_mutex_lock(&fake.lock);
	forgiving = yes;
	forbidden_text[0] = 0;
	pthread_mutex_unlock(&fake.lock);
}

static const char *control_forbidden(void)
{
	return forbidden_text;
}

EXPORT const struct fake_cuda *fake_cuda_control(void)
{
	static const struct fake_cuda control = {
		.reset = control_reset,
		.live = control_live,
		.notes = control_notes,
		.calls = control_calls,
		.peek = control_peek,
		.poke = control_poke,
		.fill = control_fill,
		.stop = control_stop,
		.allow = control_allow,
		.block = control_block,
		.await_blocked = control_await_blocked,
		.fail_call = control_fail,
		.failed = control_failed,
		.die = control_die,
		.lose = control_lose,
		.limit_pinned = control_limit,
		.limit_queue = control_limit_queue,
		.end = control_end,
		.forgive = control_forgive,
		.forbidden = control_forbidden,
	};

	return &control;
}
