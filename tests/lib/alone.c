/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into the tests of the suite `alone`, which ThreadSanitizer does not run: they start no thread. */
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(void);
int __wrap_pthread_create(void)
{
	(void)fputs("this test starts a thread: it is no test of the suite `alone`\n", stderr);
	abort();
}
