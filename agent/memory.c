/* SPDX-License-Identifier: Apache-2.0 */
/* Reads how much memory there is for slots. */
#include "memory.h"

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/procfs.h"
#include "staging/memlimit.h"
#include "staging/slot_memory.h"

#define FREE_HUGE "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
#define RESV_HUGE "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"

const char *agent_size_text(uint64_t bytes, char text[AGENT_SIZE_TEXT])
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
	double value = (double)bytes / 1024;
	unsigned unit = 0;

	while (value >= 1024 && unit + 1 < CKPT_COUNT(units)) {
		value /= 1024;
		unit++;
	}
	(void)snprintf(text, AGENT_SIZE_TEXT, "%.1f %s", value, units[unit]);
	return text;
}

uint64_t agent_memory_available(const char **ret_bound)
{
	struct ckpt_memlimit memory;

	ckpt_memlimit_read("", &memory);
	*ret_bound = memory.bound ? memory.bound : "the machine";
	return memory.available;
}

uint64_t agent_memory_default(uint64_t available, uint64_t kept)
{
	return (available + kept) / 2;
}

static uint64_t huge_pages(const char *path)
{
	struct ckpt_buf text = {0};
	uint64_t pages = 0;

	if (ckpt_procfs_read("", path, &text))
		pages = ckpt_memlimit_value(text.data);
	ckpt_buf_free(&text);
	return pages == UINT64_MAX ? 0 : pages;
}

/* Whether reserved huge pages hold all of it: they are not part of what is available. */
static bool huge_enough(uint64_t bytes, uint64_t slot)
{
	uint64_t slots = (bytes + slot - 1) / slot;
	uint64_t each = ckpt_align_up(slot, CKPT_HUGE_PAGE) / CKPT_HUGE_PAGE;
	uint64_t free_pages = huge_pages(FREE_HUGE);
	uint64_t promised = huge_pages(RESV_HUGE);

	return slot >= CKPT_HUGE_PAGE && free_pages > promised &&
	       slots <= (free_pages - promised) / each;
}

int agent_memory_look(uint64_t bytes, uint64_t slot, struct ckpt_error *err)
{
	char wanted[AGENT_SIZE_TEXT];
	char there[AGENT_SIZE_TEXT];
	const char *bound;
	uint64_t available = agent_memory_available(&bound);

	if (bytes <= available || huge_enough(bytes, slot))
		return 0;
	return ckpt_fail(err, -ENOMEM,
		"the slots need %s more memory, and %s leaves %s; raise that limit, or run fewer "
		"ranks "
		"on this node",
		agent_size_text(bytes, wanted), bound, agent_size_text(available, there));
}
