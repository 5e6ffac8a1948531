"""Programs that a host has first on its PATH: a pretended nvidia-smi, and the python that has numpy."""

from __future__ import annotations

import shlex
from typing import Any

PYTHONS = ("python3", "python")
SUDO = """#!/bin/sh
# Pretends to be a sudo without a password (simulated): the host cannot give more rights than its processes have.
[ "$1" = -n ] && shift
exec "$@"
"""
APT_GET = """#!/bin/sh
# Pretends to be apt-get (simulated): installing is putting back a command that the offer hides.
[ "$1" = update ] && exit 0
[ "$1" = install ] || exit 1
shift
for package in "$@"; do
  case $package in -*) continue ;; esac
  [ -x "/opt/usr-bin/$package" ] || { echo "E: Unable to locate package $package"; exit 100; }
  ln -sf "/opt/usr-bin/$package" "/usr/local/bin/$package" || exit 100
done
"""
SHELL_ONLY = """#!/bin/sh
# A login that gives a shell on a terminal and nothing else, as a proxy for people does.
[ -t 0 ] && exec /bin/bash -l
echo 'This login gives a terminal and runs no commands.'
exit 1
"""

_NVIDIA_SMI = r"""#!/bin/sh
# Pretends to be nvidia-smi on a host of gpuops' local cloud. The device does not exist.
name=@NAME@ total=@TOTAL@ driver=@DRIVER@ count=@COUNT@
query= format= list=no
for argument in "$@"; do
  case $argument in
    --query-gpu=*) query=${argument#*=} ;;
    --format=*) format=${argument#*=} ;;
    -L|--list-gpus) list=yes ;;
  esac
done
uuid() { printf 'GPU-51301a7e-0000-4000-8000-%012d' "$1"; }
field() { # NAME INDEX → value and unit, separated by a bar
  case $1 in
    name|gpu_name) echo "$name|" ;;
    memory.total) echo "$total|MiB" ;;
    memory.free) echo "$((total - 4))|MiB" ;;
    memory.used) echo "4|MiB" ;;
    driver_version) echo "$driver|" ;;
    count) echo "$count|" ;;
    index) echo "$2|" ;;
    uuid|gpu_uuid) echo "$(uuid "$2")|" ;;
    utilization.gpu|utilization.memory) echo "0|%" ;;
    temperature.gpu) echo "35|" ;;
    power.draw) echo "60.00|W" ;;
    pci.bus_id) printf '00000000:%02X:00.0|\n' "$2" ;;
    ecc.errors.uncorrected.volatile.total) echo "0|" ;;
    *) return 1 ;;
  esac
}
row() { # INDEX
  line=
  for f in $fields; do
    value=$(field "$f" "$1"); unit=${value##*|}; value=${value%|*}
    case $format in *nounits*) unit= ;; esac
    line="$line${line:+, }$value${unit:+ $unit}"
  done
  printf '%s\n' "$line"
}
if [ -n "$query" ]; then
  fields=$(printf '%s' "$query" | tr ',' ' ')
  for f in $fields; do
    field "$f" 0 >/dev/null || { printf 'Field "%s" is not a valid field to query.\n\n' "$f"; exit 2; }
  done
  case $format in *noheader*) ;; *) printf '%s\n' "$query" | sed 's/,/, /g' ;; esac
  index=0; while [ "$index" -lt "$count" ]; do row "$index"; index=$((index + 1)); done
  exit 0
fi
index=0
[ "$list" = yes ] || printf 'NVIDIA-SMI %s (simulated)    Driver Version: %s    CUDA Version: 13.0\n\n' \
  "$driver" "$driver"
while [ "$index" -lt "$count" ]; do
  if [ "$list" = yes ]; then printf 'GPU %s: %s (UUID: %s)\n' "$index" "$name" "$(uuid "$index")"
  else printf '| %3s  %-44s | %9sMiB / %9sMiB |\n' "$index" "$name" 4 "$total"; fi
  index=$((index + 1))
done
"""


def nvidia_smi(device: dict[str, Any]) -> str:
    """The script that shows `device`."""
    text = _NVIDIA_SMI
    for key, value in (("NAME", "name"), ("TOTAL", "memory_mib"), ("DRIVER", "driver"), ("COUNT", "count")):
        text = text.replace(f"@{key}@", shlex.quote(str(device[value])))
    return text


def python(interpreter: str) -> str:
    """A script and not a link: a link would lose the interpreter's virtual environment."""
    wanted = shlex.quote(interpreter)
    return f"""#!/bin/sh
for python in {wanted} /usr/bin/python3 /opt/usr-bin/python3; do [ -x "$python" ] && exec "$python" "$@"; done
exit 127
"""
