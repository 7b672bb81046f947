#!/usr/bin/env bash
# pjdfstest on the mount: every case passes or is in pjdfstest.exceptions, with the reason.
# Needs root. Installs the mount helper for its run, so that `mount -o remount,ro` works.
#
#   pjdfstest.sh [MOUNT OPTIONS]      e.g. pjdfstest.sh -o mode=strong
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

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
    # Its exit code and its backtraces tell no more than what it prints.
    "$TOOLS/pjdfstest" -c "$config" -p "$SCRATCH/mnt" -s "$SCRATCH/other" "${@:3}" >"$LOGS/$2" 2>/dev/null || true
    grep Summary "$LOGS/$2"
}
# All cases by result: "case result". Each passes that passed in one of the runs.
results() {
    sed -nE 's/^([a-z_0-9:]+) +(ok|FAILED|skipped|expected failure)$/\1 \2/p' "$LOGS/all" "$LOGS/remounts" | sort -u
}
exceptions_found() {
    results | awk '$2 == "ok" { ok[$1] } { all[$1] = $2 } END { for (c in all) if (!(c in ok)) print c, all[c] }' | sort
}
exceptions_listed() {
    grep -v '^#' "$HERE/pjdfstest.exceptions" | awk 'NF { print $1, $2 }' | sort
}
all_explained() {
    diff <(exceptions_listed) <(exceptions_found) || {
        grep -h -A 2 -E 'FAILED|skipped' "$LOGS/all" "$LOGS/remounts"
        return 1
    }
}
enough() { [ "$(results | grep -c ' ok$')" -ge 397 ]; }

check "the mount helpers are installed" install_helpers || exit
trap 'rm -f "${HELPERS[@]}"; interrupted' EXIT
check "a new image is mounted" mount_image disk.img --create 512M "$@"
check "another file system is there to fail to link to" other_file_system
check "the suite runs" run_suite false all
check "its cases with remounts run" run_suite true remounts erofs
check "each case that does not pass is listed, with its reason" all_explained
check "at least 397 cases pass" enough
check "unmount" unmount
check "fsck finds nothing" fsck_clean disk.img
check "nothing panicked" no_panic
rm -f "${HELPERS[@]}"
finish
