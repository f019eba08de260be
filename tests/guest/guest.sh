#!/bin/bash
# Linux guests with RDMA of software (rdma_rxe), on hosts without any: Debian's own kernel in QEMU, emulated, so that what runs in
# them shows that it is right, and nothing about its speed.
#
#   guest.sh prepare                              packages, kernel and initial file system, once (root; Debian on amd64)
#   guest.sh run [OPTIONS] JOB                    one guest, 10.0.0.1 and fd00::1
#   guest.sh pair [OPTIONS] SERVER_JOB CLIENT_JOB two guests on one link: the server 10.0.0.1, the client 10.0.0.2
#
#   --seconds N    time for everything (300); what takes longer is ended, and has failed
#   --loss P       P percent of the packets that each guest of a pair sends are lost
#   --share DIR    directory of the host that guests can write to, as /share (a temporary one)
#
# A job is a bash script of the host, run as root; its output and its status are this program's (of a pair: the client's; a failed
# server fails both). In a guest, the host's files are the root: programs that were built here run there as they are. What a guest
# changes is gone with it, but for /share. /tmp, /run, /dev/shm and /share are its own: keep programs elsewhere, or in this repository.
#
# Everything that is kept is in target/guest. Another kernel: remove it. Other modules are noticed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
kept=${WEFT_GUEST_DIR:-$here/../../target/guest}

# Modules that guests may load; they and what they need are kept of the kernel's package. The rest would be fifty times as much.
modules=(crc32_generic ib_uverbs rdma_ucm rdma_rxe fuse sch_netem sch_tbf veth dummy virtio_rng nfsv3 nfsd rpcrdma)
# Needed before the host's files are there.
first_modules=(virtio_pci virtio_net 9pnet_virtio 9p overlay)

fail() {
    echo "guest.sh: $*" >&2
    exit 1
}

usage() {
    sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed -n 's/^# \{0,1\}//p'
}

# Three times, as networks fail.
again() {
    "$@" || { sleep 2 && "$@"; } || { sleep 10 && "$@"; }
}

