/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX-512 with VBMI and VBMI2 (Ice Lake, Zen 4): 64 symbols are looked up and joined at once. */
#include "codec/kernels.h"
#include "codec/target.h"

#if defined(__x86_64__)

/* Before the pragma: its functions name the targets that they need. */
#include <immintrin.h>

CKPT_TARGET_BEGIN(CKPT_TARGET_AVX512)
#if !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")
#endif

#define HAVE_PACK
#define HAVE_HUFFMAN
#define HAVE_GROUPS
static size_t pack(const uint8_t *plane, size_t length, uint8_t *bitmap, uint8_t *packed);
static size_t unpack(const uint8_t *bitmap, const uint8_t *packed, size_t length, uint8_t *plane);
static size_t huffman(
	const struct ckpt_huffman *table, const uint8_t *symbols, size_t count, uint8_t *out);
static void gather_groups(
	const uint8_t *groups, const uint8_t *plane, size_t count, uint8_t *ends[CKPT_GROUPS]);
static void scatter_groups(
	const uint8_t *groups, const uint8_t *begins[CKPT_GROUPS], size_t count, uint8_t *plane);

#include "codec/kernels_body.h"

/* The lowest `n` bits, n from 1 to 64. */
static inline __mmask64 lowest(size_t n)
{
	return ~UINT64_C(0) >> (64 - n);
}

static size_t pack(const uint8_t *plane, size_t length, uint8_t *bitmap, uint8_t *packed)
{
	size_t count = 0;

	for (size_t at = 0; at < length; at += 64) {
		size_t n = length - at < 64 ? length - at : 64;
		__m512i bytes = _mm512_maskz_loadu_epi8(lowest(n), plane + at);
		uint64_t there = _mm512_test_epi8_mask(bytes, bytes);

		memcpy(bitmap + at / 8, &there, (n + 7) / 8);
		_mm512_storeu_si512(packed + count, _mm512_maskz_compress_epi8(there, bytes));
		count += (size_t)__builtin_popcountll(there);
	}
	return count;
}

static size_t unpack(const uint8_t *bitmap, const uint8_t *packed, size_t length, uint8_t *plane)
{
	const uint8_t *begin = packed;

	for (size_t at = 0; at < length; at += 64) {
		size_t n = length - at < 64 ? length - at : 64;
		uint64_t there = 0;

		memcpy(&there, bitmap + at / 8, (n + 7) / 8);
		there &= lowest(n);
		_mm512_mask_storeu_epi8(plane + at, lowest(n),
			_mm512_maskz_expand_epi8(there, _mm512_loadu_si512(packed)));
		packed += __builtin_popcountll(there);
	}
	return (size_t)(packed - begin);
}

static void gather_groups(
	const uint8_t *groups, const uint8_t *plane, size_t count, uint8_t *ends[CKPT_GROUPS])
{
	for (size_t at = 0; at < count; at += 64) {
		__mmask64 there = lowest(count - at < 64 ? count - at : 64);
		__m512i group = _mm512_maskz_loadu_epi8(there, groups + at);
		__m512i bytes = _mm512_maskz_loadu_epi8(there, plane + at);

		for (unsigned k = 0; there; k++) {
			__mmask64 here = _mm512_mask_cmpeq_epi8_mask(
				there, group, _mm512_set1_epi8((char)k));
			unsigned n = (unsigned)__builtin_popcountll(here);

			/* Behind a group's bytes are those of another one. */
			if (n > 0)
				_mm512_mask_storeu_epi8(ends[k], lowest(n),
					_mm512_maskz_compress_epi8(here, bytes));
			ends[k] += n;
			there &= ~here;
		}
	}
}

static void scatter_groups(
	const uint8_t *groups, const uint8_t *begins[CKPT_GROUPS], size_t count, uint8_t *plane)
{
	for (size_t at = 0; at < count; at += 64) {
		__mmask64 all = lowest(count - at < 64 ? count - at : 64);
		__mmask64 there = all;
		__m512i group = _mm512_maskz_loadu_epi8(there, groups + at);
		__m512i bytes = _mm512_setzero_si512();

		for (unsigned k = 0; there; k++) {
			__mmask64 here = _mm512_mask_cmpeq_epi8_mask(
				there, group, _mm512_set1_epi8((char)k));
			unsigned n = (unsigned)__builtin_popcountll(here);

			if (n > 0)
				bytes = _mm512_mask_expand_epi8(
					bytes, here, _mm512_maskz_loadu_epi8(lowest(n), begins[k]));
			begins[k] += n;
			there &= ~here;
		}
		_mm512_mask_storeu_epi8(plane + at, all, bytes);
	}
}

/* A table of 256 bytes, looked up by 64 bytes. */
struct lookup {
	__m512i part[4];
};

static inline struct lookup load_lookup(const uint8_t table[256])
{
	struct lookup l;

	for (size_t i = 0; i < 4; i++)
		l.part[i] = _mm512_loadu_si512(table + 64 * i);
	return l;
}

static inline __m512i look_up(const struct lookup *l, __m512i index)
{
	__m512i below = _mm512_permutex2var_epi8(l->part[0], index, l->part[1]);
	__m512i above = _mm512_permutex2var_epi8(l->part[2], index, l->part[3]);

	return _mm512_mask_mov_epi8(below, _mm512_movepi8_mask(index), above);
}

