/* Moves one queue pair to another path, and limits its rate. It tries, in order: a live change of the
 * source port (mlx5), a drained send queue and a new address vector (SQD), the application's standby queue
 * pair. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "qp.h"

enum { FIRST_PORT = 0xC000 };

static const uint64_t DRAIN_NS = 3000000000u, KICK_NS = 1000000000u;
static const uint8_t IPV4_MAPPED[12] = {[10] = 0xff, [11] = 0xff};

/* ibv_modify_qp would store SQD as the state that the program sees, and UCX ends the process if a queue pair that
 * it posts to is not in RTS. The driver's function leaves that state alone. */
static int modify(struct ft_pair *pair, struct ft_qp_attr *attr, int mask) {
    ft_modify_qp *driver = pair->qp->context->modify_qp;

    if (!driver) driver = (ft_modify_qp *)ft_real(FT_MODIFY_QP);
    return driver ? driver(pair->qp, attr, mask) : ENOSYS;
}

static int modify_state(struct ft_pair *pair, uint32_t state) {
    struct ft_qp_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.qp_state = state;
    return modify(pair, &attr, FT_QP_STATE);
}

static void add_text(struct ft_result *result, const char *prefix, int error) {
    size_t used = strlen(result->text);
    const char *apart = used ? "; " : "";
    char names[64];

    if (error)
        snprintf(result->text + used, sizeof(result->text) - used, "%s%s: %s (errno %d)", apart, prefix,
                 strerror_r(error, names, sizeof(names)), error);
    else
        snprintf(result->text + used, sizeof(result->text) - used, "%s%s", apart, prefix);
}

static void done(struct ft_result *result, uint64_t in_force, const char *how) {
    result->outcome = FT_DONE;
    result->in_force = in_force;
    result->how = how;
}

/* Check a short file of the kernel's description of a device. */
static bool sysfs_has(const char *device, unsigned port, const char *file, const char *expected) {
    char path[256], text[64] = "";
    FILE *in;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/%s", device, port, file);
    in = fopen(path, "re");
    if (!in) return false;
    if (!fgets(text, sizeof(text), in)) text[0] = 0;
    fclose(in);
    text[strcspn(text, "\n")] = 0;
    return !strcmp(text, expected);
}

static void address_text(const uint8_t gid[16], char text[FT_ADDRESS]) {
    if (!memcmp(gid, IPV4_MAPPED, sizeof(IPV4_MAPPED)))
        inet_ntop(AF_INET, gid + 12, text, FT_ADDRESS);
    else
        inet_ntop(AF_INET6, gid, text, FT_ADDRESS);
}

/* Without a flow label, kernel and drivers derive one from both queue pair numbers. */
static uint32_t label_of_numbers(uint32_t own, uint32_t other) {
    uint64_t v = (uint64_t)own * other;

    v ^= v >> 20;
    v ^= v >> 40;
    return (uint32_t)(v & 0xfffff);
}

void ft_learn_path(struct ft_pair *pair) {
    int (*query_gid)(struct ft_context *, uint8_t, int, uint8_t *) =
        (int (*)(struct ft_context *, uint8_t, int, uint8_t *))ft_verbs_symbol("ibv_query_gid");
    uint8_t gid[16];
    char file[64];

    if (!pair->has_path || pair->source[0]) return;
    snprintf(file, sizeof(file), "gid_attrs/types/%u", pair->path.sgid_index);
    pair->roce_v2 = pair->path.is_global &&
                    sysfs_has(pair->device, pair->path.port_num, "link_layer", "Ethernet") &&
                    sysfs_has(pair->device, pair->path.port_num, file, "RoCE v2");
    pair->source_port = 0;
    if (!pair->roce_v2) return;
    if (!query_gid || query_gid(pair->qp->context, pair->path.port_num, pair->path.sgid_index, gid)) return;
    address_text(gid, pair->source);
    address_text(pair->path.dgid, pair->peer);
    /* Ethernet 14, IP, UDP 8, base transport header 12, extended header of a write 16 in the first packet,
     * checksum 4. */
    atomic_store_explicit(&pair->header_bytes, strchr(pair->peer, ':') ? 78u : 58u, memory_order_relaxed);
    pair->source_port = fabrictime_source_port(
        pair->path.flow_label ? pair->path.flow_label : label_of_numbers(pair->qp_num, pair->dest_qpn));
}

/* Soft-RoCE continues after SQD only when new work is posted, and again if one of its timeouts fired
 * during the move. An invalid request is refused but still rings the doorbell. Soft-RoCE devices have a
 * parent in sysfs; others do not. */
