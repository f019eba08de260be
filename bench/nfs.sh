#!/bin/bash
# A gateway of NFS beside Ganesha (Debian's, with its VFS back end), both on tmpfs and loopback, driven in turns by
# `weft nfs bench` and by libnfs's asynchronous interface; several clients, processor time, memory. Medians.
#   bench/nfs.sh [--quick]
# Needs root, gcc, libnfs-dev, nfs-ganesha, nfs-ganesha-vfs and rpcbind. $WEFT_IO: I/O servers (1).
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
io=${WEFT_IO:-1}
mib=512 small=30000 files=8000
case ${1:-} in
    "") ;;
    --quick) runs=2 mib=128 small=10000 files=2000 ;;
    *) sed -n '4s/^# */usage: /p' "$0" >&2; exit 2 ;;
esac
scratch=$(mktemp -d /dev/shm/weft-nfs.XXXXXX)
. bench/common.sh
ganesha=
connections=
other=
stop_all() {
    # Ganesha's namespaces end with their first process.
    for pid in $connections $other $ganesha; do kill -9 "$pid" 2>/dev/null || true; done
    finish
}
finish_with
trap stop_all EXIT
trap 'stop_all; exit 130' INT
trap 'stop_all; exit 143' TERM HUP

gcc -O2 -Wall -o "$scratch/libnfs" bench/nfs.c -lnfs

# Two free ports in a row, for NFS and MOUNT of Ganesha.
port=$((20000 + $$ % 5000 * 2))
while ss -ltnH | grep -qE ":($port|$((port + 1)))\b"; do port=$((port + 2)); done
export_dir=$scratch/ganesha/export
mkdir -p "$export_dir"
cat >"$scratch/ganesha/conf" <<END
NFS_CORE_PARAM { Protocols = 3; NFS_Port = $port; MNT_Port = $((port + 1)); Bind_addr = 127.0.0.1;
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = false; }
NFSV4 { Graceless = true; }
EXPORT { Export_Id = 1; Path = $export_dir; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 3; Transports = TCP; Disable_ACL = true; FSAL { Name = VFS; } }
LOG { Default_Log_Level = EVENT; }
END
# It wants to register somewhere: with an rpcbind of its own, in namespaces that end with it.
unshare -m -p --fork --kill-child --mount-proc sh -c "
    mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p /run/rpcbind /run/ganesha || exit 1
    unshare -n rpcbind -f -w &
    for i in \$(seq 200); do [ -S /run/rpcbind.sock ] && break; sleep 0.05; done
    exec ganesha.nfsd -F -f $scratch/ganesha/conf -L $scratch/ganesha/log -p /run/ganesha.pid" >"$scratch/ganesha/out" 2>&1 &
ganesha=$!
disown

# The cluster and its first gateway; root stays root. A second gateway is added to the cluster file.
url=$("$weft" up --dir "$scratch/cluster" --io "$io" --nfs --detach | grep -o 'weft://[^ ]*' | head -1)
config=$scratch/cluster/weft.toml
gateway_port=$(sed -n '/^\[\[gateway\]\]/,/^$/s/^addresses = \[".*:\([0-9]*\)"\]/\1/p' "$config")
other_port=$((gateway_port + 1))
while ss -ltnH | grep -q ":$other_port\b"; do other_port=$((other_port + 1)); done
sed -i 's/^squash = .*/squash = "none"/' "$config"
printf '\n[[gateway]]\nname = "nfs1"\naddresses = ["127.0.0.1:%s"]\ndirectory = "nfs1"\n' "$other_port" >>"$config"
"$weft" serve --config "$config" --name nfs1 --log-file "$scratch/nfs1.log" &
other=$!
disown
listens() { ss -ltnH | grep -q ":$1\b"; }
for _ in $(seq 200); do
    if listens "$port" && listens $((port + 1)) && listens "$other_port"; then break; fi
    sleep 0.1
