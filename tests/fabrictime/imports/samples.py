"""The same small fabric in the file of each tool: h1 and h2 at leaf1 and leaf2, both leaves at spine1."""

from __future__ import annotations

LLDP = """{"lldp": {"interface": [
  {"eth0": {"via": "LLDP", "rid": "1", "age": "0 day, 00:10:02",
    "chassis": {"leaf1": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}, "mgmt-ip": "10.255.0.1"}},
    "port": {"id": {"type": "ifname", "value": "Ethernet1/1"}, "descr": "to h1", "ttl": "120"}}},
  {"eth1": {"via": "LLDP", "chassis": {"leaf2": {"id": {"type": "mac", "value": "00:11:22:33:44:66"}}},
    "port": {"id": {"type": "mac", "value": "00:11:22:33:44:67"}, "descr": "et-0/0/48:0"}}}]}}"""

LLDP_0 = """{"lldp": [{"interface": [{"name": "eth0", "via": "LLDP",
  "chassis": [{"id": [{"type": "mac", "value": "00:11:22:33:44:55"}], "name": [{"value": "leaf1"}]}],
  "port": [{"id": [{"type": "ifname", "value": "Ethernet1/1"}], "descr": [{"value": "to h1"}]}]}]}]}"""

LLDP_ONE = """{"lldp": {"interface": {"eth0": {"chassis": {"leaf1": {"id": {"type": "mac", "value": "a"}}},
  "port": {"id": {"type": "local", "value": "7"}}}}}}"""

SONIC = """{
  "DEVICE_METADATA": {"localhost": {"hostname": "leaf1", "type": "ToRRouter", "hwsku": "ACS-MSN4600C"}},
  "PORT": {"Ethernet0": {"speed": "100000", "lanes": "0,1,2,3"}, "Ethernet4": {"speed": "400000"}},
  "DEVICE_NEIGHBOR": {"Ethernet0": {"name": "h1", "port": "eth0"}, "Ethernet4": {"name": "spine1", "port": "Ethernet8"}},
  "DEVICE_NEIGHBOR_METADATA": {"h1": {"type": "Server"}, "spine1": {"type": "SpineRouter"}},
  "INTERFACE": {"Ethernet4": {}, "Ethernet4|10.0.0.0/31": {}, "PortChannel1|10.9.0.0/31": {}},
  "LOOPBACK_INTERFACE": {"Loopback0": {}, "Loopback0|10.255.0.1/32": {}}}"""  # noqa: E501

MINIGRAPH = """<?xml version="1.0"?>
<DeviceMiniGraph xmlns="Microsoft.Search.Autopilot.Evolution" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
  <PngDec>
    <DeviceInterfaceLinks>
      <DeviceLinkBase><ElementType>DeviceInterfaceLink</ElementType><Bandwidth>100000</Bandwidth>
        <EndDevice>leaf1</EndDevice><EndPort>Ethernet0</EndPort>
        <StartDevice>h1</StartDevice><StartPort>eth0</StartPort></DeviceLinkBase>
      <DeviceLinkBase><ElementType>DeviceInterfaceLink</ElementType>
        <EndDevice>spine1</EndDevice><EndPort>Ethernet8</EndPort>
        <StartDevice>leaf1</StartDevice><StartPort>Ethernet4</StartPort></DeviceLinkBase>
      <DeviceLinkBase><ElementType>DeviceSerialLink</ElementType>
        <EndDevice>console</EndDevice><EndPort>1</EndPort>
        <StartDevice>leaf1</StartDevice><StartPort>console</StartPort></DeviceLinkBase>
    </DeviceInterfaceLinks>
    <Devices>
      <Device i:type="ToRRouter"><Hostname>leaf1</Hostname></Device>
      <Device i:type="Server"><Hostname>h1</Hostname></Device>
      <Device i:type="SpineRouter"><Hostname>spine1</Hostname></Device>
    </Devices>
  </PngDec>
</DeviceMiniGraph>"""

