#!/usr/bin/env bash
# The test images of e2fsprogs, most of them damaged: whatever one holds, it is checked, repaired
# and mounted without harm, and what we call clean after a repair e2fsck calls so, too. The images
# are not in this repository. Needs e2fsprogs.
#
#   e2fsprogs.sh DIR [TEST...]      DIR: the folder `tests` of the sources of e2fsprogs
TESTS=$(realpath "${1:?the folder tests of the sources of e2fsprogs}") || exit 2
shift
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

less=()

# code ALLOWED COMMAND...: it ends, with one of these codes, and without a panic.
code() {
    local allowed=" $1 " result=0
    shift
    timeout 120 "$@" 2>&1 | tee output || result=${PIPESTATUS[0]}
    echo "exit $result: $*"
    ! grep -q panicked output && [[ $allowed == *" $result "* ]]
}

# Reads all that a mount has, of files as large as a disk the beginning; errors are allowed, as long
# as each read ends.
read_all() {
    timeout 120 find mnt -type f -exec head -qc 64M {} + >/dev/null 2>>errors || [ $? -ne 124 ]
    timeout 120 getfattr -Rdm- mnt >/dev/null 2>>errors || [ $? -ne 124 ]
}

# mounted IMAGE OPTIONS: it is refused with a sentence, or serves until it is unmounted.
mounted() {
    local result=0
    timeout 120 "$TUREEN" mount "$1" mnt -o "$2,log=$LOGS/daemon.log" 2>output || result=$?
    cat output
    [ $result -lt 3 ] && ! grep -q panicked output
    [ $result -eq 0 ] || { [ -s output ] && return; }
    read_all
    if [ "$2" = rw ]; then
        { mkdir mnt/made && echo hello >mnt/made/file && rm -r mnt/made; } 2>>errors || true
    fi
    "$TUREEN" umount mnt
    no_panic
}

examined() { code "0 4 8" "$TUREEN" fsck -n image; }

# Repairs it; what is clean then is clean for e2fsck, too.
repaired() {
    cp image ours && cp image theirs
    local result=0
    timeout 120 "$TUREEN" fsck ours >output 2>&1 || result=$?
    cat output
    ! grep -q panicked output && [[ " 0 1 4 5 8 " == *" $result "* ]]
    echo $result >ours.code
    [ $result -gt 1 ] || e2fsck -fn ours
    result=0
    e2fsck -fp theirs || result=$?
    echo $result >theirs.code
}

served() {
    cp image writable
    mounted image ro && cmp image writable && mounted writable rw
}

mkdir mnt
[ $# -gt 0 ] || set -- $(ls "$TESTS")
for name; do
    [ -e "$TESTS/$name/image.gz" ] || continue
    gunzip -c "$TESTS/$name/image.gz" >image
    rm -f ours.code theirs.code
    check "$name is examined" examined
    check "$name is repaired" repaired
    check "$name is served" served
    if [ -s theirs.code ] && [ "$(cat theirs.code)" -le 1 ] && [ "$(cat ours.code)" -gt 1 ]; then
        less+=("$name")
    fi
done
echo "e2fsck -p repairs, and we do not, ${#less[@]}: ${less[*]}"
finish
