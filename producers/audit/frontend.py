"""Front-end checks: addresses, routes, names, time, sockets, packet filters, services, and reach."""

from __future__ import annotations

from typing import Final

from producers.audit import addressing, bonds, reach, services, sockets
from producers.audit.base import Check
from schemas.records import AuditAction, AuditCategory, AuditSeverity

__all__ = ["CHECKS"]

_FRONT, _ERROR, _WARNING = AuditCategory.FRONTEND, AuditSeverity.ERROR, AuditSeverity.WARNING
_MONITOR, _REPLACE = AuditAction.MONITOR, AuditAction.REPLACE

CHECKS: Final = (
    Check(
        "frontend.addresses", _FRONT, "Interfaces that are up have an address", addressing.addresses,
        _WARNING, _MONITOR, "Check the network's configuration; set the interface down if it is unused",
        rows=(31, 100),
    ),
    Check(
        "frontend.default-route", _FRONT, "There is one default route, by an interface that is up",
        addressing.default_route, _ERROR, _MONITOR, "ip route replace default via GATEWAY dev INTERFACE",
        rows=(100,),
    ),
    Check(
        "frontend.gateway", _FRONT, "The gateway answers to address resolution", addressing.gateway, _ERROR,
        _REPLACE, "Check cable, VLAN and switch port; `ip neigh` shows the state", rows=(99, 100),
    ),
    Check(
        "frontend.policy-rules", _FRONT, "Policy rules lead to routes", addressing.policy_rules, _ERROR,
        _MONITOR, "Add the route to the rule's table, or delete the rule: `ip rule`, `ip route show table N`",
        rows=(30, 100),
    ),
    Check(
        "frontend.bonds", _FRONT, "All members of bonds carry traffic", bonds.bonds, _ERROR, _REPLACE,
        "Check the member's cable, and LACP on the switch port", rows=(18, 99),
    ),
    Check(
        "frontend.reverse-path", _FRONT, "Interfaces in one network do not filter by reverse path",
        addressing.reverse_path, _ERROR, _MONITOR, "sysctl net.ipv4.conf.INTERFACE.rp_filter=2", rows=(100,),
    ),
    Check(
        "frontend.arp", _FRONT, "Interfaces in one network answer for their own addresses only",
        addressing.arp_replies, _WARNING, _MONITOR,
        "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2", rows=(100,),
    ),
    Check(
        "frontend.name-servers", _FRONT, "Name servers are configured", services.name_servers, _ERROR,
        _MONITOR, "Correct /etc/resolv.conf, or the service that writes it", rows=(99,),
    ),
    Check(
        "frontend.clock-service", _FRONT, "A program sets the clock", services.clock_service, _WARNING,
        _MONITOR, "systemctl enable --now chronyd", rows=(88, 101),
    ),
    Check(
        "frontend.chrony", _FRONT, "The clock is close to its source", services.chrony, _WARNING, _MONITOR,
        "`chronyc sources -v` shows servers and their state", rows=(88,),
    ),
    Check(
        "frontend.ptp", _FRONT, "PTP follows its master closely", services.precision_time, _WARNING, _MONITOR,
        "`journalctl -u ptp4l` shows the port's state and the master", rows=(88,),
    ),
    Check(
        "frontend.hardware-clocks", _FRONT, "NICs have a hardware clock", services.hardware_clocks, _WARNING,
        _MONITOR, "Enable PTP in the NIC's driver or firmware; time stamps come from software without it",
        rows=(88,),
    ),
    Check(
        "frontend.ssh", _FRONT, "Remote login listens", services.ssh_listens, _WARNING, _MONITOR,
        "systemctl restart sshd; `sshd -t` checks its configuration", rows=(103,),
    ),
    Check(
        "frontend.host-keys", _FRONT, "The host has strong SSH keys", services.host_keys, _WARNING, _MONITOR,
        "ssh-keygen -A, and remove weak keys", rows=(103,),
    ),
    Check(
        "frontend.certificates", _FRONT, "Certificates are valid for two weeks", services.certificates,
        _WARNING, _MONITOR, "Renew the certificate, for example by `kubeadm certs renew`", rows=(103,),
        limit_s=30.0,
    ),
    Check(
        "frontend.munge", _FRONT, "Munge makes tokens for Slurm", services.tokens, _ERROR, _MONITOR,
        "systemctl restart munge, and compare /etc/munge/munge.key and the clock with the controller's",
        rows=(103,),
    ),
    Check(
        "frontend.daemons", _FRONT, "Installed daemons of the cluster run", services.daemons, _WARNING,
        _MONITOR, "`systemctl status UNIT` gives the reason", rows=(45, 66, 101),
    ),
    Check(
        "frontend.slurm-node", _FRONT, "Slurm may use the host", services.scheduler_node, _WARNING, _MONITOR,
        "`scontrol show node` gives the reason; resume it after the repair", rows=(102,),
    ),
    Check(
        "frontend.slurm-topology", _FRONT, "Slurm knows the host's switches", services.scheduler_topology,
        _WARNING, _MONITOR, "Add the host to topology.conf, then `scontrol reconfigure`", rows=(44, 102),
    ),
    Check(
        "frontend.slurm-cluster", _FRONT, "Slurm may use 85% of all nodes", services.cluster_nodes, _WARNING,
        _MONITOR, "`sinfo -R` lists the reasons", rows=(102,),
    ),
    Check(
        "frontend.kubelet", _FRONT, "The kubelet is healthy", services.kubelet, _ERROR, _MONITOR,
        "`journalctl -u kubelet` gives the reason", rows=(101, 102),
    ),
    Check(
        "frontend.tcp", _FRONT, "TCP sends few segments twice", sockets.retransmissions, _WARNING, _MONITOR,
        "`nstat -a` and `ss -ti` show the peers; raise net.core.somaxconn for full listeners", rows=(99,),
    ),
    Check(
        "frontend.receive-drops", _FRONT, "The kernel drops no received packets", sockets.receive_drops,
        _WARNING, _MONITOR, "Raise net.core.netdev_max_backlog or the socket's buffer; spread interrupts",
        rows=(99, 100),
    ),
    Check(
        "frontend.interface-drops", _FRONT, "Interfaces neither drop nor damage packets",
        sockets.interface_drops, _WARNING, _MONITOR, "`ethtool -S` names the reason; enlarge rings by `-G`",
        rows=(99, 100),
    ),
    Check(
        "frontend.allowances", _FRONT, "The cloud drops no packets", sockets.allowances, _WARNING, _MONITOR,
        "Use a larger instance, fewer packets, or fewer tracked connections", rows=(100,),
    ),
    Check(
        "frontend.conntrack-drops", _FRONT, "Connection tracking refuses no connection",
        sockets.tracking_drops, _ERROR, _MONITOR, "Raise net.netfilter.nf_conntrack_max", rows=(100,),
    ),
    Check(
        "frontend.packet-filters", _FRONT, "Packet filters refuse no packets", sockets.packet_filters,
        _WARNING, _MONITOR, "`iptables-save -c` shows the rule; allow the cluster's networks", rows=(100,),
    ),
    Check(
        "frontend.port-clash", _FRONT, "Outgoing connections take no service's port", sockets.port_clash,
        _WARNING, _MONITOR, "sysctl net.ipv4.ip_local_reserved_ports=PORTS", rows=(100,),
    ),
    Check(
        "frontend.sockets", _FRONT, "Memory, orphans and ports of TCP suffice", sockets.socket_memory,
        _ERROR, _MONITOR, "`ss -s` and `ss -tanp` name the program", rows=(99,),
    ),
    Check(
        "frontend.path-mtu", _FRONT, "Packets of full size reach the gateway and neighbours", reach.path_mtu,
        _ERROR, _MONITOR, "Set one MTU on hosts and switch ports of the network", rows=(19, 99, 100),
        limit_s=60.0, active=True,
    ),
    Check(
        "frontend.round-trips", _FRONT, "The gateway answers without loss", reach.round_trips, _WARNING,
        _MONITOR, "Check errors of the interface and of the switch port", rows=(99,), limit_s=30.0,
        active=True,
    ),
    Check(
        "frontend.tcp-reach", _FRONT, "Neighbours answer on TCP", reach.tcp_reach, _WARNING, _MONITOR,
        "Check the peer, its packet filter and the route", rows=(99,), limit_s=60.0, active=True,
    ),
    Check(
        "frontend.lookups", _FRONT, "Name servers answer", reach.lookups, _ERROR, _MONITOR,
        "Check the name server, or remove it from /etc/resolv.conf", rows=(99,), limit_s=20.0, active=True,
    ),
)  # fmt: skip