CONTAINERLAB = """name: lab
topology:
  kinds:
    nokia_srlinux: {image: ghcr.io/nokia/srlinux}
  nodes:
    leaf1: {kind: nokia_srlinux}
    spine1: {kind: nokia_srlinux}
    h1: {kind: linux}
  links:
    - endpoints: ["h1:eth1", "leaf1:e1-1"]
    - endpoints: ["leaf1:e1-49", "spine1:e1-1"]
    - endpoints: ["leaf1:mgmt0", "host:veth1"]
    - type: veth
      endpoints:
        - {node: spine1, interface: ethernet-1/3}
        - {node: h2, interface: eth1}
"""

SLURM = """# two racks
SwitchName=leaf1 Nodes=h[1-2],g07 LinkSpeed=100000000
SwitchName=leaf2 Nodes=h[03-04]
SwitchName=spine1 \\
  Switches=leaf[1-2]
"""

INFINIBAND = """#
# Topology file: generated on Thu Nov 26 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0xfc6a1c0300aaaa00
switchguid=0xfc6a1c0300aaaa00(fc6a1c0300aaaa00)
Switch\t65 "S-fc6a1c0300aaaa00"\t\t# "MF0;sw1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-946dae0300000001"[1](946dae0300000001) \t\t# "gpu01 mlx5_0" lid 5 4xNDR
[33]\t"S-fc6a1c0300bbbb00"[2]\t\t# "MF0;sw2:MQM9700/U1" lid 2 4xNDR

vendid=0x2c9
Switch\t65 "S-fc6a1c0300bbbb00"\t\t# "MF0;sw2:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[2]\t"S-fc6a1c0300aaaa00"[33]\t\t# "MF0;sw1:MQM9700/U1" lid 1 4xNDR
[3]\t"H-946dae0300000002"[1](946dae0300000002) \t\t# "gpu02 mlx5_0" lid 6 4xHDR

vendid=0x2c9
caguid=0x946dae0300000001
Ca\t1 "H-946dae0300000001"\t\t# "gpu01 mlx5_0"
[1](946dae0300000001) \t"S-fc6a1c0300aaaa00"[1]\t\t# lid 5 lmc 0 "MF0;sw1:MQM9700/U1" lid 1 4xNDR

caguid=0x946dae0300000002
Ca\t1 "H-946dae0300000002"\t\t# "gpu02 mlx5_0"
[1](946dae0300000002) \t"S-fc6a1c0300bbbb00"[3]\t\t# lid 6 lmc 0 "MF0;sw2:MQM9700/U1" lid 2 4xHDR
"""

PTM = """graph G {
  // racks
  graph [hostidtype="hostname", version="1:0", date="11/26/2026"];
  "h1":"eth0" -- "leaf1":"swp1" [prefix="10.0.0.0/31"];
  leaf1:swp49 -- spine1:swp1 ;
  /* "h2":"eth0" -- "leaf9":"swp1" */
}"""

NCCL = """<system version="1">
  <cpu numaid="0" affinity="00ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:18:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
      <nic>
        <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
        <net name="mlx5_1" dev="1" speed="400000" port="1" guid="0x2" maxconn="131072" gdr="1"/>
      </nic>
    </pci>
  </cpu>
</system>"""

NETBOX = """id,Label,Type,Status,Side A Device,Side A Type,Side A Name,Side B Device,Side B Type,Side B Name
1,,cat6a,connected,h1,dcim.interface,eth0,leaf1,dcim.interface,Ethernet1/1
2,,mmf,connected,leaf1,dcim.interface,Ethernet1/49,spine1,dcim.interface,Ethernet1/1
3,,power,connected,h1,dcim.powerport,PSU1,pdu1,dcim.poweroutlet,1
4,,mmf,planned,leaf1,dcim.interface,Ethernet1/50,spine2,dcim.interface,Ethernet1/1
"""

ALL = {
    "lldp": LLDP,
    "sonic": SONIC,
    "minigraph": MINIGRAPH,
    "containerlab": CONTAINERLAB,
    "slurm": SLURM,
    "ibnetdiscover": INFINIBAND,
    "nccl": NCCL,
    "ptm": PTM,
    "netbox": NETBOX,
}
