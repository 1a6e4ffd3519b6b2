/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks hold alike, and one of them saves for all: digests by which they prove that it is alike. A
 * group is the ranks that hold the same tensors. Each rank tells rank 0 sums of digests, of each of its groups; where
 * two of them differ, the same sums say which tensors do.
 *
 * Until a commit has proved a tensor, its digest is of all bytes (of a GPU: of lines of every 256 KiB). From then on it
 * is of the lines of samples, at other places at each step, and the same places on all ranks; and of every 64th piece of
 * 64 KiB, others at each save, so that 64 saves in a row compare all bytes (not of a GPU). Samples are taken of every
 * tensor, so that ranks whose digests are of different kinds have something that can be compared. The kind is one of
 * a whole group: where one tensor is on a GPU of one rank and on the CPU of another, these two compare samples alone, of all.
 *
 * Which pieces have their turn says the number of commits since nothing was proved. Digests of a rank that has counted
 * others are of another kind: samples alone are compared then, nothing is proved any more, and all count anew.
 */
#ifndef CKPT_ENGINE_RANKS_REPLICA_DIGEST_H
#define CKPT_ENGINE_RANKS_REPLICA_DIGEST_H

#include <ckpt/error.h>
#include <ckpt/save.h>
#include <pthread.h>
#include "device/device.h"

struct ckpt_tensor;

/* Groups of one rank. */
#define CKPT_REPLICA_DIGEST_GROUPS 16
/* Levels: of the tensors of a level half are in the next one. */
#define CKPT_REPLICA_DIGEST_LEVELS 12
/* So many times, each with other halves: where one does not tell a name, another one does. */
#define CKPT_REPLICA_DIGEST_TIMES  3
/* So many saves compare all bytes. A power of 2. */
#define CKPT_REPLICA_DIGEST_TURNS  64
/* Bits of ckpt_replica_digest_sums.deep that are 0: `own` is told in them. */
#define CKPT_REPLICA_DIGEST_OWN    UINT32_C(3)
/* What a rank tells, as text, with the final NUL. */
#define CKPT_REPLICA_DIGEST_TEXT   772

/* Of one group. Sums of digests, and of digests each times the hash of its tensor's name; modulo 2^64 and 2^32. */
struct ckpt_replica_digest_sums {
	uint64_t group;
	uint64_t sum;      /* of all tensors */
	uint32_t deep;     /* hash of which tensors this rank has no proof of, and of the turn */
	uint32_t kind;     /* and of whether each is on a GPU: sums of one kind can be compared */
	enum ckpt_own own; /* whether this rank writes copies of its own of them */
	struct ckpt_replica_digest_pair {
		uint32_t sum;
		uint32_t weighed;
	} samples, pairs[CKPT_REPLICA_DIGEST_TIMES *
			   CKPT_REPLICA_DIGEST_LEVELS]; /* of samples alone; of the digests */
	uint32_t
		told; /* how many of these pairs: the first levels of one time, or all of some times */
};

/* How a digest was made. */
enum ckpt_replica_digest_mode {
	CKPT_REPLICA_DIGEST_NONE = 0, /* there is none, so that nothing is compared */
	CKPT_REPLICA_DIGEST_SAMPLES = 's',
	CKPT_REPLICA_DIGEST_FULL = 'f', /* of tensors that are not known */
};

/* A tensor that was given. */
struct ckpt_replica_digest_what {
	uint64_t hash; /* of its name, type and shape */
	uint64_t key;  /* and of its group */
	bool known;    /* proved before */
};

/* What commits have found of groups of which ranks write copies of their own. Any thread. */
struct ckpt_replica_digest_owned {
	pthread_mutex_t lock;
	struct ckpt_replica_digest_group {
		uint64_t group;
		enum ckpt_own own;
	} * groups;
	size_t count;
};

/* Which groups differ, of those of which ranks write copies of their own: a bit for each hash of a group. */
struct ckpt_replica_digest_split {
	bool compared; /* else nothing is known of any group */
	uint64_t differ;
};

/* What a commit has proved. Any thread. */
struct ckpt_replica_digest_proved {
	pthread_mutex_t lock;
	uint64_t fingerprint; /* of the layout; 0: nothing is proved */
	uint64_t *keys;       /* ascending */
	size_t count;
	uint32_t turn; /* of the next save */
};

/* A tensor by name. */
struct ckpt_replica_digest_name {
	uint64_t hash; /* of the name, its type and its shape */
	uint64_t group;
	const char *name;
	bool known;
};

