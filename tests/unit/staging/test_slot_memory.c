/* SPDX-License-Identifier: Apache-2.0 */
/* Staging memory: where it lies, who sees it, and touching it beside its users. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "lib/child.h"
#include "staging/slot_memory.h"

#define BYTES   (UINT64_C(8) << 20)
#define TOUCHED (UINT64_C(16) * 4096)

static int setup(void **state)
{
	struct ckpt_slot_memory *mapping = calloc(1, sizeof(*mapping));
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_non_null(mapping);
	assert_int_equal(ckpt_slot_memory_open(BYTES, 3 * BYTES, &err, mapping), 0);
	*state = mapping;
	return 0;
}

static int teardown(void **state)
{
	ckpt_slot_memory_close(*state);
	free(*state);
	return 0;
}

static size_t resident_pages(const char *at, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t count = bytes / page;
	unsigned char *seen = malloc(count);
	size_t resident = 0;

	assert_non_null(seen);
	assert_int_equal(mincore((void *)at, bytes, seen), 0);
	for (size_t i = 0; i < count; i++)
		resident += seen[i] & 1;
	free(seen);
	return resident * page;
}

static void it_is_aligned_zeroed_and_not_there_yet(void **state)
{
	struct ckpt_slot_memory *m = *state;

	assert_int_equal((uintptr_t)m->base % CKPT_HUGE_PAGE, 0);
	assert_int_equal(m->bytes, BYTES);
	assert_false(m->resident);
	assert_int_equal(resident_pages(m->base, m->bytes), 0);
	for (size_t i = 0; i < m->bytes; i += 4096)
		assert_int_equal(m->base[i], 0);
}

static void touching_at_once_makes_all_of_it_there(void **state)
{
	struct ckpt_slot_memory *m = *state;

	m->base[5] = 'x';
	assert_int_equal(ckpt_slot_memory_touch(m->base, m->bytes / 2), 0);
	assert_int_equal(resident_pages(m->base, m->bytes / 2), m->bytes / 2);
	assert_int_equal(resident_pages(m->base + m->bytes / 2, m->bytes / 2), 0);
	assert_int_equal(m->base[5], 'x');
}

static void touching_page_by_page_does_too(void **state)
{
	struct ckpt_slot_memory *m = *state;

	m->base[4096] = 'x';
	ckpt_slot_memory_touch_pages(m->base, m->bytes / 2);
	assert_int_equal(resident_pages(m->base, m->bytes / 2), m->bytes / 2);
	assert_int_equal(resident_pages(m->base + m->bytes / 2, m->bytes / 2), 0);
	assert_int_equal(m->base[4096], 'x');
}

static atomic_bool stop_touching;

static void *touch_again_and_again(void *argument)
{
	struct ckpt_slot_memory *m = argument;

	while (!atomic_load(&stop_touching)) {
		ckpt_slot_memory_touch_pages(m->base, TOUCHED);
		(void)ckpt_slot_memory_touch(m->base, TOUCHED);
	}
	return NULL;
}

/* Every write must be read back, whatever the toucher does at that moment. */
static void touching_never_undoes_a_write(void **state)
{
	struct ckpt_slot_memory *m = *state;
	pthread_t toucher;
	unsigned lost = 0;

	atomic_store(&stop_touching, false);
	assert_int_equal(ckpt_thread_start(&toucher, "toucher", touch_again_and_again, m), 0);
	for (unsigned round = 0; round < 20000; round++) {
		volatile char *page = m->base + (size_t)(round % 16) * 4096;

		*page = (char)round;
		lost += *page != (char)round;
	}
	atomic_store(&stop_touching, true);
	assert_int_equal(pthread_join(toucher, NULL), 0);
	assert_int_equal(lost, 0);
}

static void read_byte(void *at)
{
	(void)*(volatile const char *)at;
}

static void a_child_does_not_have_it(void **state)
{
	struct ckpt_slot_memory *m = *state;
	char here = 1;

	m->base[0] = 'x';
	assert_int_equal(child_signal(read_byte, &here), 0);
	assert_int_equal(child_signal(read_byte, m->base), SIGSEGV);
	assert_int_equal(child_signal(read_byte, m->base + m->bytes - 1), SIGSEGV);
	assert_int_equal(m->base[0], 'x');
}

