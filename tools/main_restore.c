/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

int main(int argc, char **argv)
{
	cli_begin();
	return cli_end("ckpt-restore", cmd_restore(argc, argv, "ckpt-restore"));
}
