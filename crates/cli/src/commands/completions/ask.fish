
# Paths in Weft file systems, and subjects of help: weft knows them.
complete -c weft -n 'string match -q -- "weft:*" (commandline -ct)' -f -a '(weft complete path -- (commandline -ct) 2>/dev/null)'
complete -c weft -n '__fish_seen_subcommand_from help' -f -a '(weft complete subject 2>/dev/null)'
