/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_batch.h"

/* Fails the copies from `first` to the last one; those that have failed keep their error. */
static void fail_all(struct ckpt_cuda_flight *first, const struct ckpt_cuda_flight *last, int code,
	const struct ckpt_error *error)
{
	for (struct ckpt_cuda_flight *f = first; f != last->next; f = f->next)
		if (f->copy->result == 0)
			f->copy->result = ckpt_fail(f->copy->error, code, "%s", error->message);
}

/* Returns a cudaError_t. */
static int enqueue(struct ckpt_cuda_device *d, const struct ckpt_cuda_piece *p, bool out,
	const char **ret_what)
{
	int kind = out ? CKPT_CUDA_DEVICE_TO_HOST : CKPT_CUDA_HOST_TO_DEVICE;
	char *to = out ? p->staged : p->device;
	char *from = out ? p->device : p->staged;

	d->group.entries++;
	d->group.runs += p->height == 1;
	d->group.bytes += p->width * p->height;
	*ret_what = p->height == 1 ? "cudaMemcpyAsync" : "cudaMemcpy2DAsync";
	if (p->height == 1)
		return d->api.memcpy_async(to, from, p->width, kind, d->stream);
	return d->api.memcpy_2d_async(to, out ? p->staged_pitch : p->device_pitch, from,
		out ? p->device_pitch : p->staged_pitch, p->width, p->height, kind, d->stream);
}

/* The piece contains bytes of a copy that is stopped. */
static int fail_stopped(const struct ckpt_cuda_batch *g, struct ckpt_error *err)
{
	int r = 0;

	for (const struct ckpt_cuda_flight *f = g->from; f != g->to->next && r == 0; f = f->next)
		r = ckpt_cuda_fail_stopped(f->copy, err);
	return r;
}

static void flush(struct ckpt_cuda_device *d)
{
	struct ckpt_cuda_batch *g = &d->group;
	struct ckpt_error error = {.size = sizeof(error)};
	const char *what;
	int e = CKPT_CUDA_SUCCESS;
	int r;

	if (g->piece.height == 0)
		return;
	r = fail_stopped(g, &error);
	if (r == 0)
		e = enqueue(d, &g->piece, g->first->copy->direction == CKPT_COPY_TO_STAGING, &what);
	g->piece.height = 0;
	if (e != CKPT_CUDA_SUCCESS)
		r = ckpt_cuda_fail_asking(d, &error, e, what);
	if (r < 0)
		fail_all(g->from, g->to, r, &error);
}

void ckpt_cuda_batch_begin(struct ckpt_cuda_device *d, uint64_t piece_max)
{
	d->group = (struct ckpt_cuda_batch){.piece_max = piece_max};
}

void ckpt_cuda_batch_add(struct ckpt_cuda_device *d, struct ckpt_cuda_flight *flight)
{
	struct ckpt_cuda_batch *g = &d->group;

	CKPT_ASSERT(!flight->next);
	if (g->last)
		g->last->next = flight;
	else
		g->first = flight;
	g->last = flight;
}

static bool follows(const struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	const struct ckpt_cuda_piece *p)
{
	const struct ckpt_cuda_batch *g = &d->group;
	const struct ckpt_cuda_piece *before = &g->piece;

	return before->height == 1 && p->height == 1 && segment->view.data == g->tensor &&
	       before->device + before->width == p->device &&
	       before->staged + before->width == p->staged &&
	       before->width + p->width <= g->piece_max &&
	       !ckpt_cuda_host_register_begin(d->pinned, p->staged);
}

int ckpt_cuda_batch_put(struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	const struct ckpt_cuda_piece *piece)
{
	struct ckpt_cuda_batch *g = &d->group;

	if (follows(d, segment, piece)) {
		g->piece.width += piece->width;
		g->to = g->last;
		return 0;
	}
	flush(d);
	if (g->last->copy->result < 0)
		return g->last->copy->result;
	g->piece = *piece;
	g->tensor = segment->view.data;
	g->from = g->last;
	g->to = g->last;
	return 0;
}

void ckpt_cuda_batch_end(struct ckpt_cuda_device *d)
{
	struct ckpt_cuda_batch *g = &d->group;
	struct ckpt_error error = {.size = sizeof(error)};
	int e;

	flush(d);
	/* Rows and launches have other rates, so they are not measured. */
	g->last->bytes = g->runs == g->entries ? g->bytes : 0;
	e = d->api.event_record(g->last->event, d->stream);
	g->entries++;
	if (e == CKPT_CUDA_SUCCESS && g->last->copy->eager) {
		e = d->api.event_record(d->eager, d->stream);
		g->entries++;
	}
	g->last->recorded = e == CKPT_CUDA_SUCCESS;
	if (!g->last->recorded)
		fail_all(g->first, g->last, ckpt_cuda_fail_asking(d, &error, e, "cudaEventRecord"),
			&error);
	g->last->ends = true;
	g->last->entries = g->entries;
}