void ft_kick(struct ft_pair *pair) {
    char path[160];
    struct ft_send_wr wr, *bad = NULL;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/parent", pair->device);
    if (access(path, F_OK)) return;
    memset(&wr, 0, sizeof(wr));
    wr.opcode = FT_WR_LAST_ATOMIC; /* without bytes: every version refuses it before anything is queued */
    pair->qp->context->post_send(pair->qp, &wr, &bad);
}

void ft_finish_drain(struct ft_pair *pair, struct ft_result *result) {
    int error = modify_state(pair, FT_QPS_RTS);

    result->text[0] = 0;
    if (error == EINVAL && ft_now_ns() < pair->drain_until_ns) {
        result->outcome = FT_DRAINING;
        return;
    }
    pair->draining = false;
    if (error) {
        pair->qp->state = FT_QPS_SQD; /* now the program has to know */
        result->outcome = FT_FAILED;
        add_text(result, "out of SQD", error);
        return;
    }
    ft_kick(pair);
    pair->kick_until_ns = ft_now_ns() + KICK_NS;
    done(result, pair->source_port, "SQD");
}

/* Return true if this method worked: done, or draining. */
static bool by_draining(struct ft_pair *pair, uint16_t source_port, struct ft_result *result) {
    struct ft_qp_attr attr;
    int error, back;

    if (pair->qp_type != FT_QPT_RC) {
        add_text(result, "SQD: for RC alone", 0);
        return false;
    }
    if (source_port < FIRST_PORT) {
        add_text(result, "SQD: a flow label gives source ports from 49152 on", 0);
        return false;
    }
    error = modify_state(pair, FT_QPS_SQD);
    if (error) {
        add_text(result, "SQD", error);
        return false;
    }
    memset(&attr, 0, sizeof(attr));
    attr.ah_attr = pair->path;
    attr.ah_attr.flow_label = fabrictime_flow_label(source_port);
    error = modify(pair, &attr, FT_QP_AV);
    if (error) {
        add_text(result, "address vector in SQD", error);
        back = modify_state(pair, FT_QPS_RTS);
        if (back) add_text(result, "back to RTS", back);
        ft_kick(pair);
        return false;
    }
    pair->path = attr.ah_attr;
    pair->source_port = source_port;
    pair->drain_until_ns = ft_now_ns() + DRAIN_NS;
    pair->draining = true;
    ft_finish_drain(pair, result);
    return true;
}

void ft_move(struct ft_pair *pair, uint16_t source_port, struct ft_result *result) {
    int (*live)(struct ft_qp *, uint16_t) =
        (int (*)(struct ft_qp *, uint16_t))ft_mlx5_symbol("mlx5dv_modify_qp_udp_sport");
    int error;

    memset(result, 0, sizeof(*result));
    result->outcome = FT_FAILED;
    if (pair->state != FT_QPS_RTS || !pair->has_path) {
        snprintf(result->text, sizeof(result->text), "state %u: expected %d, RTS", pair->state, FT_QPS_RTS);
        return;
    }
    if (pair->draining) {
        add_text(result, "its last move has not ended", 0);
        return;
    }
    if (pair->roce_v2) {
        error = live ? live(pair->qp, source_port) : ENOTSUP;
        if (!error) {
            pair->source_port = source_port;
            done(result, source_port, "UDP_SPORT");
            return;
        }
        add_text(result, "UDP_SPORT", error);
        if (by_draining(pair, source_port, result)) return;
    } else {
        add_text(result, "no RoCE v2: its packets have no source port", 0);
    }
    if (!pair->standby) {
        add_text(result, "no standby", 0);
        return;
    }
    error = pair->standby(pair->standby_arg, pair->qp_num, source_port);
    if (error < 0)
        add_text(result, "STANDBY", -error);
    else
        done(result, (uint64_t)error, "STANDBY");
}

void ft_pace(struct ft_pair *pair, uint64_t rate_bps, struct ft_result *result) {
    struct ft_qp_attr attr;
    uint64_t kbps = rate_bps / 1000 + (rate_bps % 1000 != 0);
    int error;

    memset(result, 0, sizeof(*result));
    memset(&attr, 0, sizeof(attr));
    result->outcome = FT_FAILED;
    if (kbps > UINT32_MAX) {
        snprintf(result->text, sizeof(result->text), "%llu bit/s: expected at most %llu",
                 (unsigned long long)rate_bps, (unsigned long long)UINT32_MAX * 1000);
        return;
    }
    attr.rate_limit = (uint32_t)kbps;
    error = modify(pair, &attr, FT_QP_RATE_LIMIT);
    if (error) {
        add_text(result, "RATE_LIMIT", error);
        return;
    }
    pair->rate_bps = kbps * 1000;
    done(result, pair->rate_bps, "RATE_LIMIT");
}