done
# Exports are read again within a second or two.
sleep 3

gateway=$(pgrep -f "serve --config $config --name nfs0")
server_of() { pgrep -f "serve --config $config --name $1"; }
weft_servers="$gateway $(server_of meta0)"
for ((number = 0; number < io; number++)); do weft_servers+=" $(server_of io$number)"; done
ganesha_server=$(pgrep -f "ganesha.nfsd -F -f $scratch/ganesha/conf" | tail -1)

nfs_url() { echo "nfs://127.0.0.1:$1/?mountport=$1"; }
weft_url=$(nfs_url "$gateway_port")
ganesha_url="nfs://127.0.0.1:$port$export_dir?mountport=$((port + 1))"
weft_libnfs="nfs://127.0.0.1/?version=3&nfsport=$gateway_port&mountport=$gateway_port&uid=0&gid=0"
ganesha_libnfs="nfs://127.0.0.1$export_dir?version=3&nfsport=$port&mountport=$((port + 1))&uid=0&gid=0"

# by_weft URL, by_libnfs URL: a line for each figure, its name and value.
figures="write read small_write small_read create lookup getattr remove"
by_weft() {
    "$weft" nfs bench "$1" --bytes ${mib}M --small-count $small --files $files --runs 1 --json |
        awk -F'[:,]' -v names="$figures" 'BEGIN { split(names, name, " ") } /"median"/ { print name[++n], $2 + 0 }'
}
by_libnfs() { "$scratch/libnfs" "$1" $mib $small $files; }
value() { awk -v of="$1" -v name="$2" '$1 == of && $2 == name { print $3 }' "$scratch/figures" | median; }

echo "NFS: $io I/O servers, $runs runs, $(date -u +%F)"
: >"$scratch/figures"
for ((turn = 0; turn < runs; turn++)); do
    by_weft "$weft_url" | sed 's/^/weft-weft /' >>"$scratch/figures"
    by_weft "$ganesha_url" | sed 's/^/ganesha-weft /' >>"$scratch/figures"
    by_libnfs "$weft_libnfs" | sed 's/^/weft-libnfs /' >>"$scratch/figures"
    by_libnfs "$ganesha_libnfs" | sed 's/^/ganesha-libnfs /' >>"$scratch/figures"
done
echo
echo "== MiB/s of 1 MiB, 8 under way; others a second, of 4 KiB 32 under way: gateway, Ganesha, ratio, bar"
for client in weft libnfs; do
    for name in $figures; do
        case $name in write | read) bar=1.3 ;; small_*) bar=2 ;; *) bar=1.5 ;; esac
        awk -v client=$client -v name="$name" -v w="$(value weft-$client "$name")" -v g="$(value ganesha-$client "$name")" -v bar=$bar \
            'BEGIN { printf "by %-6s %-12s %8.0f %8.0f %6.2fx  bar %.1fx %s\n", client, name, w, g, w / g, bar, (w / g >= bar) ? "met" : "NOT MET" }'
    done
done

echo
echo "== beside Weft's own TCP transport, one client: MiB/s, bar 75 %"
"$weft" bench shared-file --clients 1 --bytes ${mib}M --transport tcp --memory any --runs "$runs" --url "$url" --json >"$scratch/own"
for name in write read; do
    own=$(tr -d ' \n' <"$scratch/own" | grep -o "\"what\":\"tcp,$name\",\"value\":[0-9.]*" | sed 's/.*://')
    awk -v name=$name -v w="$(value weft-weft $name)" -v own="${own:-0}" \
        'BEGIN { printf "%-6s %6.0f of %6.0f: %3.0f %%\n", name, w, own, (own > 0) ? 100 * w / own : 0 }'
done

