/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of an engine, by number: 0 is the CPU's memory, i + 1 the GPU that CUDA counts as i. A GPU is opened when
 * its first tensor comes.
 */
#ifndef CKPT_DEVICE_DEVICES_H
#define CKPT_DEVICE_DEVICES_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/log.h"
#include "device/device.h"
#include "device/numa.h"

/* As many as fit into a mask. */
#define CKPT_DEVICES_MAX 64
#define CKPT_GPUS_MAX    (CKPT_DEVICES_MAX - 1)

struct ckpt_devices_config {
	struct ckpt_env *env;
	struct ckpt_device *host; /* owned by the devices */
	int cuda_major;           /* see ckpt_device_cuda_open() */
	void *staging;            /* staging memory to pin for the GPUs; NULL: none */
	size_t staging_bytes;
	bool staging_huge;                /* in huge pages, for the log */
	struct ckpt_log *log;             /* may be NULL */
	const struct ckpt_numa_ops *numa; /* NULL: the system's */
};

/* Staging that is pinned in one call. */
struct ckpt_devices_part {
	struct ckpt_devices_part *next;
	char *base;
	size_t bytes;
};

/* Open devices stay open until the end. */
struct ckpt_devices {
	struct ckpt_devices_config config;
	pthread_mutex_t lock;
	struct ckpt_devices_part first; /* of staging: the config's, followed by added ones */
	struct ckpt_devices_part *last;
	_Atomic uint64_t open;                    /* bit mask, set after `at` */
	struct ckpt_device *at[CKPT_DEVICES_MAX]; /* set under `lock`, before the number is used */
	uint32_t order[CKPT_DEVICES_MAX];         /* order in which the GPUs were opened */
	unsigned gpus;
	/* Bit mask of the GPUs that have pinned the staging; set under `lock`. */
	_Atomic uint64_t pinned;
	bool placed;                /* placing the staging near a GPU was tried */
	int node;                   /* the staging is on this NUMA node, if it is placed */
	struct ckpt_env_os *worker; /* of ckpt_devices_env(); NULL: not started */
};

/* The number of a device in ckpt/types.h; -1: there is none. */
int ckpt_devices_number(uint32_t kind, int32_t index);

/* On failure the host device stays the caller's. */
int ckpt_devices_init(struct ckpt_devices *devices, const struct ckpt_devices_config *config);
/* No copy is in flight. */
void ckpt_devices_close(struct ckpt_devices *devices);

/*
 * Any thread: opens the devices in the mask (bit: number) that are not open. The first GPU takes as long as pinning all
 * staging, which moves to its NUMA node first; slots are not divided among nodes if GPUs of several nodes are opened.
 * CKPT_EDEVICE and others; sets `err`.
 */
int ckpt_devices_need(struct ckpt_devices *devices, uint64_t mask, struct ckpt_error *err);
/*
 * The core's thread: the environment for jobs that wait for a GPU's driver, which may take long. They have their own
 * thread, because other workers make the copies of all devices. It is started by the first call, and ends with the
 * devices. Without staging the config's environment is used. Sets `err`.
 */
int ckpt_devices_env(
	struct ckpt_devices *devices, struct ckpt_error *err, struct ckpt_env **ret_env);
/*
 * For staging that grows, by jobs in that environment, one at a time. Place: [base, base + bytes) is after all staging
 * and mapped, and none of its pages are present; they will come from the node of the rest. May wait for a GPU that is
 * being opened.
 */
void ckpt_devices_place(struct ckpt_devices *devices, void *base, size_t bytes);
/* Any thread: whether a GPU has pinned the staging, so that added memory is pinned, too. */
bool ckpt_devices_pinned(const struct ckpt_devices *devices);
/*
 * Before the first copy into it: pins it for each GPU that has pinned the rest, or for none; GPUs opened later pin it
 * with the rest. While a GPU has pinned the staging, each call makes a separately pinned part. It waits for the
 * drivers, and GPUs may be opened meanwhile. Sets `err`.
 */
int ckpt_devices_add(
	struct ckpt_devices *devices, void *base, size_t bytes, struct ckpt_error *err);
/*
 * For staging that shrinks from its end; nothing copies to or from the removed part. Returns the bytes at its end that
 * are pinned in one call, and must be removed together: 0, nothing is pinned. May wait for a GPU that is being opened.
 */
size_t ckpt_devices_tail(struct ckpt_devices *devices);
/*
 * Unpins the last `bytes`. False: they cannot be removed together (any more), and nothing has changed. If a GPU fails
 * to unpin them, that is logged, and nothing can be added in their place.
 */
bool ckpt_devices_trim(struct ckpt_devices *devices, size_t bytes);
/* The device of a view: it is open. */
struct ckpt_device *ckpt_devices_get(const struct ckpt_devices *devices, uint32_t number);

#endif
