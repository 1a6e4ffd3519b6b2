/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of the fake: modules of PTX whose kernels are those of the library, run by the CPU. A launch takes its
 * turn in the stream; what its table says is looked at when it runs, as a GPU would.
 */
#include "cuda/fake_driver.h"
#include "cuda/fake_inside.h"
#include "device/kernels/span_bodies.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS     5
#define THREADS_MAX 1024 /* of a block */
#define BLOCKS_MAX  INT32_MAX

static const char *const names[KERNELS] = {
	[FAKE_SAMPLE] = CKPT_CUDA_SAMPLE,
	[FAKE_GATHER] = CKPT_CUDA_GATHER,
	[FAKE_SCATTER] = CKPT_CUDA_SCATTER,
	[FAKE_GATHER_GRID] = CKPT_CUDA_GATHER_GRID,
	[FAKE_SCATTER_GRID] = CKPT_CUDA_SCATTER_GRID,
};

struct CUfunc_st {
	struct CUmod_st *module;
	enum fake_kernel kernel;
};

struct CUmod_st {
	struct CUmod_st *next;
	int device;
	bool unloaded;
	struct CUfunc_st functions[KERNELS];
	char image[];
};

static struct CUmod_st *modules; /* unloaded ones too, so that their use is noticed */

static void *reach(uint64_t address, size_t size)
{
	void *shadow = fake_shadow((const void *)(uintptr_t)address, size);

	return shadow ? shadow : fake_mapped(address, size);
}

/* The same of a grid: all of its view, and what of staging is moved. */
static bool translate_grid(struct ckpt_cuda_grid *g, bool staged)
{
	uint64_t low = g->data;
	uint64_t end = g->data + g->unit;
	const char *shadow;
	uint64_t there;

	for (uint32_t i = 0; i < g->ndim; i++) {
		uint64_t extent = g->dims[i].step * (g->dims[i].count - 1);

		if ((int64_t)extent < 0)
			low += extent;
		else
			end += extent;
	}
	shadow = fake_shadow((const void *)(uintptr_t)low, end - low);
	if (!shadow)
		return false;
	g->data += (uintptr_t)shadow - low;
	if (!staged)
		return true;
	there = (uintptr_t)reach(g->staged + g->from, g->end - g->from);
	g->staged = there - g->from;
	return there != 0;
}

/* The bytes of a span as the CPU has them. False: some are not what a GPU can reach. `grid`: where its own goes. */
static bool translate(struct ckpt_cuda_span *span, struct ckpt_cuda_grid *grid, bool staged)
{
	uint64_t left = 0;
	uint64_t low;
	uint64_t end;
	char *shadow;

	if (span->grid) {
		const void *there = reach(span->grid, sizeof(*grid));

		if (!there)
			return false;
		memcpy(grid, there, sizeof(*grid));
		span->grid = (uintptr_t)grid;
		return translate_grid(grid, staged);
	}
	if (span->length == 0)
		return true;
	low = ckpt_span_find(span, 0, &left);
	end = ckpt_span_find(span, span->length - 1, &left) + 1;
	shadow = fake_shadow((const void *)(uintptr_t)low, end - low);
	if (!shadow)
		return false;
	span->data += (uintptr_t)shadow - low;
	if (!staged)
		return true;
	span->staged = (uintptr_t)reach(span->staged, span->length);
	return span->staged != 0;
}

/* What segments.cl does around the bodies. The last threads first: there is no order. */
static void run_grid(
	const struct fake_op *op, const struct ckpt_cuda_span *spans, uint64_t *samples)
{
	for (uint32_t t = op->threads; t-- > 0;) {
		if (op->kernel == FAKE_SAMPLE) {
			for (uint32_t i = t; i < op->spans; i += op->threads)
				samples[i] = ckpt_span_sample(spans, i);
			continue;
		}
		for (uint32_t i = t / CKPT_CUDA_LANES; i < op->spans;
			i += op->threads / CKPT_CUDA_LANES)
			ckpt_span_copy(spans, i, op->kernel == FAKE_SCATTER, t % CKPT_CUDA_LANES,
				CKPT_CUDA_LANES);
	}
}

static bool is_of_grid(enum fake_kernel kernel)
{
	return kernel == FAKE_GATHER_GRID || kernel == FAKE_SCATTER_GRID;
}

