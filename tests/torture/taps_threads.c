/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, and what they are made of. The library's threads are armed from their first call on. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "torture/tap.h"

/* clang-format off */
#define THREAD_TAP(name, params, args, ...)                                                        \
	TAP_REAL(int, name, params)                                                                \
	static const struct torture_call call_##name = {#name, TORTURE_THREAD, {__VA_ARGS__}};     \
	int name params;                                                                           \
	int name params                                                                            \
	{                                                                                          \
		if (!torture_armed() || torture_inside())                                          \
			return get_##name() args;                                                   \
		int code = torture_event(&call_##name, "", __builtin_frame_address(0));            \
		if (code)                                                                          \
			return tap_errno(code);                                                    \
		torture_enter(__builtin_frame_address(0));                                         \
		int r = get_##name() args;                                                          \
		torture_leave();                                                                   \
		return r;                                                                          \
	}

THREAD_TAP(pthread_mutex_init, (pthread_mutex_t *lock, const pthread_mutexattr_t *attr), (lock, attr),
	-ENOMEM, -EAGAIN)
THREAD_TAP(pthread_cond_init, (pthread_cond_t *cond, const pthread_condattr_t *attr), (cond, attr),
	-ENOMEM, -EAGAIN)
THREAD_TAP(pthread_condattr_init, (pthread_condattr_t *attr), (attr), -ENOMEM)
THREAD_TAP(pthread_condattr_setclock, (pthread_condattr_t *attr, clockid_t clock), (attr, clock), -EINVAL)
THREAD_TAP(pthread_sigmask, (int how, const sigset_t *set, sigset_t *old), (how, set, old), -EINVAL)
/* What pthread_atfork() is made of. */
THREAD_TAP(__register_atfork, (void (*before)(void), void (*parent)(void), void (*child)(void), void *of),
	(before, parent, child, of), -ENOMEM)
THREAD_TAP(pthread_setname_np, (pthread_t thread, const char *name), (thread, name), -ERANGE)
/* Frees stacks, and cannot fail. */
THREAD_TAP(pthread_join, (pthread_t thread, void **end), (thread, end), 0)
/* clang-format on */

static const struct torture_call call_create = {
	"pthread_create", TORTURE_THREAD, {-EAGAIN, -EPERM}};

#ifdef TORTURE_SANITIZED
int __interceptor_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *argument);
#define get_pthread_create() __interceptor_pthread_create
#else
TAP_REAL(int, pthread_create,
	(pthread_t * thread, const pthread_attr_t *attr, void *(*body)(void *), void *argument))
#endif

#define STARTS 4096

static struct start {
	void *(*body)(void *);
	void *argument;
	unsigned rank;
} starts[STARTS];
static atomic_uint started;

static void *run_armed(void *argument)
{
	const struct start *start = argument;

	torture_set_rank(start->rank);
	torture_arm(__builtin_frame_address(0));
	void *end = start->body(start->argument);
	torture_disarm();
	return end;
}

int pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *argument)
{
	if (!torture_armed())
		return get_pthread_create()(thread, attr, body, argument);
	int code = torture_event(&call_create, "", __builtin_frame_address(0));
	if (code)
		return tap_errno(code);
	struct start *start = &starts[atomic_fetch_add(&started, 1) % STARTS];
	*start = (struct start){body, argument, torture_rank()};
	torture_enter(__builtin_frame_address(0));
	int r = get_pthread_create()(thread, attr, run_armed, start);
	torture_leave();
	return r;
}
