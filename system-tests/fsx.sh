#!/usr/bin/env bash
# fsx, with many seeds: random operations on one file, mapped ones among them, each compared with what
# the file must hold. On a plain mount, with write-back caching, and in mode sync.
#
#   fsx.sh [SEEDS [OPERATIONS]]
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${1:-12}
OPERATIONS=${2:-4000}

fsx() {
    "$TOOLS/fsx" -q -f "$HERE/fsx.toml" -N "$OPERATIONS" -S "$1" -P "$LOGS" "mnt/$1"
    rm "mnt/$1"
}

# Three files at once, each with its own seed.
fsx_three() {
    local first=$1 failures=0
    for seed in "$first" $((first + 1)) $((first + 2)); do fsx "$seed" & pids[seed]=$!; done
    for seed in "${!pids[@]}"; do wait "${pids[seed]}" || { echo "seed $seed"; failures=1; }; done
    return $failures
}

seed=1
for options in "" writeback mode=sync; do
    name=${options:-plain}
    check "$name: a new image is mounted" mount_image "$name.img" --create 256M ${options:+-o "$options"} || continue
    for _ in $(seq $(((SEEDS + 2) / 3))); do
        check "$name: seeds $seed to $((seed + 2)), $OPERATIONS operations each" fsx_three $seed
        seed=$((seed + 3))
    done
    check "$name: unmount" unmount
    check "$name: fsck finds nothing" fsck_clean "$name.img"
done
check "nothing panicked" no_panic
finish