static void run_table(const struct fake_op *op)
{
	size_t size = (size_t)op->spans * sizeof(struct ckpt_cuda_span);
	const void *table = reach(op->table, size);
	uint64_t *samples = op->kernel == FAKE_SAMPLE
				    ? reach(op->samples, (size_t)op->spans * sizeof(uint64_t))
				    : NULL;
	struct ckpt_cuda_span *spans = aligned_alloc(sizeof(*spans), size);
	struct ckpt_cuda_grid *grids = calloc(op->spans, sizeof(*grids));
	bool good = table && (samples || op->kernel != FAKE_SAMPLE);

	if (!spans || !grids)
		abort();
	if (good)
		memcpy(spans, table, size);
	for (uint32_t i = 0; i < op->spans && good; i++)
		good = translate(&spans[i], &grids[i], op->kernel != FAKE_SAMPLE);
	if (good)
		run_grid(op, spans, samples);
	else
		fake_forbid("a kernel ran on memory that the GPU cannot reach");
	free(grids);
	free(spans);
}

static void run_grid_kernel(const struct fake_op *op)
{
	struct ckpt_cuda_grid grid = op->grid;

	if (!translate_grid(&grid, true)) {
		fake_forbid("a kernel ran on memory that the GPU cannot reach");
		return;
	}
	for (uint32_t t = op->threads; t-- > 0;)
		for (uint32_t i = t; i < op->items; i += op->threads)
			ckpt_grid_copy(&grid, op->kernel == FAKE_SCATTER_GRID, op->first + i);
}

void fake_run_kernel(const struct fake_op *op)
{
	if (is_of_grid(op->kernel))
		run_grid_kernel(op);
	else
		run_table(op);
}

/* Where staging begins that a span or a grid is moved to or from. */
static const char *staging_of(const struct ckpt_cuda_span *span)
{
	const struct ckpt_cuda_grid *grid;

	if (!span->grid)
		return reach(span->staged, span->length);
	grid = reach(span->grid, sizeof(*grid));
	return grid ? reach(grid->staged + grid->from, 1) : NULL;
}

bool fake_kernel_uses(const struct fake_op *op, const char *base, size_t size)
{
	const struct ckpt_cuda_span *spans =
		reach(op->table, (size_t)op->spans * sizeof(struct ckpt_cuda_span));
	const char *ends[2] = {(const char *)spans, NULL};

	if (is_of_grid(op->kernel)) {
		const char *at = reach(op->grid.staged + op->grid.from, 1);
		return at >= base && at < base + size;
	}
	if (op->kernel == FAKE_SAMPLE)
		ends[1] = reach(op->samples, sizeof(uint64_t));
	for (size_t i = 0; i < 2; i++)
		if (ends[i] >= base && ends[i] < base + size)
			return true;
	for (uint32_t i = 0; spans && op->kernel != FAKE_SAMPLE && i < op->spans; i++) {
		const char *staged = staging_of(&spans[i]);
		if (staged >= base && staged < base + size)
			return true;
	}
	return false;
}

void fake_forget_modules(void)
{
	while (modules) {
		struct CUmod_st *module = modules;

		modules = module->next;
		free(module);
	}
}

static struct CUmod_st *check_module(struct CUmod_st *module, const char *function)
{
	for (struct CUmod_st *m = modules; m; m = m->next)
		if (m == module && !m->unloaded)
			return m;
	fake_forbid("%s() of a module that was unloaded", function);
	return NULL;
}

/* The runtime makes a context current for a thread that has it make anything there. */
static int module_load_data(struct CUmod_st **ret_module, const void *image)
{
	int e = fake_enter("cuModuleLoadData");
	size_t size = strlen(image) + 1;

	if (e == 0)
		e = fake_unsafe();
	if (e == 0 && !fake_has_context())
		e = FAKE_INVALID_CONTEXT;
	if (e == 0 && strncmp(image, ".version ", strlen(".version ")) != 0)
		e = FAKE_INVALID_PTX;
	if (e == 0) {
		struct CUmod_st *module = calloc(1, sizeof(*module) + size);
		if (!module)
			abort();
		module->device = *fake_current_device();
		memcpy(module->image, image, size);
		for (int i = 0; i < KERNELS; i++)
			module->functions[i] = (struct CUfunc_st){module, (enum fake_kernel)i};
		module->next = modules;
		modules = module;
		fake.live[FAKE_MODULES]++;
		*ret_module = module;
	}
	pthread_mutex_unlock(&fake.lock);
	return e;
}

static int module_get_function(
	struct CUfunc_st **ret_function, struct CUmod_st *module, const char *name)
{
	int e = fake_enter("cuModuleGetFunction");
	struct CUmod_st *m = check_module(module, "cuModuleGetFunction");
	int found = -1;

