/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public API of <ckpt/ckpt.h> as cffi reads it: the declarations and nothing else. Kept by hand.
 * What differs from the headers does not compile, and tests/python/test_cdef.py compares the names
 * with the symbol map.
 */

/* version.h */
#define CKPT_VERSION_MAJOR ...
#define CKPT_VERSION_MINOR ...
#define CKPT_VERSION_PATCH ...
#define CKPT_FORMAT_MAJOR  ...
#define CKPT_FORMAT_MINOR  ...

const char *ckpt_version(void);
const char *ckpt_features(void);

/* types.h */
struct ckpt_engine;
struct ckpt_save;
struct ckpt_restore;
struct ckpt_catalog;
struct ckpt_exchange_server;

#define CKPT_STEP_LATEST ...
#define CKPT_STEP_MAX    ...
#define CKPT_NDIM_MAX    ...
#define CKPT_NAME_MAX    ...
#define CKPT_FOREVER     ...

enum ckpt_level {
	CKPT_LEVEL_STAGED = 1,
	CKPT_LEVEL_LOCAL = 2,
	CKPT_LEVEL_REPLICATED = 3,
	CKPT_LEVEL_REMOTE = 4,
};

enum ckpt_dtype {
	CKPT_BOOL = 1,
	CKPT_U8 = 2,
	CKPT_I8 = 3,
	CKPT_U16 = 4,
	CKPT_I16 = 5,
	CKPT_U32 = 6,
	CKPT_I32 = 7,
	CKPT_U64 = 8,
	CKPT_I64 = 9,
	CKPT_F16 = 10,
	CKPT_BF16 = 11,
	CKPT_F32 = 12,
	CKPT_F64 = 13,
	CKPT_F8_E4M3 = 14,
	CKPT_F8_E5M2 = 15,
	CKPT_F8_E8M0 = 16,
	CKPT_C64 = 17,
	CKPT_C128 = 18,
	CKPT_C32 = 19,
	CKPT_F8_E4M3FNUZ = 20,
	CKPT_F8_E5M2FNUZ = 21,
	CKPT_F4_X2 = 22,
	CKPT_DTYPE_END = 23,
};

enum ckpt_device_kind {
	CKPT_DEVICE_HOST = 0,
	CKPT_DEVICE_CUDA = 1,
};

#define CKPT_TENSOR_EAGER  ...
#define CKPT_TENSOR_SHARED ...
#define CKPT_TENSOR_VARIES ...

struct ckpt_stream {
	uint32_t size;
	uint32_t device;
	int32_t device_index;
	uint32_t reserved;
	uintptr_t handle;
};

struct ckpt_tensor {
	uint32_t size;
	uint32_t flags;
	const char *name;
	uint32_t dtype;
	uint32_t ndim;
	const int64_t *shape;
	const int64_t *strides;
	const void *data;
	uint32_t device;
	int32_t device_index;
	const int64_t *global_shape;
	const int64_t *global_start;
};

struct ckpt_tensor_info {
	uint32_t size;
	uint32_t dtype;
	uint32_t ndim;
	uint32_t rank;
	const char *name;
	const int64_t *shape;
	uint64_t nbytes;
	uint64_t offset;
	const char *alias_of;
	uint32_t pieces;
	uint32_t reserved;
};

/* error.h */
enum {
	CKPT_EINTEGRITY = -10001,
	CKPT_EINCOMPLETE = -10002,
	CKPT_EFORMAT = -10003,
	CKPT_EVERSION = -10004,
	CKPT_ENOSTORE = -10005,
	CKPT_ENOSTEP = -10006,
	CKPT_EINUSE = -10007,
	CKPT_EFENCED = -10008,
	CKPT_ENOTRESUMED = -10009,
	CKPT_ESTEP = -10010,
	CKPT_ETORN = -10011,
	CKPT_EABORTED = -10012,
	CKPT_ESKIPPED = -10013,
	CKPT_ECLOSED = -10014,
	CKPT_EFORKED = -10015,
	CKPT_ELEVEL = -10016,
	CKPT_EMISMATCH = -10017,
	CKPT_EUNSUPPORTED = -10018,
	CKPT_EDEVICE = -10019,
	CKPT_EAUTH = -10020,
	CKPT_ENETWORK = -10021,
	CKPT_EQUARANTINED = -10022,
	CKPT_EOTHERNODE = -10023,
	CKPT_EREPLICA = -10024,
};

struct ckpt_error {
	uint32_t size;
	int32_t code;
	int32_t sys_errno;
	int32_t http_status;
	int64_t step;
	int64_t offset;
	int32_t rank;
	int32_t repaired;
	char tier[16];
	char tensor[256];
	char file[512];
	char message[1024];
};

const char *ckpt_strerror(int code);
const char *ckpt_last_error(void);
int ckpt_last_error_record(struct ckpt_error *ret_error);

