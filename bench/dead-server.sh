#!/bin/bash
# Times system calls on a mount under load while one of its two I/O servers is hung (SIGSTOP), killed, or cut off by
# a firewall (in a network namespace; needs root and ip), for files that need the server and files that do not.
# bench/dead-server.sh [CASE...]: hung, killed or cut-off. $WEFT_TIMEOUT_MS: --retry-timeout-ms of the mount (4000).
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
timeout_ms=${WEFT_TIMEOUT_MS:-4000}
quiet_s=${WEFT_QUIET_S:-5}
[ $# -gt 0 ] || set -- hung killed cut-off
scratch=$(mktemp -d /dev/shm/weft-dead.XXXXXX)
namespace=weftb$$
near=wb$$
pids=()
unset WEFT_LOG
export HOME=$scratch

clean_up() {
    exec 3>&- || true
    [ -z "${victim:-}" ] || kill -CONT "$victim" 2>/dev/null || true
    "$weft" umount --force "$scratch/mnt" 2>/dev/null || true
    [ ${#pids[@]} -eq 0 ] || kill -9 "${pids[@]}" 2>/dev/null || true
    pids=()
    ip netns del "$namespace" 2>/dev/null || true
    ip link del "$near" 2>/dev/null || true
}
trap 'clean_up; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

serve() { # NAME: in the namespace, if it belongs there
    local through=()
    [ "$1 $case" != "io1 cut-off" ] || through=(ip netns exec "$namespace")
    "${through[@]}" "$weft" serve --config "$scratch/cluster/weft.toml" --name "$1" 2>>"$scratch/$1.log" 3>&- &
    disown
    pids+=($!)
    [ "$1" != io1 ] || victim=$!
}

measure() {
    local near_host=127.0.0.1 far_host=127.0.0.1 transport=auto
    if [ "$case" = cut-off ]; then
        near_host=10.78.0.1 far_host=10.78.0.2 transport=tcp
        ip netns add "$namespace"
        ip link add "$near" address 02:00:00:00:01:01 type veth peer name far address 02:00:00:00:01:02 netns "$namespace"
        ip addr add $near_host/24 dev "$near"
        ip link set "$near" up
        ip -n "$namespace" addr add $far_host/24 dev far
        ip -n "$namespace" link set far up
        ip -n "$namespace" link set lo up
        # As with a cut cable, packets are lost silently.
        ip neigh replace $far_host lladdr 02:00:00:00:01:02 dev "$near" nud permanent
    fi
    rm -rf "${scratch:?}"/*
    mkdir "$scratch"/{meta0,io0,io1,mnt}
    "$weft" init --dir "$scratch/cluster" --meta "$near_host:7960:$scratch/meta0" \
        --io "$near_host:7961:$scratch/io0" --io "$far_host:7962:$scratch/io1" >/dev/null 2>&1
    export WEFT_KEY_FILE=$scratch/cluster/client.key
    for name in meta0 io0 io1; do
        "$weft" serve --config "$scratch/cluster/weft.toml" --name $name --format 2>/dev/null
        serve $name
    done
    local url=weft://$near_host:7960/
    until "$weft" ls "$url" >/dev/null 2>&1; do sleep 0.1; done
    "$weft" mount "$url" "$scratch/mnt" --retry-timeout-ms "$timeout_ms" --transport $transport --log-file "$scratch/mount.log"
    mkdir "$scratch"/mnt/{needs,spared}
    "$weft" stripe set "$url/needs" --servers 1 --first 1 >/dev/null
    "$weft" stripe set "$url/spared" --servers 1 --first 0 >/dev/null
    mkfifo "$scratch/phases"
    "$weft" bench calls --needs "$scratch/mnt/needs" --spared "$scratch/mnt/spared" ${WEFT_JSON:+--json} \
        <"$scratch/phases" >"$scratch/table" &
    local bench=$!
    exec 3>"$scratch/phases"
    until [ -e "$scratch/mnt/spared/listed/f9" ]; do sleep 0.1; done
    sleep 1
    echo before >&3
    sleep "$quiet_s"
    echo dies >&3
    # So that calls that begin now count for this phase.
    sleep 0.1
    case $case in
        hung) kill -STOP "$victim" ;;
        killed) kill -KILL "$victim" ;;
        cut-off) ip -n "$namespace" link set far down ;;
    esac
    sleep $((timeout_ms / 1000 + 2))
    echo dead >&3
    sleep "$quiet_s"
    case $case in
        hung) kill -CONT "$victim" ;;
        killed)
            serve io1
            until (exec 4<>"/dev/tcp/$far_host/7962") 2>/dev/null; do sleep 0.02; done
            ;;
        cut-off) ip -n "$namespace" link set far up ;;
    esac
    echo back >&3
    sleep $((quiet_s + 5))
    exec 3>&-
    wait $bench
    printf '\n%s, --retry-timeout-ms %s\n' "$case" "$timeout_ms"
    cat "$scratch/table"
    cat "$scratch/mount.log"
    clean_up
}

for case in "$@"; do
    measure
done
