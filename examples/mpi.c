/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop on many ranks of MPI. Each holds some rows of one array; a step is committed by all of them or by
 * none, and the next start may have another number of ranks. Kill it, run it again: it goes on.
 *
 *	mpicc mpi.c $(pkg-config --cflags --libs libckpt) -o mpi
 *	mpiexec -n 4 ./mpi /shared/run42 1000
 *
 * What the ranks tell each other goes through MPI, see ckpt/exchange.h: rank 0 keeps a table, and a thread
 * on every rank carries its engine's requests there, on a communicator of its own. They poll, since a
 * blocking receive would take a processor away from the training.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/ckpt.h>

#define ROWS    1000
#define COLUMNS 256
#define EVERY   10

enum tag { REQUEST = 1, ANSWER = 2 };

#define NOTHING  UINT64_MAX /* the length of a value that is not there */
#define FAREWELL 0          /* in place of a verb: this rank asks no more */

/* A message, written and read from the front. */
struct message {
	char *data;
	size_t length;
	size_t room;
	size_t at;
};

struct entry {
	struct entry *next;
	char *key;
	void *data;
	uint64_t length;
};

/* The exchange of one rank. The table is used by rank 0's keeper only. */
struct exchange {
	MPI_Comm comm;
	int rank, world;
	struct ckpt_exchange_server *server;
	pthread_t carrier, keeper;
	struct entry *table;
};

/* The rows that a rank holds. */
struct part {
	int rank, world;
	int64_t first, count;
	float *values;
};

