/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of an exchange that the program serves. */
#include <errno.h>
#include <ckpt/ckpt.h>

#include "api/copyin.h"
#include "base/error.h"
#include "exchange/exchange_server.h"

static int check_server(const struct ckpt_exchange_server *server)
{
	if (!server)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "server is NULL");
	if (!ckpt_server_forked(server))
		return 0;
	return ckpt_fail(ckpt_error_here(), CKPT_EFORKED,
		"this server belongs to the parent of a fork: make one in the child");
}

int ckpt_exchange_server_new(struct ckpt_exchange_server **ret_server)
{
	if (!ret_server)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "ret_server is NULL");
	int r = ckpt_server_new(ret_server);
	return r < 0 ? ckpt_fail(
			       ckpt_error_here(), r, "cannot make a server: %s", ckpt_code_text(r))
		     : 0;
}

void ckpt_exchange_server_free(struct ckpt_exchange_server *server)
{
	/* In a child its lock may be held by a thread that is not there. */
	if (!server || ckpt_server_forked(server))
		return;
	ckpt_server_quiet(server);
	ckpt_server_unref(server);
}

void ckpt_exchange_server_stop(struct ckpt_exchange_server *server)
{
	if (server && !ckpt_server_forked(server))
		ckpt_server_quiet(server);
}

int ckpt_exchange_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request)
{
	struct ckpt_exchange_request request = {0};
	int r = check_server(server);

	/* Before one is taken, which nobody would answer otherwise. */
	if (r == 0 && (!ret_request || ret_request->size < sizeof(request)))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_exchange_next: set ret_request->size to sizeof(struct "
			"ckpt_exchange_request)");
	if (r == 0)
		r = ckpt_server_next(server, timeout_ms, &request);
	return r < 0 ? r
		     : ckpt_copy_out(
			       ret_request, &request, sizeof(request), "ckpt_exchange_request");
}

int ckpt_exchange_reply(
	struct ckpt_exchange_server *server, const struct ckpt_exchange_answer *answer)
{
	struct ckpt_exchange_answer copy = {0};
	int r = check_server(server);

	if (r == 0)
		r = ckpt_copy_in(&copy, sizeof(copy), answer, "ckpt_exchange_answer");
	return r < 0 ? r : ckpt_server_reply(server, &copy, ckpt_error_here());
}
