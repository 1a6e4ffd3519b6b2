/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_env_ops. */
#include "base/env.h"

uint64_t ckpt_env_now(struct ckpt_env *env)
{
	return env->ops->now_ns(env);
}

uint64_t ckpt_env_age(struct ckpt_env *env)
{
	return env->ops->age_ns ? env->ops->age_ns(env) : env->ops->now_ns(env);
}

uint64_t ckpt_env_wall_ms(struct ckpt_env *env)
{
	return env->ops->wall_ms(env);
}

uint64_t ckpt_env_random(struct ckpt_env *env)
{
	return env->ops->random(env);
}

void ckpt_env_run(struct ckpt_env *env, struct ckpt_job *job)
{
	CKPT_ASSERT(job->work && job->node.run);
	job->next = NULL;
	env->ops->run(env, job);
}
