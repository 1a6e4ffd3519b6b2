/* SPDX-License-Identifier: Apache-2.0 */
/* Copies as jobs of the simulated workers. */
#include "sim_device.h"

static void copy_work(struct ckpt_job *job)
{
	struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);

	ckpt_host_copy_work(job);
	CKPT_ASSERT(copy->result <= 0);
}

static void failing_work(struct ckpt_job *job)
{
	struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);

	copy->torn = -1;
	copy->result = CKPT_EDEVICE;
}

static void sim_copy(struct ckpt_device *base, struct ckpt_copy *copy)
{
	struct sim_device *device = CKPT_CONTAINER(base, struct sim_device, device);
	struct sim *sim = device->env->sim;

	copy->job.work = sim_fault(sim, SIM_DEVICE_FAIL) ? failing_work : copy_work;
	copy->job.urgent = true;
	ckpt_env_run(base->env, &copy->job);
}

static void sim_device_close(struct ckpt_device *base)
{
	(void)base;
}

static const struct ckpt_device_ops sim_device_ops = {
	.name = "sim",
	.copy = sim_copy,
	.close = sim_device_close,
};

void sim_device_init(struct sim_device *device, struct sim_env *env)
{
	*device = (struct sim_device){
		.device = {.ops = &sim_device_ops, .env = &env->env}, .env = env};
	/* Never closed: a process that crashes closes nothing. */
	int r = ckpt_devices_init(&device->devices,
		&(struct ckpt_devices_config){.env = &env->env, .host = &device->device});
	CKPT_ASSERT(r == 0);
}
