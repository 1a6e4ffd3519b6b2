/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that run seeds have in common: their command line, shrinking, and what they print. */
#ifndef SIM_MAIN_H
#define SIM_MAIN_H

#include "sim.h"

/* A world. */
struct sim_program {
	/* Runs a seed. False: something that must hold does not. */
	bool (*run)(uint64_t seed, const struct sim_options *options);
	/* Of the last run. */
	const struct sim *(*sim)(void);
	/* Adds what the last run has counted, and prints the sums, " name=N name=N". */
	void (*count)(void);
	void (*print)(void);
};

int sim_main(int argc, char **argv, const struct sim_program *program);

#endif
