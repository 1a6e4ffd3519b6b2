# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share. Source it from the repository's root.

say() { printf '%s\n' "$*"; }
die() {
	printf '%s: %s\n' "$0" "$*" >&2
	exit 1
}

# Ends a process, and all that it has started: it first, for it would go on without them.
end_all() {
	local child children=()
	read -r -a children 2>/dev/null <"/proc/$1/task/$1/children" || true
	kill -TERM "$1" 2>/dev/null || true
	for child in "${children[@]}"; do
		end_all "$child"
	done
}

# Runs a command quietly; shows what it printed when it fails.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		cat "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

as_root() {
	if [[ $(id -u) == 0 ]]; then
		"$@"
	else
		sudo -n "$@"
	fi
}
may_be_root() { [[ $(id -u) == 0 ]] || sudo -n true 2>/dev/null; }

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# Installs those of the named Debian packages that are missing, or says which they are.
need_packages() {
	local package missing=()
	if ! command -v dpkg-query >/dev/null; then
		say "not a Debian system: this needs what Debian calls $*"
		return
	fi
	for package in "$@"; do
		[[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
			missing+=("$package")
	done
	[[ ${#missing[@]} == 0 ]] && return
	may_be_root || die "these packages are missing; run: sudo apt-get install ${missing[*]}"
	say "installing ${missing[*]}"
	quietly apt_install "${missing[@]}" && return
	quietly as_root apt-get update || die "apt-get update failed"
	quietly apt_install "${missing[@]}" || die "apt-get install ${missing[*]} failed"
}

# Installs packages of which some have services, and starts none. Where a service manager runs it would start them, and
# again with every boot: nothing is installed there. False: they are not there.
need_servers() {
	local policy=/usr/sbin/policy-rc.d package
	for package in "$@"; do
		[[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || break
	done
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]] || return 0
	[[ ! -d /run/systemd/system ]] && command -v apt-get >/dev/null && may_be_root || return
	(
		# This is asked before anything is started. Containers often have one, which stays.
		if [[ ! -e $policy ]]; then
			trap 'as_root rm -f "$policy"' EXIT
			printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy"
		fi
		need_packages "$@"
	)
}

# The system's program where there is one, else that of the virtual environment.
system_or_venv() {
	if [[ -x /usr/bin/$1 ]]; then
		say "/usr/bin/$1"
	else
		say "$PWD/.venv/bin/$1"
	fi
}
# One ninja for all: two of different versions do not read each other's logs.
meson() { NINJA=$(system_or_venv ninja) "$(system_or_venv meson)" "$@"; }
ninja() { "$(system_or_venv ninja)" "$@"; }

# Configures build directory $1 with the options that follow; again only when they have changed.
configure() {
	local dir=$1
	shift
	if [[ ! -f $dir/build.ninja || $(cat "$dir/.options" 2>/dev/null) != "$*" ]]; then
		rm -rf "$dir"
		mkdir -p "$dir"
		meson setup "$dir" "$@" || return 1
		printf '%s' "$*" >"$dir/.options"
	fi
}

# The fuzz targets, in directory $1; what follows is for the compiler as well.
configure_fuzz() {
	local dir=$1
	shift
	CC=clang quietly configure "$dir" -Dwerror=true -Dfuzz=enabled -Doptimization=1 \
		-Db_sanitize=address,undefined -Db_lundef=false \
		"-Dc_args=-fno-sanitize-recover=all $*" "-Dc_link_args=$*"
}

# A digest of the content of files and directories.
digest_of() {
	find "$@" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}