/* exchange.h */
#define CKPT_EXCHANGE_BATCH     ...
#define CKPT_EXCHANGE_VALUE_MAX ...

enum ckpt_exchange_verb {
	CKPT_EXCHANGE_PUT = 1,
	CKPT_EXCHANGE_GET = 2,
	CKPT_EXCHANGE_DROP = 3,
};

struct ckpt_exchange_request {
	uint32_t size;
	uint32_t verb;
	uint64_t id;
	uint32_t count;
	uint32_t timeout_ms;
	const char *const *keys;
	const void *const *values;
	const uint64_t *lengths;
};

struct ckpt_exchange_answer {
	uint32_t size;
	int32_t result;
	uint64_t id;
	const void *const *values;
	const uint64_t *lengths;
	const char *reason;
};

int ckpt_exchange_server_new(struct ckpt_exchange_server **ret_server);
void ckpt_exchange_server_free(struct ckpt_exchange_server *server);
void ckpt_exchange_server_stop(struct ckpt_exchange_server *server);
int ckpt_exchange_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request);
int ckpt_exchange_reply(
	struct ckpt_exchange_server *server, const struct ckpt_exchange_answer *answer);

/* engine.h */
enum ckpt_replica_policy {
	CKPT_REPLICAS_CHECK = 0,
	CKPT_REPLICAS_WARN = 1,
};
enum ckpt_busy {
	CKPT_BUSY_WAIT = 0,
	CKPT_BUSY_SKIP = 1,
};

enum ckpt_io_kind {
	CKPT_IO_AUTO = 0,
	CKPT_IO_URING = 1,
	CKPT_IO_THREADS = 2,
};

struct ckpt_engine_opts {
	uint32_t size;
	uint32_t flags;
	uint64_t pool_bytes;
	uint32_t block_bytes;
	uint32_t copy_threads;
	uint32_t io;
	uint32_t io_depth;
	uint32_t busy;
	uint32_t save_timeout_ms;
	uint64_t keep_last;
	uint64_t keep_every;
	uint32_t log_level;
	uint32_t rank;
	uint32_t world;
	uint32_t node_ranks;
	const char *session;
	struct ckpt_exchange_server *exchange;
	uint32_t node_leader;
	uint32_t cuda_major;
	const char *node;
	const char *remote;
	uint64_t remote_every;
	uint64_t remote_bytes_per_s;
	uint32_t remote_tries;
	uint64_t remote_keep_last;
	uint64_t remote_keep_every;
	uint32_t remote_grace_s;
	uint32_t reserved;
	uint32_t replicas;
};

#define CKPT_ENGINE_NEW_START  ...
#define CKPT_ENGINE_READ_ONLY  ...
#define CKPT_ENGINE_NODE_STORE ...
#define CKPT_ENGINE_LOST_NODES ...
#define CKPT_ENGINE_NO_IMPORT  ...

int ckpt_engine_open(
	const char *path, const struct ckpt_engine_opts *opts, struct ckpt_engine **ret_engine);
int ckpt_engine_import(const char *path, const struct ckpt_engine_opts *opts,
	uint64_t *ret_generation, uint64_t *ret_step);
int ckpt_engine_bring_ranks(const char *path, const struct ckpt_engine_opts *opts,
	const uint32_t *ranks, size_t count, uint32_t world, uint64_t *ret_generation,
	uint64_t *ret_step);
int ckpt_engine_drain(struct ckpt_engine *engine, int timeout_ms);
int ckpt_engine_drain_remote(struct ckpt_engine *engine, int timeout_ms);
void ckpt_engine_close(struct ckpt_engine *engine);
int ckpt_engine_latest(struct ckpt_engine *engine, uint64_t *ret_step);
int ckpt_engine_claim(struct ckpt_engine *engine, uint64_t *ret_generation);
int ckpt_engine_pin(struct ckpt_engine *engine, uint64_t step);
int ckpt_engine_unpin(struct ckpt_engine *engine, uint64_t step);
int ckpt_engine_eventfd(const struct ckpt_engine *engine);

enum ckpt_unchecked {
	CKPT_UNCHECKED_GPU = 1,
	CKPT_UNCHECKED_MEMORY = 2,
	CKPT_UNCHECKED_BOXES = 4,
	CKPT_UNCHECKED_MANY = 8,
};

int ckpt_engine_own(struct ckpt_engine *engine, uint64_t group);
uint64_t ckpt_engine_unchecked(const struct ckpt_engine *engine, const char **ret_boxes);

