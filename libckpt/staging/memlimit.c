/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the kernel's texts about memory, with care: containers show all kinds of them. */
#include "staging/memlimit.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/procfs.h"

#define BUDGET_MIN (UINT64_C(32) << 20)
#define BUDGET_MAX (UINT64_C(1) << 30)

#define NO_LIMIT  (UINT64_C(1) << 62) /* v1 reports "none" as a number just below 2^63 */
#define RANKS_MAX 4096

/* Bounds that apply to all processes of a machine. */
#define ID_MACHINE 1
#define ID_COMMIT  2
#define ID_FIRST   3 /* lowest id of other bounds */

/* Parses decimal digits; their end is *ret_end. Saturates. False: there are none. */
static bool parse_number(const char *text, uint64_t *ret_value, const char **ret_end)
{
	uint64_t value = 0;
	bool overflow = false;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++) {
		overflow |= __builtin_mul_overflow(value, 10, &value);
		overflow |= __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value);
	}
	*ret_value = overflow ? UINT64_MAX : value;
	*ret_end = p;
	return p != text;
}

bool ckpt_memlimit_field(const char *text, const char *key, uint64_t *ret_bytes)
{
	size_t len = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		const char *end;
		uint64_t value;

		line += *line == '\n';
		if (strncmp(line, key, len) != 0 || !strchr(": \t", line[len]) || !line[len])
			continue;
		if (!parse_number(line + len + strspn(line + len, ": \t"), &value, &end))
			return false;
		if (strncmp(end, " kB", 3) == 0 && __builtin_mul_overflow(value, 1024, &value))
			return false;
		*ret_bytes = value;
		return true;
	}
	return false;
}

uint64_t ckpt_memlimit_value(const char *text)
{
	const char *end;
	uint64_t value;

	if (!parse_number(text, &value, &end) || value >= NO_LIMIT)
		return UINT64_MAX;
	return value;
}

/* Whether `word` is one of the comma-separated items between `list` and `end`. */
static bool has_item(const char *list, const char *end, const char *word)
{
	size_t len = strlen(word);

	while (list < end) {
		const char *comma = memchr(list, ',', (size_t)(end - list));
		const char *stop = comma ? comma : end;

		if ((size_t)(stop - list) == len && memcmp(list, word, len) == 0)
			return true;
		list = stop + 1;
	}
	return false;
}

/* Words and lines of a text; never past its end. */
struct span {
	const char *at;
	size_t len;
};

static struct span next_line(const char **text)
{
	struct span line = {*text, strcspn(*text, "\n")};

	*text += line.len + ((*text)[line.len] == '\n');
	return line;
}

static struct span next_word(struct span *line)
{
	struct span word = {line->at, 0};

	while (word.len < line->len && word.at[word.len] != ' ')
		word.len++;
	line->at += word.len;
	line->len -= word.len;
	if (line->len > 0) {
		line->at++;
		line->len--;
	}
	return word;
}

static bool equals(struct span span, const char *text)
{
	return span.len == strlen(text) && memcmp(span.at, text, span.len) == 0;
}

/* The group's path in its hierarchy, from lines "number:controllers:path". */
static bool find_path(const char *groups, bool v2, struct span *ret_path)
{
	while (*groups) {
		struct span line = next_line(&groups);
		const char *end = line.at + line.len;
		const char *list = memchr(line.at, ':', line.len);
		const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;

		if (!path)
			continue;
		if (v2 ? path == list + 1 : has_item(list + 1, path, "memory")) {
			*ret_path = (struct span){path + 1, (size_t)(end - path - 1)};
			return true;
		}
	}
	return false;
}

/* The mount point of that hierarchy, and the directory that is its root there. */
static bool find_mount(const char *mounts, bool v2, struct span *ret_root, struct span *ret_point)
{
	while (*mounts) {
		struct span line = next_line(&mounts);
		struct span word = {NULL, 0};
		struct span type;
		bool found;

		/* "36 35 98:0 /root /point options [optional fields] - type source options" */
		for (int i = 0; i < 3; i++)
			(void)next_word(&line);
		*ret_root = next_word(&line);
		*ret_point = next_word(&line);
		while (line.len > 0 && !equals(word, "-"))
			word = next_word(&line);
		type = next_word(&line);
		(void)next_word(&line);
		found = v2 ? equals(type, "cgroup2")
			   : equals(type, "cgroup") &&
					has_item(line.at, line.at + line.len, "memory");
		if (found)
			return true;
	}
	return false;
}

