# Functions for scripts that say what they do and how long it took; sourced, not run.

# Prints the time in tenths of a second. Some locales write the fraction of EPOCHREALTIME behind a comma.
tenths() {
    local now="${EPOCHREALTIME/[.,]/}"
    echo "${now:0:-5}"
}

# Prints the seconds since BEGUN, a time of `tenths`.
seconds_since() {
    local passed=$(($(tenths) - $1))
    echo "$((passed / 10)).$((passed % 10)) s"
}

# step TEXT COMMAND...: prints the text, runs the command, prints the seconds that it took.
step() {
    local text="$1" begun
    begun="$(tenths)"
    shift
    echo "== $text"
    "$@"
    echo "   took $(seconds_since "$begun")"
}

# shown COMMAND...: prints the command as one would type it, runs it, prints the seconds that it took.
shown() {
    local begun
    begun="$(tenths)"
    echo
    echo "\$ $*"
    "$@"
    echo "   took $(seconds_since "$begun")"
}
