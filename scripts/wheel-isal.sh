# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ISA-L for scripts/wheel, which sources this: its CRCs and nothing else, as one archive. Debian has it as a shared
# library alone.

# Into directory $1, with $CC and $AR: include/, lib/libisal.a, lib/pkgconfig/, copyright.
isal_build() {
	local dir=$1 source=$1.source built symbols
	source_take libisal "$source"
	built=$source/libisal
	# By its makefile, which asks the assembler for what it knows. Of what it assembles it gives nothing to others.
	quietly make -C "$built" -f Makefile.unx -j"$(nproc)" units=crc CC="$CC -fPIC -fvisibility=hidden" AR="$AR" \
		STRIP_gcc=: lib
	# Without the code for the newest processors it would be there, and slow.
	symbols=$(nm "$built/bin/isa-l.a")
	[[ $(uname -m) != x86_64 || $symbols == *" T crc32_iscsi_by16_10"* ]] || die "the assembler does not know AVX-512"
	mkdir -p "$dir/include/isa-l" "$dir/lib/pkgconfig"
	cp "$built"/include/crc.h "$dir/include/isa-l/"
	cp "$built/bin/isa-l.a" "$dir/lib/libisal.a"
	cp "$built/debian/copyright" "$dir/copyright"
	cat >"$dir/lib/pkgconfig/libisal.pc" <<END
Name: libisal
Description: CRCs alone
Version: $(sed -n 's/^version ?= //p' "$built/make.inc")
Libs: -L$dir/lib -lisal
Cflags: -I$dir/include
END
}