/* Whether a line of /proc/self/smaps about the mapping of this address has `key` and then `text`. */
static bool smaps_has(const char *at, const char *key, const char *text)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	char line[512];
	bool here = false;
	bool found = false;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		char *dash;
		uintptr_t start = strtoull(line, &dash, 16);

		if (dash != line && *dash == '-')
			here = (uintptr_t)at >= start &&
			       (uintptr_t)at < strtoull(dash + 1, NULL, 16);
		if (here && strncmp(line, key, strlen(key)) == 0)
			found = strstr(line + strlen(key), text) != NULL;
	}
	(void)fclose(file);
	return found;
}

static bool has_flag(const char *at, const char *flag)
{
	return smaps_has(at, "VmFlags:", flag);
}

/* Where `huge` is promised the kernel has been asked, and gives them if it has any. */
static void huge_pages_are_asked_for_where_they_are_to_be_had(void **state)
{
	struct ckpt_slot_memory *m = *state;

	if (!m->huge) {
		print_message("neither kind of memory gets huge pages here\n");
		skip();
	}
	assert_true(has_flag(m->base, " hg"));
	assert_int_equal(ckpt_slot_memory_touch(m->base, m->bytes), 0);
	assert_true(!smaps_has(m->base, "AnonHugePages:", " 0 kB") ||
		    !smaps_has(m->base, "ShmemPmdMapped:", " 0 kB"));
}

static void it_is_not_in_core_dumps(void **state)
{
	struct ckpt_slot_memory *m = *state;

	assert_true(has_flag(m->base, " dd"));
	assert_true(has_flag(m->base + m->bytes - 1, " dd"));
	assert_true(has_flag(m->base, " dc"));
}

static void what_cannot_be_mapped_is_said(void **state)
{
	struct ckpt_slot_memory mapping = {0};
	struct ckpt_error err;

	(void)state;
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_slot_memory_open((size_t)1 << 50, 0, &err, &mapping), -ENOMEM);
	assert_int_equal(err.code, -ENOMEM);
	assert_non_null(strstr(err.message, "pool_bytes"));
	assert_null(mapping.base);
	/* As many huge pages as that nobody has reserved. */
	assert_false(ckpt_slot_memory_open_huge((size_t)1 << 46, 0, &mapping));
	assert_null(mapping.base);
}

/* Where there is no address space to grow into, there is memory all the same. */
static void a_reservation_is_no_condition(void **state)
{
	struct ckpt_slot_memory mapping = {0};
	struct ckpt_error err;

	(void)state;
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_slot_memory_open(BYTES, (size_t)1 << 50, &err, &mapping), 0);
	assert_int_equal(mapping.reserved, BYTES);
	mapping.base[BYTES - 1] = 'x';
	ckpt_slot_memory_close(&mapping);
}

/* Behind what there is, at a place that begins no huge page, and as private as the rest. */
static void memory_is_added_and_removed(void **state)
{
	struct ckpt_slot_memory *m = *state;
	const size_t at = BYTES + 4096;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_int_equal(m->reserved, 3 * BYTES);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(child_signal(read_byte, m->base + at), SIGSEGV);
		assert_int_equal(ckpt_slot_memory_add(m, at, BYTES, &err), 0);
		assert_int_equal(resident_pages(m->base + at, BYTES), 0);
		assert_int_equal(ckpt_slot_memory_touch(m->base + at, BYTES), 0);
		assert_int_equal(resident_pages(m->base + at, BYTES), BYTES);
		for (size_t i = 0; i < BYTES; i += 4096)
			assert_int_equal(m->base[at + i], 0);
		memset(m->base + at, 'x', BYTES);
		assert_true(has_flag(m->base + at + BYTES - 1, " dc"));
		assert_true(has_flag(m->base + at, " dd"));
		assert_int_equal(child_signal(read_byte, m->base + at), SIGSEGV);
		ckpt_slot_memory_drop(m->base + at, BYTES / 2);
		assert_int_equal(resident_pages(m->base + at, BYTES / 2), 0);
		assert_int_equal(m->base[at + BYTES / 2 - 1], 0);
		assert_int_equal(m->base[at + BYTES / 2], 'x');
		ckpt_slot_memory_remove(m, at, BYTES);
	}
	assert_int_equal(child_signal(read_byte, m->base + at), SIGSEGV);
	assert_int_equal(ckpt_slot_memory_add(m, 2 * BYTES, BYTES, &err), 0);
	m->base[3 * BYTES - 1] = 'x';
}

