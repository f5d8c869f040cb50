# SPDX-License-Identifier: Apache-2.0
# Completion of bash for gxd and gxperf: they say themselves what there is (PROGRAM --complete, tools/common/opt_table.h).

# _gx_lines FILTER: lines of the table that the condition of awk takes. Fields: 1 kind, 2 command; option: 4 long, 5 short, 6 argument.
_gx_lines() { awk -F '\t' -v sub_="$sub" -v word="$opt" "$1" <<<"$table"; }

# The value of an option, by the name of its argument.
_gx_value()
{
	case $1 in
	FILE | PATH | SOCKET | DIR) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	IF | IF:*) mapfile -t COMPREPLY < <(compgen -W "$(ls /sys/class/net 2>/dev/null)" -- "$cur") ;;
	DEVICE) mapfile -t COMPREPLY < <(compgen -W "$(ls /sys/class/infiniband 2>/dev/null) auto all" -- "$cur") ;;
	LINK) mapfile -t COMPREPLY < <(compgen -W "local packet tcp verbs" -- "$cur") ;;
	LEVEL) mapfile -t COMPREPLY < <(compgen -W "err warn info debug" -- "$cur") ;;
	esac
}

_gx()
{
	local cur=$2 opt=${COMP_WORDS[COMP_CWORD - 1]} sub='' table argument
	COMPREPLY=()
	table=$("$1" --complete 2>/dev/null) || return
	opt=${COMP_WORDS[1]}
	[[ $COMP_CWORD -lt 2 || -z $(_gx_lines '$1 == "command" && $2 == word') ]] || sub=$opt
	# bash takes --link=local as three words.
	opt=${COMP_WORDS[COMP_CWORD - 1]}
	[[ $opt != = ]] || opt=${COMP_WORDS[COMP_CWORD - 2]}
	[[ $cur != = ]] || cur=''
	argument=$(_gx_lines '$1 == "option" && $2 == sub_ && $6 != "" && ($4 != "" && word == "--" $4 || $5 != "" && word == "-" $5) {print $6; exit}')
	if [[ -n $argument ]]; then
		_gx_value "$argument"
	elif [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_gx_lines '$1 == "option" && $2 == sub_ {print $4 != "" ? "--" $4 : "-" $5}')" -- "$cur")
	elif [[ $COMP_CWORD -eq 1 ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_gx_lines '$1 == "command" {print $2}')" -- "$cur")
	else
		argument=$(_gx_lines '$1 == "command" && $2 == sub_ {gsub(/[][.]/, "", $3); print $3}')
		_gx_value "$argument"
	fi
}

complete -F _gx gxd gxperf