	for (int i = 0; i < KERNELS && m; i++) {
		const char *entry = strstr(m->image, ".entry ");

		for (; entry; entry = strstr(entry + 1, ".entry ")) {
			const char *at = entry + strlen(".entry ");
			if (strcmp(name, names[i]) == 0 && strncmp(at, name, strlen(name)) == 0 &&
				at[strlen(name)] == '(')
				found = i;
		}
	}
	if (e == 0 && found < 0)
		e = FAKE_NOT_FOUND;
	if (e == 0)
		*ret_function = &m->functions[found];
	pthread_mutex_unlock(&fake.lock);
	return e;
}

static int module_unload(struct CUmod_st *module)
{
	int e = fake_enter("cuModuleUnload");
	struct CUmod_st *m = check_module(module, "cuModuleUnload");

	if (m && fake_kernels_under_way(m->device))
		fake_forbid("cuModuleUnload() under a kernel");
	if (m) {
		m->unloaded = true;
		fake.live[FAKE_MODULES]--;
	}
	pthread_mutex_unlock(&fake.lock);
	return e;
}

/* They are copied, as the driver does: the caller's are gone when the kernel runs. */
static void take_arguments(struct fake_op *op, void **arguments)
{
	if (is_of_grid(op->kernel)) {
		memcpy(&op->grid, arguments[0], sizeof(op->grid));
		op->first = *(const uint64_t *)arguments[1];
		op->items = *(const uint32_t *)arguments[2];
		return;
	}
	op->table = *(const uint64_t *)arguments[0];
	op->spans = *(const uint32_t *)arguments[1];
	if (op->kernel == FAKE_SAMPLE)
		op->samples = *(const uint64_t *)arguments[2];
}

static int add_launch(struct CUfunc_st *function, unsigned blocks, unsigned threads,
	struct CUstream_st *stream, void **arguments)
{
	struct CUmod_st *m = check_module(function->module, "cuLaunchKernel");
	struct CUstream_st *s = fake_stream(stream, "cuLaunchKernel");
	struct fake_op op = {
		.kind = FAKE_OP_KERNEL, .kernel = function->kernel, .threads = blocks * threads};

	if (!m || !s)
		return CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	take_arguments(&op, arguments);
	if (s->capture)
		fake_forbid("cuLaunchKernel() to a stream that is being captured");
	if (s->device != m->device) {
		fake_forbid("cuLaunchKernel() to a stream of another GPU");
		return CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	}
	if (!is_of_grid(op.kernel) &&
		(!reach(op.table, (size_t)op.spans * sizeof(struct ckpt_cuda_span)) ||
			(op.kernel == FAKE_SAMPLE &&
				!reach(op.samples, (size_t)op.spans * sizeof(uint64_t))))) {
		fake_forbid("a kernel's table is in memory that the GPU cannot reach");
		return CKPT_CUDA_ILLEGAL_ADDRESS;
	}
	(void)fake_add(s, &op);
	return 0;
}

static int launch_kernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
	struct CUstream_st *stream, void **arguments, void **extra)
{
	int e = fake_enter("cuLaunchKernel");

	if (e == 0 &&
		(grid_x == 0 || grid_x > BLOCKS_MAX || grid_y != 1 || grid_z != 1 || block_x == 0 ||
			block_x > THREADS_MAX || block_y != 1 || block_z != 1 || shared > 0 ||
			extra || block_x % CKPT_CUDA_LANES != 0))
		e = CKPT_CUDA_INVALID_VALUE;
	if (e == 0)
		e = add_launch(function, grid_x, block_x, stream, arguments);
	pthread_mutex_unlock(&fake.lock);
	return e;
}

static const struct {
	int error;
	const char *name;
	const char *text;
} errors[] = {
	{CKPT_CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CKPT_CUDA_MEMORY_ALLOCATION, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{FAKE_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
};

/* As the real ones: an error that is not known has neither. */
static int get_error_name(int error, const char **name)
{
	*name = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			*name = errors[i].name;
	return *name ? 0 : CKPT_CUDA_INVALID_VALUE;
}

static int get_error_string(int error, const char **text)
{
	*text = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			*text = errors[i].text;
	return *text ? 0 : CKPT_CUDA_INVALID_VALUE;
}

static const struct ckpt_cuda_driver fake_driver = {
	.module_load_data = module_load_data,
	.module_get_function = module_get_function,
	.module_unload = module_unload,
	.launch_kernel = launch_kernel,
	.get_error_name = get_error_name,
	.get_error_string = get_error_string,
};

/* The runtime loads the driver, by a name that others find it under. */
__attribute__((constructor)) static void load_driver(void)
{
	void *library = dlopen(FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
	void *symbol = library ? dlsym(library, "fake_driver_connect") : NULL;
	void (*connect)(const struct ckpt_cuda_driver *driver);

	if (!symbol)
		abort();
	memcpy((void *)&connect, (const void *)&symbol, sizeof(symbol));
	connect(&fake_driver);
}
