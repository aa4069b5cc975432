"""Files, commands and links of the recorded host for checks of its network and services.

They were written from public formats: of the kernel, mlxlink, mlxconfig, lldpd, chrony, Slurm, libfabric.
"""

from __future__ import annotations

import json

from producers.audit.backend.marking import RULESET
from producers.audit.backend.ufm import TAIL

NOW_S = 1_795_000_000.0  # 2026-11-18 11:06:40
TIMED = ("dmesg", "--kernel")
UPTIME_S = 860_000.12
DEVICES = {f"mlx5_{number}": f"0000:{bus}:00.0" for number, bus in enumerate(("17", "2a", "3d", "ab"))}
EFA = "rdmap160s27"
EFA_ADDRESS = "0000:a0:00.0"
CERTIFICATE = "/etc/kubernetes/pki/apiserver.crt"
SERVICES = (
    "systemctl",
    "list-units",
    "--type=service",
    "--all",
    "--plain",
    "--no-legend",
    "--no-pager",
)
PPCC = "local_port=1,pnat=0,lp_msb=0,algo_slot=0,algo_param_index=0"
HW_COUNTERS = (
    "local_ack_timeout_err",
    "roce_slow_restart",
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "rx_icrc_encapsulated",
    "rnr_nak_retry_err",
)
EFA_COUNTERS = (
    "rx_drops",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
    "retrans_timeout_events",
    "cmds_err",
)