struct ckpt_stats {
	uint32_t size;
	uint32_t io;
	uint32_t io_direct;
	uint32_t io_registered;
	uint64_t generation;
	uint64_t saves_started;
	uint64_t saves_committed;
	uint64_t saves_failed;
	uint64_t saves_skipped;
	uint64_t saves_waited;
	uint64_t saves_waited_ns;
	uint64_t bytes_staged;
	uint64_t bytes_written;
	uint64_t bytes_read;
	uint64_t fsyncs;
	uint64_t steps_removed;
	uint64_t pool_bytes;
	uint64_t pool_touched;
	uint64_t pool_starved;
	uint64_t pool_huge;
	uint64_t last_step;
	uint64_t last_stage_ns;
	uint64_t last_local_ns;
	uint64_t last_eager_ns;
	uint64_t threads;
	uint64_t bytes_uploaded;
	uint64_t uploads_done;
	uint64_t uploads_failed;
	uint64_t uploads_retried;
	uint64_t uploads_waiting;
	uint64_t uploads_waiting_bytes;
	uint64_t remote_generation;
	uint64_t remote_step;
	uint64_t remote_wall_ms;
	uint64_t remote_steps_deleting;
	uint64_t remote_steps_removed;
	uint64_t remote_failing_ms;
	int64_t remote_code;
	uint64_t bytes_uploaded_staged;
	uint64_t unchecked;
};

int ckpt_engine_stats(struct ckpt_engine *engine, struct ckpt_stats *ret_stats);

enum ckpt_log_level {
	CKPT_LOG_ERROR = 1,
	CKPT_LOG_WARN = 2,
	CKPT_LOG_INFO = 3,
	CKPT_LOG_DEBUG = 4,
};

struct ckpt_log_record {
	uint32_t size;
	uint32_t level;
	uint64_t wall_ms;
	uint64_t dropped;
	char message[1024];
};

int ckpt_engine_log(struct ckpt_engine *engine, int timeout_ms, struct ckpt_log_record *ret_record);
void ckpt_engine_stop_log(struct ckpt_engine *engine);

/* save.h */
struct ckpt_save_opts {
	uint32_t size;
	uint32_t flags;
	uint32_t timeout_ms;
	uint32_t reserved;
};

#define CKPT_SAVE_FENCED ...

int ckpt_save_begin(struct ckpt_engine *engine, uint64_t step, const struct ckpt_save_opts *opts,
	struct ckpt_save **ret_save);
int ckpt_save_add(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count);
int ckpt_save_add_alias(struct ckpt_save *save, const char *alias, const char *name);
int ckpt_save_set_meta(struct ckpt_save *save, const char *json, size_t length);
int ckpt_save_set_streams(struct ckpt_save *save, const struct ckpt_stream *streams, size_t count);
int ckpt_save_set_common(struct ckpt_save *save, const void *data, size_t length);
int ckpt_save_set_balance(struct ckpt_save *save, uint64_t balance);
int ckpt_save_add_replicas(
	struct ckpt_save *save, uint64_t group, const struct ckpt_tensor *tensors, size_t count);
enum ckpt_own {
	CKPT_OWN_NONE = 0,
	CKPT_OWN_UNKNOWN = 1,
	CKPT_OWN_DIFFERS = 2,
};

int ckpt_save_set_own(struct ckpt_save *save, uint64_t group, enum ckpt_own own);
int ckpt_save_replicas(struct ckpt_save *save, struct ckpt_error *ret_error);
int ckpt_save_ready(struct ckpt_save *save, int timeout_ms);
int ckpt_save_start(struct ckpt_save *save);
int ckpt_save_wait_eager(struct ckpt_save *save, int timeout_ms);
int ckpt_save_fence(struct ckpt_save *save, int timeout_ms);
int ckpt_save_fail(struct ckpt_save *save, int code, const char *tensor, const char *why);
int ckpt_save_wait(struct ckpt_save *save, enum ckpt_level level, int timeout_ms);
void ckpt_save_cancel(struct ckpt_save *save);
int ckpt_save_error(struct ckpt_save *save, struct ckpt_error *ret_error);

struct ckpt_save_info {
	uint32_t size;
	uint32_t staged;
	uint32_t local;
	uint32_t failed;
	uint64_t step;
	uint64_t generation;
	uint64_t bytes;
	uint64_t bytes_staged;
	uint64_t bytes_written;
	uint64_t eager_ns;
	uint64_t stage_ns;
	uint64_t local_ns;
	uint64_t starved_ns;
	uint64_t durable_ns;
};

int ckpt_save_info(struct ckpt_save *save, struct ckpt_save_info *ret_info);
void ckpt_save_free(struct ckpt_save *save);

