"""Back-end checks beyond the ports' state: cards, links, error rates, lossless classes, addresses."""

from __future__ import annotations

from typing import Final

from producers.audit import (
    addressing,
    counters,
    ethernet,
    marking,
    nic_log,
    qos,
    rdma_devices,
    source_routes,
    ufm,
)
from producers.audit.base import Check
from schemas.records import AuditAction, AuditCategory, AuditSeverity

__all__ = ["CHECKS"]

_BACK, _ERROR, _WARNING = AuditCategory.BACKEND, AuditSeverity.ERROR, AuditSeverity.WARNING
_MONITOR, _RESET, _REBOOT = AuditAction.MONITOR, AuditAction.RESET, AuditAction.REBOOT
_REPLACE = AuditAction.REPLACE
_RATES_S: Final = 20.0

CHECKS: Final = (
    Check(
        "backend.vanished", _BACK, "RDMA cards are on the bus and have a device", rdma_devices.vanished,
        _ERROR, _REBOOT, "Power the host off and on; reseat or replace the card if it stays away",
        rows=(3, 32),
    ),
    Check(
        "backend.like-cards", _BACK, "RDMA cards of one type have the same firmware", rdma_devices.like_cards,
        _WARNING, _RESET, "Update the firmware (mlxfwmanager), then reset the card", rows=(4, 18),
    ),
    Check(
        "backend.management-files", _BACK, "InfiniBand ports have their management files",
        rdma_devices.management_files, _ERROR, _MONITOR, "modprobe ib_umad", rows=(22,),
    ),
    Check(
        "backend.firmware-settings", _BACK, "Cards have a good limit of outstanding reads",
        rdma_devices.firmware_settings, _WARNING, _REBOOT,
        "mlxconfig -d ADDRESS set ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ=0, then reboot", rows=(25,),
        limit_s=60.0,
    ),
    Check(
        "backend.round-trip-control", _BACK, "Round-trip congestion control is off",
        rdma_devices.roundtrip_control, _WARNING, _MONITOR, "Turn RTTCC off by mlxreg (register PPCC)",
        rows=(24,), limit_s=60.0,
    ),
    Check(
        "backend.self-test", _BACK, "Cards pass the driver's self-test", rdma_devices.self_test, _ERROR,
        _REPLACE, "`hca_self_test.ofed` names the failed part", rows=(26,), limit_s=70.0, active=True,
    ),
    Check(
        "backend.efa-provider", _BACK, "libfabric offers every EFA device", rdma_devices.efa_provider, _ERROR,
        _MONITOR, "Install the EFA driver and libfabric of one release", rows=(32,),
    ),
    Check(
        "backend.error-rates", _BACK, "Errors of RDMA links are rare", counters.error_rates, _ERROR, _REPLACE,
        "Clean or replace cable and transceiver", rows=(8, 9, 10, 13), limit_s=_RATES_S,
    ),
    Check(
        "backend.transport-rates", _BACK, "Queue pairs rarely time out or lose their order",
        counters.transport_rates, _WARNING, _MONITOR,
        "Look for loss: PFC, ECN and DSCP of NICs and switches, then discards of the switch", rows=(12, 14),
        limit_s=_RATES_S,
    ),
    Check(
        "backend.receiver-not-ready", _BACK, "No queue pair gives up for lack of receive buffers",
        counters.receiver_not_ready, _ERROR, _MONITOR, "Find the slow program; raise rnr_retry",
        rows=(11,), limit_s=_RATES_S,
    ),
    Check(
        "backend.efa-rates", _BACK, "EFA devices lose few packets and peers", counters.efa_rates, _WARNING,
        _MONITOR, "Check the peer instance; raise the receive queue", rows=(32,), limit_s=_RATES_S,
    ),
    Check(
        "backend.link-flaps", _BACK, "Links do not flap", nic_log.link_flaps, _ERROR, _REPLACE,
        "Replace the cable or transceiver, then try another switch port", rows=(5, 6, 15),
    ),
    Check(
        "backend.repeated-faults", _BACK, "No NIC reports three faults within an hour",
        nic_log.repeated_faults, _ERROR, _REPLACE, "Replace the cable or transceiver", rows=(16,),
    ),
    Check(
        "backend.module-events", _BACK, "Cables and modules are accepted", nic_log.module_events, _WARNING,
        _REPLACE, "Reseat the cable; use one that the NIC supports", rows=(28,),
    ),
    Check(
        "backend.slot-bandwidth", _BACK, "Slots do not limit NICs", nic_log.limited_slots, _ERROR, _REPLACE,
        "Move the NIC to a slot of full width, or reseat it", rows=(29,),
    ),
    Check(
        "backend.ufm-events", _BACK, "UFM reports no faulty port", ufm.fabric_events, _ERROR, _REPLACE,
        "Replace the cable of the port, or isolate it in UFM", rows=(43, 46),
    ),
    Check(
        "backend.duplex", _BACK, "Links are full duplex and negotiate alike", ethernet.duplex, _ERROR,
        _MONITOR, "Set autonegotiation alike on NIC and switch port", rows=(18, 19),
    ),
    Check(
        "backend.flags", _BACK, "Interfaces have usual flags", ethernet.flags, _WARNING, _MONITOR,
        "ip link set dev INTERFACE promisc off allmulticast off arp on", rows=(19,),
    ),
    Check(
        "backend.error-ratios", _BACK, "Bit error ratios are low on every lane", ethernet.error_ratios,
        _ERROR, _REPLACE, "Clean or replace cable and transceiver", rows=(17,),
    ),
    Check(
        "backend.discards", _BACK, "NICs discard few packets", ethernet.discards, _WARNING, _MONITOR,
        "Check PFC and the PCIe bandwidth of the slot", rows=(13,),
    ),
    Check(
        "backend.drivers", _BACK, "NICs have one driver", ethernet.drivers, _WARNING, _MONITOR,
        "Install the same driver on all hosts", rows=(18,),
    ),
    Check(
        "backend.link-quality", _BACK, "The firmware recommends no repair of a link", ethernet.link_quality,
        _ERROR, _REPLACE, "Follow mlxlink's recommendation; clean or replace the cable", rows=(17,),
        limit_s=60.0,
    ),
    Check(
        "backend.fec", _BACK, "Links of one speed use the same FEC", ethernet.link_fec, _ERROR, _MONITOR,
        "Set FEC alike on NIC and switch port: mlxlink --fec", rows=(17,), limit_s=60.0,
    ),
    Check(
        "backend.lldp", _BACK, "A switch announces itself to each NIC", ethernet.lldp, _WARNING, _MONITOR,
        "Start lldpd, and enable LLDP on the switch port", rows=(45,),
    ),
    Check(
        "backend.authentication", _BACK, "Switches admit the NICs (802.1X)", ethernet.authentication, _ERROR,
        _MONITOR, "Restart wpa_supplicant; renew the host's certificate", rows=(23,),
    ),
    Check(
        "backend.pfc", _BACK, "NICs have the same lossless priorities", qos.pfc, _ERROR, _MONITOR,
        "mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0",
    ),
    Check(
        "backend.trust", _BACK, "NICs take the priority from DSCP", qos.trust, _ERROR, _MONITOR,
        "mlnx_qos -i INTERFACE --trust dscp",
    ),
    Check(
        "backend.dscp-map", _BACK, "NICs map DSCP to the same priorities", qos.dscp_map, _ERROR, _MONITOR,
        "dcb app replace dev INTERFACE dscp-prio DSCP:PRIORITY",
    ),
    Check(
        "backend.dscp-rules", _BACK, "Firewall rules mark packets as the NICs and other hosts do",
        marking.dscp_rules, _ERROR, _MONITOR,
        "nft --handle list ruleset; nft delete rule FAMILY TABLE CHAIN handle NUMBER",
    ),
    Check(
        "backend.traffic-classes", _BACK, "NICs have the same traffic classes", qos.classes, _WARNING,
        _MONITOR, "mlnx_qos -i INTERFACE --tcbw SHARES --prio_tc CLASSES",
    ),
    Check(
        "backend.ecn", _BACK, "NICs mark and react on lossless priorities (ECN)", qos.congestion_marks,
        _ERROR, _MONITOR, "echo 1 > /sys/class/net/INTERFACE/ecn/roce_np/enable/PRIORITY, and roce_rp",
    ),
    Check(
        "backend.lossless-class", _BACK, "RoCE traffic takes a lossless priority", qos.lossless_class, _ERROR,
        _MONITOR, "echo 106 > /sys/class/infiniband/DEVICE/tc/1/traffic_class, for DSCP 26",
    ),
    Check(
        "backend.addresses", _BACK, "RDMA interfaces have an address", addressing.rdma_addresses, _ERROR,
        _MONITOR, "Give the interface its planned address", rows=(31,),
    ),
    Check(
        "backend.plane-routes", _BACK, "Every RDMA interface has its route and rule", addressing.plane_routes,
        _ERROR, _MONITOR, "Add the interface's route and policy rule as the others have them", rows=(30,),
    ),
    Check(
        "backend.source-routes", _BACK, "Packets leave by the NIC whose address they carry",
        source_routes.source_routes, _WARNING, _MONITOR,
        "Give each NIC's address a policy rule and a routing table of its own: ip rule add from ADDRESS "
        "table N; ip route add default via GATEWAY dev INTERFACE table N", rows=(30,),
    ),
    Check(
        "backend.gid-index", _BACK, "RoCE v2 GIDs have one index on all ports", addressing.gid_index,
        _WARNING, _MONITOR, "Give all interfaces the same number of addresses, or set NCCL_IB_GID_INDEX",
        rows=(20,),
    ),
)  # fmt: skip
