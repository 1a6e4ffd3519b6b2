/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences for what goes wrong in the directory store: what, where, why, and what to do. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "store/store_file.h"

struct advice {
	int code;
	const char *text;
};

static const struct advice advices[] = {
	{-ENOSPC, "free space there, keep fewer steps, or use another disk"},
	{-EDQUOT, "free space there, keep fewer steps, or have the quota raised"},
	{-EROFS, "mount the file system writable; if it turned read-only by itself, the kernel's "
		 "log says why"},
	{-EACCES, "check owner and mode of the store and of what is in it"},
	{-EPERM, "check owner, mode and attributes of the store and of what is in it"},
	{-EIO, "the disk or its connection failed: look into the kernel's log and use another "
	       "disk; "
	       "steps committed before are not touched"},
	{-ESTALE, "the file server has lost the directory: mount it again"},
	{-ENOTDIR, "something else is where a directory of the store should be: move it away"},
	{-EISDIR, "a directory is where a file of the store should be: move it away"},
	{-ELOOP, "a symbolic link is in the way: a store holds files and directories only"},
	{-EXDEV, "the path leads out of the store: a store holds files and directories only"},
	{-ENXIO, "it is not a regular file: move it away"},
	{-EMFILE, "raise the limit of open files (ulimit -n)"},
	{-ENFILE, "the machine's limit of open files is reached (fs.file-max)"},
	{-ENOMEM, "there is not enough memory"},
	{-ENOLCK,
		"the file system has no locks: mount it with locks (Lustre: -o flock; NFS: without "
		"nolock), or use another one"},
	{-EBUSY, "something else uses it, as a file server does with a lease: end that first"},
	{-EAGAIN, "another process holds it: stop that one first"},
	{-EEXIST, "no file is ever written twice: another process is at work in this store"},
	{CKPT_EINCOMPLETE, "put the file back from a copy, or use an older step"},
};

static const char *find_advice(const struct ckpt_store_op *op, int code)
{
	bool makes = op->verb == CKPT_STORE_MKDIR || op->verb == CKPT_STORE_CREATE ||
		     op->verb == CKPT_STORE_PUT || op->verb == CKPT_STORE_PUBLISH;

	if (code == -ENOENT)
		return makes ? "the directory that it belongs in has gone: is the disk still "
			       "mounted, or did something clean up there?"
			     : NULL;
	if (code == -EFBIG)
		return makes || op->verb == CKPT_STORE_WRITE
			       ? "raise the limit of file sizes (ulimit -f), or use a file system "
				 "that takes larger files"
			       : NULL;
	if (code == -EPERM && op->req.op == CKPT_IO_OP_RENAME)
		return "check owner, mode and attributes of the directory; if they are right, a "
		       "filter of system calls (seccomp) forbids both renameat2 and link: allow "
		       "one of them";
	if (code == -EOPNOTSUPP)
		return op->req.op == CKPT_IO_OP_RENAME
			       ? "the file system can neither rename a file without replacing "
				 "another nor give a file a second name, and two jobs could both "
				 "commit: use another file system, or for a bucket s3://"
			       : NULL;
	for (size_t i = 0; i < CKPT_COUNT(advices); i++)
		if (advices[i].code == code)
			return advices[i].text;
	return NULL;
}

static bool is_answer(const struct ckpt_store_op *op, int code)
{
	return op->quiet && (code == -ENOENT || code == -EEXIST || code == -EAGAIN);
}

int ckpt_file_fail(struct ckpt_store_op *op, int code, const char *what, ...)
{
	const char *advice = find_advice(op, code);
	bool moves = op->verb == CKPT_STORE_WRITE || op->verb == CKPT_STORE_READ;
	struct ckpt_where where = {.tier = ckpt_store_tier(op->store),
		.file = op->path,
		.has_offset = moves,
		.offset = op->offset + op->progress};
	char text[512];
	va_list args;

	if (is_answer(op, code))
		return code;
	va_start(args, what);
	(void)vsnprintf(text, sizeof(text), what, args);
	va_end(args);
	return ckpt_fail_at(op->err, code, &where, "cannot %s in %s: %s%s%s", text,
		op->store->label, ckpt_code_text(code), advice ? ": " : "", advice ? advice : "");
}
