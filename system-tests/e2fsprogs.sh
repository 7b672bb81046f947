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

# The codes of fsck that a command may end with.
EXAMINED=" 0 4 8 "
REPAIRED=" 0 1 4 5 8 "

# ended RESULT CODES: with one of these codes, in time (124 is none), and without a panic in its
# output. (A command with "!" in front never ends a check, hence the "if".)
ended() {
    cat output
    echo "exit $1"
    if grep -q panicked output; then return 1; fi
    [[ $2 == *" $1 "* ]]
}

# Reads all that a mount has, of files as large as a disk the beginning; errors are allowed, as long
# as each read ends.
read_all() {
    local result=0
    timeout 120 find mnt -type f -exec head -qc 64M {} + >/dev/null 2>>errors || result=$?
    [ $result -ne 124 ]
    result=0
    timeout 120 getfattr -Rdm- mnt >/dev/null 2>>errors || result=$?
    [ $result -ne 124 ]
}

# mounted IMAGE OPTIONS: it is refused with a sentence, or serves until it is unmounted.
mounted() {
    local result=0
    timeout 120 "$TUREEN" mount "$1" mnt -o "$2,log=$LOGS/daemon.log" >output 2>&1 || result=$?
    ended $result " 0 1 "
    if [ $result -ne 0 ]; then
        [ -s output ]
        return
    fi
    read_all
    if [ "$2" = rw ]; then
        { mkdir mnt/made && echo hello >mnt/made/file && rm -r mnt/made; } 2>>errors || true
    fi
    "$TUREEN" umount mnt
    no_panic
}

examined() {
    local result=0
    timeout 120 "$TUREEN" fsck -n image >output 2>&1 || result=$?
    ended $result "$EXAMINED"
}

# Repairs it; what is clean then is clean for e2fsck, too.
repaired() {
    local result=0
    cp image ours
    cp image theirs
    timeout 120 "$TUREEN" fsck ours >output 2>&1 || result=$?
    ended $result "$REPAIRED"
    echo $result >ours.code
    [ $result -gt 1 ] || e2fsck -fn ours
    result=0
    e2fsck -fp theirs || result=$?
    echo $result >theirs.code
}

served() {
    cp image writable
    mounted image ro
    cmp image writable
    mounted writable rw
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
