# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# libcurl for scripts/wheel, which sources this: HTTP and HTTPS and nothing else, as one archive. Debian's own
# needs Kerberos, LDAP, SSH and more.

# Beside what has no option: no certificates are named at its building, for each distribution has them elsewhere.
curl_without=(ftp file ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt manual ares cookies
	websockets alt-svc hsts netrc unix-sockets tls-srp ntlm ntlm-wb crypto-auth doh mime get-easy-options
	openssl-auto-load-config)
curl_without_libraries=(zlib brotli zstd nghttp2 libidn2 libpsl librtmp libssh2 ca-bundle ca-path)

# With $CC and $AR, into directory $2: include/, lib/libcurl.a, lib/pkgconfig/, copyright. $1: where OpenSSL is.
curl_build() {
	local dev=$1 dir=$2 source=$2.source version
	source_take curl "$source"
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
}
