#!/usr/bin/env bash
# pjdfstest on the mount: every case passes or is in pjdfstest.exceptions, with the reason.
# Needs root. Installs the mount helper for its run, so that `mount -o remount,ro` works.
#
#   pjdfstest.sh [MOUNT OPTIONS]            e.g. pjdfstest.sh -o mode=strong
#   pjdfstest.sh --ext2 [MOUNT OPTIONS]     on an ext2 image with a journal, with soft updates or
#                                           e.g. -o mode=ordered
#   pjdfstest.sh --cache SIZE [MOUNT OPTIONS]
#                                           on an ext2 image behind a cache, so small that blocks
#                                           are replaced throughout
#
# IMAGE_SIZE=100G: a sparse image of this size, unless it is of ext2.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TYPE=soupfs
CACHE_SIZE=
case ${1:-} in
    --ext2) TYPE=ext2 && shift ;;
    --cache) TYPE=ext2 && CACHE_SIZE=${2:?a size of the cache} && shift 2 ;;
esac
# Cases that do not pass on this type of image.
EXCEPTIONS=("$HERE/pjdfstest.exceptions")
[ $TYPE = soupfs ] || EXCEPTIONS+=("$HERE/pjdfstest.$TYPE.exceptions")

HELPERS=(/sbin/mount.fuse.tureen /sbin/umount.fuse.tureen)
install_helpers() {
    for helper in "${HELPERS[@]}"; do
        [ ! -e "$helper" ] || { echo "$helper exists already: move it away first"; return 1; }
    done
    "$TUREEN" install
}
other_file_system() { mkdir other && mount -t tmpfs -o size=16M none other; }
# The suite leaves a file open for writing halfway (on any file system), so that no remount succeeds
# afterwards. Hence the cases that need one have a run of their own.
run_suite() {
    local config=$LOGS/pjdfstest.toml
    sed "s/^allow_remount = .*/allow_remount = $1/" "$HERE/pjdfstest.toml" >"$config"
    # ext2 cannot reserve space.
    [ $TYPE = soupfs ] || sed -i '/^posix_fallocate/d' "$config"
    # Its exit code and its backtraces tell no more than what it prints.
    "$TOOLS/pjdfstest" -c "$config" -p "$SCRATCH/mnt" -s "$SCRATCH/other" "${@:3}" \
        >"$LOGS/$2" 2>/dev/null || true
    grep Summary "$LOGS/$2"
}
# All cases by result: "case result". Each passes that passed in one of the runs.
results() {
    sed -nE 's/^([a-z_0-9:]+) +(ok|FAILED|skipped|expected failure)$/\1 \2/p' \
        "$LOGS/all" "$LOGS/remounts" | sort -u
}
exceptions_found() {
    results |
        awk '$2 == "ok" { ok[$1] } { all[$1] = $2 }
            END { for (c in all) if (!(c in ok)) print c, all[c] }' |
        sort
}
exceptions_listed() {
    cat "${EXCEPTIONS[@]}" | grep -v '^#' | awk 'NF { print $1, $2 }' | sort
}
all_explained() {
    diff <(exceptions_listed) <(exceptions_found) || {
        grep -h -A 2 -E 'FAILED|skipped' "$LOGS/all" "$LOGS/remounts"
        return 1
    }
}
enough() { [ "$(results | grep -c ' ok$')" -ge "$LEAST" ]; }
make_image() {
    [ $TYPE != soupfs ] || return 0
    local journal=--journal
    # A cache takes its place.
    [ -z "$CACHE_SIZE" ] || journal=
    mkdir mnt
    "$TUREEN" mkfs --type "$TYPE" $journal disk.img --size 512M
    [ -z "$CACHE_SIZE" ] || "$TUREEN" cache create cache --for disk.img --size "$CACHE_SIZE"
}
# Files are written beside the suite, each three times as large as the cache: blocks that the suite
# has changed make way, and are read again. Not beside remounts, which nothing may have open for
# writing.
churn() {
    mkdir mnt/churn
    for n in $(seq 0 999999); do
        [ ! -e stop ] || break
        dd if=/dev/urandom of=mnt/churn/$((n % 8)) bs=64K count=16 conv=fsync status=none
    done
    rm -r mnt/churn
}
suite_beside_churn() {
    local churn
    churn & churn=$!
    run_suite false all
    touch stop
    wait "$churn"
}
# A counter of the cache of what is mounted.
counter() { "$TUREEN" cache stat "$SCRATCH/mnt" | awk -v name="$1" '$1 == name { print $2 }'; }
replaced() { [ "$(counter evictions)" -ge 1000 ] && [ "$(counter written_out)" -ge 1000 ]; }

check "the mount helpers are installed" install_helpers || exit
trap 'rm -f "${HELPERS[@]}"; interrupted' EXIT
case $TYPE in
    soupfs) LEAST=397 && MOUNT=(mount_new disk.img 512M) ;;
    ext2) LEAST=392 && MOUNT=(mount_image disk.img) ;;
esac
CHECKED=(disk.img)
if [ -n "$CACHE_SIZE" ]; then
    set -- "$@" -o "cache=$SCRATCH/cache"
    CHECKED+=(--cache cache)
fi
check "a new image is made" make_image
check "it is mounted" "${MOUNT[@]}" "$@"
check "another file system is there to fail to link to" other_file_system
if [ -n "$CACHE_SIZE" ]; then
    check "the suite runs, beside files that are larger than the cache" suite_beside_churn
else
    check "the suite runs" run_suite false all
fi
check "its cases with remounts run" run_suite true remounts erofs
check "each case that does not pass is listed, with its reason" all_explained
check "at least $LEAST cases pass" enough
[ -z "$CACHE_SIZE" ] || check "blocks of the cache were replaced throughout" replaced
check "unmount" unmount
check "fsck finds nothing" fsck_clean "${CHECKED[@]}"
check "nothing panicked" no_panic
rm -f "${HELPERS[@]}"
finish
