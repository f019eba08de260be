#!/bin/bash
# Makes packages in dist/ of what `make build` made: scripts/package.sh tarball|deb|rpm
#   BUILT=DIR              where the programs are (default: target/release)
#   DIST=DIR               where packages go (default: dist)
#   SOURCE_DATE_EPOCH=S    the time of all files (default: that of the last commit)
#   PACK=xz|gzip           how they are compressed (default: xz)
# Programs are stripped. What was stripped is in weft-VERSION-debug.tar.*, for gdb. The same programs make the same packages,
# byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."
built=${BUILT:-target/release}
dist=${DIST:-dist}
pack=${PACK:-xz}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(uname -m)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export LC_ALL=C

case $pack in
    xz) end=xz level=6 compress=(xz -6) ;;
    # Without the time at which it was compressed.
    gzip) end=gz level=1 compress=(gzip -n -1) ;;
    *) echo "weft: PACK is xz or gzip, not $pack" >&2; exit 2 ;;
esac
for tool in objcopy strip tar "$pack"; do
    command -v "$tool" >/dev/null || { echo "weft: $tool is missing (packages binutils, tar, xz-utils, gzip)" >&2; exit 1; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/weft-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$dist"

# stage PREFIX: everything in place below $work/root, stripped; what was stripped below $work/debug.
stage() {
    make --no-print-directory --old-file=build install PREFIX="$1" DESTDIR="$work/root" BUILT="$built" >/dev/null
    local file kept
    find "$work/root" -type f \( -path '*/bin/*' -o -name '*.so*' \) | while read -r file; do
        kept=$work/debug/${file#"$work/root/"}.debug
        mkdir -p "$(dirname "$kept")"
        objcopy --only-keep-debug "$file" "$kept"
        strip "$file"
        (cd "$(dirname "$kept")" && objcopy --add-gnu-debuglink="$(basename "$kept")" "$file")
    done
    find "$work/root" "$work/debug" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# archive DIRECTORY NAME FILE: the same bytes for the same contents.
archive() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --transform="s,^\.,$2," -C "$1" -cf - . |
        "${compress[@]}" >"$3"
    echo "$3"
}

# Makes the servers' user, and directories for the cluster file, keys and storage, or fails. It leaves existing ones unchanged.
# packaging/weft.sysusers and weft.tmpfiles say the same. No service is started: docs/guide/permanent.md says how.
make_user_and_directories='if ! getent passwd weft >/dev/null; then
    if command -v useradd >/dev/null; then
        if getent group weft >/dev/null; then group="--gid weft"; else group=--user-group; fi
        useradd --system $group --home-dir /var/lib/weft --no-create-home --shell /usr/sbin/nologin --comment "Weft servers" weft
    elif command -v systemd-sysusers >/dev/null; then
        echo "u weft - \"Weft servers\" /var/lib/weft" | systemd-sysusers -
    else
        echo "weft: cannot make the user weft: useradd (package passwd or shadow-utils) is missing; install it, and then weft again" >&2
        exit 1
    fi
fi
[ -d /etc/weft ] || install -d -m 755 /etc/weft
[ -d /var/lib/weft ] || install -d -m 750 -o weft -g weft /var/lib/weft'

# Programs and libraries below $work/root.
binaries() { find "$work/root" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec objdump -p {} + 2>/dev/null; }

# newest PREFIX: the newest version of a library's symbols that they need, as of GLIBC_.
newest() { binaries | sed -n "s/.* $1\([0-9.]*\)\$/\1/p" | sort -uV | tail -n 1; }

# Fails if a program needs a library that no dependency of the packages provides.
check_libraries() {
    local other
    other=$(binaries | sed -n 's/^ *NEEDED *//p' | sort -u | grep -vE '^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s))\.so\.[0-9]+$' || true)
    [ -z "$other" ] || { echo "weft: scripts/package.sh does not know which packages have" $other >&2; exit 1; }
}

debug_archive() { archive "$work/debug" "weft-$version-$arch-debug" "$dist/weft-$version-$arch-debug.tar.$end"; }

case ${1:-} in
    tarball)
        stage /usr/local
        mkdir "$work/top"
        cp -a "$work/root/usr/local/." "$work/top/"
        cp -a LICENSE README.md "$work/top/"
        find "$work/top" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
        archive "$work/top" "weft-$version-$arch" "$dist/weft-$version-$arch.tar.$end"
        debug_archive
        ;;
    deb)
        command -v dpkg-deb >/dev/null || { echo "weft: dpkg-deb is missing (package dpkg)" >&2; exit 1; }
        case $arch in
            x86_64) debian=amd64 ;;
            aarch64) debian=arm64 ;;
            *) debian=$arch ;;
        esac
        stage /usr
        check_libraries
        mkdir -p "$work/root/DEBIAN" "$work/root/usr/share/doc/weft"
        mv "$work/root/usr/share/doc/weft/LICENSE" "$work/root/usr/share/doc/weft/copyright"
        cp CHANGELOG.md "$work/root/usr/share/doc/weft/changelog"
        # /sbin is a link to usr/sbin in Debian.
        mkdir -p "$work/root/usr/sbin" && mv "$work/root/sbin/mount.weft" "$work/root/usr/sbin/" && rmdir "$work/root/sbin"
        cat >"$work/root/DEBIAN/control" <<CONTROL
