/* SPDX-License-Identifier: Apache-2.0 */
/* A list of steps, as whoever opened it has it. */
#ifndef CKPT_API_CATALOG_H
#define CKPT_API_CATALOG_H

#include "engine/lineage/scan.h"
#include "format/remote_record.h"

struct ckpt_catalog {
	struct ckpt_scan scan;
	struct ckpt_error error; /* why the lineage is not known as a whole */
	bool *expired;           /* of each step; NULL: nobody has asked */
	int remote_code;         /* why there is no `remote`; 0: there is */
	struct ckpt_remote_record remote;
};

#endif
