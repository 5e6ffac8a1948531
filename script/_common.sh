# shellcheck shell=bash
# Shared by the scripts in this folder; source it. Works with bash 3.2 (macOS) and needs nothing else.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

# sshd and others live in the sbin folders, which an ordinary user's PATH does not name on Debian.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

say() { printf '%s\n' "$*" >&2; }

# "Cannot be done here": one line that says what to do, and the exit code for a refused request.
refuse() { say "$1"; exit 3; }

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the comment block at the top of a script.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"; }

# The network may hiccup: three attempts, then the command's own exit code.
retry() {
  local attempt code=0
  for attempt in 1 2 3; do
    "$@" && return 0 || code=$?
    # 130 and 143: the person, or the system, wants it to end.
    case $code in 130|143) return "$code" ;; esac
    [ "$attempt" = 3 ] && break
    say "attempt $attempt of 3 failed (exit $code), again in $((attempt * 3)) s: $*"
    sleep $((attempt * 3))
  done
  return "$code"
}