/* restore.h */
int ckpt_restore_open(struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);
uint64_t ckpt_restore_step(const struct ckpt_restore *restore);
uint64_t ckpt_restore_generation(const struct ckpt_restore *restore);
uint32_t ckpt_restore_number(const struct ckpt_restore *restore);
uint32_t ckpt_restore_world(const struct ckpt_restore *restore);
const char *ckpt_restore_replicas(const struct ckpt_restore *restore);
size_t ckpt_restore_count(const struct ckpt_restore *restore);
int ckpt_restore_tensor(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info);
int ckpt_restore_find(const struct ckpt_restore *restore, const char *name, size_t *ret_index);
int ckpt_restore_meta(
	const struct ckpt_restore *restore, const char **ret_json, size_t *ret_length);
int ckpt_restore_rank_node(const struct ckpt_restore *restore, uint32_t rank, const char **ret_node,
	uint32_t *ret_other_node);
int ckpt_restore_rank_meta(const struct ckpt_restore *restore, uint32_t rank, const char **ret_json,
	size_t *ret_length);

struct ckpt_target {
	uint32_t size;
	uint32_t device;
	int32_t device_index;
	uint32_t dtype;
	const char *name;
	uint64_t offset;
	uint64_t length;
	void *data;
	uint32_t ndim;
	uint32_t flags;
	const int64_t *shape;
	const int64_t *strides;
	const int64_t *start;
};

#define CKPT_TARGET_SHARED ...

int ckpt_restore_bind(
	struct ckpt_restore *restore, const struct ckpt_target *targets, size_t count);
int ckpt_restore_start(struct ckpt_restore *restore);
int ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms);
int ckpt_restore_progress(struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total);
void ckpt_restore_cancel(struct ckpt_restore *restore);
int ckpt_restore_adopt(struct ckpt_restore *restore);
int ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error);
void ckpt_restore_free(struct ckpt_restore *restore);

/* catalog.h */
enum ckpt_step_state {
	CKPT_STEP_COMMITTED = 1,
	CKPT_STEP_ABORTED = 2,
	CKPT_STEP_PENDING = 3,
	CKPT_STEP_QUARANTINED = 4,
	CKPT_STEP_BROKEN = 5,
};

enum ckpt_remote_state {
	CKPT_REMOTE_UNKNOWN = 0,
	CKPT_REMOTE_UPLOADED = 1,
	CKPT_REMOTE_PENDING = 2,
	CKPT_REMOTE_EXCLUDED = 3,
	CKPT_REMOTE_FAILED = 4,
};

struct ckpt_step_info {
	uint32_t size;
	uint32_t state;
	uint64_t step;
	uint64_t generation;
	uint64_t wall_ms;
	uint64_t bytes;
	uint32_t world;
	uint32_t in_lineage;
	char attempt[32];
	char note[256];
	int32_t code;
	uint32_t passed_over;
	uint32_t deleting;
	uint32_t expired;
	uint32_t remote;
	int32_t remote_code;
};

int ckpt_catalog_open(struct ckpt_engine *engine, struct ckpt_catalog **ret_catalog);
size_t ckpt_catalog_count(const struct ckpt_catalog *catalog);
int ckpt_catalog_step(
	const struct ckpt_catalog *catalog, size_t index, struct ckpt_step_info *ret_info);
int ckpt_catalog_error(const struct ckpt_catalog *catalog, struct ckpt_error *ret_error);
const char *ckpt_catalog_run_id(const struct ckpt_catalog *catalog);

struct ckpt_remote_info {
	uint32_t size;
	int32_t code;
	uint64_t wall_ms;
	uint64_t generation;
	uint64_t every;
	uint64_t uploaded_generation;
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms;
	uint64_t waiting;
	uint64_t failures;
	uint64_t failing_wall_ms;
	uint64_t next_wall_ms;
	char node[72];
	char reason[512];
	char remote[4608];
};

int ckpt_catalog_remote(const struct ckpt_catalog *catalog, struct ckpt_remote_info *ret_info);
void ckpt_catalog_free(struct ckpt_catalog *catalog);

struct ckpt_finding {
	uint32_t size;
	uint32_t rank;
	uint64_t step;
	uint64_t generation;
	struct ckpt_error error;
	char node[72];
};

int ckpt_verify_start(struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);
int ckpt_verify_quick_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);
size_t ckpt_verify_count(const struct ckpt_restore *restore);
int ckpt_verify_finding(
	const struct ckpt_restore *restore, size_t index, struct ckpt_finding *ret_finding);
int ckpt_export_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	struct ckpt_restore **ret_restore);
int ckpt_export_ranks_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const uint32_t *ranks, size_t count, struct ckpt_restore **ret_restore);
int ckpt_export_existed(const struct ckpt_restore *restore);
int ckpt_catalog_remove(struct ckpt_engine *engine, uint64_t step);
int ckpt_catalog_expire(struct ckpt_catalog *catalog, uint64_t keep_last, uint64_t keep_every);
int ckpt_catalog_mark(struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);
int ckpt_catalog_unmark(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);
int ckpt_catalog_remove_marked(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);
