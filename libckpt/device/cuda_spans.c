/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_spans.h"

#include <ckpt/error.h>
#include "device/cuda_copy_plan.h"

int ckpt_cuda_span_of(const struct ckpt_segment *segment, struct ckpt_cuda_span *ret_span)
{
	/* A segment to be sampled has no staging yet, and may get some meanwhile, so `staged` is not read. */
	const struct ckpt_segment bare = {.view = segment->view,
		.offset = segment->offset,
		.length = segment->length,
		.staged = segment->view.data};
	struct ckpt_cuda_walk walk;
	int r;

	*ret_span = (struct ckpt_cuda_span){.run = 1};
	if (segment->around)
		return CKPT_EUNSUPPORTED;
	if (segment->length == 0)
		return 0;
	r = ckpt_cuda_walk_begin(&bare, &walk);
	if (r < 0)
		return r;
	if (walk.done == walk.run) {
		walk.done = 0;
		walk.row++;
	}
	*ret_span = (struct ckpt_cuda_span){
		.data = (uintptr_t)walk.data + walk.row * walk.device_pitch,
		.run = walk.run,
		.pitch = walk.device_pitch,
		.offset = walk.done,
		.length = segment->length,
	};
	return 0;
}