# ticks PID...: processor time so far, in seconds. Of ended children of this shell: field 3 and 4 of times.
ticks() { for pid in "$@"; do cat "/proc/$pid/stat"; done | awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); t += $12 + $13 } END { print t / hz }'; }
echo
echo "== processor seconds per GiB, half written, half read: servers, client"
cost() {
    local label=$1 servers=$2 before after client
    shift 2
    # shellcheck disable=SC2086
    before=$(ticks $servers)
    TIMEFORMAT='%U %S'
    client=$({ time "$@" >/dev/null; } 2>&1 | awk 'NF == 2 { print $1 + $2 }')
    # shellcheck disable=SC2086
    after=$(ticks $servers)
    awk -v l="$label" -v s="$after" -v b="$before" -v c="$client" -v gib="$((4 * mib))" \
        'BEGIN { gib /= 1024; printf "%-30s %6.2f %6.2f\n", l, (s - b) / gib, c / gib }'
}
much="--bytes $((2 * mib))M --small-count 1 --files 1 --runs 1"
# shellcheck disable=SC2086
for ((turn = 0; turn < (runs + 1) / 2; turn++)); do
    cost "gateway by weft" "$weft_servers" "$weft" nfs bench "$weft_url" $much
    cost "Ganesha by weft" "$ganesha_server" "$weft" nfs bench "$ganesha_url" $much
    cost "gateway by libnfs" "$weft_servers" "$scratch/libnfs" "$weft_libnfs" $((2 * mib)) 1 1
    cost "Ganesha by libnfs" "$ganesha_server" "$scratch/libnfs" "$ganesha_libnfs" $((2 * mib)) 1 1
done | sort

# together PORT...: MiB/s of all clients together, each of which reads the whole file by the gateway with its port.
head -c ${mib}M /dev/urandom >"$scratch/data"
"$weft" nfs cp "$scratch/data" "nfs://127.0.0.1:$gateway_port/shared?mountport=$gateway_port"
together() {
    local begin=$EPOCHREALTIME pids=()
    for one in "$@"; do
        "$weft" nfs cat "nfs://127.0.0.1:$one/shared?mountport=$one" >/dev/null &
        pids+=($!)
    done
    wait "${pids[@]}"
    awk -v b="$begin" -v e="$EPOCHREALTIME" -v mib=$(($# * mib)) 'BEGIN { print mib / (e - b) }'
}
: >"$scratch/sums"
for ((turn = 0; turn < runs; turn++)); do
    echo "1 $(together "$gateway_port")"
    echo "4 $(together "$gateway_port" "$gateway_port" "$gateway_port" "$gateway_port")"
    echo "2+2 $(together "$gateway_port" "$other_port" "$gateway_port" "$other_port")"
done >>"$scratch/sums"
echo
echo "== one file read by several clients: MiB/s together"
for way in 1 4 2+2; do
    echo "$way: $(awk -v way="$way" '$1 == way { print $2 }' "$scratch/sums" | median)"
done

resident() { awk '/VmRSS/ { print $2 / 1024 }' "/proc/$1/status"; }
echo
echo "== memory of a gateway: MiB, bars 32 and 256"
kill "$other"
while kill -0 "$other" 2>/dev/null; do sleep 0.1; done
"$weft" serve --config "$config" --name nfs1 --log-file "$scratch/nfs1.log" &
other=$!
disown
for _ in $(seq 100); do if listens "$other_port"; then break; fi; sleep 0.1; done
sleep 1
echo "idle: $(resident "$other"); after all of this, the first one: $(resident "$gateway")"
bash -c "ulimit -n 4096; for i in \$(seq 1000); do exec {fd}<>/dev/tcp/127.0.0.1/$other_port || exit 1; done; echo there >$scratch/connected; exec sleep 600" &
connections=$!
disown
for _ in $(seq 200); do if [ -e "$scratch/connected" ]; then break; fi; sleep 0.1; done
sleep 1
echo "with $(ss -tnH state established "( sport = :$other_port )" | wc -l) idle connections: $(resident "$other")"
