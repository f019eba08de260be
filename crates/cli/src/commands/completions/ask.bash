
# Paths in Weft file systems, and subjects of help: weft knows them.

# Sets word to the last word of a line, without its quotes, and quote to the quotation mark that is open in it.
_weft_last_word() {
    local line=$1 at char
    word='' quote=''
    for ((at = 0; at < ${#line}; at++)); do
        char=${line:at:1}
        if [[ "$char" == "$quote" ]]; then
            quote=''
        elif [[ "$char" == \\ && "$quote" != "'" ]]; then
            at=$((at + 1)) char=${line:at:1}
            [[ "$quote" == '"' && "$char" != [\\\"\$\`] ]] && word+=\\
            word+=$char
        elif [[ -n "$quote" ]]; then
            word+=$char
        elif [[ "$char" == [\'\"] ]]; then
            quote=$char
        elif [[ "$char" == [[:space:]\;\|\&\<\>\(] ]]; then
            word=''
        else
            word+=$char
        fi
    done
}

# Prints a name as it stands between quotation marks, or without any.
_weft_quoted() {
    local name=$1 char
    case "$quote" in
        "'") printf '%s' "${name//\'/\'\\\'\'}" ;;
        '"')
            for char in \\ \" \$ \`; do name=${name//"$char"/"\\$char"}; done
            printf '%s' "$name"
            ;;
        *) printf %q "$name" ;;
    esac
}

_weft_asking() {
    local word quote text candidate before
    _weft_last_word "${COMP_LINE:0:COMP_POINT}"
    local whole=$word
    # Readline replaces only the text after the last colon or equals sign, or after the open quotation mark.
    _weft_last_word "$quote$2"
    text=$word word=$whole
    if [[ "$word" == weft:* || "$word" == ?*:[0-9]*:/* ]]; then
        COMPREPLY=()
        before=${word%"$text"}
        while IFS= read -r candidate; do
            COMPREPLY+=("$(_weft_quoted "${candidate#"$before"}")")
        done < <(weft complete path -- "$word" 2>/dev/null)
        if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]]; then
            compopt -o nospace 2>/dev/null
            # Readline closes quotes behind a single candidate, and the path goes on here.
            [[ -z "$quote" ]] || COMPREPLY+=("${COMPREPLY[0]} ")
        fi
        return 0
    fi
    _weft "$@"
    if [[ "${COMP_WORDS[1]}" == help && "$COMP_CWORD" -eq 2 ]]; then
        COMPREPLY+=($(compgen -W "$(weft complete subject 2>/dev/null)" -- "$word"))
    fi
}
complete -F _weft_asking -o bashdefault -o default weft
