/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: the checks, the count of memory, and the mutator that knows JSON and
 * seals. Each target defines LLVMFuzzerTestOneInput() and LLVMFuzzerCustomMutator().
 */
#ifndef CKPT_TESTS_FUZZ_H
#define CKPT_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ckpt/error.h>
#include "base/buf.h"
#include "lib/prng.h"

/* What libFuzzer calls, and what it offers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

/* A property: says which, and aborts, so that the input is kept. */
#define FUZZ_CHECK(cond)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			fuzz_broken(#cond, __FILE__, __LINE__);                                    \
	} while (0)
__attribute__((noreturn)) void fuzz_broken(const char *what, const char *file, int line);

#define FUZZ_FILE "g000001/f.json"

/*
 * Memory that the library asks for from begin to end. Allocation number `fail_at` fails, 0: none. End
 * returns how many there were, and checks that they came to `most` bytes at most.
 */
void fuzz_memory_begin(size_t fail_at);
size_t fuzz_memory_end(uint64_t most);

/* The code is one that reading may give, and the record says what must be said. */
void fuzz_check_error(const struct ckpt_error *err, int code, size_t length);
/* One printable line of UTF-8. */
bool fuzz_is_line(const char *text, size_t length);
/* How often `what` stands there. */
size_t fuzz_occurrences(const char *data, size_t size, const char *what);

/* A kind of sealed file. `value` and `again` are a struct of `size` bytes. */
struct fuzz_sealed {
	size_t size;
	unsigned memory; /* at most so many times the length of the file */
	unsigned major;  /* the greatest major version that is read; 0: 1 */
	int (*decode)(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value);
	int (*encode)(const void *value, struct ckpt_buf *out);
	/* What was decoded keeps to FORMAT.md. */
	void (*check)(const void *value);
	bool (*same)(const void *value, const void *again);
	void (*clear)(void *value); /* NULL: nothing */
};
/* That of the program, which has it in place of an input of its own: fuzz_sealed.c has that. */
extern const struct fuzz_sealed fuzz_kind;

/* Mutators. All return the new size, at most `max`. */
size_t fuzz_mutate_json(uint8_t *text, size_t size, size_t max, struct prng *prng);
size_t fuzz_mutate_sealed(uint8_t *data, size_t size, size_t max, unsigned seed);
/* One of the pieces (texts, `count` of them) is put in somewhere, if there is room. */
size_t fuzz_mutate_pieces(uint8_t *data, size_t size, size_t max, struct prng *prng,
	const char *const *pieces, size_t count);
/* A number at the edge of something: of a type, or of a limit of the format. */
uint64_t fuzz_edge(struct prng *prng);

#endif
