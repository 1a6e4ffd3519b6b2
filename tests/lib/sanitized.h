/* SPDX-License-Identifier: Apache-2.0 */
/* A sanitizer makes each of many cases several times as long; a part of them shows what it is there to show. */
#ifndef CKPT_TESTS_SANITIZED_H
#define CKPT_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Of so many cases all, and an eighth, but one at least, with a sanitizer. */
#define CASES(all) (SANITIZED ? ((all) + 7) / 8 : (all))

#endif
