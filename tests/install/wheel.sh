#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: wheel.sh WHEEL: nothing in it names this machine, and nothing of what is linked into it is seen by
# what else a process has loaded. Where there are no compiler, no torch and no sources it installs, a run that
# is killed goes on as if it had not been, and the programs do their work, and ask a bucket.

set -euo pipefail
wheel=$(realpath "$1")
cd "$(dirname "$0")/../.."
sources=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/wheel-check.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
	printf '%s\n' "$*"
	exit 1
}

interpreter=/usr/bin/python3
[[ -x $interpreter ]] || interpreter=python3
"$interpreter" -m zipfile -e "$wheel" "$work/content"
cd "$work/content"
! grep -rlaF -e "$sources" -e "${HOME:-/root}/" . || fail "these have paths of this machine in them"
for package in liburing xxhash jansson libzstd libssl libcurl libexpat libisal; do
	grep -qi 'copyright' libckpt-*.dist-info/licenses/*"$package"* || fail "no licence of $package"
done

for file in libckpt/*.so libckpt-*.data/scripts/*; do
	! readelf -dW "$file" | grep -E 'R(UN)?PATH' || fail "$file looks for libraries there"
	needed=$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
		grep -Ev '^(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux-.*)$' || true)
	[[ -z $needed ]] || fail "$file needs $needed"
	newest=$(readelf -VW "$file" | grep -o 'GLIBC_2[.0-9]*' | sort -uV | tail -n 1)
	[[ $(printf '%s\n' GLIBC_2.28 "$newest" | sort -V | tail -n 1) == GLIBC_2.28 ]] || fail "$file needs $newest"
	[[ $(readelf -lW "$file" | grep GNU_STACK) != *E* ]] || fail "$file asks for a stack that can be executed"
	lacking=$(nm -D --undefined-only "$file" | awk '$1 == "U" && $2 !~ /@GLIBC_|^_?Py/ { print $2 }')
	[[ -z $lacking ]] || fail "$file takes $lacking from nowhere"
	# A program may keep variables of the C library in memory of its own, which is then shown.
	seen=$(nm -D --defined-only "$file" | awk '$3 !~ /@GLIBC_/ { print $3 }')
	case $file in
	*.so) [[ $seen == "PyInit_$(basename "$file" .abi3.so)" ]] ;;
	*) [[ -z $seen ]] ;;
	esac || fail "$file shows others $seen"
done

"$interpreter" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --quiet --only-binary :all: "$wheel" numpy
cd "$work"
cp "$sources/tests/install/wheel_run.py" run.py
clean() { env -i PATH="$work/venv/bin" "$@"; }
# What the words mean is for the clean shell to say.
# shellcheck disable=SC2016
env -i PATH="$work/venv/bin" /bin/sh -c '! command -v cc && ! command -v gcc && ! command -v clang' ||
	fail "there is a compiler"
[[ $(clean python -c 'import libckpt; print(libckpt.__file__)') == "$work"/venv/* ]] ||
	fail "another libckpt was imported"

mkdir tls
timeout 300 "$interpreter" "$sources/tests/install/wheel_s3.py" "$work/venv/bin/ckpt" tls

clean python run.py train whole 50
code=0
clean python run.py train killed 50 30 || code=$?
[[ $code == 137 ]] || fail "it was to be killed, and ended with $code"
clean python run.py train killed 50 | tee output
grep -Eqx 'begins at (20|30)' output || fail "it did not go on where it was"
clean python run.py show whole >expected
clean python run.py show killed | cmp - expected || fail "a run that was killed has ended otherwise"

[[ $(clean ckpt --version) == *zstd* ]] || fail "it cannot read encoded steps"
clean ckpt ls killed
clean ckpt show killed | grep weights || fail "ckpt show does not list the tensor"
clean ckpt-verify killed
clean ckpt-restore killed copy
clean python run.py show copy | cmp - expected || fail "what was restored is not what was saved"
shard=$(find killed/g*/step-*50 -name '*.safetensors')
printf '\377\377' | dd of="$shard" bs=1 seek=100000 conv=notrunc status=none
code=0
clean ckpt-verify killed || code=$?
[[ $code == 4 ]] || fail "ckpt-verify ended with $code where bytes differ"
