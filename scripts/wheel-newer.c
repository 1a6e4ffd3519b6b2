/* SPDX-License-Identifier: Apache-2.0 */
/* For the wheel: what libraries of Debian ask of the C library that the oldest it is for does not have. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

/* Of glibc 2.36; expat salts its hashes with it. Like glibc's it gives random bytes or ends the process. */
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): glibc's own are reserved ones. */
__attribute__((visibility("hidden"))) void arc4random_buf(void *buffer, size_t length)
{
	unsigned char *at = buffer;
	int fd = -1;

	while (length > 0) {
		ssize_t got = fd < 0 ? getrandom(at, length, 0) : read(fd, at, length);

		if (got > 0) {
			at += got;
			length -= (size_t)got;
		} else if (got == 0 || errno != EINTR) {
			/* A filter of system calls may know the file alone. */
			if (fd >= 0 || (fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC)) < 0)
				abort();
		}
	}
	if (fd >= 0)
		close(fd);
}
