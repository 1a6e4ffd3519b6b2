/* SPDX-License-Identifier: Apache-2.0 */
/* The programs: what they print and how they exit must be true, whatever fails in them. */
#include "torture/trial_tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli.h"
#include "torture/torture.h"

struct printed {
	int fd;
	int number;
	int before;
	char text[16384];
};

static void take_over(struct printed *p, FILE *stream)
{
	p->number = fileno(stream);
	p->fd = memfd_create("printed", MFD_CLOEXEC);
	p->before = dup(p->number);
	if (p->fd < 0 || p->before < 0 || dup2(p->fd, p->number) < 0)
		workload_die("memfd: %s", strerror(errno));
}

static void give_back_stream(struct printed *p)
{
	(void)dup2(p->before, p->number);
	(void)close(p->before);
	ssize_t n = pread(p->fd, p->text, sizeof(p->text) - 1, 0);
	p->text[n > 0 ? n : 0] = 0;
	(void)close(p->fd);
}

static int run_tool(int (*command)(int argc, char **argv, const char *name), char **argv,
	struct printed *out, struct printed *err)
{
	int argc = 0;
	int code;

	while (argv[argc])
		argc++;
	/* Their streams have their buffers from the start. */
	take_over(out, stdout);
	take_over(err, stderr);
	torture_arm(__builtin_frame_address(0));
	cli_begin();
	code = cli_end(argv[0], command(argc, argv, argv[0]));
	torture_disarm();
	give_back_stream(out);
	give_back_stream(err);
	(void)fputs(err->text, stderr);
	if (code != CLI_OK && !*err->text && !*out->text)
		torture_wrong("%s exits with %d and says nothing", argv[0], code);
	if (code == CLI_INTEGRITY || code == CLI_INCOMPLETE)
		torture_wrong("%s calls a good store damaged: %s", argv[0], out->text);
	return code;
}

void trial_verify_tool(struct workload *d)
{
	static struct printed out, err;
	char *argv[] = {(char *)"ckpt-verify", d->store, (char *)"--json", NULL};

	int code = run_tool(cmd_verify, argv, &out, &err);
	if (code == CLI_OK &&
		(!strstr(out.text, "\"type\":\"summary\"") || !strstr(out.text, "\"steps\":3")))
		torture_wrong("ckpt-verify is content, and prints %s", out.text);
}

void trial_restore_tool(struct workload *d)
{
	static struct printed out, err;
	char *argv[] = {(char *)"ckpt-restore", d->store, d->dest, (char *)"--step", (char *)"2",
		(char *)"--json", NULL};

	int code = run_tool(cmd_restore, argv, &out, &err);
	if (code != CLI_OK)
		return;
	workload_log(d, "export 2\n");
	if (!strstr(out.text, "\"type\":\"restored\"") || !strstr(out.text, "\"step\":2"))
		torture_wrong("ckpt-restore is content, and prints %s", out.text);
}

/* How often `word` is in the first bytes of a file; -1: there is no such file. */
static int count_in(const char *path, const char *word)
{
	static char text[65536];
	FILE *file = fopen(path, "r");
	int count = 0;

	if (!file)
		return -1;
	size_t length = fread(text, 1, sizeof(text), file);
	(void)fclose(file);
	for (const char *at = text;
		(at = memmem(at, length - (size_t)(at - text), word, strlen(word))); at++)
		count++;
	return count;
}

/* A file that lacks a tensor, or an index that lacks a file, is not what was asked for. */
void trial_consolidate_tool(struct workload *d)
{
	static struct printed out, err;
	char dest[4096];
	char file[4200];
	char *argv[] = {(char *)"ckpt-restore", d->store, dest, (char *)"--step", (char *)"2",
		(char *)"--consolidate", (char *)"--file-size", (char *)"1", (char *)"--json",
		NULL};
	int tensors = 0;

	(void)snprintf(dest, sizeof(dest), "%s-plain", d->dest);
	int code = run_tool(cmd_restore, argv, &out, &err);
	(void)snprintf(file, sizeof(file), "%s/model.safetensors.index.json", dest);
	if (code != CLI_OK)
		return;
	if (count_in(file, "of-0000") != WORKLOAD_TENSORS || !strstr(out.text, "index.json"))
		torture_wrong(
			"ckpt-restore is content, and its index lacks a tensor: %s", out.text);
	for (int i = 1; i <= WORKLOAD_TENSORS; i++) {
		(void)snprintf(file, sizeof(file), "%s/model-%05d-of-%05d.safetensors", dest, i,
			WORKLOAD_TENSORS);
		tensors += count_in(file, "data_offsets");
	}
	if (tensors != WORKLOAD_TENSORS)
		torture_wrong("ckpt-restore is content, and wrote %d tensors", tensors);
}
