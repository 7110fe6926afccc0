#!/usr/bin/env bash
# Boots kernels of Debian in QEMU, which emulates the processor, and runs the command and tests of this checkout in each.
#
#   tests/guests.sh [--smoke] [KERNEL...]    boots them; without KERNEL, all of the list below
#   tests/guests.sh --table                  writes docs/safety/kernels.md from the last run of each kernel, and boots none
#
# Each kernel runs `hugefork doctor` and a few tests of each part, which takes 2 minutes; without --smoke then all tests of the
# engine, one after the other in a process of its own, which takes an hour or more. What a guest prints is kept in
# target/guests/KERNEL.log or KERNEL-all.log. The last line is "N passed, N failed". Status 77: nothing could be run, for the reason that is printed.
#
# It takes apt-get, dpkg-deb, cpio, cc and qemu-system-x86_64; for arm64 qemu-system-aarch64, aarch64-linux-gnu-gcc and rustup.
set -euo pipefail
cd "$(dirname "$0")/.."

# Name, processor, the release of Debian whose kernel it is, and the kind of kernel.
kernels='
x86_64-6.1    amd64  bookworm          cloud-amd64
x86_64-6.12   amd64  trixie            cloud-amd64
x86_64-newest amd64  trixie-backports  cloud-amd64
arm64-6.12    arm64  trixie            cloud-arm64
arm64-newest  arm64  trixie-backports  cloud-arm64
arm64-16k     arm64  trixie            arm64-16k
'

smoke='' table='' names=()
while [ $# -gt 0 ]; do
    case $1 in
        --smoke) smoke=1 ;;
        --table) table=1 ;;
        -*) sed -n '2,11s/^# \?//p' "$0" >&2; exit 2 ;;
        *) grep -q "^$1 " <<<"$kernels" || { echo "no kernel is called $1" >&2; exit 2; }; names+=("$1") ;;
    esac
    shift
done
mapfile -t all < <(awk 'NF { print $1 }' <<<"$kernels")
[ "${#names[@]}" -gt 0 ] || names=("${all[@]}")
processor_of() { awk -v name="$1" '$1 == name { print $2 }' <<<"$kernels"; }

here=$PWD/target/guests
mkdir -p "$here"

