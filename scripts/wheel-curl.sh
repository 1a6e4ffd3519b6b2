# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# libcurl for scripts/wheel, which sources this: HTTP and HTTPS and nothing else, as one archive. Debian's own
# needs Kerberos, LDAP, SSH and more; its sources, with Debian's patches, come from where the machine's packages do.

# Beside what has no option: no certificates are named at its building, for each distribution has them elsewhere.
curl_without=(ftp file ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt manual ares cookies
	websockets alt-svc hsts netrc unix-sockets tls-srp ntlm ntlm-wb crypto-auth doh mime get-easy-options
	openssl-auto-load-config)
curl_without_libraries=(zlib brotli zstd nghttp2 libidn2 libpsl librtmp libssh2 ca-bundle ca-path)

# Into directory $1. apt checks the signatures; what it knows and what the system's keeps are two things.
curl_source() {
	local dir=$1 file apt
	mkdir -p "$dir/parts" "$dir/lists/partial" "$dir/cache/archives/partial"
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
		[[ -e $file ]] || continue
		case $file in
		*.list) sed -n 's/^[[:space:]]*deb\([[:space:]]\)/deb-src\1/p' "$file" >"$dir/parts/${file##*/}" ;;
		*.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"$dir/parts/${file##*/}" ;;
		esac
	done
	apt=(apt-get -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$dir/parts"
		-o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=root)
	# A source that has no such index fails here; that curl is not found fails below.
	quietly "${apt[@]}" update || say "not all of the package sources have answered"
	(cd "$dir" && quietly "${apt[@]}" source --download-only curl) || die "the source of curl cannot be had"
	quietly dpkg-source --no-copy -x "$dir"/curl_*.dsc "$dir/curl"
}

# Into directory $1, with $CC and $AR: include/, lib/libcurl.a, lib/pkgconfig/, copyright. $2: where OpenSSL is.
curl_build() {
	local dir=$1 dev=$2 source=$1.source version
	rm -rf "$source"
	curl_source "$source"
	mkdir "$source/build"
	(
		cd "$source/build"
		export CFLAGS="-O2 -fstack-protector-strong -ffunction-sections -fdata-sections"
		export CPPFLAGS="-isystem $dev/include -isystem $dev/include/$(gcc -print-multiarch)"
		export LDFLAGS="-L$dev/lib"
		quietly ../curl/configure --disable-shared --enable-static --disable-dependency-tracking \
			--enable-ipv6 --enable-threaded-resolver --with-openssl \
			"${curl_without[@]/#/--disable-}" "${curl_without_libraries[@]/#/--without-}"
		quietly make -C lib -j"$(nproc)" libcurl.la
	)
	rm -rf "$dir"
	mkdir -p "$dir/include/curl" "$dir/lib/pkgconfig"
	cp "$source"/curl/include/curl/*.h "$dir/include/curl/"
	cp "$source/build/lib/.libs/libcurl.a" "$dir/lib/"
	cp "$source/curl/debian/copyright" "$dir/copyright"
	version=$(sed -n 's/^#define LIBCURL_VERSION "\(.*\)"/\1/p' "$dir/include/curl/curlver.h")
	cat >"$dir/lib/pkgconfig/libcurl.pc" <<END
Name: libcurl
Description: HTTP and HTTPS alone
Version: ${version%-DEV}
Libs: -L$dir/lib -lcurl
Requires.private: libssl libcrypto
Cflags: -I$dir/include -DCURL_STATICLIB
END
	rm -rf "$source"
}

# As curl_build, unless it was built from the same: Debian's fixes to curl or OpenSSL build it again.
curl_kept() {
	local made_of
	made_of=$(dpkg-query -W libcurl4-openssl-dev libssl-dev && cat "$CC" scripts/wheel-curl.sh \
		scripts/wheel-requirements.txt)
	cmp -s - "$1/made-of" <<<"$made_of" && return
	say "building libcurl into build-wheel/curl"
	curl_build "$@"
	printf '%s\n' "$made_of" >"$1/made-of"
}
