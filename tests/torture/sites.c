/* SPDX-License-Identifier: Apache-2.0 */
/* Where a call comes from, whether it has been seen before, and whether it is to fail. */
#include "torture/nodes.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include "base/compiler.h"

#define FDS 1024

struct torture_shared *torture_all;
struct torture_run *torture;

static struct {
	uintptr_t begin;
	uintptr_t end;
} texts[4];
static unsigned text_count;

static _Thread_local int armed;
static _Thread_local int inside;
static _Thread_local bool foreign;
static _Thread_local void *base;
static _Thread_local void *outer; /* the frame of the replacement that is inside */
static _Thread_local struct torture_slot *slot;
static _Thread_local char topic[64];
static _Thread_local unsigned own_rank;

static char fd_names[FDS][48];

static int note_object(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	if (!strstr(info->dlpi_name, "ckpt_torture") && !strstr(info->dlpi_name, "jansson"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || text_count == 4)
			continue;
		texts[text_count].begin = info->dlpi_addr + p->p_vaddr;
		texts[text_count++].end = info->dlpi_addr + p->p_vaddr + p->p_memsz;
	}
	return 0;
}

static _Unwind_Reason_Code nothing(struct _Unwind_Context *context, void *data)
{
	(void)context;
	(void)data;
	return _URC_NO_REASON;
}

void torture_sites_init(void)
{
	torture_all = mmap(NULL, sizeof(*torture_all), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (torture_all == MAP_FAILED)
		abort();
	torture = &torture_all->runs[0];
	(void)dl_iterate_phdr(note_object, NULL);
	/* What it loads at its first use is not the library's doing. */
	(void)_Unwind_Backtrace(nothing, NULL);
}

bool torture_in_library(uintptr_t address)
{
	for (unsigned i = 0; i < text_count; i++)
		if (address >= texts[i].begin && address < texts[i].end)
			return true;
	return false;
}

static void take_slot(void)
{
	for (int i = 0; i < TORTURE_SLOTS; i++) {
		pid_t none = 0;
		if (atomic_compare_exchange_strong(&torture->slots[i].tid, &none, gettid())) {
			slot = &torture->slots[i];
			return;
		}
	}
}

static bool off;

void torture_off(void)
{
	off = true;
}

bool torture_odd(unsigned what)
{
	return !off && (torture_trials[torture->scenario].odd & what);
}

void torture_arm(void *frame)
{
	if (off || armed++ > 0)
		return;
	base = frame;
	take_slot();
}

void torture_disarm(void)
{
	if (off || --armed > 0)
		return;
	if (slot) {
		atomic_store(&slot->inside, 0);
		atomic_store(&slot->tid, 0);
	}
	slot = NULL;
}

bool torture_armed(void)
{
	return armed > 0 && !foreign;
}

void torture_set_rank(unsigned rank)
{
	own_rank = rank;
}

unsigned torture_rank(void)
{
	return own_rank;
}

void torture_enter(void *frame)
{
	if (inside++ == 0)
		outer = frame;
	if (slot)
		atomic_store_explicit(&slot->inside, (unsigned)inside, memory_order_relaxed);
}

void torture_leave(void)
{
	inside--;
	if (slot)
		atomic_store_explicit(&slot->inside, (unsigned)inside, memory_order_relaxed);
}

bool torture_inside(void)
{
	return inside > 0;
}

void torture_set_foreign(bool yes)
{
	foreign = yes;
}

void torture_set_topic(const char *text)
{
	(void)snprintf(topic, sizeof(topic), "%s", text);
}

const char *torture_topic(void)
{
	return topic;
}

void torture_name_fd(int fd, const char *name)
{
	if (fd >= 0 && fd < FDS)
		(void)snprintf(fd_names[fd], sizeof(fd_names[0]), "%s", name);
}

const char *torture_fd_name(int fd)
{
	return fd >= 0 && fd < FDS ? fd_names[fd] : "";
}

const char *torture_path_class(const char *path)
{
	static _Thread_local char class[48];
	size_t out = 0;

	for (const char *p = path; *p && out < sizeof(class) - 1;) {
		size_t hex = strspn(p, "0123456789abcdef");
		size_t digits = strspn(p, "0123456789");
		if (digits > 0 || hex >= 6) {
			class[out++] = '#';
			p += hex >= 6 ? hex : digits;
		} else {
			class[out++] = *p++;
		}
	}
	class[out] = 0;
	return class;
}

/* Frames of the library and of this program have frame pointers. */

struct walk {
	struct torture_site *site;
	uintptr_t end;
};

static void add_frame(struct torture_site *site, uintptr_t back)
{
	if (torture_in_library(back) && site->depth < TORTURE_FRAMES)
		site->frames[site->depth++] = back;
}

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data)
{
	struct walk *w = data;

	if (_Unwind_GetCFA(context) >= w->end)
		return _URC_END_OF_STACK;
	add_frame(w->site, _Unwind_GetIP(context));
	return _URC_NO_REASON;
}

