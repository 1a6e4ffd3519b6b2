/* SPDX-License-Identifier: Apache-2.0 */
#include "api/left_open.h"

bool left_open;

/* ThreadSanitizer: a process that ends with its engine open has joined nobody. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_thread_leaks=0";
}

/* LeakSanitizer: what is left open is no leak, and its threads are about their work. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return left_open;
}