install_packages() {
    local needs=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod rdma:iproute2 tc:iproute2
        setpriv:util-linux flock:util-linux cc:gcc) missing=() need
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}")
    done
    # A busybox that needs libraries is of no use before there are any.
    ldd "$(command -v busybox)" >/dev/null 2>&1 && missing+=(busybox-static)
    [ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
    [ -e /usr/include/rdma/rdma_cma.h ] || missing+=(librdmacm-dev)
    [ -e /etc/libibverbs.d/rxe.driver ] || missing+=(ibverbs-providers)
    [ ${#missing[@]} = 0 ] && return
    [ "$(id -u)" = 0 ] || fail "missing; install with: sudo apt-get install ${missing[*]}"
    echo "installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    again apt-get update -qq >&2
    again apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
}

# The kernel that Debian installs by default, without installing it.
unpack_kernel() {
    local name fresh=$kept/kernel.new
    rm -rf "$fresh" && mkdir -p "$fresh"
    [ -n "$(apt-cache search --names-only '^linux-image-amd64$')" ] || again apt-get update -qq >&2
    name=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
    [ -n "$name" ] || fail "no package linux-image-amd64: guests need Debian's archive for amd64"
    (cd "$fresh" && { again apt-get download -qq "$name" || { apt-get update -qq && apt-get download -qq "$name"; }; }) >&2 ||
        fail "the package $name cannot be downloaded"
    local version=${name#linux-image-} parts=(--wildcards './boot/vmlinuz-*' './*lib/modules/*')
    dpkg-deb --fsys-tarfile "$fresh"/*.deb | tar -x -C "$fresh" "${parts[@]}" || fail "the package $name cannot be unpacked"
    rm -f "$fresh"/*.deb
    [ -d "$fresh/lib/modules" ] || mv "$fresh/usr/lib" "$fresh/lib"
    [ -e "$fresh/boot/vmlinuz-$version" ] && [ -d "$fresh/lib/modules/$version" ] ||
        fail "the package $name is not as expected: no kernel $version, or no modules"
    depmod -b "$fresh" "$version"
    keep_modules "$fresh" "$version" "${modules[@]}" "${first_modules[@]}"
    depmod -b "$fresh" "$version"
    echo "${modules[@]} ${first_modules[@]}" > "$fresh/modules"
    echo "$version" > "$fresh/version"
    rm -rf "$kept/kernel" && mv "$fresh" "$kept/kernel"
}

# The files of modules and of what they need.
files_of() { # KERNEL VERSION MODULE...
    local kernel=$1 version=$2 module
    shift 2
    for module in "$@"; do modprobe -d "$kernel" -S "$version" --show-depends "$module"; done |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

keep_modules() { # KERNEL VERSION MODULE...
    local kept_files
    kept_files=$(files_of "$@") || fail "the kernel has not all of the modules ${*:3}"
    find "$1/lib/modules/$2/kernel" -name '*.ko*' | grep -vxF "$kept_files" | xargs rm -f
    find "$1/lib/modules/$2" -type d -empty -delete
}

uncompressed() { # MODULE TO
    case $1 in
        *.xz) xz -dc "$1" > "$2" ;;
        *.zst) zstd -qdc "$1" > "$2" ;;
        *) cp "$1" "$2" ;;
    esac
}

make_initrd() {
    local version tree=$kept/initrd number=10 module
    version=$(cat "$kept/kernel/version")
    rm -rf "$tree" && mkdir -p "$tree/bin" "$tree/modules"
    cp "$(command -v busybox)" "$tree/bin/busybox"
    for module in $(files_of "$kept/kernel" "$version" "${first_modules[@]}"); do
        uncompressed "$module" "$tree/modules/$number-$(basename "${module%%.ko*}").ko"
        number=$((number + 1))
    done
    cp "$here/init" "$tree/init"
    chmod 755 "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) > "$kept/initrd.new"
    mv "$kept/initrd.new" "$kept/initrd.gz"
    rm -rf "$tree"
}

prepare() {
    [ "$(uname -m)" = x86_64 ] || fail "guests are for amd64 only"
    install_packages
    mkdir -p "$kept"
    kept=$(cd "$kept" && pwd)
    exec 9> "$kept/lock"
    flock -w 600 9 || fail "another preparation of $kept does not end"
    [ "$(cat "$kept/kernel/modules" 2>/dev/null)" = "${modules[*]} ${first_modules[*]}" ] || unpack_kernel
    [ "$kept/initrd.gz" -nt "$here/init" ] && [ "$kept/initrd.gz" -nt "$kept/kernel/version" ] || make_initrd
    exec 9>&-
    # Of runs that were killed.
    find "$kept" -maxdepth 1 -name 'share.*' -mmin +1440 -exec rm -rf {} +
}

# In the background; its number is in $!. It ends with this script, however that ends.
boot() { # NAME ADDRESS_NUMBER CPUS NETWORK JOB
    local name=$1 number=$2 cpus=$3 network=$4 job version
    job=$(realpath "$5")
    [ -r "$job" ] || fail "there is no job $5"
    version=$(cat "$kept/kernel/version")
    cp "$job" "$share/$name.job"
    rm -f "$share/$name.status"
    setpriv --pdeathsig TERM timeout -k 5 "$seconds" setpriv --pdeathsig KILL \
        qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max -smp "$cpus" -m "${WEFT_GUEST_MIB:-2048}" \
        -nodefaults -no-user-config -no-reboot -display none -serial stdio \
        -kernel "$kept/kernel/boot/vmlinuz-$version" -initrd "$kept/initrd.gz" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 mitigations=off audit=0 apparmor=0 \
weft.name=$name weft.number=$number weft.loss=$loss weft.modules=$kept/kernel/lib/modules weft.here=$repository" \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$share,mount_tag=share,security_model=none" \
        -object rng-random,id=random,filename=/dev/urandom -device virtio-rng-pci,rng=random \
        -netdev "$network" -device "virtio-net-pci,netdev=link,mac=52:54:00:00:00:0$number" \
        > "$share/$name.console" 2>&1 < /dev/null &
}

# Shows what a guest said; its status is the job's, or 99 if there is none.
ended() { # NAME
    if [ -s "$share/$1.output" ]; then cat "$share/$1.output"; fi
    local status
    status=$(cat "$share/$1.status" 2>/dev/null || echo 99)
    if [ "$status" = 99 ]; then
        echo "guest.sh: the guest '$1' did not end its job in $seconds s; the end of its console:" >&2
        tail -n 40 "$share/$1.console" >&2
    fi
    return "$status"
}

run() {
    [ $# = 1 ] || fail "run takes one job"
    boot solo 1 2 hubport,id=link,hubid=0 "$1"
    wait $! || true
    ended solo
}

pair() {
    [ $# = 2 ] || fail "pair takes the jobs of the server and of the client"
    local link=$share/link server client
    boot server 1 1 "stream,id=link,server=on,addr.type=unix,addr.path=$link" "$1"
    server=$!
    for _ in $(seq 100); do [ -S "$link" ] && break; sleep 0.1; done
    [ -S "$link" ] || { cat "$share/server.console" >&2; fail "the server's guest did not start"; }
    boot client 2 1 "stream,id=link,server=off,addr.type=unix,addr.path=$link" "$2"
    client=$!
    wait $client || true
    wait $server || true
    local status=0
    ended client || status=$?
    echo "--- the server's guest"
    ended server || status=$((status ? status : $?))
    return "$status"
}

seconds=300 loss=0 share=
command=${1:-help}
[ $# = 0 ] || shift
while [[ ${1:-} == --* ]]; do
    [ $# -ge 2 ] || fail "$1 takes a value"
    case $1 in
        --seconds) seconds=$2 ;;
        --loss) loss=$2 ;;
        --share) share=$2 ;;
        *) fail "there is no option $1" ;;
    esac
    shift 2
done

case $command in
    prepare) prepare ;;
    run | pair)
        prepare
        temporary=
        [ -n "$share" ] || { temporary=$(mktemp -d "$kept/share.XXXXXX"); share=$temporary; }
        share=$(cd "$share" && pwd)
        trap '[ -z "$(jobs -p)" ] || kill $(jobs -p) 2>/dev/null; [ -z "$temporary" ] || rm -rf "$temporary"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        "$command" "$@"
        ;;
    help | -h | --help) usage ;;
    *) fail "there is no command $command; see guest.sh help" ;;
esac
