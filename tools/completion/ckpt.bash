# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for ckpt, ckpt-verify and ckpt-restore.
_ckpt() {
	local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
	local options="--step --json --progress --quiet --version --help"
	case ${COMP_WORDS[0]##*/}:${COMP_WORDS[1]} in
	ckpt:ls) options="--stored --json --version --help" ;;
	ckpt:show) options="--step --stored --json --quiet --version --help" ;;
	ckpt:diff) options="--step --with --structure --json --progress --quiet --version --help" ;;
	ckpt:recode) options="--encoding --step --json --progress --quiet --version --help" ;;
	ckpt:upload) options="--encoding --json --progress --quiet --version --help" ;;
	ckpt:prune) options="--keep-last --keep-every --grace --no-verify --dry-run --json --progress --quiet --version --help" ;;
	esac
	case ${COMP_WORDS[0]##*/}:${COMP_WORDS[1]} in
	ckpt-verify:* | ckpt:verify) options+=" --quick" ;;
	ckpt-restore:* | ckpt:restore) options+=" --plain --consolidate --file-size --world-size --rank --whole" ;;
	esac
	case $previous in
	--file-size)
		mapfile -t COMPREPLY < <(compgen -W "5GiB" -- "$current")
		return
		;;
	--world-size | --rank | --whole | --keep-last | --keep-every | --grace)
		COMPREPLY=()
		return
		;;
	--step | --with)
		mapfile -t COMPREPLY < <(compgen -W "latest latest~1" -- "$current")
		return
		;;
	--encoding)
		mapfile -t COMPREPLY < <(compgen -W "plain compact" -- "$current")
		return
		;;
	--progress)
		mapfile -t COMPREPLY < <(compgen -W "auto always never" -- "$current")
		return
		;;
	esac
	if [[ ${COMP_WORDS[0]##*/} == ckpt && $COMP_CWORD == 1 ]]; then
		mapfile -t COMPREPLY < <(compgen -W "ls show diff verify restore recode upload prune --help --version" -- "$current")
	elif [[ $current == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
	else
		mapfile -t COMPREPLY < <(compgen -d -- "$current")
	fi
}
complete -o filenames -F _ckpt ckpt ckpt-verify ckpt-restore
