/* SPDX-License-Identifier: Apache-2.0 */
/* A ckpt_env whose clock, randomness and workers are the simulator's. */
#ifndef SIM_ENV_H
#define SIM_ENV_H

#include "base/env.h"
#include "sim.h"

struct sim_env {
	struct ckpt_env env;
	struct sim *sim;
	struct sim_work *head; /* oldest first */
	unsigned owner;
	uint64_t ahead_ns; /* the clocks of its machine, of the world's */
	uint64_t wall_ms;
};

/* `node`: its machine, which has clocks of its own. */
void sim_env_init(struct sim_env *env, struct sim *sim, struct ckpt_inbox *inbox, unsigned owner,
	unsigned node);

/* Jobs that a worker could finish now, and when the next one could; UINT64_MAX: there is none. */
unsigned sim_env_ready(const struct sim_env *env);
uint64_t sim_env_next(const struct sim_env *env);
/* Does the n-th that is ready: all of its work at this moment. */
void sim_env_finish(struct sim_env *env, unsigned n);
/* Forgets all jobs: the process is dead. */
void sim_env_die(struct sim_env *env);

#endif