static void walk(struct torture_site *site, void *frame)
{
	uintptr_t *at = inside > 0 ? outer : frame;

	/* Called by something that has none: jansson, libc. */
	if (!torture_in_library(at[1])) {
		struct walk w = {.site = site, .end = (uintptr_t)base};
		(void)_Unwind_Backtrace(step, &w);
		return;
	}
	while (at && (uintptr_t)at < (uintptr_t)base) {
		uintptr_t *up = (uintptr_t *)at[0];
		add_frame(site, at[1]);
		if (up <= at)
			return;
		at = up;
	}
}

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ (h >> 29);
}

/* The same wherever the object was loaded. */
static uint64_t place_in_object(uintptr_t address)
{
	unsigned i = 0;

	while (i < text_count && (address < texts[i].begin || address >= texts[i].end))
		i++;
	return i < text_count ? address - texts[i].begin : 0;
}

static uint64_t stack_of(const struct torture_site *site)
{
	uint64_t h = 1;

	for (const char *p = site->call->name; *p; p++)
		h = mix(h, (unsigned char)*p);
	for (const char *p = site->what; *p; p++)
		h = mix(h, (unsigned char)*p);
	for (unsigned i = 0; i < site->depth; i++)
		h = mix(h, place_in_object(site->frames[i]));
	return h ? h : 1;
}

/* The entry of a site; made, if it is new. */
static struct torture_site *enter_site(const struct torture_site *seen, uint64_t key)
{
	for (unsigned n = 0; n < TORTURE_SITES; n++) {
		struct torture_site *s = &torture_all->sites[(key + n) % TORTURE_SITES];
		uint64_t none = 0;
		if (atomic_compare_exchange_strong(&s->key, &none, key)) {
			s->call = seen->call;
			memcpy(s->what, seen->what, sizeof(s->what));
			memcpy(s->frames, seen->frames, sizeof(s->frames));
			s->depth = seen->depth;
			s->rank = seen->rank;
			s->stack = seen->stack;
			s->origin_scenario = torture->scenario;
			s->origin_plans = 0;
			for (unsigned i = 0; i < torture->plans; i++)
				if (atomic_load(&torture->fired[i]) > 0)
					s->origin[s->origin_plans++] = torture->plan[i];
			atomic_store(&s->ready, true);
			return s;
		}
		if (none == key)
			return s;
	}
	abort();
}

static bool may_say(const struct torture_call *call, int code)
{
	for (int i = 0; i < TORTURE_CODES && call->codes[i]; i++)
		if (call->codes[i] == code)
			return true;
	return false;
}

/* Whether a plan has fired, and is of this rank, too. */
static bool spreads(unsigned plan)
{
	if (atomic_load(&torture->fired[plan]) == 0)
		return false;
	unsigned whose = atomic_load(&torture->whose[plan]);
	if (nodes_ranks() > 0)
		return nodes_of(whose) == nodes_of(own_rank);
	return whose == 0 || whose == own_rank;
}

static int decide(const struct torture_call *call, uint64_t key)
{
	for (unsigned i = 0; i < torture->plans; i++) {
		const struct torture_plan *p = &torture->plan[i];
		if (p->key == key) {
			atomic_store(&torture->whose[i], own_rank);
			unsigned before = atomic_fetch_add(&torture->fired[i], 1);
			if (before == 0 || p->mode != TORTURE_ONCE)
				return p->code;
		} else if (p->mode == TORTURE_ALL && spreads(i) && may_say(call, p->code)) {
			return p->code;
		}
	}
	return 0;
}

int torture_event(const struct torture_call *call, const char *what, void *frame)
{
	struct torture_site seen = {.call = call, .rank = own_rank};
	int saved = errno;

	(void)snprintf(seen.what, sizeof(seen.what), "%s", what);
	walk(&seen, frame);
	seen.stack = stack_of(&seen);
	uint64_t key = own_rank > 0 ? mix(seen.stack, own_rank) : seen.stack;
	struct torture_site *site = enter_site(&seen, key);
	atomic_fetch_or(&site->seen, UINT64_C(1) << torture->scenario);
	atomic_fetch_add(&torture->events, 1);
	int code = decide(call, key);
	if (code)
		atomic_fetch_add(&site->injected, 1);
	errno = saved;
	return code;
}
