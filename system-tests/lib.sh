# Shared by the system tests: a scratch directory, mounts that are always taken away again, and
# checks that are counted. To be sourced.
#
#   TUREEN   the program under test           (default: target/release/tureen)
#   SCRATCH  where images and mounts go       (default: a new directory in TMPDIR)
#   TOOLS    where the cargo-installed suites are (default: target/tools/bin)

set -u
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$HERE")
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
TUREEN=${TUREEN:-$TARGET/release/tureen}
TOOLS=${TOOLS:-$TARGET/tools/bin}
PART=$(basename "$0" .sh)

passed=0
failed=0

if [ -z "${SCRATCH:-}" ]; then
    # A short path: the names of sockets in it may have 108 bytes at most.
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/tureen.XXXXXX")
fi
mkdir -p "$SCRATCH"
# Other users look into the mounts.
chmod 755 "$SCRATCH"
LOGS=$SCRATCH/logs
mkdir -p "$LOGS"
cd "$SCRATCH" || exit 1

# Mounts of ours below the scratch directory, the newest first.
mounts_of_ours() {
    awk -v dir="$SCRATCH/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | tac
}

# Leaves nothing behind but, after a failure, the logs.
clean_up() {
    cd /
    for dir in $(mounts_of_ours); do
        umount "$dir" 2>/dev/null || umount -l "$dir"
    done
    if [ "$failed" -gt 0 ] || [ -n "${KEEP:-}" ]; then
        echo "$PART: logs are in $LOGS"
        find "$SCRATCH" -mindepth 1 -maxdepth 1 ! -name logs -exec rm -rf {} +
    else
        rm -rf "$SCRATCH"
    fi
}

finish() {
    trap - EXIT
    clean_up
    echo "$PART: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

interrupted() {
    failed=$((failed + 1))
    echo "FAILED  $PART ended early"
    finish
}
trap interrupted EXIT
trap 'exit 130' INT TERM

# check NAME COMMAND...: runs the command (or shell function); it must succeed. Its output is shown
# only if it does not.
check() {
    local name=$1 log start seconds
    shift
    log=$LOGS/$(printf %s "$name" | tr -c 'A-Za-z0-9_.-' '-').log
    start=$SECONDS
    # Not as a condition: there the shell would not stop at the first command that fails.
    (set -eo pipefail; "$@") >"$log" 2>&1 </dev/null
    if [ $? -eq 0 ]; then
        seconds=$((SECONDS - start))
        passed=$((passed + 1))
        echo "ok      $name$([ "$seconds" -lt 2 ] || echo " (${seconds} s)")"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 30 "$log" | sed 's/^/        | /'
        return 1
    fi
}

# A check that was not made, and why.
skip() {
    echo "skipped $1: $2"
}

# mount_image IMAGE [ARGUMENT...]: mounts it on mnt; messages of the daemon go to daemon.log.
mount_image() {
    local image=$1
    shift
    "$TUREEN" mount "$image" "$SCRATCH/mnt" -o "log=$LOGS/daemon.log" "$@"
}

# mount_new IMAGE SIZE [ARGUMENT...]: the same of a new one. IMAGE_SIZE=100G: a sparse one of this
# size in its place.
mount_new() {
    local image=$1 size=$2
    shift 2
    if [ -n "${IMAGE_SIZE:-}" ]; then
        mkdir -p "$SCRATCH/mnt" && "$TUREEN" mkfs --sparse --size "$IMAGE_SIZE" "$image" &&
            mount_image "$image" "$@"
    else
        mount_image "$image" --create "$size" "$@"
    fi
}

unmount() {
    "$TUREEN" umount "$SCRATCH/mnt"
}

# The image is whole: fsck, changing nothing, finds nothing.
fsck_clean() {
    "$TUREEN" fsck -n "$@"
}

# Nothing went wrong inside the daemon, whatever the programs saw.
no_panic() {
    ! grep -i "panicked" "$LOGS"/daemon*.log
}
