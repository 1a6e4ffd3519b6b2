#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# After scripts/wheel: the libcurl, OpenSSL and expat that it links make requests by themselves, beside Python's
# own OpenSSL; linked like the wheel they show nothing, and need nothing newer than its C library.

set -euo pipefail
cd "$(dirname "$0")/../.."
built=$PWD/build-wheel
work=$(mktemp -d "${TMPDIR:-/tmp}/wheel-tls.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
	printf '%s\n' "$*"
	exit 1
}

export ZIG_GLOBAL_CACHE_DIR=$built/zig-cache ZIG_LOCAL_CACHE_DIR=$built/zig-cache
include=$built/dev/include
printf '{ global: wheel_tls_*; local: *; };\n' >"$work/map"
"$built/cc" -O2 -fPIC -Wall -Wextra -Werror -DCURL_STATICLIB -I"$built/curl/include" -isystem "$include" \
	-isystem "$include/$(gcc -print-multiarch)" tests/install/wheel_tls.c -shared -o "$work/wheel_tls.so" \
	-s -Wl,--no-undefined -Wl,-z,nodelete -Wl,--version-script="$work/map" \
	-L"$built/curl/lib" -L"$built/dev/lib" -lcurl -lssl -lcrypto -lexpat -lnewer -ldl -lpthread

seen=$(nm -D --defined-only "$work/wheel_tls.so" | awk '{ print $3 }' | sort | tr '\n' ' ')
[[ $seen == "wheel_tls_get wheel_tls_start " ]] || fail "it shows others $seen"
newest=$(readelf -VW "$work/wheel_tls.so" | grep -o 'GLIBC_2[.0-9]*' | sort -uV | tail -n 1)
[[ $(printf '%s\n' GLIBC_2.28 "$newest" | sort -V | tail -n 1) == GLIBC_2.28 ]] || fail "it needs $newest"
others=$(readelf -dW "$work/wheel_tls.so" | grep NEEDED | grep -Ev '\[(libc|libpthread|libdl|ld-linux.*)\.so' || true)
[[ -z $others ]] || fail "it needs $others"

python=/usr/bin/python3
[[ -x $python ]] || python=python3
timeout 300 "$python" tests/install/wheel_tls.py "$work/wheel_tls.so" "$work"
# And what is to be ignored there does matter to what does not ignore it.
timeout 300 "$python" tests/install/wheel_tls.py "$work/wheel_tls.so" "$work" load-config
