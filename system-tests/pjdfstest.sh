#!/usr/bin/env bash
# pjdfstest on the mount: every case passes or is in pjdfstest.exceptions, with the reason.
# Needs root. Installs the mount helper for its run, so that `mount -o remount,ro` works.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

HELPERS=(/sbin/mount.fuse.tureen /sbin/umount.fuse.tureen)
install_helpers() {
    for helper in "${HELPERS[@]}"; do
        [ ! -e "$helper" ] || { echo "$helper exists already: move it away first"; return 1; }
    done
    "$TUREEN" install
}
other_file_system() { mkdir other && mount -t tmpfs -o size=16M none other; }
run_suite() {
    # Its own exit code is that of failures; all is in what it prints.
    "$TOOLS/pjdfstest" -c "$HERE/pjdfstest.toml" -p "$SCRATCH/mnt" -s "$SCRATCH/other" >"$LOGS/cases" 2>&1 || true
    grep Summary "$LOGS/cases"
}
# The cases that did not pass, sorted: "case result".
exceptions_found() {
    sed -nE 's/^([a-z_0-9:]+) +(FAILED|skipped|failed|expected failure).*$/\1 \2/p' "$LOGS/cases" | sort
}
exceptions_listed() {
    grep -v '^#' "$HERE/pjdfstest.exceptions" | awk 'NF { print $1, $2 }' | sort
}
all_explained() {
    diff <(exceptions_listed) <(exceptions_found) || {
        grep -A 2 -E 'FAILED|skipped' "$LOGS/cases"
        return 1
    }
}
enough() {
    local cases
    cases=$(sed -nE 's/^Summary:.* ([0-9]+) passed.*$/\1/p' "$LOGS/cases")
    [ "$cases" -ge 390 ]
}

check "the mount helpers are installed" install_helpers || exit
trap 'rm -f "${HELPERS[@]}"; interrupted' EXIT
check "a new image is mounted" mount_image disk.img --create 512M
check "another file system is there to fail to link to" other_file_system
check "the suite runs" run_suite
check "each case that does not pass is listed, with its reason" all_explained
check "at least 390 cases pass" enough
[ ! -f "$LOGS/cases" ] || tail -n 1 "$LOGS/cases"
check "unmount" unmount
check "fsck finds nothing" fsck_clean disk.img
check "nothing panicked" no_panic
rm -f "${HELPERS[@]}"
finish