/*
 * Codes of 64 symbols are joined in pairs, fours and eights, the later symbol in the lower bits, as the stream is
 * read backward. `high` has the bits of a code in its lower half, and the code's bits 8 to 10 in the upper.
 */
static inline __attribute__((always_inline)) void put_line(const struct lookup *low_table,
	const struct lookup *high_table, const uint8_t *symbols, struct bit_writer *w)
{
	const __m512i byte = _mm512_set1_epi16(0xff);
	const __m512i nibble = _mm512_set1_epi16(0x0f);
	const __m512i top = _mm512_set1_epi16(0x70);
	const __m512i word = _mm512_set1_epi32(0xffff);
	const __m512i half = _mm512_set1_epi64(0xffffffff);
	__m512i index = _mm512_loadu_si512(symbols);
	__m512i low = look_up(low_table, index);
	__m512i high = look_up(high_table, index);
	__m512i high_odd = _mm512_srli_epi16(high, 8);
	__m512i bits_even = _mm512_and_si512(high, nibble);
	__m512i bits_odd = _mm512_and_si512(high_odd, nibble);
	__m512i code_even = _mm512_or_si512(
		_mm512_and_si512(low, byte), _mm512_slli_epi16(_mm512_and_si512(high, top), 4));
	__m512i code_odd = _mm512_or_si512(
		_mm512_srli_epi16(low, 8), _mm512_slli_epi16(_mm512_and_si512(high_odd, top), 4));
	/* Pairs are 22 bits at most, in 32; the shifts are of 32 bits, so the two pairs of one go apart. */
	__m512i bits2 = _mm512_add_epi16(bits_even, bits_odd);
	__m512i pair_even = _mm512_or_si512(_mm512_and_si512(code_odd, word),
		_mm512_sllv_epi32(
			_mm512_and_si512(code_even, word), _mm512_and_si512(bits_odd, word)));
	__m512i pair_odd = _mm512_or_si512(
		_mm512_srli_epi32(code_odd, 16), _mm512_sllv_epi32(_mm512_srli_epi32(code_even, 16),
							 _mm512_srli_epi32(bits_odd, 16)));
	__m512i bits_pair_odd = _mm512_srli_epi32(bits2, 16);
	__m512i bits4 = _mm512_add_epi32(_mm512_and_si512(bits2, word), bits_pair_odd);
	/* Fours are 44 bits at most, in 64. */
	__m512i four_even = _mm512_or_si512(_mm512_and_si512(pair_odd, half),
		_mm512_sllv_epi64(
			_mm512_and_si512(pair_even, half), _mm512_and_si512(bits_pair_odd, half)));
	__m512i four_odd = _mm512_or_si512(
		_mm512_srli_epi64(pair_odd, 32), _mm512_sllv_epi64(_mm512_srli_epi64(pair_even, 32),
							 _mm512_srli_epi64(bits_pair_odd, 32)));
	__m512i bits_four_even = _mm512_and_si512(bits4, half);
	__m512i bits_four_odd = _mm512_srli_epi64(bits4, 32);
	__m512i bits8 = _mm512_add_epi64(bits_four_even, bits_four_odd);
	uint64_t code[2][8];
	uint64_t bits[2][8];

	if (_mm512_cmpgt_epu64_mask(bits8, _mm512_set1_epi64(56)) == 0) {
		_mm512_storeu_si512(code[0],
			_mm512_or_si512(four_odd, _mm512_sllv_epi64(four_even, bits_four_odd)));
		_mm512_storeu_si512(bits[0], bits8);
		for (int i = 7; i >= 0; i--)
			put_bits(w, code[0][i], (unsigned)bits[0][i]);
		return;
	}
	_mm512_storeu_si512(code[0], four_even);
	_mm512_storeu_si512(bits[0], bits_four_even);
	_mm512_storeu_si512(code[1], four_odd);
	_mm512_storeu_si512(bits[1], bits_four_odd);
	for (int i = 7; i >= 0; i--) {
		put_bits(w, code[1][i], (unsigned)bits[1][i]);
		put_bits(w, code[0][i], (unsigned)bits[0][i]);
	}
}

static size_t huffman(
	const struct ckpt_huffman *table, const uint8_t *symbols, size_t count, uint8_t *out)
{
	const struct lookup low = load_lookup(table->low);
	const struct lookup high = load_lookup(table->high);
	struct bit_writer w = {.out = out};

	for (; count % 64; count--)
		put_bits(&w, table->code[symbols[count - 1]], table->bits[symbols[count - 1]]);
	for (; count > 0; count -= 64)
		put_line(&low, &high, symbols + count - 64, &w);
	return close_bits(&w, out);
}

static const struct ckpt_kernels kernels = KERNELS;

CKPT_TARGET_END

const struct ckpt_kernels *ckpt_kernels_avx512(void)
{
	return CKPT_TARGET_HERE(CKPT_TARGET_AVX512) ? &kernels : NULL;
}

#else

const struct ckpt_kernels *ckpt_kernels_avx512(void)
{
	return NULL;
}

#endif
