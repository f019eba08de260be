
# Paths in Weft file systems, and subjects of help: weft knows them.
function __weft_word
    # Without its quotes. One that is still open is closed first.
    set -l word (commandline -ct)
    string unescape -- $word; or string unescape -- "$word\""; or string unescape -- "$word'"
end
complete -c weft -n '__weft_word | string match -qr -- "^(weft:|.+:[0-9]+:/)"' -f -a '(weft complete path -- (__weft_word) 2>/dev/null)'
complete -c weft -n '__fish_seen_subcommand_from help' -f -a '(weft complete subject 2>/dev/null)'