static void out_of_memory(void)
{
	fputs("out of memory\n", stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

static void put_bytes(struct message *m, const void *data, size_t length)
{
	if (m->length + length > m->room) {
		m->room = 2 * (m->length + length);
		m->data = realloc(m->data, m->room);
		if (!m->data)
			out_of_memory();
	}
	if (length > 0)
		memcpy(m->data + m->length, data, length);
	m->length += length;
}

static void put_number(struct message *m, uint64_t number)
{
	put_bytes(m, &number, sizeof(number));
}

/* What was put. The other side is this program, so it is not checked. */
static const void *take_bytes(struct message *m, size_t length)
{
	const void *data = m->data + m->at;

	m->at += length;
	return data;
}

static uint64_t take_number(struct message *m)
{
	uint64_t number;

	memcpy(&number, take_bytes(m, sizeof(number)), sizeof(number));
	return number;
}

/* Waits for a message with `tag`, a moment's sleep between two looks. Returns whose it is. */
static int receive(struct exchange *x, int source, enum tag tag, struct message *m)
{
	const struct timespec moment = {0, 200000};
	MPI_Status status;
	int there = 0;
	int length;

	for (;;) {
		MPI_Iprobe(source, tag, x->comm, &there, &status);
		if (there)
			break;
		nanosleep(&moment, NULL);
	}
	MPI_Get_count(&status, MPI_BYTE, &length);
	m->length = m->at = 0;
	if ((size_t)length > m->room) {
		m->room = (size_t)length;
		m->data = realloc(m->data, m->room);
		if (!m->data)
			out_of_memory();
	}
	MPI_Recv(m->data, length, MPI_BYTE, status.MPI_SOURCE, tag, x->comm, MPI_STATUS_IGNORE);
	m->length = (size_t)length;
	return status.MPI_SOURCE;
}

/* Rank 0's table. */

static struct entry **find(struct exchange *x, const char *key)
{
	struct entry **link = &x->table;

	while (*link && strcmp((*link)->key, key) != 0)
		link = &(*link)->next;
	return link;
}

/* A key gets its value once. */
static int put(struct exchange *x, const char *key, const void *data, uint64_t length)
{
	struct entry **link = find(x, key);
	struct entry *entry = *link;
	size_t name_bytes = strlen(key) + 1;

	if (entry)
		return entry->length == length && memcmp(entry->data, data, length) == 0 ? 0
											 : -EEXIST;
	entry = calloc(1, sizeof(*entry));
	if (!entry)
		return -ENOMEM;
	entry->key = malloc(name_bytes);
	entry->data = malloc(length + 1);
	if (!entry->key || !entry->data)
		out_of_memory();
	memcpy(entry->key, key, name_bytes);
	memcpy(entry->data, data, length);
	entry->length = length;
	*link = entry;
	return 0;
}

static void drop(struct exchange *x, const char *key)
{
	struct entry **link = find(x, key);
	struct entry *entry = *link;

	if (!entry)
		return;
	*link = entry->next;
	free(entry->key);
	free(entry->data);
	free(entry);
}

/* Does what a request asks, and writes the answer. */
static void handle(struct exchange *x, uint64_t verb, struct message *in, struct message *out)
{
	uint64_t count = take_number(in);
	int64_t result = 0;

	out->length = 0;
	put_number(out, 0); /* the result's place */
	for (uint64_t i = 0; i < count; i++) {
		uint64_t name_bytes = take_number(in);
		const char *key = take_bytes(in, name_bytes);
		uint64_t length = take_number(in);
		if (verb == CKPT_EXCHANGE_PUT) {
			int r = put(x, key, take_bytes(in, length), length);
			result = r < 0 ? r : result;
		} else if (verb == CKPT_EXCHANGE_DROP) {
			drop(x, key);
		} else {
			const struct entry *entry = *find(x, key);
			put_number(out, entry ? entry->length : NOTHING);
			if (entry)
				put_bytes(out, entry->data, entry->length);
		}
	}
	memcpy(out->data, &result, sizeof(result));
}

/* Until every rank has said farewell. */
static void *keep_table(void *arg)
{
	struct exchange *x = arg;
	struct message in = {0};
	struct message out = {0};
	int left = x->world;

	while (left > 0) {
		int source = receive(x, MPI_ANY_SOURCE, REQUEST, &in);
		uint64_t verb = take_number(&in);
		if (verb == FAREWELL) {
			left--;
			continue;
		}
		handle(x, verb, &in, &out);
		MPI_Send(out.data, (int)out.length, MPI_BYTE, source, ANSWER, x->comm);
	}
	while (x->table)
		drop(x, x->table->key);
	free(in.data);
	free(out.data);
	return NULL;
}

/* Every rank's carrier. */

static void write_request(const struct ckpt_exchange_request *request, struct message *out)
{
	uint32_t i;

	out->length = 0;
	put_number(out, request->verb);
	put_number(out, request->count);
	for (i = 0; i < request->count; i++) {
		uint64_t length = request->lengths ? request->lengths[i] : 0;
		put_number(out, strlen(request->keys[i]) + 1);
		put_bytes(out, request->keys[i], strlen(request->keys[i]) + 1);
		put_number(out, length);
		put_bytes(out, request->values ? request->values[i] : NULL, length);
	}
}

static void give_answer(
	struct exchange *x, const struct ckpt_exchange_request *request, struct message *in)
{
	const void *values[CKPT_EXCHANGE_BATCH] = {NULL};
	uint64_t lengths[CKPT_EXCHANGE_BATCH] = {0};
	struct ckpt_exchange_answer answer = {0};
	uint32_t i;

	answer.size = sizeof(answer);
	answer.id = request->id;
	answer.result = (int32_t)(int64_t)take_number(in);
	for (i = 0; request->verb == CKPT_EXCHANGE_GET && i < request->count; i++) {
		lengths[i] = take_number(in);
		if (lengths[i] == NOTHING)
			lengths[i] = 0;
		else
			values[i] = take_bytes(in, lengths[i]);
	}
	answer.values = values;
	answer.lengths = lengths;
	(void)ckpt_exchange_reply(x->server, &answer);
}

static void *carry(void *arg)
{
	struct exchange *x = arg;
	struct ckpt_exchange_request request = {0};
	struct message out = {0};
	struct message in = {0};

	request.size = sizeof(request);
	while (ckpt_exchange_next(x->server, CKPT_FOREVER, &request) == 0) {
		write_request(&request, &out);
		MPI_Send(out.data, (int)out.length, MPI_BYTE, 0, REQUEST, x->comm);
		(void)receive(x, 0, ANSWER, &in);
		give_answer(x, &request, &in);
	}
	out.length = 0;
	put_number(&out, FAREWELL);
	MPI_Send(out.data, (int)out.length, MPI_BYTE, 0, REQUEST, x->comm);
	free(out.data);
	free(in.data);
	return NULL;
}

static int exchange_start(struct exchange *x, int rank, int world)
{
	int r;

	memset(x, 0, sizeof(*x));
	x->rank = rank;
	x->world = world;
	MPI_Comm_dup(MPI_COMM_WORLD, &x->comm);
	r = ckpt_exchange_server_new(&x->server);
	if (r == 0 && rank == 0)
		r = -pthread_create(&x->keeper, NULL, keep_table, x);
	if (r == 0)
		r = -pthread_create(&x->carrier, NULL, carry, x);
	return r;
}

/* After the engine was closed, or could not be opened. */
static void exchange_stop(struct exchange *x)
{
	ckpt_exchange_server_stop(x->server);
	pthread_join(x->carrier, NULL);
	if (x->rank == 0)
		pthread_join(x->keeper, NULL);
	ckpt_exchange_server_free(x->server);
	MPI_Comm_free(&x->comm);
}

/* The training. */

static int failed(const char *what, int code)
{
	const char *why = ckpt_last_error();

	fprintf(stderr, "%s: %s\n", what, *why ? why : ckpt_strerror(code));
	return code;
}

/* Every element depends on its place and on the step, however the rows are shared out. */
static void train_one_step(const struct part *p, uint64_t step)
{
	int64_t i;

	for (i = 0; i < p->count * COLUMNS; i++)
		p->values[i] = p->values[i] * 0.5f +
			       (float)((uint64_t)(p->first * COLUMNS + i) * step % 97);
}

static double sum_of_all(const struct part *p)
{
	double sum = 0;
	double all = 0;
	int64_t i;

	for (i = 0; i < p->count * COLUMNS; i++)
		sum += (double)p->values[i];
	MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

static int save(struct ckpt_engine *engine, const struct part *p, uint64_t step)
{
	const int64_t whole[] = {ROWS, COLUMNS};
	const int64_t shape[] = {p->count, COLUMNS};
	const int64_t start[] = {p->first, 0};
	struct ckpt_tensor tensor = {0};
	struct ckpt_save *handle = NULL;
	struct ckpt_error error = {0};
	int r;

	tensor.size = sizeof(tensor);
	tensor.name = "values";
	tensor.dtype = CKPT_F32;
	tensor.ndim = 2;
	tensor.shape = shape;
	tensor.data = p->values;
	tensor.global_shape = whole;
	tensor.global_start = start;
	r = ckpt_save_begin(engine, step, NULL, &handle);
	if (r == 0 && p->count > 0)
		r = ckpt_save_add(handle, &tensor, 1);
	if (r == 0)
		r = ckpt_save_start(handle);
	if (r < 0)
		failed("saving", r);
	/* A real loop computes its next gradients first, and waits for the disk when it saves again. */
	else if ((r = ckpt_save_wait(handle, CKPT_LEVEL_LOCAL, CKPT_FOREVER)) < 0) {
		error.size = sizeof(error);
		if (ckpt_save_error(handle, &error) < 0)
			fprintf(stderr, "rank %d, step %" PRIu64 ": %s\n", p->rank, step,
				error.message);
	}
	ckpt_save_free(handle);
	return r;
}

/* All ranks bring the same step back, each its rows of it. */
static int resume(struct ckpt_engine *engine, const struct part *p, uint64_t *ret_step)
{
	const int64_t shape[] = {p->count, COLUMNS};
	const int64_t start[] = {p->first, 0};
	struct ckpt_restore *restore = NULL;
	struct ckpt_target target = {0};
	int r;

	r = ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore);
	if (r == CKPT_ENOSTEP)
		return 0;
	if (r < 0)
		return failed("resuming", r);
	target.size = sizeof(target);
	target.name = "values";
	target.dtype = CKPT_F32;
	target.ndim = 2;
	target.shape = shape;
	target.start = start;
	target.data = p->values;
	r = p->count > 0 ? ckpt_restore_bind(restore, &target, 1) : 0;
	if (r == 0)
		r = ckpt_restore_start(restore);
	if (r == 0)
		r = ckpt_restore_wait(restore, CKPT_FOREVER);
	if (r == 0)
		r = ckpt_restore_adopt(restore);
	if (r < 0)
		failed("resuming", r);
	else
		*ret_step = ckpt_restore_step(restore);
	ckpt_restore_free(restore);
	return r;
}

static int train(struct ckpt_engine *engine, const struct part *p, uint64_t last)
{
	uint64_t step = 0;
	double sum;
	int r = resume(engine, p, &step);

	if (r == 0 && p->rank == 0)
		printf("%d ranks start after step %" PRIu64 "\n", p->world, step);
	while (r == 0 && step < last) {
		train_one_step(p, ++step);
		if (step % EVERY == 0)
			r = save(engine, p, step);
	}
	if (r < 0)
		return r;
	sum = sum_of_all(p);
	if (p->rank == 0)
		printf("finished at step %" PRIu64 ", sum %.3f\n", step, sum);
	return 0;
}

static int run(const char *store, uint64_t last, const struct part *p)
{
	struct ckpt_engine_opts opts = {0};
	struct ckpt_engine *engine = NULL;
	struct exchange exchange;
	char session[64] = "";
	int r;

	/* No other start of the job has this name. */
	if (p->rank == 0)
		snprintf(session, sizeof(session), "mpi-%lld-%ld", (long long)time(NULL),
			(long)getpid());
	MPI_Bcast(session, sizeof(session), MPI_CHAR, 0, MPI_COMM_WORLD);
	r = exchange_start(&exchange, p->rank, p->world);
	if (r < 0) {
		failed("exchange", r);
		return r;
	}
	opts.size = sizeof(opts);
	opts.keep_last = 3;
	opts.pool_bytes = 64 << 20;
	opts.rank = (uint32_t)p->rank;
	opts.world = (uint32_t)p->world;
	opts.session = session;
	opts.exchange = exchange.server;
	r = ckpt_engine_open(store, &opts, &engine);
	if (r < 0)
		failed(store, r);
	else
		r = train(engine, p, last);
	ckpt_engine_close(engine);
	/* Not after a failure: the others may be waiting for this one in a collective, until it aborts. */
	if (r == 0)
		exchange_stop(&exchange);
	return r;
}

int main(int argc, char **argv)
{
	struct part p = {0};
	int provided;
	int r = -EINVAL;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &p.world);
	p.first = (int64_t)ROWS * p.rank / p.world;
	p.count = (int64_t)ROWS * (p.rank + 1) / p.world - p.first;
	p.values = calloc((size_t)p.count * COLUMNS + 1, sizeof(*p.values));
	if (argc != 3 && p.rank == 0)
		fprintf(stderr, "usage: mpiexec -n RANKS %s STORE STEPS\n", argv[0]);
	else if (provided < MPI_THREAD_MULTIPLE && p.rank == 0)
		fputs("this MPI does not allow several threads to call it\n", stderr);
	else if (argc == 3 && provided >= MPI_THREAD_MULTIPLE && p.values)
		r = run(argv[1], strtoull(argv[2], NULL, 10), &p);
	free(p.values);
	/* The others may be waiting for this one. */
	if (r < 0)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
