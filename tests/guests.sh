#!/usr/bin/env bash
# Boots kernels of Debian in QEMU, which emulates the processor, and runs tests of this checkout in each.
#
#   tests/guests.sh [--smoke] [KERNEL...]
#
# Without KERNEL, all of the list below. --smoke runs the first steps only: some minutes a kernel, where all of the engine's tests
# take an hour or more. What `hugefork doctor` says there, and all results, are in target/guests/KERNEL.log. The last line is
# "N passed, N failed".
#
# It takes apt-get, dpkg-deb, cpio, qemu-system-x86_64 and qemu-system-aarch64; for arm64 aarch64-linux-gnu-gcc, and rustup.
set -euo pipefail
cd "$(dirname "$0")/.."

# Name, processor, and the release of Debian whose kernel it is.
kernels='
x86_64-6.1    amd64  bookworm
x86_64-6.12   amd64  trixie
x86_64-newest amd64  trixie-backports
arm64-6.12    arm64  trixie
arm64-newest  arm64  trixie-backports
'

smoke= names=()
while [ $# -gt 0 ]; do
    case $1 in
        --smoke) smoke=1 ;;
        -*) sed -n '2,10s/^# \?//p' "$0" >&2; exit 2 ;;
        *) names+=("$1") ;;
    esac
    shift
done
[ "${#names[@]}" -gt 0 ] || mapfile -t names < <(awk 'NF { print $1 }' <<<"$kernels")

lacks=
for command in apt-get dpkg-deb cpio qemu-system-x86_64 qemu-system-aarch64 aarch64-linux-gnu-gcc rustup; do
    command -v $command >/dev/null || lacks+=" $command"
done
if [ -n "$lacks" ]; then
    echo "skipped: no guest can be booted without$lacks" >&2
    echo "apt-get install cpio qemu-system-x86 qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit 77
fi

here=$PWD/target/guests
mkdir -p "$here"

# apt-get for packages of other releases and processors, which changes nothing outside of target/guests/.
apt=$here/apt
mkdir -p "$apt"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} "$apt"/var/lib/{dpkg,apt/lists/partial} "$apt"/var/cache/apt/archives/partial
: >"$apt/var/lib/dpkg/status"
for release in bookworm trixie trixie-backports; do
    echo "deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $release main"
done >"$apt/etc/apt/sources.list"
options=(-o "Dir=$apt" -o "Dir::State::status=$apt/var/lib/dpkg/status" -o APT::Architecture=amd64 -o APT::Architectures=amd64,arm64
    -o APT::Sandbox::User=root -o Acquire::Languages=none)
[ -n "$(find "$apt/var/lib/apt/lists" -name '*_Packages*' -mtime -1)" ] || apt-get "${options[@]}" -qq update

# unpack FOLDER PACKAGE...
unpack() {
    local folder=$1 package
    shift
    mkdir -p "$here/debs" "$folder"
    for package in "$@"; do
        (cd "$here/debs" && apt-get "${options[@]}" -qq download "$package" 2>/dev/null) || return 1
        dpkg-deb -x "$(ls -t "$here/debs/${package%%:*}"_*_"${package##*:}".deb | head -1)" "$folder"
    done
}

# kernel NAME PROCESSOR RELEASE: stores the image and its version.
kernel() {
    local name=$1 processor=$2 release=$3 image folder=$here/kernel-$1
    image=$(apt-cache "${options[@]}" -t "$release" depends "linux-image-cloud-$processor:$processor" |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^:]*\).*/\1/p' | head -1)
    [ "$(cat "$folder/package" 2>/dev/null)" = "$image" ] && return
    rm -rf "$folder"
    unpack "$folder" "$image:$processor"
    # Newer packages are empty, and have the kernel in another.
    compgen -G "$folder/boot/vmlinuz*" >/dev/null || unpack "$folder" "${image/image/binary}:$processor"
    find "$folder" -name 'vmlinuz*' -type f -exec cp {} "$folder/vmlinuz" \;
    echo "$image" >"$folder/package"
}

