
# Paths in Weft file systems, and subjects of help: weft knows them.
_weft_asking() {
    local word="${COMP_LINE:0:COMP_POINT}" candidate before
    word="${word##*[[:space:]]}"
    if [[ "$word" == weft:* ]]; then
        COMPREPLY=()
        # Readline completes only what comes after the last colon.
        before="${word%"${word##*:}"}"
        [[ "$COMP_WORDBREAKS" == *:* ]] || before=
        while IFS= read -r candidate; do
            COMPREPLY+=("$(printf %q "${candidate#"$before"}")")
        done < <(weft complete path "$word" 2>/dev/null)
        [[ ${#COMPREPLY[@]} -ne 1 || "${COMPREPLY[0]}" == */ ]] && compopt -o nospace 2>/dev/null
        return 0
    fi
    _weft "$@"
    if [[ "${COMP_WORDS[1]}" == help && "$COMP_CWORD" -eq 2 ]]; then
        COMPREPLY+=($(compgen -W "$(weft complete subject 2>/dev/null)" -- "$word"))
    fi
}
complete -F _weft_asking -o bashdefault -o default weft
