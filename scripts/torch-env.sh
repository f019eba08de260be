#!/bin/bash
# Makes a Python environment with PyTorch for machines without a GPU:
#   scripts/torch-env.sh DIR BASE        DIR/bin/python has torch and safetensors, and what BASE has (scripts/python-env.sh BASE)
#
# PyPI has PyTorch for x86-64 with CUDA only, and libraries of CUDA of several gigabytes that it is linked with. Here are libraries
# of the same names in their place, whose functions all say that there is no device (cudaErrorNoDevice, 100): torch.cuda.is_available()
# is False then, and all else works. Made once; later calls find it. Another version below makes it anew.
set -euo pipefail

[ $# = 2 ] || { echo "usage: scripts/torch-env.sh DIR BASE" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
torch="torch==2.15.0"
others="filelock==4.3.1 typing-extensions==4.16.0 sympy==1.14.0 mpmath==1.3.0 networkx==3.6.1 jinja2==3.1.6 markupsafe==3.0.4 safetensors==0.8.0"

"$here/python-env.sh" "$2"
base=$(cd "$2" && pwd)

# Two callers do not make it at the same time.
exec 9> "$dir/lock"
flock 9
made_of="$torch $others $base"
[ "$(cat "$dir/made-of" 2>/dev/null)" != "$made_of" ] || exit 0
echo "making $dir of $torch (540 MB) and $others" >&2
find "$dir" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
python3 -m venv "$dir"
pip=("$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all:)
"${pip[@]}" $torch $others >&2
packages=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/base.pth"

# Everything that is missing, as one function with many names.
libraries="$packages/torch/lib"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
names() { nm -D "$@" 2>/dev/null | awk '{ print $NF }' | sed 's/@.*//' | sort -u; }
names --undefined-only "$libraries"/*.so* "$packages"/torch/_C*.so | { grep -E '^(__cuda|cu|nccl|nv)' || true; } > "$work/wanted"
names --defined-only "$libraries"/*.so* > "$work/there"
{
    echo .text
    comm -23 "$work/wanted" "$work/there" | while read -r name; do
        printf '.globl %s\n.type %s, @function\n%s:\n' "$name" "$name" "$name"
    done
    printf 'mov $100, %%eax\nret\n.section .note.GNU-stack,"",@progbits\n'
} > "$work/none.s"
cc -shared -nostdlib -Wl,-soname,libnocuda.so -o "$libraries/libnocuda.so" "$work/none.s"
readelf -d "$libraries"/*.so | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u | { grep -E '^lib(cu|nccl|nv)' || true; } > "$work/libraries"
while read -r name; do
    [ -e "$libraries/$name" ] || cc -shared -nostdlib -Wl,-soname,"$name" -Wl,--no-as-needed -Wl,-rpath,'$ORIGIN' \
        -o "$libraries/$name" -x c /dev/null -L"$libraries" -lnocuda
done < "$work/libraries"
"$dir/bin/python" -c 'import torch, torch.distributed.checkpoint; assert not torch.cuda.is_available(); torch.ones(3).sum()'
echo "$made_of" > "$dir/made-of"
