# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What scripts/wheel builds itself, and those of its libraries that it sources after this: Debian's sources, with
# Debian's patches, from where the machine's packages come.

# What apt knows of sources goes into directory $1. What it knows for the system is another thing, and stays.
source_lists() {
	local dir=$1 file
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
	# A source that has no such index fails here; that a package is not found fails below.
	quietly "${apt[@]}" update || say "not all of the package sources have answered"
}

# That of source package $1 into the new directory $2; apt checks the signatures.
source_take() {
	local package=$1 dir=$2
	((${#apt[@]})) || source_lists "$sources"
	rm -rf "$dir"
	mkdir "$dir"
	(cd "$dir" && quietly "${apt[@]}" source --download-only "$package") || die "the source of $package cannot be had"
	quietly dpkg-source --no-copy -x "$dir/$package"_*.dsc "$dir/$package"
}

# Into directory $3 with $4..., unless it was made of the same: of this script and version $2 of Debian's packages.
# Debian's fixes make it again, and so does another compiler, or another place for it.
source_kept() {
	local script=$1 packages=$2 dir=$3 made_of
	shift 3
	# shellcheck disable=SC2086
	made_of=$(dpkg-query -W $packages && cat "$CC" "$script" scripts/wheel-source.sh scripts/wheel-requirements.txt)
	cmp -s - "$dir/made-of" <<<"$made_of" && return
	say "building ${dir##*/} into ${dir#"$PWD/"}"
	rm -rf "$dir"
	"$@" "$dir"
	printf '%s\n' "$made_of" >"$dir/made-of"
	rm -rf "$dir.source"
}