Package: weft
Version: $version
Architecture: $debian
Maintainer: The Weft developers
Installed-Size: $(du -sk --apparent-size "$work/root" | cut -f1)
Depends: libc6 (>= $(newest GLIBC_)), libgcc-s1 (>= $(newest GCC_)), passwd
Recommends: fuse3
Suggests: bash-completion, libibverbs1, librdmacm1, ibverbs-providers
Section: admin
Priority: optional
Description: parallel file system in user space
 Weft stripes files over I/O servers. Clients move data directly between their own
 memory and those servers, over RDMA, TCP or shared memory. It needs no kernel module,
 no external database and no root.
CONTROL
        cat >"$work/root/DEBIAN/postinst" <<POSTINST
#!/bin/sh
set -e
[ "\$1" = configure ] || exit 0
if [ -n "\$DPKG_ROOT" ]; then
    echo "weft: the user weft, /etc/weft and /var/lib/weft are not made in \$DPKG_ROOT; systemd makes them when it boots" >&2
    exit 0
fi
POSTINST
        printf '%s\nldconfig\n' "$make_user_and_directories" >>"$work/root/DEBIAN/postinst"
        cat >"$work/root/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ -z "$DPKG_ROOT" ]; then
    ldconfig
fi
POSTRM
        chmod 755 "$work/root/DEBIAN/postinst" "$work/root/DEBIAN/postrm"
        find "$work/root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
        dpkg-deb --root-owner-group "-Z$pack" "-z$level" --build "$work/root" "$dist/weft_${version}_$debian.deb" >/dev/null
        echo "$dist/weft_${version}_$debian.deb"
        debug_archive
        ;;
    rpm)
        command -v rpmbuild >/dev/null || { echo "weft: rpmbuild is missing (package rpm or rpm-build)" >&2; exit 1; }
        stage /usr
        check_libraries
        mkdir -p "$work/root/usr/sbin" && mv "$work/root/sbin/mount.weft" "$work/root/usr/sbin/" && rmdir "$work/root/sbin"
        (cd "$work/root" && find . -mindepth 1 \( -type f -o -type l \) | sed 's,^\.,,' | sort) >"$work/files"
        case $pack in xz) payload=w6.xzdio ;; *) payload=w1.gzdio ;; esac
        cat >"$work/weft.spec" <<SPEC
Name: weft
Version: $version
Release: 1
Summary: Parallel file system in user space
License: Apache-2.0
AutoReqProv: no
Requires: glibc >= $(newest GLIBC_), libgcc >= $(newest GCC_)
Requires(pre): /usr/sbin/useradd
Recommends: fuse3
%description
Weft stripes files over I/O servers. Clients move data directly between their own
memory and those servers, over RDMA, TCP or shared memory. It needs no kernel module,
no external database and no root.
%install
mkdir -p %{buildroot} && cp -a $work/root/. %{buildroot}/
%files -f $work/files
%defattr(-,root,root,-)
%pre
set -e
$make_user_and_directories
%post
ldconfig
%postun
ldconfig
SPEC
        rpmbuild -bb --quiet --target "$arch" --buildroot "$work/buildroot" \
            --define "_topdir $work/rpm" --define "_rpmdir $work/rpms" --define "_dbpath $work/db" \
            --define "_binary_payload $payload" --define "_buildhost localhost" \
            --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
            --define "__os_install_post %{nil}" --define "_build_id_links none" --define "debug_package %{nil}" \
            "$work/weft.spec" >&2
        mv "$work/rpms/$arch/weft-$version-1.$arch.rpm" "$dist/"
        echo "$dist/weft-$version-1.$arch.rpm"
        debug_archive
        ;;
    *)
        echo "usage: scripts/package.sh tarball|deb|rpm" >&2
        exit 2
        ;;
esac