bool ckpt_memlimit_group(const char *groups, const char *mounts, bool v2, char *ret_dir,
	size_t size, size_t *ret_top)
{
	struct span path;
	struct span root;
	struct span point;
	int n;

	if (!find_path(groups, v2, &path) || !find_mount(mounts, v2, &root, &point))
		return false;
	/* In a container the mount shows only a part of the hierarchy, and the path may be the host's. */
	if (!equals(root, "/")) {
		bool below = path.len >= root.len && memcmp(path.at, root.at, root.len) == 0 &&
			     (path.len == root.len || path.at[root.len] == '/');

		path.at += below ? root.len : 0;
		path.len = below ? path.len - root.len : 0;
	}
	/* "/.." is outside of this mount. */
	if (equals(path, "/") || (path.len >= 3 && memcmp(path.at, "/..", 3) == 0))
		path.len = 0;
	n = snprintf(ret_dir, size, "%.*s%.*s", (int)point.len, point.at, (int)path.len, path.at);
	if (n < 0 || (size_t)n >= size)
		return false;
	*ret_top = point.len;
	return true;
}

static uint64_t read_value(const char *root, const char *dir, const char *name)
{
	struct ckpt_buf text = {0};
	char path[PATH_MAX];
	uint64_t value = UINT64_MAX;
	int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

	if (n > 0 && (size_t)n < sizeof(path) && ckpt_procfs_read(root, path, &text))
		value = ckpt_memlimit_value(text.data);
	ckpt_buf_free(&text);
	return value;
}

/* The sum of two fields; missing ones count as zero. */
static uint64_t sum_fields(const char *text, const char *const keys[2])
{
	uint64_t sum = 0;

	for (int i = 0; i < 2; i++) {
		uint64_t bytes;

		if (ckpt_memlimit_field(text, keys[i], &bytes) &&
			__builtin_add_overflow(sum, bytes, &sum))
			sum = UINT64_MAX;
	}
	return sum;
}

/*
 * Bytes of the group's clean page cache, which the kernel drops before it kills. Dirty pages have to be written first.
 */
static uint64_t read_cache(const char *root, const char *dir, bool v2)
{
	static const char *const cached[2][2] = {
		{"total_inactive_file", "total_active_file"}, {"inactive_file", "active_file"}};
	static const char *const dirty[2][2] = {
		{"total_dirty", "total_writeback"}, {"file_dirty", "file_writeback"}};
	struct ckpt_buf text = {0};
	char path[PATH_MAX];
	uint64_t cache = 0;
	int n = snprintf(path, sizeof(path), "%s/memory.stat", dir);

	if (n > 0 && (size_t)n < sizeof(path) && ckpt_procfs_read(root, path, &text)) {
		cache = sum_fields(text.data, cached[v2]);
		cache -= ckpt_min_u64(cache, sum_fields(text.data, dirty[v2]));
	}
	ckpt_buf_free(&text);
	return cache;
}

static void lower(struct ckpt_memlimit *limit, uint64_t available, const char *bound)
{
	if (available >= limit->available)
		return;
	limit->available = available;
	limit->bound = bound;
}

static void add_bound(
	struct ckpt_memlimit *limit, const struct ckpt_memlimit_bound *bound, const char *words)
{
	lower(limit, bound->available, words);
	if (limit->bound_count < CKPT_MEMLIMIT_BOUNDS)
		limit->bounds[limit->bound_count++] = *bound;
	else
		limit->bounds_lost = true;
}

/* Id of a control group's directory. A container may show it under another name, but it is the same inode. */
static bool group_id(const char *root, const char *dir, uint64_t *ret_id)
{
	char path[PATH_MAX];
	struct stat st;
	int n = snprintf(path, sizeof(path), "%s%s", root, dir);

	if (n < 0 || (size_t)n >= sizeof(path) || stat(path, &st) < 0)
		return false;
	*ret_id = (uint64_t)st.st_ino * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)st.st_dev;
	*ret_id = ckpt_max_u64(*ret_id, ID_FIRST);
	return true;
}