MLXLINK = """
Operational Info
----------------
State                              : \x1b[32mActive\x1b[0m
Physical state                     : LinkUp
Speed                              : NDR
Width                              : 4x
FEC                                : Standard_RS-FEC - (544,514)
Auto Negotiation                   : ON

Troubleshooting Info
--------------------
Status Opcode                      : 0
Group Opcode                       : N/A
Recommendation                     : No issue was observed

Physical Counters and BER Info
------------------------------
Time Since Last Clear [Min]        : 14333.2
Effective Physical Errors          : 0
Effective Physical BER             : 15E-255
Raw Physical Errors Per Lane       : 2413,1109,870,5521
Raw Physical BER                   : 2E-10
Link Down Counter                  : 0
"""
MLXLINK_MODULE = """
Operational Info
----------------
State                              : Active
Physical state                     : LinkUp
Speed                              : NDR

Module Info
-----------
Temperature [C]                    : 54 [-5..75]
Voltage [mV]                       : 3261.2 [2970..3630]
Bias Current [mA]                  : 8.38,8.42,8.4,8.35 [2..15]
Rx Power Current [dBm]             : 1.84,1.95,2.21,1.97 [-10.41..6]
Tx Power Current [dBm]             : 1.51,1.43,1.56,1.72 [-8.508..5]
Identifier                         : OSFP
Vendor Name                        : NVIDIA
Vendor Part Number                 : MMA4Z00-NS400
Vendor Serial Number               : MT2330FT01234
"""
MLXCONFIG = """
Device #1:
----------
Device type:        ConnectX7
Configurations:                                          Next Boot
        ADVANCED_PCI_SETTINGS                       True(1)
        MAX_ACC_OUT_READ                            44
        NUM_OF_VFS                                  0
        LINK_TYPE_P1                                ETH(2)
"""
MLXREG = """
Sending access register...

Field Name          | Data
============================================
value               | 0x00000000
counter_en          | 0x00000000
============================================
"""
LLDP = "".join(
    f"lldp.eth{number}.via=LLDP\nlldp.eth{number}.chassis.name=leaf{number}\n"
    f"lldp.eth{number}.port.ifname=swp7\nlldp.eth{number}.port.descr=to host 12\n"
    for number in range(4)
)
WPA = "wpa_state=COMPLETED\nSupplicant PAE state=AUTHENTICATED\nsuppPortStatus=Authorized\n"
CHRONY = (
    "C0A80401,192.168.4.1,3,1794999990.1,0.000000812,-0.000000405,0.000001212,-3.214,0.001,0.028,0.000221,"
    "0.000412,64.4,Normal\n"
)
SYSTEMD = (
    "containerd.service loaded active running containerd container runtime\n"
    "dm-event.service not-found inactive dead dm-event.service\n"
    "munge.service loaded active running MUNGE authentication service\n"
    "slurmd.service loaded active running Slurm node daemon\n"
)
SCONTROL = (
    "NodeName=gpu012 Arch=x86_64 CoresPerSocket=48\n   State=MIXED+PLANNED ThreadsPerCore=1 TmpDisk=0\n"
)
IPTABLES = (
    "*filter\n:INPUT ACCEPT [812:9120]\n[12:800] -A INPUT -i lo -j ACCEPT\n"
    "[0:0] -A INPUT -s 10.0.0.0/8 -p tcp -m tcp --dport 111 -j REJECT\nCOMMIT\n"
)
FI_INFO = f"provider: efa\n    fabric: efa\n    domain: {EFA}-rdm\n    version: 122.0\n    type: FI_EP_RDM\n"
LOG = (
    "[    0.000000] Linux version 6.8.0-45-generic\n"
    "[    8.120000] mlx5_core 0000:17:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)\n"
    "[   11.001000] mlx5_core 0000:17:00.0 eth0: Link down\n"
    "[   14.400000] mlx5_core 0000:17:00.0 eth0: Link up\n"
)
PMC = ("pmc", "-u", "-b", "0", "GET PORT_DATA_SET", "GET CURRENT_DATA_SET")
PTP = (
    "sending: GET PORT_DATA_SET\n\tb83fd2.fffe.000001-1 seq 0 RESPONSE MANAGEMENT PORT_DATA_SET\n"
    "\t\tportIdentity            b83fd2.fffe.000001-1\n\t\tportState               SLAVE\n"
    "sending: GET CURRENT_DATA_SET\n\t\tstepsRemoved     2\n\t\toffsetFromMaster -12.0\n"
)
UFM = (
    "2026-11-17 10:35:41.231 [14] [110] CRITICAL [Hardware] IBPort [Switch: leaf1 / 3]: Link went down\n"
    "2026-11-18 08:00:00.002 [15] [64] INFO [Logical] Grid [Grid]: Report was created: daily\n"
)
BOND = """Ethernet Channel Bonding Driver: v6.8.0-45-generic

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
MII Status: up

802.3ad info
LACP active: on
Active Aggregator Info:
\tAggregator ID: 1
\tNumber of ports: 2

Slave Interface: eno5
MII Status: up
Speed: 25000 Mbps
Aggregator ID: 1
details partner lacp pdu:
    oper key: 21

Slave Interface: eno6
MII Status: up
Speed: 25000 Mbps
Aggregator ID: 1
"""
MARKING = {
    "rule": {
        "family": "inet",
        "table": "qos",
        "chain": "out",
        "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "dscp"}}, "right": 26}},
            {"mangle": {"key": {"meta": {"key": "priority"}}, "value": "0:3"}},
        ],
    }
}
COMMANDS: dict[tuple[str, ...], str] = {
    RULESET: json.dumps({"nftables": [{"metainfo": {"json_schema_version": 1}}, MARKING]}),
    TIMED: LOG,
    SERVICES: SYSTEMD,
    PMC: PTP,
    TAIL: UFM,
    (
        "scontrol",
        "show",
        "topology",
        "node=gpu012",
    ): "SwitchName=leaf0 Level=0 Nodes=gpu[001-032]\n",
    ("lldpctl", "-f", "keyvalue"): LLDP,
    ("wpa_cli", "-i", "eth0", "status"): WPA,
    ("chronyc", "-c", "tracking"): CHRONY,
    ("munge", "-n"): "MUNGE:AwQFAAC+0Zk8:\n",
    ("scontrol", "show", "node", "gpu012"): SCONTROL,
    ("sinfo", "--noheader", "--format", "%T %D"): "mixed 40\nidle 20\ndrained 2\n",
    ("curl", "--silent", "--max-time", "3", "http://127.0.0.1:10248/healthz"): "ok",
    ("iptables-save", "-c"): IPTABLES,
    ("fi_info", "-p", "efa"): FI_INFO,
    ("hca_self_test.ofed",): "Number of CAs Detected ................. 4\n"
    "Kernel Arch ............................ x86_64\nHost Driver Initialization ............. PASS\n"
    "Port State of Port #1 on CA #0 ......... UP 4X NDR\nREADY FW on CA #0 ...................... NA\n"
    "Kernel Syslog Check .................... PASS\n",
    ("openssl", "x509", "-noout", "-enddate", "-in", CERTIFICATE): "notAfter=Sep 14 10:00:00 2027 GMT\n",
}
for _address in DEVICES.values():
    COMMANDS |= {
        ("mlxlink", "-d", _address, "-c", "-e"): MLXLINK,
        ("mlxlink", "-d", _address, "-m"): MLXLINK_MODULE,
        ("mlxconfig", "-d", _address, "query"): MLXCONFIG,
        ("mlxreg", "-d", _address, "--get", "--reg_name", "PPCC", "--indexes", PPCC): MLXREG,
    }
LINKS = {
    f"/sys/class/infiniband/{device}/device": f"/sys/devices/pci0000:15/{address}"
    for device, address in DEVICES.items()
} | {"/sys/bus/pci/devices/0000:17:00.0/driver": "/sys/bus/pci/drivers/mlx5_core"}


def files() -> dict[str, str | bytes]:
    """Return the recorded host's files about its network and services, by path."""
    return {**_kernel(), **_etc(), **_cards(), **_efa(), **_interfaces()}


