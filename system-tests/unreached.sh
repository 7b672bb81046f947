#!/usr/bin/env bash
# Lines of the engines that no exploration reaches: builds `tureen` with coverage, explores the
# families of `.ci/run explore` and others, and lists what was never executed, by crate.
#
#   system-tests/unreached.sh [-s SECONDS] [CRATE...]   soupfs and pmem by default
#
# With `ffs` among the crates ext2 is explored, too. SECONDS (30) is the time of each group of
# families. Needs the component llvm-tools (`rustup component add llvm-tools`). Left out are tests,
# what only formats an error or a report, and closing brackets. The list is for people:
# docs/testing.md says what of it remains, and why.
set -eu
cd "$(dirname "$0")/.."
seconds=30
if [ "${1:-}" = -s ]; then
    seconds=$2
    shift 2
fi
crates=("$@")
[ ${#crates[@]} -gt 0 ] || crates=(soupfs pmem)

tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
[ -x "$tools/llvm-cov" ] || { echo "no llvm-cov: rustup component add llvm-tools"; exit 1; }

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/coverage
export RUSTFLAGS="-C instrument-coverage"
profiles=$(mktemp -d)
trap 'rm -rf "$profiles"' EXIT
export LLVM_PROFILE_FILE=$profiles/%p-%m.profraw
cargo build --locked -p tureen --features faults
tureen=$CARGO_TARGET_DIR/debug/tureen

explore() { "$tureen" explore "$@" --level quick --seconds "$seconds"; }
explore ace1 ace2 script
explore ace1x ace2x
explore damaged mkfs
explore tangle random life both wrap chain churn growth zeroed reused carried --domains line
explore reclaim search regions regions-reclaim failing nospace1 nospace2 full
explore ace2-tight script-tight tangle-tight random-tight ace2-crowded random-crowded \
    --domains line,page
explore threaded shared single pair --domains line,page
explore script whole --modes strong
[[ " ${crates[*]} " != *" ffs "* ]] || explore ace1 ace2 script --engine ext2

"$tools/llvm-profdata" merge --sparse "$profiles"/*.profraw -o "$profiles/all.profdata"
for crate in "${crates[@]}"; do
    "$tools/llvm-cov" show "$tureen" --instr-profile "$profiles/all.profdata" \
        --show-instantiations=false --use-color=false "$PWD/crates/$crate/src" \
        >"$profiles/$crate.lines"
    system-tests/unreached.awk "$profiles/$crate.lines"
done
