#!/usr/bin/env bash
# Real programs in a mount: unpack, compare, git, cargo, SQLite, rsync, sparse files, a large file,
# many small ones; then unmount, check, mount again and compare again.
#
#   programs.sh [MOUNT OPTIONS]             e.g. programs.sh -o mode=sync
#   programs.sh --ext2 [MOUNT OPTIONS]      on an ext2 image; with a journal for a mode that has one
#
# LARGE_MIB=512 SMALL_FILES=20000: a smaller file, and fewer small ones.
# IMAGE_SIZE=100G: a sparse image of this size.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TYPE=soupfs
[ "${1:-}" != --ext2 ] || { TYPE=ext2 && shift; }
OPTIONS=("$@")
IMAGE=$SCRATCH/disk.img
MNT=$SCRATCH/mnt
OUT=$SCRATCH/outside
mkdir -p "$OUT"
LARGE_MIB=${LARGE_MIB:-10240}
SMALL_FILES=${SMALL_FILES:-100000}

# Space for the image (its blocks are allocated at once) and for what is kept outside to compare
# with.
free_mib=$(df --output=avail -BM "$SCRATCH" | tail -n 1 | tr -dc 0-9)
image_mib=$((LARGE_MIB + 5120))
large_reason=
if [ "$free_mib" -lt $((image_mib + 3072)) ]; then
    large_reason="$free_mib MiB free, $((image_mib + 3072)) needed"
    image_mib=5120
fi

# Names, kinds, modes, owners, sizes, times, link counts and extended attributes below a directory.
# (The size of a directory is the file system's own affair.)
list() {
    (cd "$1" && find . \( -type d -printf '%p %y %m %U:%G %T@ %n\n' \) -o \
        -printf '%p %y %m %U:%G %s %T@ %n %l\n' | sort)
}

attributes() {
    (cd "$1" && find . -print0 | sort -z |
        xargs -0 getfattr -h -d -m - -e hex 2>/dev/null | sed 's/^# file: //')
}

