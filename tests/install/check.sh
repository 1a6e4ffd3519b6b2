#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: check.sh PREFIX: a program finds what was installed there by pkg-config alone, with the shared
# library and with the static one, and does what its comment says: it goes on after being run again.

set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=$(cd "$1" && pwd)
work=$(mktemp -d "$prefix/check.XXXXXX")
trap 'rm -rf "$work"' EXIT

export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name libckpt.pc)")
lib=$(dirname "$PKG_CONFIG_PATH")
flags=(-std=c99 -pedantic-errors -Wall -Wextra -Werror)

# What the words mean to the shell is what is wanted of pkg-config.
# shellcheck disable=SC2046
cc "${flags[@]}" examples/loop.c $(pkg-config --cflags --libs libckpt) -o "$work/shared"
# shellcheck disable=SC2046
cc "${flags[@]}" examples/loop.c $(pkg-config --cflags libckpt) "$lib/libckpt.a" \
	$(pkg-config --static --libs-only-l --libs-only-other libckpt | sed 's/-lckpt//') \
	-o "$work/static"
if ldd "$work/static" | grep libckpt; then
	echo "the static program needs the shared library"
	exit 1
fi

says() { # EXPECTED PROGRAM STEPS: the first line that it prints
	local first
	first=$(LD_LIBRARY_PATH=$lib "$work/$2" "$work/store" "$3" | tee "$work/output" | head -n 1)
	cat "$work/output"
	[[ $first == "$1" ]] || {
		echo "expected: $1"
		exit 1
	}
}
says "starting after step 0" shared 250
says "starting after step 200" static 450
says "starting after step 400" shared 500
expected=$(tail -n 1 "$work/output")
rm -rf "$work/store"
says "starting after step 0" static 500
[[ $(tail -n 1 "$work/output") == "$expected" ]] || {
	echo "three runs and one do not end with the same weights"
	exit 1
}
