#!/usr/bin/env bash
# A throwaway machine run by a real systemd, for tests of units, drop-ins, restarts and watchdogs.
#
#   systemd_machine.sh up ROOT [nspawn flags]   boot it; ROOT is an empty folder for its overlay
#   systemd_machine.sh exec ROOT COMMAND...     run a command inside, as root
#   systemd_machine.sh leader ROOT              print the process id that its process 1 has here
#   systemd_machine.sh down ROOT                power it off and remove ROOT
#
# Its file system is a copy-on-write overlay of this machine's, so what is installed here is
# installed there, and nothing that it writes comes back. It shares this machine's network: loopback
# ports are the same. /tmp, /run and other mounted file systems are not shared: bind what it needs
# (--bind-ro=/some/dir). Needs root, overlayfs and the packages systemd-container and dbus.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: ${0##*/} up|exec|leader|down ROOT [arguments]" >&2
    exit 2
fi
verb=$1 root=$(realpath -m "$2")
shift 2

# The machine's own process 1, seen from here.
leader() { pgrep -P "$(cat "$root/nspawn.pid")" -o systemd; }

nspawn_runs() { [ -e "$root/nspawn.pid" ] && kill -0 "$(cat "$root/nspawn.pid")" 2> /dev/null; }

# Folders of cgroups for this machine alone: systemd would put units of one name into one of them,
# those of two machines as well, and end both when it ends one.
cgroups() {
    local mounts path
    mounts=$(awk '$(NF - 2) == "cgroup2" || $NF ~ /name=systemd/ { print $5 }' /proc/self/mountinfo)
    for path in $mounts; do
        echo "$path/specwatch-lab-$(cksum <<< "$root" | cut -d ' ' -f 1)"
    done
}

up() {
    local cgroup
    mkdir -p "$root"
    mount -t tmpfs tmpfs "$root"
    mkdir -p "$root"/{upper,work,machine}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/machine"
    echo uninitialized > "$root/machine/etc/machine-id"
    # A target of its own, because the default one starts whatever this machine has enabled.
    cat > "$root/machine/etc/systemd/system/lab.target" << 'UNIT'
[Unit]
Description=Just enough of a machine to run units
Requires=sysinit.target dbus.service
After=sysinit.target dbus.service
UNIT
    for cgroup in $(cgroups); do
        if ! { mkdir -p "$cgroup" && echo $BASHPID > "$cgroup/cgroup.procs"; }; then
            echo "no cgroup of its own: of two machines at once one may end units of the other" >&2
        fi
    done
    setsid systemd-nspawn --quiet --register=no --keep-unit --link-journal=no --console=pipe \
        --uuid="$(cat /proc/sys/kernel/random/uuid)" -D "$root/machine" "$@" \
        -b systemd.unit=lab.target < /dev/null > "$root/console.log" 2>&1 &
    echo $! > "$root/nspawn.pid"
    for _ in $(seq 480); do
        sleep 0.25
        if "$0" exec "$root" systemctl is-active --quiet lab.target 2> /dev/null; then
            return
        fi
        nspawn_runs || break
    done
    echo "the machine did not boot:" >&2
    cat "$root/console.log" >&2
    exit 1
}

down() {
    local cgroup mounted
    if nspawn_runs; then
        kill -s RTMIN+4 "$(leader)" 2> /dev/null || true # systemd's signal for "power off"
        for _ in $(seq 80); do
            nspawn_runs || break
            sleep 0.25
        done
        if nspawn_runs; then
            kill -9 "$(cat "$root/nspawn.pid")"
        fi
    fi
    for mounted in "$root/machine" "$root"; do
        if mountpoint -q "$mounted"; then
            umount -l "$mounted"
        fi
    done
    if [ -d "$root" ]; then
        rmdir "$root"
    fi
    for cgroup in $(cgroups); do
        for _ in $(seq 40); do # what was killed may still be on its way out
            [ ! -d "$cgroup" ] || find "$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null || true
            [ -d "$cgroup" ] || break
            sleep 0.25
        done
    done
}

case $verb in
up) up "$@" ;;
exec) exec nsenter -t "$(leader)" -m -p -u -i -C -- "$@" ;;
leader) leader ;;
down) down ;;
*)
    echo "unknown verb $verb: expected up, exec, leader or down" >&2
    exit 2
    ;;
esac
