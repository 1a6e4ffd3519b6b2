/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of the environment in one block of memory. */
#include "s3/environ.h"

#include <errno.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/secret.h"

#define LINES_MAX 65536u
#define BYTES_MAX (16u << 20)

int ckpt_s3_environ_take(
	const char *const *environment, struct ckpt_error *err, struct ckpt_s3_environ *ret_vars)
{
	size_t count = 0;
	size_t size = 0;
	char *at;

	*ret_vars = (struct ckpt_s3_environ){0};
	for (; environment && environment[count]; count++) {
		size += strlen(environment[count]) + 1;
		if (count == LINES_MAX || size > BYTES_MAX)
			return ckpt_fail(err, -E2BIG,
				"the environment is too large: more than %u variables or %u bytes",
				LINES_MAX, BYTES_MAX);
	}
	ret_vars->size = size;
	ret_vars->text = ckpt_secret_alloc(size);
	ret_vars->lines = ckpt_alloc_array(count + 1, sizeof(char *));
	if (!ret_vars->text || !ret_vars->lines) {
		ckpt_s3_environ_clear(ret_vars);
		return ckpt_fail(err, -ENOMEM, "there is no memory to copy the environment");
	}
	at = ret_vars->text;
	for (size_t i = 0; i < count; i++) {
		/* Another thread may change it meanwhile: copy at most what was measured. */
		size_t left = size - (size_t)(at - ret_vars->text);
		const char *line = environment[i];
		size_t length = left > 0 && line ? strnlen(line, left - 1) : 0;

		if (left == 0 || !line)
			break;
		memcpy(at, line, length);
		at[length] = 0;
		ret_vars->lines[i] = at;
		at += length + 1;
	}
	return 0;
}

const char *ckpt_s3_var(const struct ckpt_s3_environ *vars, const char *name)
{
	size_t length = strlen(name);

	for (char **line = vars->lines; line && *line; line++) {
		if (strncmp(*line, name, length) == 0 && (*line)[length] == '=')
			return (*line)[length + 1] ? *line + length + 1 : NULL;
	}
	return NULL;
}

void ckpt_s3_environ_clear(struct ckpt_s3_environ *vars)
{
	ckpt_secret_free(vars->text);
	ckpt_free(vars->lines);
	*vars = (struct ckpt_s3_environ){0};
}

static int join(const char *home, const char *rest, char **ret_path)
{
	struct ckpt_buf buf = {0};

	ckpt_buf_puts(&buf, home);
	ckpt_buf_put(&buf, rest, strlen(rest) + 1);
	if (buf.failed) {
		ckpt_buf_free(&buf);
		return -ENOMEM;
	}
	*ret_path = buf.data;
	return 0;
}

int ckpt_s3_environ_path(const struct ckpt_s3_environ *vars, const char *path, char **ret_path)
{
	const char *home = ckpt_s3_var(vars, "HOME");
	struct passwd entry;
	struct passwd *found = NULL;
	char buffer[4096];

	if (path[0] != '~' || (path[1] != 0 && path[1] != '/'))
		return join("", path, ret_path);
	if (home)
		return join(home, path + 1, ret_path);
	if (getpwuid_r(getuid(), &entry, buffer, sizeof(buffer), &found) != 0 || !found ||
		!found->pw_dir || !*found->pw_dir)
		return -ENOENT;
	return join(found->pw_dir, path + 1, ret_path);
}
