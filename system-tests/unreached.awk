#!/usr/bin/awk -f
# From the output of `llvm-cov show`: the lines that were never executed, by file and function.
# Lines are "  number|  count|source". Left out: tests, what formats an error or a report, brackets
# alone.

function flush_function() {
    if (count > 0) {
        printf "  %s (%s)\n", fn == "" ? "-" : fn, never ? "never called" : count " lines"
        for (i = 1; i <= count; i++) print "    " lines[i]
        total += count
    }
    count = 0
}

/^\/.*:$/ {
    flush_function()
    file = $0
    sub(/^.*\/crates\//, "crates/", file)
    sub(/:$/, "", file)
    skip = file ~ /tests|\/testing|\/stepped\//
    shown = 0
    tests = 0
    fn = ""
    next
}

skip { next }

match($0, /^ *[0-9]+\|/) {
    number = substr($0, 1, RLENGTH - 1) + 0
    rest = substr($0, RLENGTH + 1)
    bar = index(rest, "|")
    hits = substr(rest, 1, bar - 1)
    gsub(/ /, "", hits)
    source = substr(rest, bar + 1)
    if (source ~ /^ *#\[cfg\(test\)\]/) tests = 1
    if (source ~ /^ *(pub(\([a-z]*\))? )?(const )?(unsafe )?fn [a-z_]/) {
        flush_function()
        fn = source
        sub(/^.*fn /, "", fn)
        sub(/[(<].*$/, "", fn)
        never = hits == "0"
        formats = fn ~ /^(fmt|drop_message)$/
    }
    if (tests || hits != "0" || formats) next
    if (source ~ /^[ \t})\];,]*$/) next
    if (source ~ /log::|Error::corrupt|Error::medium|format!|assert|panic!|unreachable!/) next
    if (source ~ /"[^"]*",?$|map_err/) next
    if (!shown) { print file; shown = 1 }
    lines[++count] = sprintf("%5d %s", number, source)
}

END { flush_function(); print total + 0, "lines never reached" }
