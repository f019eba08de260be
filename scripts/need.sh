#!/bin/bash
# Installs missing packages or, if not root, prints the command that does.
#   scripts/need.sh cargo fuse rsync …
set -euo pipefail

package_of() {
    case $1 in
        cc) echo gcc libc6-dev ;;
        fuse) echo fuse3 ;;
        sqlite) echo sqlite3 ;;
        ip) echo iproute2 ;;
        mkfs.ext4) echo e2fsprogs ;;
        mkfs.xfs) echo xfsprogs ;;
        mpich) echo mpich libmpich-dev ;;
        openmpi) echo openmpi-bin libopenmpi-dev ;;
        ssh) echo openssh-client openssh-sftp-server dropbear-bin ;; # a server that is started by hand only
        venv) echo python3-venv ;;
        prometheus) echo python3-prometheus-client ;;
        h5py) echo python3-h5py-mpi python3-mpi4py ;;
        pnetcdf) echo libpnetcdf-dev ;;
        netcdf) echo libnetcdf-mpi-dev netcdf-bin ;;
        libnfs) echo libnfs-utils ;;
        ganesha) echo nfs-ganesha nfs-ganesha-vfs rpcbind ;;
        *) echo "$1" ;;
    esac
}

is_here() {
    case $1 in
        fuse) command -v fusermount3 ;;
        ssh) command -v ssh && command -v dropbear && ls /usr/lib/sftp-server ;;
        sqlite) command -v sqlite3 ;;
        mpich) command -v mpicc.mpich ;;
        openmpi) command -v mpicc.openmpi ;;
        h5py) /usr/bin/python3 -c 'import mpi4py, h5py._debian_h5py_mpi' 2>/dev/null && echo here ;;
        pnetcdf) ls /usr/include/pnetcdf.h 2>/dev/null ;;
        netcdf) command -v ncdump && ls /usr/lib/*/libnetcdf_mpi.so 2>/dev/null ;;
        libnfs) command -v nfs-ls ;;
        ganesha) command -v ganesha.nfsd && command -v rpcbind && ls /usr/lib/*/ganesha/libfsalvfs.so ;;
        prometheus) /usr/bin/python3 -c 'import prometheus_client.parser' 2>/dev/null && echo here ;;
        venv) python3 -c 'import venv, ensurepip' 2>/dev/null && echo here ;;
        *) command -v "$1" ;;
    esac >/dev/null
}

packages=()
for need in "$@"; do
    [ "$need" = cargo ] || is_here "$need" || packages+=($(package_of "$need"))
done
if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "weft: installing ${packages[*]}" >&2
        export DEBIAN_FRONTEND=noninteractive
        said=$(mktemp)
        install_all() { apt-get install -y -q "${packages[@]}" >>"$said" 2>&1; }
        if ! install_all && ! { apt-get update -q >>"$said" 2>&1 && install_all; }; then
            tail -n 30 "$said" >&2
            echo "weft: that failed; all that apt-get has said is in $said" >&2
            exit 1
        fi
        rm -f "$said"
    elif command -v apt-get >/dev/null; then
        echo "weft: missing; install with: sudo apt-get install ${packages[*]}" >&2
        exit 1
    else
        echo "weft: missing: $*; install what Debian has in the packages ${packages[*]}" >&2
        exit 1
    fi
fi

# The toolchain: rust-version in Cargo.toml, or newer.
[[ " $* " == *" cargo "* ]] || exit 0
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
PATH="$HOME/.cargo/bin:$PATH"
have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
newest() { printf '%s\n' "$@" | sort -V | tail -n 1; }
if [ -n "$have" ] && [ "$(newest "$wanted" "$have")" = "$have" ]; then
    exit 0
fi
# Debian 13 and later have the package rustup; before that its own installer is needed.
if ! command -v rustup >/dev/null && [ "$(id -u)" = 0 ] && apt-cache show rustup >/dev/null 2>&1; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q rustup >/dev/null 2>&1 || true
fi
if command -v rustup >/dev/null; then
    { rustup toolchain install stable --profile minimal --component clippy,rustfmt && rustup default stable; } >&2
elif command -v curl >/dev/null; then
    # Into ~/.cargo and ~/.rustup; no file of a shell is changed.
    echo "weft: Rust $wanted or newer is needed${have:+ (there is $have)}: getting it with rustup's installer" >&2
    installer=$(mktemp)
    trap 'rm -f "$installer"' EXIT
    if ! curl --proto '=https' --tlsv1.2 -sSf -o "$installer" https://sh.rustup.rs ||
        ! sh "$installer" -y --no-modify-path --profile minimal --component clippy,rustfmt >&2; then
        echo "weft: rustup's installer could not be used; install Rust $wanted or newer by other means" >&2
        exit 1
    fi
else
    echo "weft: Rust $wanted or newer is needed${have:+ (there is $have)}; install curl, or Rust with rustup" >&2
    exit 1
fi
