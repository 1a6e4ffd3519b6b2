/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library could call: every call instruction in it whose target is a function that is counted,
 * by the relocations that its linker was told to keep. And the names of its functions.
 */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "torture/torture.h"

#define CALLS_MAX 4096

/* Those that may fail, and those through which all of a kind go. */
static const char *const counted[] = {"ckpt_alloc", "ckpt_alloc_array", "ckpt_realloc_array",
	"ckpt_strdup", "ckpt_memdup", "malloc", "calloc", "realloc",
	/* tables */
	"ckpt_io_submit", "ckpt_io_register_slots", "ckpt_io_close", "ckpt_store_mkdir",
	"ckpt_store_create", "ckpt_store_write", "ckpt_store_seal", "ckpt_store_abandon",
	"ckpt_store_put", "ckpt_store_sync", "ckpt_store_publish", "ckpt_store_get",
	"ckpt_store_open", "ckpt_store_open_cached", "ckpt_store_read", "ckpt_store_shut",
	"ckpt_store_list", "ckpt_store_remove", "ckpt_store_rmdir", "ckpt_store_lock",
	"ckpt_store_sweep", "ckpt_device_copy", "ckpt_device_pin", "ckpt_env_now",
	"ckpt_env_wall_ms", "ckpt_env_random", "ckpt_env_run",
	/* threads */
	"ckpt_thread_start", "pthread_create", "pthread_mutex_init", "pthread_cond_init",
	"pthread_condattr_init", "pthread_condattr_setclock", "pthread_sigmask", "pthread_atfork",
	"__register_atfork", "pthread_setname_np",
	/* system calls */
	"close", "fsync", "fdatasync", "fallocate64", "ftruncate64", "fstat64", "statx", "mkdir",
	"mkdirat", "unlinkat", "linkat", "renameat2", "eventfd", "memfd_create", "mmap64", "munmap",
	"madvise", "mprotect", "posix_fadvise64", "getrandom", "getrlimit64", "gethostname",
	"sched_getaffinity", "sysconf", "fdopendir", "readdir64", "closedir", "read", "write",
	"open64", "openat64", "fcntl64", "syscall", "pread64", "pwrite64",
	"io_uring_queue_init_params", "io_uring_ring_dontfork", "io_uring_register_buffers_sparse",
	"io_uring_register_buffers_update_tag", "io_uring_unregister_buffers",
	"io_uring_wait_cqe_timeout", "io_uring_submit_and_wait", "io_uring_queue_exit"};

static struct torture_static calls[CALLS_MAX];
static size_t call_count;

static const char *path;
static uintptr_t load;
static const char *image;
static const ElfW(Sym) * symbols;
static size_t symbol_count;
static const char *names;

static int find_library(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	if (!strstr(info->dlpi_name, "libckpt_torture.so"))
		return 0;
	path = info->dlpi_name;
	load = info->dlpi_addr;
	return 1;
}

static const char *counted_name(const char *symbol)
{
	size_t length = strcspn(symbol, "@");

	for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
		if (strlen(counted[i]) == length && strncmp(counted[i], symbol, length) == 0)
			return counted[i];
	return NULL;
}

#if defined(__x86_64__)
static void take_relocations(const ElfW(Shdr) * s, const ElfW(Shdr) * text)
{
	const ElfW(Rela) *r = (const void *)(image + s->sh_offset);

	for (size_t i = 0; i < s->sh_size / sizeof(*r); i++) {
		unsigned type = (unsigned)ELF64_R_TYPE(r[i].r_info);
		const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(r[i].r_info)];
		const char *name = counted_name(names + symbol->st_name);
		size_t at = r[i].r_offset - text->sh_addr + text->sh_offset;
		if (!name || (type != R_X86_64_PLT32 && type != R_X86_64_PC32) ||
			(unsigned char)image[at - 1] != 0xe8)
			continue;
		if (call_count == CALLS_MAX)
			abort();
		calls[call_count++] =
			(struct torture_static){.back = load + r[i].r_offset + 4, .callee = name};
	}
}
#else
static void take_relocations(const ElfW(Shdr) * s, const ElfW(Shdr) * text)
{
	(void)s;
	(void)text;
}
#endif

void torture_elf_load(void)
{
	struct stat st;

	(void)dl_iterate_phdr(find_library, NULL);
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0 || fstat(fd, &st) < 0)
		workload_die("the library is not where it was loaded from");
	image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	if (image == MAP_FAILED)
		workload_die("cannot map %s", path);
	const ElfW(Ehdr) *head = (const void *)image;
	const ElfW(Shdr) *sections = (const void *)(image + head->e_shoff);
	for (int i = 0; i < head->e_shnum; i++) {
		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		symbols = (const void *)(image + sections[i].sh_offset);
		symbol_count = sections[i].sh_size / sizeof(*symbols);
		names = image + sections[sections[i].sh_link].sh_offset;
	}
	for (int i = 0; i < head->e_shnum; i++)
		if (sections[i].sh_type == SHT_RELA && sections[i].sh_info &&
			sections[sections[i].sh_info].sh_flags & SHF_EXECINSTR &&
			!(sections[i].sh_flags & SHF_ALLOC))
			take_relocations(&sections[i], &sections[sections[i].sh_info]);
}

const struct torture_static *torture_elf_calls(size_t *ret_count)
{
	*ret_count = call_count;
	return calls;
}

const char *torture_symbol(uintptr_t address, uintptr_t *ret_offset)
{
	const ElfW(Sym) *best = NULL;
	uintptr_t at = address - load;

	for (size_t i = 0; i < symbol_count; i++) {
		const ElfW(Sym) *s = &symbols[i];
		if (ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_value && s->st_value < at &&
			at <= s->st_value + s->st_size)
			best = s;
	}
	*ret_offset = best ? at - best->st_value : at;
	return best ? names + best->st_name : "?";
}
