/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of an engine, by number: 0 is the memory of the CPU, i + 1 the GPU that CUDA counts as i. A GPU is
 * opened when the first tensor of it comes, and not before.
 */
#ifndef CKPT_DEVICE_DEVICES_H
#define CKPT_DEVICE_DEVICES_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/log.h"
#include "device/device.h"
#include "device/numa.h"

/* So many fit a mask. */
#define CKPT_DEVICES_MAX 64
#define CKPT_GPUS_MAX    (CKPT_DEVICES_MAX - 1)

struct ckpt_devices_config {
	struct ckpt_env *env;
	struct ckpt_device *host; /* becomes the devices' */
	int cuda_major;           /* see ckpt_device_cuda_open() */
	void *staging;            /* pinned for the GPUs; NULL: nothing is */
	size_t staging_bytes;
	bool staging_huge;                /* in huge pages, for the log: there are fewer to pin */
	struct ckpt_log *log;             /* may be NULL */
	const struct ckpt_numa_ops *numa; /* NULL: the system's */
};

/* Staging that is pinned as one. */
struct ckpt_devices_part {
	struct ckpt_devices_part *next;
	char *base;
	size_t bytes;
};

/* Those that are open stay so until the end. */
struct ckpt_devices {
	struct ckpt_devices_config config;
	pthread_mutex_t lock;
	struct ckpt_devices_part first; /* of staging: the config's; behind it what was added */
	struct ckpt_devices_part *last;
	_Atomic uint64_t open; /* as a mask, set after `at` */
	struct ckpt_device
		*at[CKPT_DEVICES_MAX];    /* set under `lock`, before anybody is given the number */
	uint32_t order[CKPT_DEVICES_MAX]; /* in which the GPUs were opened */
	unsigned gpus;
	_Atomic uint64_t pinned;    /* GPUs for which the staging is, as a mask; set under `lock` */
	bool placed;                /* it has been tried to put the staging near a GPU, */
	int node;                   /* and it is on this NUMA node */
	struct ckpt_env_os *worker; /* of ckpt_devices_env(); NULL: nobody has asked for it */
};

/* The number of what ckpt/types.h calls so; -1: there is no such device. */
int ckpt_devices_number(uint32_t kind, int32_t index);

/* On failure the host device stays the caller's. */
int ckpt_devices_init(struct ckpt_devices *devices, const struct ckpt_devices_config *config);
/* No copy is under way. */
void ckpt_devices_close(struct ckpt_devices *devices);

/*
 * Any thread: opens what the mask has (bit: number) and is not open yet. The first GPU takes as long as to pin all
 * staging, which moves to its NUMA node before; the slots are not divided among nodes when GPUs of several are opened.
 * CKPT_EDEVICE and others, worded into `err`.
 */
int ckpt_devices_need(struct ckpt_devices *devices, uint64_t mask, struct ckpt_error *err);
/*
 * The core's thread: where jobs run that wait for a GPU's driver, which may take any time. They have a thread of their
 * own, which is started with the first and ends with the devices: the copies of all devices wait for the other workers.
 * Without staging they wait for nothing, and it is the config's. Words into `err`.
 */
int ckpt_devices_env(
	struct ckpt_devices *devices, struct ckpt_error *err, struct ckpt_env **ret_env);
/*
 * Staging that grows, by jobs there, one at a time. Place: [base, base + bytes), which lies behind all that there is, has
 * been mapped, and no page of it is there; they come from the node where the rest is. It may wait for a GPU that is being
 * opened.
 */
void ckpt_devices_place(struct ckpt_devices *devices, void *base, size_t bytes);
/* Any thread: whether a GPU has pinned what there is, and so pins what is added. */
bool ckpt_devices_pinned(const struct ckpt_devices *devices);
/*
 * Before the first copy into it: pinned for each GPU that has pinned the rest, or for none, and by those that are opened
 * later with the rest. Each call makes a part that is pinned by itself, as long as a GPU has pinned what there is. It
 * waits for the drivers, and GPUs may be opened meanwhile. Words into `err`.
 */
int ckpt_devices_add(
	struct ckpt_devices *devices, void *base, size_t bytes, struct ckpt_error *err);
/*
 * Staging that shrinks, likewise, from its end on; nothing copies to or from what goes. Bytes at its end that are pinned
 * as one, and go together: 0, nothing is pinned. It may wait for a GPU that is being opened.
 */
size_t ckpt_devices_tail(struct ckpt_devices *devices);
/*
 * The last `bytes` are not pinned any more. False: they do not go together (any more), and nothing has changed. If a GPU
 * fails to unpin them, that is logged, and to add anything in their place fails.
 */
bool ckpt_devices_trim(struct ckpt_devices *devices, size_t bytes);
/* Whoever has been handed a view of it: it is open. */
struct ckpt_device *ckpt_devices_get(const struct ckpt_devices *devices, uint32_t number);

#endif