def _kernel() -> dict[str, str]:
    conf = "/proc/sys/net/ipv4/conf"
    settings = {
        f"{conf}/{name}/{setting}": f"{value}\n"
        for name in ("all", "eno1", "eno2")
        for setting, value in (("rp_filter", 2), ("arp_ignore", 1), ("arp_announce", 2))
    } | {f"{conf}/eth{number}/rp_filter": "2\n" for number in range(4)}
    listening = "  sl  local_address rem_address   st tx_queue rx_queue\n" + "".join(
        f"   {number}: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000\n"
        for number, port in enumerate((22, 6818, 10250))
    )
    return settings | {
        "/proc/sys/kernel/hostname": "gpu012.cluster\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
        "/proc/sys/net/ipv4/tcp_mem": "6180000\t8240000\t12360000\n",
        "/proc/sys/net/ipv4/tcp_max_orphans": "262144\n",
        "/proc/net/tcp": listening,
        "/proc/net/tcp6": listening,
        "/proc/net/sockstat": "sockets: used 900\nTCP: inuse 60 orphan 0 tw 12 alloc 80 mem 30\n",
        "/proc/net/snmp": (
            "Tcp: RtoAlgorithm OutSegs RetransSegs MaxConn\nTcp: 1 90000000 1200 -1\n"
            "Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 8000000 12 0\n"
        ),
        "/proc/net/netstat": "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 0 0\n",
        "/proc/net/softnet_stat": "0098a0c1 00000000 00000012\n0077a0c1 00000000 00000000\n",
        "/proc/net/stat/nf_conntrack": (
            "entries  found insert_failed drop early_drop\n00000078  00000012 00000000 00000000 00000000\n"
        ),
        "/proc/net/bonding/bond0": BOND,
        "/proc/1/comm": "systemd\n",
        "/proc/812/comm": "chronyd\n",
    }


def _etc() -> dict[str, str]:
    return {
        "/etc/resolv.conf": "# netplan\nnameserver 192.168.4.2\nnameserver 192.168.4.3\nsearch cluster\n",
        "/etc/ssh/sshd_config": "#Port 22\nPermitRootLogin no\n",
        "/etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAAC3Nz root@gpu012\n",
        "/etc/slurm/slurm.conf": "ClusterName=c\n",
        "/run/ptp4l": "",
        "/opt/ufm/files/log/event.log": "",
        "/etc/munge/munge.key": "k" * 128,
        "/var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\n",
        CERTIFICATE: "-----BEGIN CERTIFICATE-----\n",
        "/run/wpa_supplicant/eth0": "",
    }


def _cards() -> dict[str, str]:
    card = "/sys/bus/pci/devices/0000:17:00.0"
    contents = {
        f"{card}/vendor": "0x15b3\n",
        f"{card}/device": "0x1021\n",
        f"{card}/revision": "0x00\n",
        f"{card}/infiniband/mlx5_0/node_type": "1: CA\n",
    }
    for number, device in enumerate(DEVICES):
        folder = f"/sys/class/infiniband/{device}"
        contents |= {
            f"{folder}/fw_ver": "28.39.1002\n",
            f"{folder}/board_id": "MT_0000000838\n",
            f"{folder}/hca_type": "MT4129\n",
            f"/sys/class/infiniband_mad/umad{number}/ibdev": f"{device}\n",
            f"/sys/class/infiniband_mad/issm{number}/ibdev": f"{device}\n",
            f"/dev/infiniband/umad{number}": "",
            f"/dev/infiniband/issm{number}": "",
        }
        contents |= {f"{folder}/ports/1/hw_counters/{name}": "0\n" for name in HW_COUNTERS}
    return contents


def _efa() -> dict[str, str]:
    card, folder = f"/sys/bus/pci/devices/{EFA_ADDRESS}", f"/sys/class/infiniband/{EFA}/ports/1"
    return {
        f"{card}/class": "0x020000\n",
        f"{card}/vendor": "0x1d0f\n",
        f"{card}/device": "0xefa2\n",
        f"{card}/revision": "0x00\n",
        f"{card}/infiniband/{EFA}/node_type": "1: CA\n",
        f"{folder}/state": "4: ACTIVE\n",
        f"{folder}/phys_state": "5: LinkUp\n",
        f"{folder}/rate": "400 Gb/sec (4X NDR)\n",
        f"{folder}/link_layer": "Unspecified\n",
        "/sys/class/infiniband_verbs/uverbs4/ibdev": f"{EFA}\n",
        "/dev/infiniband/uverbs4": "",
        **{f"{folder}/hw_counters/{name}": "0\n" for name in EFA_COUNTERS},
    }


def _interfaces() -> dict[str, str]:
    contents = {}
    for number, name in enumerate(("eno1", "eno2", "eth0", "eth1", "eth2", "eth3")):
        contents[f"/sys/class/net/{name}/device/ptp/ptp{number}/clock_name"] = "mlx5_ptp\n"
        contents[f"/sys/class/ptp/ptp{number}/clock_name"] = "mlx5_ptp\n"
    for number in range(2):
        name, device = f"eth{number}", f"mlx5_{number}"
        contents |= {
            f"/sys/class/net/{name}/device/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\n",
            f"/sys/class/net/{name}/ecn/roce_np/enable/3": "1\n",
            f"/sys/class/net/{name}/ecn/roce_rp/enable/3": "1\n",
            f"/sys/class/net/{name}/ecn/roce_np/cnp_dscp": "48\n",
            f"/sys/class/infiniband/{device}/tc/1/traffic_class": "Global tclass=106\n",
            f"/sys/kernel/config/rdma_cm/{device}/ports/1/default_roce_tos": "106\n",
        }
    contents["/sys/module/mlx5_core/version"] = "24.04-0.6.6\n"
    return contents
