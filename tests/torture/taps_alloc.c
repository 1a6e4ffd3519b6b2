/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of the whole process: what armed threads ask of it may fail, and is to be freed. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "torture/torture.h"

#ifdef TORTURE_SANITIZED
/*
 * The sanitizer has the allocator, and sees what is not freed: here allocations fail by the library's own
 * hook, and those of others do not.
 */
#include "base/alloc.h"

static const struct torture_call hooked = {"malloc", TORTURE_ALLOC, {-ENOMEM}};

static bool refuse(void *user, size_t size)
{
	(void)user;
	(void)size;
	return torture_armed() &&
	       torture_event(&hooked, torture_topic(), __builtin_frame_address(0)) != 0;
}

void torture_alloc_begin(void)
{
	ckpt_alloc_set_hook(refuse, NULL);
}

unsigned torture_alloc_leaks(void)
{
	ckpt_alloc_set_hook(NULL, NULL);
	return 0;
}
#else
/* libc's own, whose names for others these are. */
#define REAL(name) __libc_##name

void *REAL(malloc)(size_t size);
void *REAL(calloc)(size_t count, size_t size);
void *REAL(realloc)(void *ptr, size_t size);
void REAL(free)(void *ptr);

static const struct torture_call calls[] = {
	{"malloc", TORTURE_ALLOC, {-ENOMEM}},
	{"calloc", TORTURE_ALLOC, {-ENOMEM}},
	{"realloc", TORTURE_ALLOC, {-ENOMEM}},
};

/* What the library has not freed yet. */

#define LIVE (1u << 15)

static struct {
	void *at;
	uintptr_t by;
} live[LIVE];
static pthread_spinlock_t lock;
static bool counting;
static unsigned full;

void torture_alloc_begin(void)
{
	(void)pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
	counting = true;
}

static unsigned place_of(const void *at)
{
	return (unsigned)((uintptr_t)at >> 4) * 2654435761u % LIVE;
}

static void note(void *at, uintptr_t by)
{
	if (!at || !counting || !torture_in_library(by))
		return;
	(void)pthread_spin_lock(&lock);
	for (unsigned n = 0; n < LIVE; n++) {
		unsigned i = (place_of(at) + n) % LIVE;
		/* 1: was used, and those behind it are still found. */
		if ((uintptr_t)live[i].at > 1)
			continue;
		live[i].at = at;
		live[i].by = by;
		(void)pthread_spin_unlock(&lock);
		return;
	}
	full++;
	(void)pthread_spin_unlock(&lock);
}

static void forget(const void *at)
{
	if (!at || !counting)
		return;
	(void)pthread_spin_lock(&lock);
	for (unsigned n = 0; n < LIVE; n++) {
		unsigned i = (place_of(at) + n) % LIVE;
		if (!live[i].at)
			break;
		if (live[i].at == at) {
			live[i].at = (void *)1;
			break;
		}
	}
	(void)pthread_spin_unlock(&lock);
}

unsigned torture_alloc_leaks(void)
{
	unsigned leaks = full;

	for (unsigned i = 0; i < LIVE; i++) {
		uintptr_t offset = 0;
		if ((uintptr_t)live[i].at <= 1)
			continue;
		leaks++;
		const char *name = torture_symbol(live[i].by, &offset);
		(void)fprintf(stderr, "not freed: %p of %s+%#lx\n", live[i].at, name,
			(unsigned long)offset);
	}
	return leaks;
}

/* The replacements. What libc asks for inside of another call counts as that call's. */

static bool refuse(const struct torture_call *call, void *frame)
{
	if (!torture_armed() || torture_event(call, torture_topic(), frame) == 0)
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	if (refuse(&calls[0], __builtin_frame_address(0)))
		return NULL;
	torture_enter(__builtin_frame_address(0));
	void *at = REAL(malloc)(size);
	torture_leave();
	if (torture_armed())
		note(at, (uintptr_t)__builtin_return_address(0));
	return at;
}

void *calloc(size_t count, size_t size)
{
	if (refuse(&calls[1], __builtin_frame_address(0)))
		return NULL;
	torture_enter(__builtin_frame_address(0));
	void *at = REAL(calloc)(count, size);
	torture_leave();
	if (torture_armed())
		note(at, (uintptr_t)__builtin_return_address(0));
	return at;
}

void *realloc(void *ptr, size_t size)
{
	if (refuse(&calls[2], __builtin_frame_address(0)))
		return NULL;
	torture_enter(__builtin_frame_address(0));
	forget(ptr);
	void *at = REAL(realloc)(ptr, size);
	torture_leave();
	if (torture_armed())
		note(at, (uintptr_t)__builtin_return_address(0));
	return at;
}

void free(void *ptr)
{
	torture_enter(__builtin_frame_address(0));
	forget(ptr);
	REAL(free)(ptr);
	torture_leave();
}
#endif
