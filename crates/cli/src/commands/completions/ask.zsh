
# Paths in Weft file systems, and subjects of help: weft knows them.
_weft() {
    local -a found
    local word=$PREFIX
    [[ -n "$compstate[quote]" ]] || word=${(Q)PREFIX}
    if [[ "$word" == weft:* || "$word" == ?*:[0-9]*:/* ]]; then
        found=(${(f)"$(weft complete path -- "$word" 2>/dev/null)"})
        compadd -S '' -- $found
        return
    fi
    if [[ "$words[2]" == help && $CURRENT -eq 3 ]]; then
        found=(${(f)"$(weft complete subject 2>/dev/null)"})
        compadd -- $found
    fi
    _weft_generated "$@"
}