# programs PROCESSOR: builds the command and the tests, with all that they load.
programs() {
    local processor=$1 target=x86_64-unknown-linux-gnu libraries=/lib/x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 folder=$here/root-$1
    if [ "$processor" = arm64 ]; then
        target=aarch64-unknown-linux-gnu libraries=/usr/aarch64-linux-gnu/lib loader=lib/ld-linux-aarch64.so.1
        rustup target add $target 2>/dev/null
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
    fi
    local tests=(-p hugefork --test engine)
    [ -n "$smoke" ] || tests=(-p hugefork --lib --test engine --test own_tmpfs --test heap --test pressure)
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,lib,lib64,proc,sys,dev,tmp,tests}
    cargo build --quiet --target $target -p hugefork-cli
    cp "${CARGO_TARGET_DIR:-target}/$target/debug/hugefork" "$folder/bin/"
    cargo test --quiet --target $target "${tests[@]}" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | while read -r executable; do
            cp "$executable" "$folder/tests/$(basename "$executable" | sed 's/-[0-9a-f]*$//')"
        done
    cp "$libraries"/{libc.so.6,libm.so.6,libgcc_s.so.1,libdl.so.2,libpthread.so.0} "$folder/lib/"
    cp "$libraries/$(basename $loader)" "$folder/$loader"
    unpack "$here/busybox-$processor" "busybox-static:$processor"
    cp "$(find "$here/busybox-$processor" -name busybox -type f -perm -1 | head -1)" "$folder/bin/busybox"
    cat >"$folder/init" <<INIT
#!/bin/busybox sh
export PATH=/bin HOME=/tmp NO_COLOR=1
busybox mount -t proc proc /proc; busybox mount -t sysfs sys /sys; busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/shm; busybox mount -t tmpfs shm /dev/shm; busybox mount -t tmpfs tmp /tmp
busybox ln -s /proc/self/fd /dev/fd 2>/dev/null; busybox ip link set lo up 2>/dev/null
echo 64 >/proc/sys/vm/nr_hugepages; echo 1 >/proc/sys/vm/unprivileged_userfaultfd
echo "guest: \$(busybox uname -r)"
/bin/hugefork doctor; echo "guest: doctor ended with \$?"
if [ -n "$smoke" ]; then
    /tests/engine --test-threads=2 first_steps:: 2>&1
else
    for test in /tests/*; do echo "guest: \$test"; \$test --test-threads=2 2>&1; echo "guest: \$test ended with \$?"; done
fi
echo "guest: done"
busybox poweroff -f
INIT
    chmod +x "$folder/init"
    (cd "$folder" && find . | cpio --quiet -o -H newc | gzip -1) >"$here/root-$processor.gz"
}

# boot NAME PROCESSOR: prints what the guest says.
boot() {
    local seconds=10800
    [ -z "$smoke" ] || seconds=900
    local machine=(qemu-system-x86_64 -cpu max -append 'console=ttyS0 quiet panic=-1')
    [ "$2" = amd64 ] || machine=(qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -append 'console=ttyAMA0 quiet panic=-1')
    timeout "$seconds" "${machine[@]}" -accel tcg,thread=multi -m 3G -smp 2 -nographic -no-reboot -kernel "$here/kernel-$1/vmlinuz" \
        -initrd "$here/root-$2.gz" </dev/null | tr -d '\r'
}

passed=0 failed=0 built=
for name in "${names[@]}"; do
    read -r _ processor release < <(grep "^$name " <<<"$kernels") || { echo "no kernel is called $name" >&2; exit 2; }
    kernel "$name" "$processor" "$release"
    case $built in *$processor*) ;; *) programs "$processor"; built+=" $processor" ;; esac
    log=$here/$name.log
    echo "== $name: $(cat "$here/kernel-$name/package")"
    boot "$name" "$processor" | tee "$log" | grep --line-buffered -E '^(guest:|test result:|test .*FAILED)|skipped:' || true
    read -r well badly < <(awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$log")
    # A guest that did not come to its end has failed, whatever it said before.
    grep -q '^guest: done' "$log" || badly=$((badly + 1))
    passed=$((passed + well)) failed=$((failed + badly))
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