/* Adds one group: its limit, and what it and its children use already. */
static void add_group(const char *root, const char *dir, bool v2, struct ckpt_memlimit *limit)
{
	uint64_t most = read_value(root, dir, v2 ? "memory.max" : "memory.limit_in_bytes");
	struct ckpt_memlimit_bound bound = {0};
	uint64_t used;

	if (v2) /* above it the group is throttled heavily */
		most = ckpt_min_u64(most, read_value(root, dir, "memory.high"));
	if (most == UINT64_MAX)
		return;
	limit->limit = ckpt_min_u64(limit->limit, most);
	used = read_value(root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
	if (used == UINT64_MAX) {
		limit->unsure = true;
		used = 0;
	}
	used -= ckpt_min_u64(used, read_cache(root, dir, v2));
	bound.limit = most;
	bound.available = most - ckpt_min_u64(most, used);
	if (!group_id(root, dir, &bound.id))
		limit->bounds_lost = true;
	add_bound(limit, &bound, "the limit of the control group");
}

/* Adds the group of this process and its ancestors, each of which has its own limit. */
static void add_groups(const char *root, const char *groups, const char *mounts, bool v2,
	struct ckpt_memlimit *limit)
{
	char dir[PATH_MAX];
	size_t top;

	if (!ckpt_memlimit_group(groups, mounts, v2, dir, sizeof(dir), &top))
		return;
	for (;;) {
		char *slash;

		add_group(root, dir, v2, limit);
		slash = strrchr(dir, '/');
		if (!slash || (size_t)(slash - dir) < top)
			return;
		*slash = 0;
	}
}

static void add_machine(const char *root, struct ckpt_memlimit *limit)
{
	struct ckpt_buf text = {0};
	uint64_t bytes;
	uint64_t used;

	if (!ckpt_procfs_read(root, "/proc/meminfo", &text))
		return;
	if (ckpt_memlimit_field(text.data, "MemTotal", &bytes))
		limit->limit = ckpt_min_u64(limit->limit, bytes);
	if (ckpt_memlimit_field(text.data, "MemAvailable", &bytes))
		add_bound(limit,
			&(struct ckpt_memlimit_bound){
				.id = ID_MACHINE, .limit = limit->limit, .available = bytes},
			"the memory of this machine that is free");
	/* With strict accounting, memory beyond the commit limit causes SIGBUS when touched. */
	if (read_value(root, "/proc/sys/vm", "overcommit_memory") == 2 &&
		ckpt_memlimit_field(text.data, "CommitLimit", &bytes) &&
		ckpt_memlimit_field(text.data, "Committed_AS", &used))
		add_bound(limit,
			&(struct ckpt_memlimit_bound){.id = ID_COMMIT,
				.limit = limit->limit,
				.available = bytes - ckpt_min_u64(bytes, used)},
			"the commit limit of this machine (vm.overcommit_memory is 2)");
	ckpt_buf_free(&text);
}

bool ckpt_memlimit_list(const char *text, uint64_t ret_set[CKPT_MEMLIMIT_NODES / 64])
{
	memset(ret_set, 0, CKPT_MEMLIMIT_NODES / 8);
	while (*text && *text != '\n') {
		uint64_t first;
		uint64_t last;

		if (!parse_number(text, &first, &text))
			return false;
		last = first;
		if (*text == '-' && !parse_number(text + 1, &last, &text))
			return false;
		if (last < first || last >= CKPT_MEMLIMIT_NODES)
			return false;
		for (uint64_t i = first; i <= last; i++)
			ret_set[i / 64] |= UINT64_C(1) << i % 64;
		text += *text == ',';
	}
	return true;
}

/* The nodes that have memory, and those of them that this process may use. False: unknown. */
static bool read_nodes(const char *root, uint64_t nodes[CKPT_MEMLIMIT_NODES / 64],
	uint64_t allowed[CKPT_MEMLIMIT_NODES / 64])
{
	static const char key[] = "\nMems_allowed_list:";
	struct ckpt_buf status = {0};
	struct ckpt_buf list = {0};
	bool known = false;

	if (ckpt_procfs_read(root, "/proc/self/status", &status) &&
		ckpt_procfs_read(root, "/sys/devices/system/node/has_memory", &list)) {
		const char *line = strstr(status.data, key);

		if (line) {
			line += sizeof(key) - 1;
			known = ckpt_memlimit_list(line + strspn(line, " \t"), allowed) &&
				ckpt_memlimit_list(list.data, nodes);
		}
	}
	ckpt_buf_free(&status);
	ckpt_buf_free(&list);
	return known;
}

/* A field of a node's text, 0 if it is missing. */
static uint64_t node_field(const char *text, unsigned node, const char *name)
{
	char key[64];
	uint64_t bytes = 0;

	(void)snprintf(key, sizeof(key), "Node %u %s", node, name);
	return ckpt_memlimit_field(text, key, &bytes) ? bytes : 0;
}

/* Adds a node's total memory, and what is available: free memory and clean page cache. */
static void add_node(const char *root, unsigned node, uint64_t *all, uint64_t *available)
{
	struct ckpt_buf text = {0};
	char path[64];

	(void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo", node);
	if (ckpt_procfs_read(root, path, &text)) {
		uint64_t cache = node_field(text.data, node, "Active(file)") +
				 node_field(text.data, node, "Inactive(file)");
		uint64_t dirty = node_field(text.data, node, "Dirty") +
				 node_field(text.data, node, "Writeback");

		*all += node_field(text.data, node, "MemTotal");
		*available += node_field(text.data, node, "MemFree");
		*available += cache - ckpt_min_u64(cache, dirty);
	}
	ckpt_buf_free(&text);
}

/* Only memory of the NUMA nodes that this process may use (cpuset) counts. */
static void add_nodes(const char *root, struct ckpt_memlimit *limit)
{
	uint64_t nodes[CKPT_MEMLIMIT_NODES / 64];
	uint64_t allowed[CKPT_MEMLIMIT_NODES / 64];
	struct ckpt_memlimit_bound bound = {0};
	bool some = false;

	if (!read_nodes(root, nodes, allowed))
		return;
	for (unsigned i = 0; i < CKPT_MEMLIMIT_NODES; i++) {
		if (!(nodes[i / 64] >> i % 64 & 1))
			continue;
		if (allowed[i / 64] >> i % 64 & 1) {
			add_node(root, i, &bound.limit, &bound.available);
			limit->nodes |= UINT64_C(1) << i % 64;
		} else {
			some = true;
		}
	}
	if (!some || bound.limit == 0)
		return;
	limit->limit = ckpt_min_u64(limit->limit, bound.limit);
	bound.nodes = limit->nodes;
	bound.id = ckpt_max_u64(bound.nodes * UINT64_C(0x9e3779b97f4a7c15), ID_FIRST);
	add_bound(limit, &bound, "the NUMA nodes that this process may use");
}

void ckpt_memlimit_read(const char *root, struct ckpt_memlimit *ret_limit)
{
	struct ckpt_buf groups = {0};
	struct ckpt_buf mounts = {0};

	*ret_limit = (struct ckpt_memlimit){
		.limit = UINT64_MAX, .available = UINT64_MAX, .bound = "nothing"};
	add_machine(root, ret_limit);
	add_nodes(root, ret_limit);
	if (ckpt_procfs_read(root, "/proc/self/cgroup", &groups) &&
		ckpt_procfs_read(root, "/proc/self/mountinfo", &mounts)) {
		add_groups(root, groups.data, mounts.data, true, ret_limit);
		add_groups(root, groups.data, mounts.data, false, ret_limit);
	}
	ckpt_buf_free(&groups);
	ckpt_buf_free(&mounts);
}

uint32_t ckpt_memlimit_ranks(uint32_t node_ranks, const char *local_world_size)
{
	uint64_t ranks;
	const char *end;

	if (node_ranks > 0)
		return node_ranks;
	if (!local_world_size || !parse_number(local_world_size, &ranks, &end) || *end != 0 ||
		ranks > RANKS_MAX)
		return 0;
	return (uint32_t)ranks;
}

uint64_t ckpt_memlimit_budget(const struct ckpt_memlimit *memory, uint32_t ranks)
{
	uint64_t bytes;

	CKPT_ASSERT(ranks > 0);
	/* If the machine reports nothing, take little. */
	if (memory->limit == UINT64_MAX || memory->unsure)
		return BUDGET_MIN;
	bytes = ckpt_min_u64(BUDGET_MAX, memory->limit / ranks / 8);
	if (memory->available != UINT64_MAX)
		bytes = ckpt_min_u64(bytes, ckpt_memlimit_share(memory, 0, ranks));
	return ckpt_max_u64(BUDGET_MIN, bytes);
}

uint64_t ckpt_memlimit_share(const struct ckpt_memlimit *memory, uint64_t held, uint32_t ranks)
{
	uint64_t all;

	CKPT_ASSERT(ranks > 0);
	if (memory->available == UINT64_MAX || memory->unsure)
		return 0;
	if (__builtin_mul_overflow(held, ranks, &all) ||
		__builtin_add_overflow(all, memory->available, &all))
		all = UINT64_MAX;
	return ckpt_min_u64(all, memory->limit) / 2 / ranks;
}
