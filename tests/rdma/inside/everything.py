import json, sys, time, subprocess
sys.path.insert(0, "/repo/tests/rdma/inside")
import fabric
def say(**k): print(json.dumps(k), flush=True)
say(uptime=time.monotonic())
fabric.build()
say(built=time.monotonic())
g={n: fabric.gid_index(f"rxe_{n}", a) for n,(a,_) in fabric.NICS.items()}
say(gids=g)
def run(c, t=30):
    try:
        r=subprocess.run(c,shell=True,capture_output=True,text=True,timeout=t); say(c=c,rc=r.returncode,o=r.stdout+r.stderr)
    except Exception as e: say(c=c,e=str(e))
run("ping -c 2 -I 10.1.0.1 10.2.0.1; cat /lib/modules/x; uname -r")
run("ibv_devices; ip rule; ip route show table 1000; busybox ls /sys/class/infiniband/rxe_a0 ")
b={s:fabric.rx_packets(s,"leafa") for s in fabric.SPINES}
srv=subprocess.Popen(f"ib_write_bw -d rxe_b0 -x {g['b0']} -p 18515 -s 4096 -n 500 -F".split(),stdout=subprocess.PIPE,stderr=subprocess.STDOUT,text=True)
time.sleep(3)
run(f"ib_write_bw -d rxe_a0 -x {g['a0']} -p 18515 -s 4096 -n 500 -F 10.2.0.1",60)
say(srv=srv.communicate(timeout=10)[0])
say(d={s:fabric.rx_packets(s,"leafa")-b[s] for s in fabric.SPINES})
