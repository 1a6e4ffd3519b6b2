/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other where no directory is seen by all of them: values in the memory of a service,
 * one board for each session. It outlives the ranks, and may end while they live; then it is gone for good,
 * as a launcher's store is.
 */
#ifndef CROWD_BOARD_H
#define CROWD_BOARD_H

#include "exchange/exchange.h"
#include "sim.h"

struct crowd_board;

/* The board of a session, made if there is none. */
struct crowd_board *crowd_board_get(struct crowd_board **boards, const char *session);
/* False as well where the board has ended. */
bool crowd_board_holds(struct crowd_board **boards, const char *session, const char *key);
/* What is there is gone, and whatever is asked of them from now on fails. */
void crowd_boards_end(struct crowd_board *boards);
void crowd_boards_free(struct crowd_board **boards);

/* For one rank. Never fails. */
struct ckpt_exchange *crowd_board_open(
	struct sim *sim, struct ckpt_sched *sched, struct crowd_board *board);
bool crowd_board_is(const struct ckpt_exchange *exchange);
/*
 * The clock has gone on: what was asked happens, or is answered. Returns when the next thing is; UINT64_MAX:
 * none.
 */
uint64_t crowd_board_land(struct ckpt_exchange *exchange, bool *ret_woke);
/* Its process is dead. */
void crowd_board_forget(struct ckpt_exchange *exchange);

#endif