/* Tensors of a GPU, whose samples come later. */
struct ckpt_replica_digest_late {
	uint64_t hash;
	uint32_t place; /* of its group */
	size_t first;   /* segment */
	size_t count;
	size_t deep; /* segments behind these, which lie closer; 0: it is known */
};

/* Tensors as they were given: borrowed until they are digested. */
struct ckpt_replica_digest_given {
	uint64_t group;
	const struct ckpt_tensor *tensors;
	void *copies; /* of them, if they had to be made */
	size_t count;
};

/* Of one save. Zero is empty. */
struct ckpt_replica_digest {
	struct ckpt_replica_digest_given *given;
	size_t given_count;
	enum ckpt_replica_digest_mode mode;
	bool without; /* there was something to compare, and this rank has no digests of it */
	struct ckpt_replica_digest_what *what; /* of all that was given, in that order */
	size_t what_count;
	uint64_t fingerprint; /* of names, types and shapes; never 0 */
	uint32_t turn;        /* says which pieces of known tensors are digested */
	struct ckpt_replica_digest_sums sums[CKPT_REPLICA_DIGEST_GROUPS];
	size_t group_count;
	struct ckpt_replica_digest_name *names; /* NULL: they are not kept */
	size_t name_count;
	char *words; /* of the names */
	char *piece; /* of a tensor whose bytes do not lie together */
	/* Of GPUs. */
	struct ckpt_segment *segments;
	size_t segment_count;
	struct ckpt_replica_digest_late *late;
	size_t late_count;
	uint64_t devices; /* a mask of those that the segments are on */
};

/* The array is borrowed until ckpt_replica_digest_take(); `copies`, or NULL, is freed. -E2BIG: too many groups. -ENOMEM. */
int ckpt_replica_digest_give(struct ckpt_replica_digest *alike, uint64_t group,
	const struct ckpt_tensor *tensors, size_t count, void *copies, struct ckpt_error *err);
/* Of what was given: what it is, fingerprint and devices. -ENOMEM. */
int ckpt_replica_digest_look(struct ckpt_replica_digest *alike);
/*
 * Digests what the CPU can read, now, and makes the segments of the rest, whose shapes and strides must stay where
 * they are. `seed`: the same on all ranks. `names`: they are kept, as copies. -ENOMEM.
 */
int ckpt_replica_digest_take(struct ckpt_replica_digest *alike, enum ckpt_replica_digest_mode mode,
	uint64_t seed, bool names);
/* What this rank does about a group, which ckpt_replica_digest_give() was called for. False: it was not. */
bool ckpt_replica_digest_set_own(
	struct ckpt_replica_digest *alike, uint64_t group, enum ckpt_own own);
/* The samples of the segments are there. */
void ckpt_replica_digest_add_late(struct ckpt_replica_digest *alike);
void ckpt_replica_digest_clear(struct ckpt_replica_digest *alike);
/* The same, and what this rank tells is that it has no digests of what it holds. */
void ckpt_replica_digest_go_without(struct ckpt_replica_digest *alike);

/* Says of each tensor whether it is known, and whose turn it is. Whether all are known. */
bool ckpt_replica_digest_know(
	struct ckpt_replica_digest *alike, struct ckpt_replica_digest_proved *proved);
/* It was committed: this, and nothing else, is proved. Without memory for it nothing is. */
void ckpt_replica_digest_prove(
	struct ckpt_replica_digest_proved *proved, const struct ckpt_replica_digest *alike);
void ckpt_replica_digest_unprove(struct ckpt_replica_digest_proved *proved);
/* A commit has compared the pieces whose turn it was. */
void ckpt_replica_digest_next_turn(struct ckpt_replica_digest_proved *proved);

/* What is known of a group. */
enum ckpt_own ckpt_replica_digest_find_own(struct ckpt_replica_digest_owned *owned, uint64_t group);
/* It was committed, and rank 0 has said this of what the ranks hold. What is known already stays. */
void ckpt_replica_digest_learn_own(struct ckpt_replica_digest_owned *owned,
	const struct ckpt_replica_digest *alike, const struct ckpt_replica_digest_split *split);
void ckpt_replica_digest_forget_own(struct ckpt_replica_digest_owned *owned);
/* The bit of a group in a split. Two groups may share one: then one that is equal counts as one that differs. */
uint64_t ckpt_replica_digest_bit(uint64_t group);

/* In how many levels a tensor is beside the first, at that time. */
uint32_t ckpt_replica_digest_level(uint64_t hash, uint32_t time);

/* As text: "" if there is nothing to compare, "-" if this rank has no digests of it. */
void ckpt_replica_digest_encode(
	const struct ckpt_replica_digest *alike, char out[CKPT_REPLICA_DIGEST_TEXT]);

