/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, the monotonic clocks, conditions, and the count of forks. */
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S  UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

#define GIVE_WAY_NICE 10 /* gets a tenth of the CPU time of an ordinary thread */

#define CPUS_MAX 65536 /* more than any kernel supports */

int ckpt_thread_start(
	pthread_t *ret_thread, const char *name, void *(*body)(void *), void *argument)
{
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	int r;

	CKPT_ASSERT(strlen(name) < 16);
	(void)sigfillset(&all);
	r = pthread_sigmask(SIG_SETMASK, &all, &before);
	if (r != 0)
		return -r;
	r = pthread_create(&thread, NULL, body, argument);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r != 0)
		return -r;
	(void)pthread_setname_np(thread, name);
	*ret_thread = thread;
	return 0;
}

void ckpt_thread_give_way(void)
{
	/* On Linux, 0 is this thread, not its process. Lowering the priority is always permitted. */
	errno = 0;
	int nice = getpriority(PRIO_PROCESS, 0);
	if (nice != -1 || errno == 0)
		(void)setpriority(PRIO_PROCESS, 0, nice + GIVE_WAY_NICE);
}

unsigned ckpt_thread_cpus(void)
{
	long online;

	for (size_t cpus = CPU_SETSIZE; cpus <= CPUS_MAX; cpus *= 2) {
		cpu_set_t *set = CPU_ALLOC(cpus);
		size_t size = CPU_ALLOC_SIZE(cpus);
		int r;
		int count;

		if (!set)
			break;
		r = sched_getaffinity(0, size, set);
		count = r == 0 ? CPU_COUNT_S(size, set) : 0;
		CPU_FREE(set);
		if (count > 0)
			return (unsigned)count;
		/* EINVAL: the kernel's mask is longer than ours. */
		if (r != 0 && errno != EINVAL)
			break;
	}
	online = sysconf(_SC_NPROCESSORS_ONLN);
	return online > 0 ? (unsigned)online : 1;
}

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	/* Cannot fail: these clocks exist on every Linux, and the pointer is valid. */
	(void)clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t ckpt_clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t ckpt_age_clock_ns(void)
{
	return read_clock(CLOCK_BOOTTIME);
}

uint64_t ckpt_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : ckpt_clock_ns() + (uint64_t)timeout_ms * NS_PER_MS;
}

int ckpt_deadline_left_ms(uint64_t deadline_ns)
{
	uint64_t now_ns = ckpt_clock_ns();

	if (deadline_ns == UINT64_MAX)
		return -1;
	if (now_ns >= deadline_ns)
		return 0;
	return (int)ckpt_min_u64((deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS, INT_MAX);
}

int ckpt_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int r;

	r = pthread_condattr_init(&attr);
	if (r != 0)
		return -r;
	r = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (r == 0)
		r = pthread_cond_init(cond, &attr);
	(void)pthread_condattr_destroy(&attr);
	return -r;
}

bool ckpt_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline_ns / NS_PER_S),
		.tv_nsec = (long)(deadline_ns % NS_PER_S),
	};

	if (deadline_ns == UINT64_MAX) {
		(void)pthread_cond_wait(cond, lock);
		return true;
	}
	return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

static atomic_uint forks;
static pthread_once_t watched = PTHREAD_ONCE_INIT;
static int watch_result;

#define UNSHARED_MAX 1024

/* Descriptors that children close; 0: free, else the descriptor plus one. */
static atomic_int unshared[UNSHARED_MAX];

void ckpt_fork_close(int fd)
{
	for (size_t i = 0; i < UNSHARED_MAX; i++) {
		int empty = 0;
		if (atomic_compare_exchange_strong(&unshared[i], &empty, fd + 1))
			return;
	}
}

void ckpt_fork_forget(int fd)
{
	for (size_t i = 0; i < UNSHARED_MAX; i++) {
		int kept = fd + 1;
		if (atomic_compare_exchange_strong(&unshared[i], &kept, 0))
			return;
	}
}

/* Runs in the child, which has no other thread. */
static void count_fork(void)
{
	for (size_t i = 0; i < UNSHARED_MAX; i++) {
		int kept = atomic_exchange(&unshared[i], 0);
		if (kept > 0)
			(void)close(kept - 1);
	}
	atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch(void)
{
	watch_result = -pthread_atfork(NULL, NULL, count_fork);
}

unsigned ckpt_fork_count(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

int ckpt_fork_watch(void)
{
	int r = pthread_once(&watched, watch);

	return r != 0 ? -r : watch_result;
}
