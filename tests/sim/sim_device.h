/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device whose copies read their source when they finish, late, as a copy engine does; and fail now
 * and then.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include <ckpt/error.h>
#include "device/devices.h"
#include "sim_env.h"

struct sim_device {
	struct ckpt_device device;
	struct ckpt_devices devices; /* this one alone */
	struct sim_env *env;
};

void sim_device_init(struct sim_device *device, struct sim_env *env);

#endif
