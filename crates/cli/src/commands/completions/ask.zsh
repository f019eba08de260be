
# Paths in Weft file systems, and subjects of help: weft knows them.
_weft() {
    local -a found
    if [[ "$PREFIX" == weft:* ]]; then
        found=(${(f)"$(weft complete path "$PREFIX" 2>/dev/null)"})
        compadd -S '' -- $found
        return
    fi
    if [[ "$words[2]" == help && $CURRENT -eq 3 ]]; then
        found=(${(f)"$(weft complete subject 2>/dev/null)"})
        compadd -- $found
    fi
    _weft_generated "$@"
}