# table: prints what the kernels have and lack, from the logs of their last runs.
table() {
    local name logs=()
    cat <<'HEAD'
# Kernels

Written by `tests/guests.sh --table`: Debian's kernels in QEMU, which emulates the processor. "Yes" and "no" are the answers of `hugefork
doctor` there, "passed" those of tests. Figures and CI's tests are from 6.18. Not tested, for lack of packages: 5.14 to 6.0, 6.2 to 6.11,
and 64 KiB pages.

HEAD
    for name in "${all[@]}"; do
        for name in "$here/$name-all.log" "$here/$name.log"; do [ ! -f "$name" ] || logs+=("$name"); done
    done
    awk -v names="${all[*]}" '
        FNR == 1 { name = FILENAME; sub(/.*\//, "", name); sub(/(-all)?\.log$/, "", name) }
        # The firmware has left the beginning of this line.
        /guest: kernel / { kernel[name] = $NF }
        /^ *"name": / { check = $2; gsub(/[",]/, "", check) }
        /^ *"status": / { status = $2; gsub(/[",]/, "", status); if (check != "") says[name, check] = status }
        /^ *"found": / { found = $0; sub(/^ *"found": "/, "", found); sub(/",?$/, "", found); words[name, check] = found; check = "" }
        /^guest: step / { step = $3; sub(/:$/, "", step); verdict[name, step] = /passed in part/ ? "in part" : $4; sub(/,$/, "", verdict[name, step]) }
        /^guest: test .*: passed/ { well[name]++ }
        /^guest: test .*: failed/ { badly[name]++ }
        /^guest: test .*: passed in part/ { partly[name]++ }
        /^guest: all of the engine/ { minutes[name] = $7 }
        /^guest: done/ { done[name] = 1 }
        function cell(name, kind, key) {
            if (kind == "all" && !(name in well)) return "not run"
            if (kind == "all")
                return well[name] " passed, " partly[name] + 0 " of them in part; " badly[name] + 0 " failed" (name in minutes ? "" : "; not all ran")
            if (kind == "step") return (name, key) in verdict ? verdict[name, key] : done[name] ? "–" : "not run"
            if (!((name, "backing") in says)) return "not run"
            if (kind == "words") return says[name, key] == "fail" ? "refused" : words[name, key]
            if (says[name, "backing"] == "fail") return "–"
            if (kind == "tracking") return words[name, "page-grain"] ~ /kernel tracks writes/ ? "yes" : "no"
            return says[name, key] == "pass" ? "yes" : says[name, key] == "" ? "–" : "no"
        }
        function row(label, kind, key,    i) {
            printf "|%s|", label
            for (i = 1; i <= count; i++) printf "%s|", cell(order[i], kind, key)
            print ""
        }
        function lack(key, text,    i, of) {
            for (i = 1; i <= count; i++)
                if (cell(order[i], key == "tracking" ? key : "doctor", key) == "no") of = of (of == "" ? "" : ", ") kernel[order[i]]
            if (of != "") print "* " text " (" of ")."
        }
        END {
            count = split(names, order, " ")
            printf "||"
            for (i = 1; i <= count; i++) printf "%s|", order[i] in kernel ? kernel[order[i]] : order[i]
            printf "\n|---|"
            for (i = 1; i <= count; i++) printf "---|"
            print ""
            row("huge pages, `shmem_enabled=never`", "words", "backing")
            row("a tmpfs of the pool'\''s own", "doctor", "own-tmpfs")
            row("copies of single pages", "doctor", "page-grain")
            row("write tracking", "tracking", "")
            row("system calls wait for write-backs", "doctor", "system-calls")
            row("`hugefork run --pool`", "doctor", "run-pool")
            row("warnings of memory pressure", "doctor", "pressure")
            row("first steps", "step", "first-steps")
            row("single pages", "step", "page-grain")
            row("histories", "step", "histories")
            row("resets", "step", "resets")
            row("exports", "step", "exports")
            row("own tmpfs", "step", "own-tmpfs")
            row("`hugefork keep`", "step", "keep")
            row("C", "step", "c")
            row("Python", "step", "python")
            row("a pool is refused with its reason", "step", "refusal")
            row("all tests of the engine", "all", "")
            print ""
            lack("page-grain", "Without copies of single pages, the first write to shared memory copies 2 MiB, not 4 KiB")
            lack("tracking", "Without write tracking, each snapshot of a history scans all private pages, and keeps writers off meanwhile")
            lack("system-calls", "System calls that write into a region may fail with `EFAULT` while pages are written back")
            lack("run-pool", "`hugefork run --pool` runs programs unchanged")
            for (i = 1; i <= count; i++)
                if (says[order[i], "backing"] == "fail") print "* " kernel[order[i]] ": " words[order[i], "backing"] "."
        }' "${logs[@]}" /dev/null
}
if [ -n "$table" ]; then
    table >docs/safety/kernels.md
    exit
fi

skip() { echo "skipped: no guest can be booted: $*" >&2; exit 77; }
lacks='' processors=$(for name in "${names[@]}"; do processor_of "$name"; done)
commands=(apt-get dpkg-deb cpio cargo)
case $processors in *amd64*) commands+=(cc qemu-system-x86_64) ;; esac
case $processors in *arm64*) commands+=(qemu-system-aarch64 aarch64-linux-gnu-gcc rustup) ;; esac
for command in "${commands[@]}"; do command -v "$command" >/dev/null || lacks+=" $command"; done
# All of Debian's releases are signed with its keys.
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f $keys ] || lacks+=" $keys"
[ -z "$lacks" ] ||
    skip "missing:$lacks (apt-get install cpio qemu-system-x86 qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross debian-archive-keyring)"

# apt-get for packages of other releases and processors, which changes nothing outside of target/guests/.
apt=$here/apt
mkdir -p "$apt"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} "$apt"/var/lib/{dpkg,apt/lists/partial} "$apt"/var/cache/apt/archives/partial
: >"$apt/var/lib/dpkg/status"
for release in bookworm trixie trixie-backports; do
    echo "deb [arch=amd64,arm64 signed-by=$keys] http://deb.debian.org/debian $release main"
done >"$apt/etc/apt/sources.list"
options=(-o "Dir=$apt" -o "Dir::State::status=$apt/var/lib/dpkg/status" -o APT::Architecture=amd64 -o APT::Architectures=amd64,arm64
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2)
if [ -z "$(find "$apt/var/lib/apt/lists" -name '*_Packages*' -mtime -1)" ]; then
    timeout 300 apt-get "${options[@]}" -qq --error-on=any update >/dev/null 2>"$apt/said" || [ -n "$(find "$apt/var/lib/apt/lists" -name '*_Packages*')" ] ||
        skip "the lists of packages cannot be had: $(tail -1 "$apt/said")"
fi

# unpack FOLDER PACKAGE:PROCESSOR...
unpack() {
    local folder=$1 package
    shift
    mkdir -p "$here/debs" "$folder"
    for package in "$@"; do
        (cd "$here/debs" && timeout 600 apt-get "${options[@]}" -qq download "$package" 2>/dev/null) || return 1
        dpkg-deb -x "$(ls -t "$here/debs/${package%%:*}"_*_"${package##*:}".deb | head -1)" "$folder" || return 1
    done
}

# kernel NAME PROCESSOR RELEASE KIND: stores the image and the name of its package, unless they are there.
kernel() {
    local name=$1 processor=$2 release=$3 kind=$4 image folder=$here/kernel-$1
    image=$(apt-cache "${options[@]}" -t "$release" depends "linux-image-$kind:$processor" |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^:]*\).*/\1/p' | head -1)
    [ -n "$image" ] || return 1
    [ "$(cat "$folder/package" 2>/dev/null)" != "$image" ] || return 0
    rm -rf "$folder"
    unpack "$folder" "$image:$processor" || return 1
    # Newer packages are empty, and have the kernel in another.
    compgen -G "$folder/boot/vmlinuz*" >/dev/null || unpack "$folder" "${image/image/binary}:$processor" || return 1
    find "$folder" -name 'vmlinuz*' -type f -exec cp {} "$here/vmlinuz" \;
    rm -rf "${folder:?}"/*
    mv "$here/vmlinuz" "$folder/vmlinuz" && echo "$image" >"$folder/package"
}

# programs PROCESSOR: builds the command and the tests, and puts them into an archive with all that they load.
programs() {
    local processor=$1 compiler=cc strip=strip libraries=/lib/x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 folder=$here/root-$1 built=$here/built-$1
    # The tests `c` and `keep` are there to have the library and the command built.
    local what=(-p hugefork -p hugefork-kernels -p hugefork-keep -p hugefork-capi -p hugefork-cli
        --test engine --test own_tmpfs --test keeping --test c --test keep)
    if [ -z "$smoke" ]; then
        # They run for an hour or more, which optimisation makes shorter.
        what+=(--test heap --test pressure --test kernels)
        export CARGO_PROFILE_DEV_OPT_LEVEL=1
    elif [ "$processor" = amd64 ]; then
        # `cargo test --workspace` has built that already.
        what=(--workspace)
    else
        # The library in the command is not tried, and nothing is debugged.
        export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
    fi
    if [ "$processor" = arm64 ]; then
        compiler=aarch64-linux-gnu-gcc strip=aarch64-linux-gnu-strip libraries=/usr/aarch64-linux-gnu/lib loader=lib/ld-linux-aarch64.so.1
        timeout 300 rustup -q target add aarch64-unknown-linux-gnu 2>/dev/null || return 1
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$compiler CC_aarch64_unknown_linux_gnu=$compiler
        what+=(--target aarch64-unknown-linux-gnu)
    fi
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,lib,lib64,proc,sys,dev,tmp,tests}
    cargo test --quiet "${what[@]}" --no-run --message-format=json >"$built" || exit
    unset CARGO_PROFILE_RELEASE_OPT_LEVEL CARGO_PROFILE_DEV_DEBUG
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$built" | while read -r file; do
        case ${file##*/} in
            hugefork) cp "$file" "$folder/bin/" ;;
            engine-* | own_tmpfs-* | keeping-* | heap-* | pressure-* | kernels-*) cp "$file" "$folder/tests/$(sed 's/-[0-9a-f]*$//' <<<"${file##*/}")" ;;
        esac
    done
    $strip --strip-debug "$folder"/bin/hugefork "$folder"/tests/*
    cp "$(grep -o '"[^"]*/libhugefork_capi\.so"' "$built" | head -1 | tr -d '"')" "$folder/lib/libhugefork.so.0"
    $compiler -pthread -I crates/hugefork-capi/include -o "$folder/bin/c-first-steps" crates/hugefork-capi/examples/snapshot_while_writing.c \
        "$folder/lib/libhugefork.so.0"
    cp "$libraries"/{libc.so.6,libm.so.6,libgcc_s.so.1,libdl.so.2,libpthread.so.0} "$folder/lib/"
    cp "$libraries/${loader##*/}" "$folder/$loader"
    unpack "$here/busybox-$processor" "busybox-static:$processor" || return 1
    cp "$(find "$here/busybox-$processor" -name busybox -type f -perm -1 | head -1)" "$folder/bin/busybox"
    [ "$processor$smoke" != arm64 ] || python "$folder/python" || return 1
    # Some tests read the sources, where this checkout is, and write to cargo's folder for that.
    mkdir -p "$folder"/source/{fuzz,target/{.,aarch64-unknown-linux-gnu}/tmp} && cp -r crates "$folder/source/" && cp -r fuzz/corpus "$folder/source/fuzz/" && echo "$PWD" >"$folder/source/path"
    cat >"$folder/init" <<'INIT'
#!/bin/busybox sh
# What `one` runs, and the kernel's parameter `guest=smoke`, come in the environment.
export PATH=/bin HOME=/tmp NO_COLOR=1

# one KIND NAME COMMAND...: runs it, and prints its verdict, what it skips, and what it says if it fails.
one() {
    kind=$1 name=$2 said=/tmp/said.$$ begin=$(date +%s) most=1200
    shift 2
    [ $kind = test ] || most=300
    timeout $most "$@" >$said 2>&1 </dev/null
    status=$? seconds=$(($(date +%s) - begin))
    grep -o 'skipped: .*' $said | sort -u | sed "s/^/guest:   $name /"
    if [ $status != 0 ]; then
        verdict="failed, status $status"
        tail -n 80 $said | sed 's/^/  | /'
    elif grep -q '^test result: ok\. 0 passed; 0 failed; 1 ignored' $said; then verdict=ignored
    elif ! grep -q 'skipped: ' $said; then verdict=passed
    elif [ $name = page-grain ] || [ $name = keep ]; then verdict=skipped
    else verdict='passed in part'
    fi
    echo "guest: $kind $name: $verdict, $seconds s"
    rm $said
}
if [ "$1" = one ]; then shift; one "$@"; exit; fi

/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; mount -t tmpfs tmp /tmp
ln -s /proc/self/fd /dev/fd 2>/dev/null; ip link set lo up 2>/dev/null
mkdir -p "$(dirname "$(cat /source/path)")" && ln -s /source "$(cat /source/path)"
# As systemd does.
ulimit -n 524288 2>/dev/null || ulimit -n 4096
echo 64 >/proc/sys/vm/nr_hugepages; echo 1 >/proc/sys/vm/unprivileged_userfaultfd
echo "guest: kernel $(uname -r)"
hugefork doctor --json
echo "guest: doctor ended with $?"

engine() { name=$1; shift; one step "$name" /tests/engine --nocapture --test-threads=2 "$@"; }
refused() { ! c-first-steps >/tmp/refused 2>&1 && cat /tmp/refused && grep -q 'pages of 4KiB' /tmp/refused; }
if ! grep -q '^KernelPageSize: *4 kB' /proc/self/smaps; then
    if refused; then echo "guest: step refusal: passed, 0 s"; else echo "guest: step refusal: failed, 0 s"; fi
else
    engine first-steps --exact first_steps::a_region_reads_as_zeros_and_keeps_what_is_written \
        first_steps::forks_and_snapshots_are_what_the_region_was first_steps::snapshots_are_read_without_being_mapped \
        first_steps::discarded_ranges_read_as_zeros_and_give_their_blocks_back
    engine page-grain --exact page_grain::by_default_random_writes_copy_pages \
        page_grain::writes_in_order_copy_blocks_once_they_are_known_to_be_in_order
    engine histories --exact snapshots::views::a_byte_costs_the_pages_around_it_and_a_scan_all \
        snapshots::dropped::the_last_snapshot_that_is_dropped_gives_everything_back_at_once \
        snapshots::histories::a_region_that_goes_back_and_forth_has_what_each_snapshot_has
    engine resets --exact reset::what_has_changed_is_exact_after_a_reset reset::several::a_region_cannot_go_back_twice \
        reset::several::a_reset_of_several_regions_says_how_far_it_came reset::system_calls_write_to_what_was_prepared
    engine exports --exact export::a_child_of_exec_reads_what_was_exported_and_writes_for_itself \
        export::a_child_of_exec_reads_pages_that_a_history_holds_and_they_take_no_block
    one step own-tmpfs /tests/own_tmpfs --nocapture root_mounts anybody_has_one who_has_a_strict_umask
    one step keep /tests/keeping --nocapture --test-threads=1
    one step c c-first-steps
    if [ -d /python ]; then
        for folder in proc sys dev tmp; do mount -o rbind /$folder /python/$folder; done
        libraries=/usr/lib/aarch64-linux-gnu
        export LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack
        one step python chroot /python /usr/bin/python3.13 -B first_steps.py
        unset LD_LIBRARY_PATH
    fi
    if [ "$guest" != smoke ]; then
        begin=$(date +%s)
        for binary in kernels engine heap pressure own_tmpfs; do
            /tests/$binary --list --format terse 2>/dev/null | sed -n "s/: test\$//p" | while read -r test; do
                # Two at once.
                echo "test $binary::$test /tests/$binary --exact $test --nocapture --test-threads=1"
            done
        done | xargs -P 2 -n 7 /init one
        echo "guest: all of the engine's tests took $((($(date +%s) - begin) / 60)) min"
    fi
fi
echo "guest: done"
poweroff -f
INIT
    chmod +x "$folder/init"
    (cd "$folder" && find . | cpio --quiet -o -H newc | gzip -1) >"$here/root-$processor.gz"
}

# python FOLDER: puts Debian's Python and numpy for arm64 there, with the package for Python and the first programs of its README.
python() {
    local folder=$1 package
    mkdir -p "$folder"/{proc,sys,dev,tmp,usr/bin,usr/lib}
    ln -s usr/bin usr/lib "$folder/"
    timeout 600 apt-get "${options[@]}" -o APT::Architecture=arm64 -o APT::Architectures=arm64 -t trixie -qq -y --no-install-recommends \
        --download-only install python3-numpy >/dev/null 2>&1 || return 1
    for package in "$apt"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done
    rm -rf "$folder"/usr/share/{doc,man,locale,zoneinfo}
    cargo build --quiet --target aarch64-unknown-linux-gnu -p hugefork-python || exit
    cp -r crates/hugefork-python/python/hugefork "$folder/usr/lib/python3/dist-packages/"
    cp "${CARGO_TARGET_DIR:-target}/aarch64-unknown-linux-gnu/debug/libhugefork_native.so" \
        "$folder/usr/lib/python3/dist-packages/hugefork/_native.abi3.so"
    awk '/^```python/ { inside = ++blocks <= 2; next } /^```/ { inside = 0 } inside' crates/hugefork-python/README.md >"$folder/first_steps.py"
}

# boot NAME PROCESSOR: prints what the guest says.
boot() {
    local seconds=14400 machine=(qemu-system-x86_64) console=ttyS0
    [ -z "$smoke" ] || seconds=900
    [ "$2" = amd64 ] || machine=(qemu-system-aarch64 -machine virt) console=ttyAMA0
    [ "$2" = amd64 ] && machine+=(-cpu max) || machine+=(-cpu max,pauth-impdef=on)
    timeout "$seconds" "${machine[@]}" -accel tcg,thread=multi -m 3G -smp 2 -nographic -no-reboot -kernel "$here/kernel-$1/vmlinuz" \
        -append "console=$console quiet panic=-1 guest=${smoke:+smoke}" -initrd "$here/root-$2.gz" </dev/null | sed -u 's/\r//g'
}

passed=0 failed=0 built='' ran=''
for name in "${names[@]}"; do
    read -r _ processor release kind < <(grep "^$name " <<<"$kernels")
    kernel "$name" "$processor" "$release" "$kind" || { echo "skipped: $name: its package cannot be had" >&2; continue; }
    case $built in
        *$processor*) ;;
        *) programs "$processor" || { echo "skipped: $name: rustup's target or busybox cannot be had" >&2; continue; }
           built+=" $processor" ;;
    esac
    log=$here/$name$([ -n "$smoke" ] || echo -all).log ran=1
    echo "== $name: $(cat "$here/kernel-$name/package")"
    boot "$name" "$processor" | tee "$log" | grep --line-buffered -E '^(guest:|  \|)' || true
    well=$(grep -cE '^guest: (step|test) .*: passed' "$log" || true) badly=$(grep -cE '^guest: (step|test) .*: failed' "$log" || true)
    # A guest that did not come to its end has failed, whatever it said before.
    grep -q '^guest: done' "$log" || badly=$((badly + 1))
    passed=$((passed + well)) failed=$((failed + badly))
done

[ -n "$ran" ] || exit 77
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