/* Rank 0: what all ranks have told. Zero is empty. */
struct ckpt_replica_digest_received {
	struct ckpt_replica_digest_entry {
		struct ckpt_replica_digest_sums sums;
		uint32_t rank;
	} * entries;
	size_t count;
	size_t room;
	bool without; /* a rank has no digests of what it holds: others must not learn that all are alike */
	bool mixed; /* set by comparing: not all have a proof of the same, so that some have compared samples alone */
	struct ckpt_replica_digest_split split; /* set by comparing */
};

/* CKPT_EFORMAT, worded with `key`; -ENOMEM. */
int ckpt_replica_digest_receive(struct ckpt_replica_digest_received *told, uint32_t rank,
	const char *text, const char *key, struct ckpt_error *err);
void ckpt_replica_digest_forget(struct ckpt_replica_digest_received *told);

#define CKPT_REPLICA_DIGEST_NAMED 3
#define CKPT_REPLICA_DIGEST_RANKS 8
/* A clue as text, with the final NUL. */
#define CKPT_REPLICA_DIGEST_CLUE  412

/* How two ranks of a group differ: the sums of one less those of the other. Ranks of the group know names that explain it. */
struct ckpt_replica_digest_clue {
	uint64_t group;
	uint32_t told; /* as in ckpt_replica_digest_sums; 0: nothing differs */
	struct ckpt_replica_digest_pair
		samples; /* these were compared, as the digests are of two kinds; else 0 */
	struct ckpt_replica_digest_pair
		left[CKPT_REPLICA_DIGEST_TIMES * CKPT_REPLICA_DIGEST_LEVELS];
};

/* How ranks of one group differ. */
struct ckpt_replica_digest_finding {
	size_t groups;  /* that differ; 0: all is well */
	uint32_t ranks; /* of the first of them */
	uint32_t count; /* that differ from most, or from the lowest where no more are alike */
	uint32_t odd[CKPT_REPLICA_DIGEST_RANKS]; /* the first of these */
	uint32_t other;                          /* a rank that they differ from */
	bool minority; /* more ranks are alike than there are of any other kind */
	size_t tensors; /* that differ between `other` and the first of them; about, if not `exact`; 0: not known */
	bool exact;
	const char *names[CKPT_REPLICA_DIGEST_NAMED]; /* some of them */
	size_t name_count;
	bool fresh;                           /* one of these was not known */
	struct ckpt_replica_digest_clue clue; /* of `other` and the first of them */
};

/*
 * Sorts what was told. `own`: rank 0's, with names. A group of which every rank writes copies of its own is no
 * finding if it differs, and goes into told->split.
 */
struct ckpt_replica_digest_finding ckpt_replica_digest_compare(
	struct ckpt_replica_digest_received *told, const struct ckpt_replica_digest *own);
/* Another rank: what explains the clue among what it holds. Only of tensors, and no names if nothing does. */
struct ckpt_replica_digest_finding ckpt_replica_digest_explain(
	const struct ckpt_replica_digest_clue *clue, const struct ckpt_replica_digest *own);
/* "" if there is none. False: there is none, or it is malformed. */
void ckpt_replica_digest_clue_encode(
	const struct ckpt_replica_digest_clue *clue, char out[CKPT_REPLICA_DIGEST_CLUE]);
bool ckpt_replica_digest_clue_decode(const char *text, struct ckpt_replica_digest_clue *ret_clue);
/* Words about a name, with the end. The fewest bytes that names of tensors are worded in. */
#define CKPT_REPLICA_DIGEST_NAME      81
#define CKPT_REPLICA_DIGEST_WORDS_MIN 64
/* A name of at most so many bytes. Of a longer one its beginning and its end: "layers.0...weight". */
void ckpt_replica_digest_word_name(
	const char *name, size_t most, char out[CKPT_REPLICA_DIGEST_NAME]);
/* "'a', 'b' and about 3 more": as many names as there is room for, and all others as more. */
void ckpt_replica_digest_word_tensors(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size);
/* "ranks 1 and 3 (of 8) and rank 0 hold different bytes of ...": without what to do. */
void ckpt_replica_digest_word(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size);
/* "rank 3 and rank 2 differ in 'a'": one of them may have none of it. */
void ckpt_replica_digest_word_lack(
	const struct ckpt_replica_digest_finding *finding, char *out, size_t size);
/* The same with other words for the tensors: `ranks`, `count`, `odd`, `other` and `minority` are read. */
void ckpt_replica_digest_word_ranks(const struct ckpt_replica_digest_finding *finding,
	const char *tensors, char *out, size_t size);

#endif
