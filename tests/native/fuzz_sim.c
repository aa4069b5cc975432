/* Random networks, flows and probes through native/sim, in steps, with what people do in between. Prints 'clean'. */
#include "packet.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 12345;

static int64_t below(int64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)(state >> 33) % n;
}

static int32_t some_path(struct ft_sim *sim) {
    int32_t links[8], first;
    int64_t n = 1 + below(8);
    for (int64_t i = 0; i < n; i++)
        links[i] = (int32_t)below(sim->links); /* a link may come twice, or twice in a row */
    int reached = below(8) != 0;
    if (!ft_sim_add_path(sim, links, reached ? n : below(n + 1), reached, &first)) exit(2);
    return first;
}

static void add(struct ft_sim *sim) {
    struct ft_rules rules = {1.0 / 256, 40e6, 400e6, 1e6, 50000000, 55000000, 55000000, 100000, 5};
    struct ft_flow flow = {0};
    flow.path = some_path(sim);
    flow.kind = (uint8_t)below(3);
    flow.packet_bytes = (uint16_t)(1 + below(65535));
    flow.rate = 1e6 + (double)below(1000000000) * 20;
    flow.burst = 1 + (double)below(50);
    flow.pause_ps = (double)below(1000000000);
    flow.stop_ps = below(4) ? INT64_MAX : sim->now_ps + below(2000000000);
    flow.size = -1;
    if (flow.kind == FT_MESSAGE) {
        flow.stop_ps = INT64_MAX;
        flow.left = flow.size = below(3) ? 1 + below(1000000) : -1;
    }
    if (!ft_sim_add_flow(sim, flow, sim->now_ps + below(1000000000), below(2) ? &rules : NULL)) exit(2);
    struct ft_prober prober = {
        some_path(sim), some_path(sim), (uint16_t)(1 + below(2000)), 0, 0, 0, -1, 0, 0, 0};
    prober.spacing_ps = below(2) * 20000000;
    prober.stop_ps = below(4) ? INT64_MAX : sim->now_ps + below(2000000000);
    prober.gap_ps = 1e6 + (double)below(100000000);
    if (below(2)) /* turns instead of exponential gaps */
        prober.jitter_ps = below((int64_t)prober.gap_ps);
    if (!ft_sim_add_prober(sim, prober, sim->now_ps + below(1000000000))) exit(2);
}

static void check(const struct ft_sim *sim) {
    int64_t open = ft_sim_in_flight(sim, 0);
    for (int64_t i = 0; i < sim->n_flows; i++)
        open -= sim->flow[i].sent_bytes - sim->flow[i].delivered_bytes - sim->flow[i].dropped_bytes;
    if (open) {
        printf("%lld bytes too many in flight\n", (long long)open);
        exit(1);
    }
}

int main(void) {
    for (int round = 0; round < 60; round++) {
        struct ft_sim sim;
        if (!ft_sim_open(&sim, (int32_t)(1 + below(20)), 1 + below(500000000), (uint64_t)round)) return 2;
        for (int32_t i = 0; i < sim.links; i++) {
            struct ft_queue *q = &sim.queue[i];
            q->byte_fx = (uint64_t)(20 + below(8000)) << 16;
            q->delay_ps = below(2000000);
            q->buffer_ps = 1 + below(3000000000);
            q->loss = below(5) ? 0 : (double)below(101) / 100;
            if (below(2)) {
                q->mark_from_ps = below(100000000);
                q->mark_full_ps = q->mark_from_ps + 1 + below(100000000);
                q->mark_share = 0.1;
            }
        }
        int64_t until = 0;
        for (int step = 0; step < 12; step++) {
            for (int64_t i = below(16); i > 0; i--) add(&sim);
            until += below(2000000000);
            int done;
            while ((done = ft_sim_run(&sim, until, 1 + below(20000))) == 0)
                if (below(10) == 0) ft_sim_settle(&sim);
            if (done < 0) return 2;
            check(&sim);
            if (sim.n_flows && below(2)) ft_sim_set_path(&sim, below(sim.n_flows), some_path(&sim));
            if (below(2)) ft_sim_forget_probes(&sim, ft_sim_decided(&sim));
            if (below(2)) ft_sim_forget_slots(&sim, sim.now_ps / sim.slot_ps - sim.first_slot);
        }
        ft_sim_close(&sim);
    }
    puts("clean");
    return 0;
}
