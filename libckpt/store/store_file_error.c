/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages of the directory store: what, where, why, and what to do. */
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
	{-EACCES, "check the owner and mode of the store and of its files"},
	{-EPERM, "check the owner, mode and attributes of the store and of its files"},
	{-EIO, "the disk or its connection failed: see the kernel's log and use another "
	       "disk; "
	       "steps committed before are not affected"},
	{-ESTALE, "the file server no longer has the directory: mount it again"},
	{-ENOTDIR, "a file is in the place of a directory of the store: move it away"},
	{-EISDIR, "a directory is in the place of a file of the store: move it away"},
	{-ELOOP, "a symbolic link is in the way: a store holds files and directories only"},
	{-EXDEV, "the path leads out of the store: a store holds files and directories only"},
	{-ENXIO, "it is not a regular file: move it away"},
	{-EMFILE, "raise the limit of open files (ulimit -n)"},
	{-ENFILE, "the machine's limit of open files is reached (fs.file-max)"},
	{-ENOMEM, "there is not enough memory"},
	{-ENOLCK,
		"the file system has no locks: mount it with locks (Lustre: -o flock; NFS: without "
		"nolock), or use another one"},
	{-EBUSY, "another program uses it, such as a file server with a lease: stop that first"},
	{-EAGAIN, "another process holds it: stop that one first"},
	{-EEXIST, "no file is written twice, so another process is writing to this store"},
	{CKPT_EINCOMPLETE, "put the file back from a copy, or use an older step"},
};

static const char *find_advice(const struct ckpt_store_op *op, int code)
{
	bool makes = op->verb == CKPT_STORE_MKDIR || op->verb == CKPT_STORE_CREATE ||
		     op->verb == CKPT_STORE_PUT || op->verb == CKPT_STORE_PUBLISH;

	if (code == -ENOENT)
		return makes ? "its directory no longer exists: check that the disk is "
			       "mounted and that nothing deletes files there"
			     : NULL;
	if (code == -EFBIG)
		return makes || op->verb == CKPT_STORE_WRITE
			       ? "raise the limit of file sizes (ulimit -f), or use a file system "
				 "that takes larger files"
			       : NULL;
	if (code == -EPERM && op->req.op == CKPT_IO_OP_RENAME)
		return "check the owner, mode and attributes of the directory; if they are right, "
		       "a seccomp filter forbids both renameat2 and link: allow one of them";
	if (code == -EOPNOTSUPP)
		return op->req.op == CKPT_IO_OP_RENAME
			       ? "the file system supports neither RENAME_NOREPLACE nor "
				 "hard links, so two jobs could both "
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
