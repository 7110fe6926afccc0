#!/bin/sh
# Builds hugefork for C and C++ and installs it: libraries, headers, man pages, and files for pkg-config and CMake.
#
#     install.sh [PREFIX]               install below PREFIX, by default /usr/local
#     install.sh --uninstall [PREFIX]   remove the installed files, and empty folders that install.sh made
#
# DESTDIR is prefixed to every path, for packagers, whose packages know their folders; LIBDIR is the folder for
# libraries, by default PREFIX/lib. With LIBRARIES=folder it takes libhugefork_capi.a from there and builds nothing. The
# compiler CC links the shared library of it. The program STRIP removes debug information from the installed files; with
# STRIP=: it remains.
set -eu

crate=$(cd "$(dirname "$0")" && pwd)
fail() { echo "install.sh: $*" >&2; exit 1; }

action=install
[ "${1-}" = --uninstall ] && { action=uninstall; shift; }
case "${1-}" in -*) sed -n '2,10s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] && exit 0; exit 2 ;; esac
[ $# -le 1 ] || fail "one PREFIX, please"
prefix=${1-/usr/local}
case $prefix in /*) ;; *) fail "$prefix is not an absolute path: give one" ;; esac
libdir=${LIBDIR-$prefix/lib}
lib=${DESTDIR-}$libdir
cmake=$lib/cmake/hugefork
include=${DESTDIR-}$prefix/include
share=${DESTDIR-}$prefix/share/hugefork
man=${DESTDIR-}$prefix/share/man/man3
strip=${STRIP-strip}
# The folders that install.sh has made.
folders=$share/folders

version=$(sed -n 's/^#define HF_VERSION "\(.*\)"$/\1/p' "$crate/include/hugefork.h")
shared=libhugefork.so.$version
# As in build.rs, as are `nodelete` and the reason for it.
soname=libhugefork.so.0

if [ $action = uninstall ]; then
    rm -f "$lib/$shared" "$lib/$soname" "$lib/libhugefork.so" "$lib/libhugefork.a" "$lib/pkgconfig/hugefork.pc" \
        "$cmake/hugeforkConfig.cmake" "$cmake/hugeforkConfigVersion.cmake" "$include/hugefork.h" "$include/hugefork.hpp" \
        "$share/tsan.supp" "$share/hugefork.gdb" "$man/hugefork.3" "$man"/hf_*.3
    made=$(cat "$folders" 2>/dev/null || true)
    rm -f "$folders"
    # Each folder follows the one that it lies in.
    printf '%s\n' "$made" | sed '1!G;h;$!d' | while IFS= read -r folder; do rmdir "$folder" 2>/dev/null || true; done
    rmdir "$share" "$cmake" 2>/dev/null || true
    exit
fi

if [ -z "${LIBRARIES-}" ]; then
    command -v cargo >/dev/null || fail "cargo is missing: install Rust 1.95 or newer with rustup, or set LIBRARIES"
    cargo build --release --locked --manifest-path "$crate/Cargo.toml"
    LIBRARIES=${CARGO_TARGET_DIR-$crate/../../target}/release
fi
[ -f "$LIBRARIES/libhugefork_capi.a" ] || fail "$LIBRARIES has no libhugefork_capi.a"
command -v "${CC-cc}" >/dev/null || fail "${CC-cc} is missing: install gcc, or set CC"
command -v "$strip" >/dev/null || fail "$strip is missing: install binutils, or set STRIP=: to leave debug information in"
made=
make_folder() {
    [ -d "$1" ] && return
    make_folder "$(dirname "$1")"
    mkdir "$1"
    made="$made$1
"
}
for folder in "$lib/pkgconfig" "$cmake" "$include" "$share" "$man"; do make_folder "$folder"; done
# After an update, the list still has the folders of the first installation.
[ -n "${DESTDIR-}" ] || printf %s "$made" >>"$folders"
# Cargo's shared library has no symbol versions: rustc has a version script of its own, and linkers take only one.
"${CC-cc}" -shared -o "$lib/$shared" -Wl,-soname,$soname -Wl,-z,nodelete -Wl,-z,now -Wl,--gc-sections \
    -Wl,--version-script="$crate/hugefork.map" -Wl,--whole-archive "$LIBRARIES/libhugefork_capi.a" -Wl,--no-whole-archive
chmod 755 "$lib/$shared"
install -m 644 "$LIBRARIES/libhugefork_capi.a" "$lib/libhugefork.a"
"$strip" --strip-unneeded "$lib/$shared"
"$strip" --strip-debug "$lib/libhugefork.a"
ln -sf "$shared" "$lib/$soname"
ln -sf "$soname" "$lib/libhugefork.so"
install -m 644 "$crate/include/hugefork.h" "$crate/include/hugefork.hpp" "$include"
install -m 644 "$crate/tsan.supp" "$share/tsan.supp"
install -m 644 "$crate/hugefork.gdb" "$share/hugefork.gdb"
from_cmake=$(realpath -m --relative-to="$libdir/cmake/hugefork" "$prefix/include")
for file in "$lib/pkgconfig/hugefork.pc" "$cmake/hugeforkConfig.cmake" "$cmake/hugeforkConfigVersion.cmake"; do
    sed -e "s|@PREFIX@|$prefix|" -e "s|@INCLUDE@|$from_cmake|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" "$crate/$(basename "$file").in" >"$file"
    chmod 644 "$file"
done
awk -f "$crate/man.awk" -v version="$version" "$crate/include/hugefork.h" >"$man/hugefork.3"
for function in $(sed -n 's/^[a-z].*[ *]\(hf_[a-z0-9_]*\)(.*/\1/p' "$crate/include/hugefork.h"); do
    echo ".so man3/hugefork.3" >"$man/$function.3"
done
chmod 644 "$man/hugefork.3" "$man"/hf_*.3
echo "hugefork $version is installed below ${DESTDIR-}$prefix"
case :$(ldconfig -v 2>/dev/null | sed -n 's|^\(/[^:]*\):.*|\1|p' | tr '\n' ':') in
*:"$libdir":*) [ -n "${DESTDIR-}" ] || [ "$(id -u)" != 0 ] || ldconfig ;;
*) echo "programs look for libraries elsewhere: link with -Wl,-rpath,$libdir, or set LD_LIBRARY_PATH=$libdir" ;;
esac
