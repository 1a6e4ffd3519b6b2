#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: check.sh PREFIX: a program finds what was installed there by pkg-config alone, with the shared
# library and with the static one, and does what its comment says: it goes on after being run again. So do
# ranks of MPI of which one was killed, in another number.

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

# shellcheck disable=SC2046
MPICH_CC=cc mpicc "${flags[@]}" examples/mpi.c $(pkg-config --cflags --libs libckpt) -o "$work/mpi"
ranks() { # NUMBER STORE STEPS
	LD_LIBRARY_PATH=$lib timeout 120 mpiexec -n "$1" "$work/mpi" "$work/$2" "$3"
}
ranks 2 many 1000000 >"$work/output" 2>&1 &
job=$!
until compgen -G "$work/many/g*/step-*/manifest.json" >/dev/null || ! kill -0 "$job"; do
	sleep 0.05 # a shell cannot be told; the condition is above
done
for process in /proc/[0-9]*; do
	name=
	IFS= read -r -d '' name 2>/dev/null <"$process/cmdline" || true
	if [[ $name == "$work/mpi" ]]; then
		kill -KILL "${process#/proc/}"
		break
	fi
done
if wait "$job"; then
	echo "a job one of whose ranks was killed has ended well"
	exit 1
fi
last=$(find "$work/many" -name manifest.json | sed 's/.*step-0*//; s/[/].*//' | sort -n | tail -n 1)
ranks 3 many $((last + 20)) | tee "$work/output"
ranks 1 one $((last + 20)) >"$work/expected"
# Its last step may have an abort record, or none.
grep -Eq "^3 ranks start after step ($last|$((last - 10)))\$" "$work/output" &&
	cmp <(tail -n 1 "$work/output") <(tail -n 1 "$work/expected") || {
	cat "$work/expected"
	echo "three ranks did not go on where two had been"
	exit 1
}
