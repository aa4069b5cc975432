import json, os, sys, time, subprocess
sys.path.insert(0, "/repo/tests/rdma/inside")
import fabric
from actuator import Actuator, until
def say(**k): print(json.dumps(k), flush=True)
fabric.build()
say(built=time.monotonic())
g={n: fabric.gid_index(f"rxe_{n}", a) for n,(a,_) in fabric.NICS.items()}
act=Actuator("/tmp/act")
srv=subprocess.Popen(f"ib_write_bw -d rxe_b0 -x {g['b0']} -p 18515 -s 4096 -D 20 -F".split(),stdout=subprocess.PIPE,stderr=subprocess.STDOUT,text=True)
time.sleep(2)
env=dict(os.environ,LD_PRELOAD="/repo/native/qp/libfabrictime-qp.so",**act.environment())
cl=subprocess.Popen(f"ib_write_bw -d rxe_a0 -x {g['a0']} -p 18515 -s 4096 -D 20 -F 10.2.0.1".split(),stdout=subprocess.PIPE,stderr=subprocess.STDOUT,text=True,env=env)
def spines():
    return {s:fabric.rx_packets(s,"leafa") for s in fabric.SPINES}
def moving(sec=0.3):
    a=spines(); time.sleep(sec); b=spines(); return {s:b[s]-a[s] for s in a}
try:
    until(lambda: act.flows, "flow")
    key=next(iter(act.flows))
    until(lambda: key in act.reports and act.reports[key]["sent_bytes"]>0, "report")
    say(flows=act.flows, reports=act.reports)
    say(m=moving())
    for p in range(50000, 50012):
        t=time.monotonic(); a=act.order("MOVE", key, p); dt=time.monotonic()-t
        say(port=p, a=a, ms=dt*1e3, m=moving(0.2))
    say(pace=act.order("PACE", key, 10**8))
    say(low=act.order("MOVE", key, 1000), none=act.order("MOVE","qp:x:1:1",50000), bad=act.order("JUMP", key, 1))
except Exception as e:
    say(error=repr(e), heard=act.heard, flows=act.flows, reports=act.reports)
try: o=cl.communicate(timeout=40)[0]
except Exception as e: cl.kill(); o=repr(e)
say(cl=o, rc=cl.returncode)
srv.kill()
say(heard=act.heard[-6:], gone=act.gone, reports=act.reports)
