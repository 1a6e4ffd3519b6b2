/* SPDX-License-Identifier: Apache-2.0 */
/* The text of every error code. */
#include "base/error.h"

#include <pthread.h>
#include <stdio.h>

#include "base/errno_text.h"

struct phrase {
	int code;
	const char *name;
	const char *text;
};

#define PHRASE(code, text)                                                                         \
	{                                                                                          \
		code, #code, text                                                                  \
	}

static const struct phrase phrases[] = {
	PHRASE(CKPT_EINTEGRITY, "data differ from their digest"),
	PHRASE(CKPT_EINCOMPLETE, "a file of a committed step is missing or short"),
	PHRASE(CKPT_EFORMAT, "malformed file"),
	PHRASE(CKPT_EVERSION, "written by a newer version of the format"),
	PHRASE(CKPT_ENOSTORE, "no store there"),
	PHRASE(CKPT_ENOSTEP, "no such step"),
	PHRASE(CKPT_EINUSE, "in use by a live process"),
	PHRASE(CKPT_EFENCED, "a later generation has taken the store over"),
	PHRASE(CKPT_ENOTRESUMED, "the store has commits and was not resumed"),
	PHRASE(CKPT_ESTEP, "the step was decided already or is out of order"),
	PHRASE(CKPT_ETORN, "a tensor changed before it was copied"),
	PHRASE(CKPT_EABORTED, "the attempt at this step was aborted"),
	PHRASE(CKPT_ESKIPPED, "skipped because the last save still runs"),
	PHRASE(CKPT_ECLOSED, "the engine is closed"),
	PHRASE(CKPT_EFORKED, "the handle belongs to the parent process"),
	PHRASE(CKPT_ELEVEL, "that level is not configured"),
	PHRASE(CKPT_EMISMATCH, "not what the step holds"),
	PHRASE(CKPT_EUNSUPPORTED, "not supported here"),
	PHRASE(CKPT_EDEVICE, "the accelerator failed"),
	PHRASE(CKPT_EAUTH, "not authorised"),
	PHRASE(CKPT_ENETWORK, "the network or the server failed"),
	PHRASE(CKPT_EQUARANTINED, "the step is quarantined"),
	PHRASE(CKPT_EOTHERNODE, "in the store of another node"),
	PHRASE(CKPT_EREPLICA, "ranks differ in what all must have alike"),
};

#define TEXT_SIZE 96

/* Filled once, so that a message may contain several texts and none is freed. */
static pthread_once_t filled = PTHREAD_ONCE_INIT;
static char errno_texts[CKPT_ERRNO_END][TEXT_SIZE];
static char code_texts[CKPT_COUNT(phrases)][TEXT_SIZE];

static void fill(void)
{
	for (int i = 1; i < CKPT_ERRNO_END; i++) {
		const struct ckpt_errno *known = ckpt_errno_find(i);

		if (known)
			(void)snprintf(
				errno_texts[i], TEXT_SIZE, "%s (%s)", known->text, known->name);
		else
			(void)snprintf(errno_texts[i], TEXT_SIZE, "unknown error (%d)", i);
	}
	for (size_t i = 0; i < CKPT_COUNT(phrases); i++) {
		(void)snprintf(
			code_texts[i], TEXT_SIZE, "%s (%s)", phrases[i].text, phrases[i].name);
	}
}

/* Index of a library code in `phrases`, or -1. */
static int find(int code)
{
	for (size_t i = 0; i < CKPT_COUNT(phrases); i++) {
		if (phrases[i].code == code)
			return (int)i;
	}
	return -1;
}

const char *ckpt_strerror(int code)
{
	const struct ckpt_errno *known;
	int at = find(code);

	if (code == 0)
		return "success";
	if (at >= 0)
		return phrases[at].text;
	known = code < 0 && code > -CKPT_ERRNO_END ? ckpt_errno_find(-code) : NULL;
	return known ? known->text : "unknown error";
}

const char *ckpt_code_text(int code)
{
	int at = find(code);

	if (code == 0)
		return "success";
	(void)pthread_once(&filled, fill);
	if (at >= 0)
		return code_texts[at];
	return code < 0 && code > -CKPT_ERRNO_END ? errno_texts[-code] : "unknown error";
}