sums() {
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

same_tree() {
    diff <(list "$1") <(list "$2") && diff -r --no-dereference "$1" "$2"
}

new_image() {
    local journal=()
    if [ $TYPE = soupfs ]; then
        mount_new "$IMAGE" "${image_mib}M" "$@"
        return
    fi
    [[ "$*" =~ mode=(ordered|journal) ]] && journal=(--journal)
    mkdir -p "$MNT" &&
        "$TUREEN" mkfs --type ext2 "${journal[@]}" --size "${IMAGE_SIZE:-${image_mib}M}" \
            "$IMAGE" &&
        mount_image "$IMAGE" "$@"
}
check "a new image is made and mounted" new_image "${OPTIONS[@]}" || exit

# --- A large source tree: all dependencies of this project, each of their files -------------------

vendor() {
    cd "$ROOT" && cargo vendor --locked "$OUT/sources" >/dev/null
    find "$OUT/sources" -type f | wc -l
}
pack() { tar -C "$OUT" --format=posix -cf "$OUT/sources.tar" sources; }
unpack() { mkdir "$MNT/tree" && tar -C "$MNT/tree" -xpf "$OUT/sources.tar"; }
check "sources of the dependencies are fetched" vendor
check "they are packed" pack
check "tar unpacks them" unpack
check "what was unpacked is the same" same_tree "$OUT/sources" "$MNT/tree/sources"
pack_again() { tar -C "$MNT/tree" --format=posix -cf - sources | tar -C "$OUT" -df - ; }
check "tar packs them again, the same" pack_again
move() {
    mkdir -p "$MNT/moved/below"
    mv "$MNT/tree/sources" "$MNT/moved/below/sources"
    [ -z "$(ls -A "$MNT/tree")" ]
    same_tree "$OUT/sources" "$MNT/moved/below/sources"
    mv "$MNT/moved/below/sources" "$MNT/tree/sources"
}
check "mv takes the tree to another directory and back" move
move_files() {
    mkdir "$MNT/flat"
    find "$MNT/tree/sources" -name '*.rs' -path '*/src/*' | sort >"$OUT/before"
    local n=0
    while read -r file; do
        n=$((n + 1))
        mv "$file" "$MNT/flat/$n"
        echo "$MNT/flat/$n $file"
    done < <(head -n 500 "$OUT/before") >"$OUT/back"
    [ "$(ls "$MNT/flat" | wc -l)" = 500 ]
    while read -r from to; do mv "$from" "$to"; done <"$OUT/back"
    rmdir "$MNT/flat"
    diff -r --no-dereference "$OUT/sources" "$MNT/tree/sources"
}
check "mv takes 500 files across directories and back" move_files
move_out() {
    cp -a "$MNT/tree/sources" "$MNT/copy"
    mv "$MNT/copy" "$OUT/copy"
    [ ! -e "$MNT/copy" ]
    same_tree "$MNT/tree/sources" "$OUT/copy"
    rm -r "$OUT/copy"
}
check "cp -a copies it, and mv takes the copy out of the mount" move_out

# --- git --------------------------------------------------------------------------------------

git_() {
    git -c user.name=nobody -c user.email=nobody@localhost -c init.defaultBranch=main \
        -c safe.directory='*' -c advice.detachedHead=false "$@"
}
git_commit() {
    cd "$MNT/tree/sources"
    git_ init -q . && git_ add -A -f . && git_ commit -q -m sources
    [ -z "$(git_ status --porcelain)" ]
}
git_clone() {
    git_ clone -q --no-local "$MNT/tree/sources" "$MNT/clone"
    cd "$MNT/clone"
    git_ fsck --full --strict
    git_ status
    [ -z "$(git_ status --porcelain)" ]
    diff -r --no-dereference --exclude=.git "$OUT/sources" "$MNT/clone"
}
git_gc() {
    cd "$MNT/clone"
    git_ checkout -q -b other
    find . -name '*.md' -not -path './.git/*' -exec sh -c 'echo more >>"$1"' _ {} \;
    git_ commit -q -a -m more
    git_ checkout -q main
    git_ checkout -q other
    git_ gc -q --prune=now
    git_ fsck --full
    git_ checkout -q main
    [ -z "$(git_ status --porcelain)" ]
    diff -r --no-dereference --exclude=.git "$OUT/sources" "$MNT/clone"
}
check "git adds and commits it" git_commit
check "git clone, fsck and status" git_clone
check "git branch, checkout, gc and fsck" git_gc
rm -rf "$MNT/tree/sources/.git"

# --- cargo ------------------------------------------------------------------------------------

build() {
    # A crate of this project, and a new one whose test runs from the mount.
    mkdir "$MNT/build"
    (cd "$ROOT" && tar -cf - --exclude=./target --exclude=./.git .) | tar -C "$MNT/build" -xf -
    cd "$MNT/build"
    export CARGO_TARGET_DIR=$MNT/build/target
    cargo build --offline --locked -p vfs
    # Nothing to do the second time: the times that cargo compares are kept.
    cargo build --offline --locked -p vfs 2>&1 | tee again
    if grep Compiling again; then return 1; fi
    cargo init -q --vcs none --lib "$MNT/new"
    cd "$MNT/new" && cargo test --offline
    rm -r "$MNT/new"
}
check "cargo builds crates in the mount, and a test passes there" build
rm -rf "$MNT/build"

# --- SQLite -----------------------------------------------------------------------------------

sqlite() {
    local db=$MNT/$1.db journal=$2 mmap=$3
    sqlite3 "$db" <<SQL
PRAGMA journal_mode=$journal;
PRAGMA mmap_size=$mmap;
PRAGMA synchronous=FULL;
CREATE TABLE t (id INTEGER PRIMARY KEY, key TEXT, body BLOB);
CREATE INDEX by_key ON t (key);
SQL
    for round in 1 2 3; do
        sqlite3 "$db" <<SQL
PRAGMA mmap_size=$mmap;
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO t (key, body) SELECT hex(randomblob(8)), randomblob(i % 700) FROM n;
COMMIT;
BEGIN; UPDATE t SET body = zeroblob(10000) WHERE id % 97 = $round; ROLLBACK;
BEGIN; DELETE FROM t WHERE id % 5 = $round; COMMIT;
UPDATE t SET body = randomblob(3000) WHERE id % 501 = $round;
SQL
    done
    for i in $(seq 50); do
        echo "INSERT INTO t (key, body) VALUES ('single-$i', randomblob(100));"
    done | sqlite3 "$db"
    # Several processes at once: locks must exclude each other, or an increment gets lost.
    sqlite3 "$db" "INSERT INTO t (id, key) VALUES (-1, '0');"
    for _ in $(seq 40); do
        echo "UPDATE t SET key = CAST(CAST(key AS INTEGER) + 1 AS TEXT) WHERE id = -1;"
    done >"$OUT/increments"
    for _ in 1 2 3; do sqlite3 -cmd '.timeout 60000' "$db" <"$OUT/increments" & done
    wait
    [ "$(sqlite3 "$db" "SELECT key FROM t WHERE id = -1")" = 120 ]
    sqlite3 "$db" "VACUUM;"
    [ "$(sqlite3 "$db" "PRAGMA mmap_size=$mmap; PRAGMA integrity_check;" | tail -n 1)" = ok ]
    sqlite3 "$db" .dump | sha256sum >"$OUT/$1.sum"
}
check "SQLite with a rollback journal" sqlite rollback DELETE 0
check "SQLite with a write-ahead log" sqlite wal WAL 0
check "SQLite with a write-ahead log and a mapped file" sqlite mapped WAL 268435456

# --- rsync, links, attributes, sparse files ---------------------------------------------------

special() {
    mkdir "$MNT/special" && cd "$MNT/special"
    echo one >one && ln one two && ln one three && ln -s one soft && ln -s /nowhere dangling
    mkfifo fifo && mkdir -m 2770 shared && chown 1000:1000 shared
    install -m 4755 one set-uid
    # The times of ext2 end in 2446.
    touch -d '1999-12-31 23:59:59.123456789' old && touch -d '2440-01-01 00:00:00.5' new
    setfattr -n user.colour -v blue one && setfattr -n user.empty one
    setfacl -m u:1234:rw,g:5678:r one && setfacl -d -m u:1234:rwx shared && touch shared/inherits
    touch -d '2001-01-01' shared
    truncate -s 512M sparse && printf x | dd of=sparse bs=1 seek=300M conv=notrunc status=none
    [ "$(stat -c %h one)" = 3 ]
    [ "$(stat -c %b sparse)" -le 64 ]
    getfacl -cn shared/inherits | grep user:1234:rwx
}
rsync_() {
    cd "$MNT"
    rsync -aHAXS special/ "$OUT/special/"
    rsync -aHAXS "$OUT/special/" special-back/
    rsync -aHAXSc --itemize-changes --dry-run --delete special/ special-back/ | tee "$OUT/changes"
    [ ! -s "$OUT/changes" ]
    diff <(list special) <(list special-back) &&
        diff <(attributes special) <(attributes special-back)
    [ "$(stat -c %h special-back/two)" = 3 ]
    rsync -aHAX "$OUT/sources" "$MNT/rsynced"
    rsync -aHAXc --itemize-changes --dry-run --delete "$OUT/sources" "$MNT/rsynced" |
        tee "$OUT/changes"
    [ ! -s "$OUT/changes" ]
    find rsynced -name Cargo.toml -exec sh -c 'echo "# changed" >>"$1"' _ {} \;
    rsync -aHAXc --delete "$OUT/sources" "$MNT/rsynced"
    rsync -aHAXc --inplace --no-whole-file "$OUT/sources.tar" "$MNT/rsynced/"
    printf changed | dd of="$MNT/rsynced/sources.tar" bs=1 seek=1000000 conv=notrunc status=none
    rsync -aHAXc --inplace --no-whole-file "$OUT/sources.tar" "$MNT/rsynced/"
    cmp "$OUT/sources.tar" "$MNT/rsynced/sources.tar"
    same_tree "$OUT/sources" "$MNT/rsynced/sources"
    rm -r rsynced
}
sparse() {
    cd "$MNT"
    truncate -s 100M "$OUT/holes"
    for at in 3 17 42 99; do
        dd if=/dev/urandom of="$OUT/holes" bs=1M count=1 seek=$at conv=notrunc status=none
    done
    cp --sparse=always "$OUT/holes" holes
    cmp "$OUT/holes" holes
    [ $(($(stat -c %b holes) * 512)) -le $((5 << 20)) ]
    cp --sparse=always special/sparse sparse-copy
    cmp special/sparse sparse-copy
    [ "$(stat -c %b sparse-copy)" -le 64 ]
    cp --sparse=never holes filled && cmp holes filled
    [ $(($(stat -c %b filled) * 512)) -ge $((100 << 20)) ]
    fallocate --dig-holes filled && cmp holes filled
    [ $(($(stat -c %b filled) * 512)) -le $((5 << 20)) ]
    fallocate -p -o 3M -l 1M filled
    if cmp -s holes filled; then return 1; fi
    rm filled sparse-copy
}
hard_links() {
    mkdir "$MNT/links" && cd "$MNT/links"
    echo shared >0
    for i in $(seq 2000); do ln 0 "$i"; done
    [ "$(stat -c %h 1000)" = 2001 ]
    cp -al "$MNT/tree/sources" sources && diff -r --no-dereference sources "$OUT/sources"
    rm -r sources && rm $(seq 1 2 2000)
    [ "$(stat -c %h 0)" = 1001 ]
}
check "links, special files, attributes, ACLs and times" special
check "rsync -aHAX out, back, again and in place" rsync_
check "cp --sparse and fallocate keep and make holes" sparse
check "hard links, one by one and of a whole tree" hard_links

# --- Much ------------------------------------------------------------------------------------

small_files() {
    mkdir "$MNT/small" && cd "$MNT/small"
    seq -w "$SMALL_FILES" | split -l 1 -a 5 - s
    [ "$(ls -f | grep -c '^s')" = "$SMALL_FILES" ]
    find . -name 's*' -print0 | sort -z | xargs -0 cat | cmp - <(seq -w "$SMALL_FILES")
    # Every other one goes, the rest stays.
    ls -f | grep '^s' | sort | awk 'NR % 2' | xargs rm
    [ "$(ls -f | grep -c '^s')" = $((SMALL_FILES / 2)) ]
}
large_file() {
    # Not compressible, not repeating, and made at the speed of memory.
    # The cipher is stopped by head closing the pipe, which is no failure.
    {
        openssl enc -aes-128-ctr -pass pass:large -nosalt -md sha256 </dev/zero 2>/dev/null || true
    } | head -c "${LARGE_MIB}M" | tee "$MNT/large" | sha256sum >"$OUT/large.sum"
    [ "$(stat -c %s "$MNT/large")" = $((LARGE_MIB << 20)) ]
    sync "$MNT/large"
    echo 3 >/proc/sys/vm/drop_caches || true
    sha256sum <"$MNT/large" | diff - "$OUT/large.sum"
}
check "$SMALL_FILES small files in a directory" small_files
if [ -z "$large_reason" ]; then
    check "a file of $LARGE_MIB MiB" large_file
else
    skip "a file of $LARGE_MIB MiB" "$large_reason"
fi

# --- And again --------------------------------------------------------------------------------

remember() {
    # What the running mount shows; atime aside, all of it must be there afterwards.
    list "$MNT" >"$OUT/list" && attributes "$MNT" >"$OUT/attributes"
    (cd "$MNT" && find . -type f -size -1G -print0 | sort -z | xargs -0 sha256sum) >"$OUT/sums"
    df --output=used -B1 "$MNT" | tail -n 1 >"$OUT/used"
}
recall() {
    diff "$OUT/list" <(list "$MNT")
    diff "$OUT/attributes" <(attributes "$MNT")
    diff "$OUT/sums" <(cd "$MNT" && find . -type f -size -1G -print0 | sort -z | xargs -0 sha256sum)
    [ ! -e "$MNT/large" ] || sha256sum <"$MNT/large" | diff - "$OUT/large.sum"
    # A mount that has written counts as used what it set aside for nodes of files and gives back
    # when it ends. That the counters of the image are exact is for fsck to see.
    local before after
    before=$(cat "$OUT/used")
    after=$(df --output=used -B1 "$MNT" | tail -n 1)
    echo "used before: $before, after: $after"
    [ "$after" -le "$before" ] && [ "$after" -ge $((before - (1 << 20))) ]
    for name in rollback wal mapped; do
        [ "$(sqlite3 "$MNT/$name.db" 'PRAGMA integrity_check;')" = ok ]
        sqlite3 "$MNT/$name.db" .dump | sha256sum | diff - "$OUT/$name.sum"
    done
    git_ -C "$MNT/clone" fsck --full
}
empty_again() {
    rm -rf "${MNT:?}"/* && [ -z "$(ls -A "$MNT")" ]
}
check "all of it is written down" remember
check "unmount" unmount
check "fsck finds nothing" fsck_clean "$IMAGE"
check "mount again" mount_image "$IMAGE" "${OPTIONS[@]}"
check "all of it is there again" recall
check "all of it is removed" empty_again
check "unmount again" unmount
check "fsck finds nothing again" fsck_clean "$IMAGE"
check "nothing panicked" no_panic
finish
