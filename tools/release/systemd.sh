# Functions of all scripts. Debian's helpers keep the choices of an administrator: a unit that was disabled stays so,
# and a policy-rc.d is obeyed. Other distributions have systemctl alone.
invoke() { # ACTION UNIT...; a unit that fails is an error of the unit, which must not leave a package half installed
    if [ ! -d /run/systemd/system ]; then return 0; fi
    if command -v deb-systemd-invoke >/dev/null; then set -- deb-systemd-invoke "$@"; else set -- systemctl "$@"; fi
    "$@" || echo "fabrictime: $2 failed: $3; its reason: systemctl status $3" >&2
}
reload() {
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
}
forget() { # UNIT...: a purge, or a removal of an rpm, ends what was enabled
    for unit in "$@"; do
        if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper purge "$unit" >/dev/null || true; fi
        rm -f /etc/systemd/system/multi-user.target.wants/$unit
    done
}
