#!/usr/bin/env bash
# fsx, with many seeds: random operations on one file, mapped ones among them, each compared with
# what the file must hold. On a plain mount, with write-back caching, in modes sync and strong; and
# on ext2 images, in each mode, and behind a small cache.
#
#   fsx.sh [SEEDS [OPERATIONS]]
#
# IMAGE_SIZE=100G EVERYWHERE='-o cache=512M': sparse images of this size, other than those of ext2,
# and with these mount options.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${1:-12}
OPERATIONS=${2:-4000}
EVERYWHERE=${EVERYWHERE:-}

CONFIG=$HERE/fsx.toml

fsx() {
    "$TOOLS/fsx" -q -f "$CONFIG" -N "$OPERATIONS" -S "$1" -P "$LOGS" "mnt/$1"
    rm "mnt/$1"
}

# Three files at once, each with its own seed.
fsx_three() {
    local first=$1 failures=0
    for seed in "$first" $((first + 1)) $((first + 2)); do fsx "$seed" & pids[seed]=$!; done
    for seed in "${!pids[@]}"; do wait "${pids[seed]}" || { echo "seed $seed"; failures=1; }; done
    return $failures
}

# Some rounds of three on what is mounted: this image, read through this cache if there is one.
# Fewer where the mode has nothing to do with what a file holds.
rounds() {
    local name=$1 image=$2 cache=${3:-} seeds=${4:-$SEEDS}
    for _ in $(seq $(((seeds + 2) / 3))); do
        check "$name: seeds $seed to $((seed + 2)), $OPERATIONS operations each" fsx_three $seed
        seed=$((seed + 3))
    done
    check "$name: unmount" unmount
    check "$name: fsck finds nothing" fsck_clean "$image" ${cache:+--cache "$cache"}
}

seed=1
for options in "" writeback mode=sync mode=strong; do
    name=${options:-plain}
    check "$name: a new image is mounted" \
        mount_new "$name.img" 256M ${options:+-o "$options"} $EVERYWHERE || continue
    rounds "$name" "$name.img"
done
# ext2 cannot reserve space.
sed 's/^posix_fallocate .*/posix_fallocate = 0/' "$CONFIG" >"$LOGS/ext2.toml"
CONFIG=$LOGS/ext2.toml
make_ext2() { "$TUREEN" mkfs --type ext2 ext2.img --size 64M; }
make_cache() { "$TUREEN" cache create cache --for ext2.img --size 2M; }
if check "ext2: an image is made" make_ext2 &&
    check "ext2: it is mounted" mount_image ext2.img; then
    rounds ext2 ext2.img
fi
for mode in sync async; do
    check "$mode: the image is mounted" mount_image ext2.img -o mode=$mode || continue
    rounds "ext2, $mode" ext2.img "" $((SEEDS / 4))
done
if check "cache: one is made" make_cache &&
    check "cache: the image is mounted" mount_image ext2.img -o "cache=$SCRATCH/cache"; then
    rounds cache ext2.img cache
fi
make_ext3() { "$TUREEN" mkfs --type ext2 --journal "$1.img" --size 64M; }
for mode in ordered journal; do
    check "$mode: an image with a journal is made" make_ext3 $mode &&
        check "$mode: it is mounted" mount_image $mode.img -o mode=$mode || continue
    rounds $mode $mode.img
done
check "nothing panicked" no_panic
finish
