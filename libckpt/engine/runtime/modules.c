/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/runtime/modules.h"

#include "base/error.h"
#include "engine/copy/upload_queue.h"

int ckpt_modules_open(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err)
{
	int r = ckpt_core_init(core, parts, config, err);

	if (r < 0)
		return r;
	r = ckpt_upload_queue_open(core, config->remote_every);
	if (r < 0) {
		ckpt_modules_close(core);
		return ckpt_fail(err, r, "out of memory");
	}
	return 0;
}

void ckpt_modules_close(struct ckpt_core *core)
{
	CKPT_ASSERT(ckpt_core_idle(core));
	ckpt_upload_queue_close(core);
	ckpt_core_destroy(core);
}