/* Whichever of the two a machine has: its pages go, whatever else is mapped of the file. */
static void pages_of_files_and_private_ones_are_dropped(void **state)
{
	const size_t half = 65536;
	int fd = memfd_create("mapping", MFD_CLOEXEC);
	struct stat st;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)(2 * half)), 0);
	for (int kind = 0; kind < 4; kind++) {
		bool file = kind % 2;
		char *at = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE,
			file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file ? fd : -1, 0);

		assert_ptr_not_equal(at, MAP_FAILED);
		memset(at, 'x', 2 * half);
		/* As mlockall() does. Where a process may lock nothing, that is one trial less. */
		if (kind >= 2 && mlock(at, 2 * half) < 0)
			assert_true(errno == ENOMEM || errno == EPERM);
		ckpt_slot_memory_drop(at, half);
		assert_int_equal(resident_pages(at, half), 0);
		assert_int_equal(at[half], 'x');
		assert_int_equal(munmap(at, 2 * half), 0);
	}
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, half);
	assert_int_equal(close(fd), 0);
}

static void reserved_huge_pages(void **state)
{
	struct ckpt_slot_memory mapping;

	(void)state;
	if (!ckpt_slot_memory_open_huge(2 * CKPT_HUGE_PAGE, 2 * CKPT_HUGE_PAGE, &mapping)) {
		print_message("no free huge pages here (vm.nr_hugepages)\n");
		skip();
	}
	assert_true(mapping.huge && mapping.resident);
	assert_int_equal((uintptr_t)mapping.base % CKPT_HUGE_PAGE, 0);
	assert_true(has_flag(mapping.base, " ht"));
	assert_true(has_flag(mapping.base, " dc"));
	mapping.base[2 * CKPT_HUGE_PAGE - 1] = 'x';
	assert_int_equal(child_signal(read_byte, mapping.base), SIGSEGV);
	ckpt_slot_memory_close(&mapping);
}

static void advice(void **state)
{
	const char *never = "always within_size advise [never] deny force\n";
	const char *advise = "always within_size [advise] never deny force\n";

	(void)state;
	assert_false(ckpt_slot_memory_advice_heeded(never, NULL));
	assert_true(ckpt_slot_memory_advice_heeded(advise, NULL));
	assert_true(ckpt_slot_memory_advice_heeded("[always] within_size advise never\n", NULL));
	assert_false(ckpt_slot_memory_advice_heeded("always advise never [deny] force\n", NULL));
	assert_true(ckpt_slot_memory_advice_heeded("always [madvise] never\n", NULL));
	assert_false(ckpt_slot_memory_advice_heeded("always madvise [never]\n", NULL));
	assert_false(ckpt_slot_memory_advice_heeded("", NULL));
	assert_false(ckpt_slot_memory_advice_heeded("[", NULL));
	/* The setting of the size, unless it inherits. */
	assert_false(ckpt_slot_memory_advice_heeded(
		never, "always [inherit] within_size advise never\n"));
	assert_true(ckpt_slot_memory_advice_heeded(
		advise, "always [inherit] within_size advise never\n"));
	assert_true(ckpt_slot_memory_advice_heeded(
		never, "always inherit within_size [advise] never\n"));
	assert_false(ckpt_slot_memory_advice_heeded(
		advise, "always inherit within_size advise [never]\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			it_is_aligned_zeroed_and_not_there_yet, setup, teardown),
		cmocka_unit_test_setup_teardown(
			touching_at_once_makes_all_of_it_there, setup, teardown),
		cmocka_unit_test_setup_teardown(touching_page_by_page_does_too, setup, teardown),
		cmocka_unit_test_setup_teardown(touching_never_undoes_a_write, setup, teardown),
		cmocka_unit_test_setup_teardown(a_child_does_not_have_it, setup, teardown),
		cmocka_unit_test_setup_teardown(it_is_not_in_core_dumps, setup, teardown),
		cmocka_unit_test_setup_teardown(
			huge_pages_are_asked_for_where_they_are_to_be_had, setup, teardown),
		cmocka_unit_test(what_cannot_be_mapped_is_said),
		cmocka_unit_test(a_reservation_is_no_condition),
		cmocka_unit_test_setup_teardown(memory_is_added_and_removed, setup, teardown),
		cmocka_unit_test(pages_of_files_and_private_ones_are_dropped),
		cmocka_unit_test(reserved_huge_pages),
		cmocka_unit_test(advice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
