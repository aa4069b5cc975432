/* Traffic classes: DSCP, priority and ECN of the packets that leave, and the marks of those that arrive.
 *
 * A request carries the TOS byte with which it left, and its reply leaves with the same. The reply carries the byte
 * with which the request arrived. So the prober learns of both directions which packets a switch marked with CE, and
 * where the network clears the ECN field or changes the DSCP. A zero word is that of an agent before classes.
 *
 * Probes and full-size packets leave in each class in turn. All others leave in the first one: traces, the answers to
 * traces and full-size packets, and the packets that collect stamps. So a full queue of another class loses none. */
#include "engine_state.h"

enum { ECN = 3, CE = 3, DSCP = 0xfc };

/* Report the TOS byte of each received packet, try all classes and leave in the first. Returns 0, or an errno. */
int ft_class_on(const ft_engine *e, int fd) {
    int one = 1, tos = -1;
    int error = e->name_bytes == sizeof(struct sockaddr_in6)
                    ? setsockopt(fd, SOL_IPV6, IPV6_RECVTCLASS, &one, sizeof one)
                    : setsockopt(fd, SOL_IP, IP_RECVTOS, &one, sizeof one);
    if (error) return errno;
    for (int i = e->config.classes - 1; i >= 0 && !error; i--)
        error = ft_use_class(e, fd, &tos, e->config.class[i].tos);
    return error;
}

/* Let the socket's next packets leave with this TOS byte; *now is the one that it has. Returns 0, or an errno. */
int ft_use_class(const ft_engine *e, int fd, int *now, uint8_t tos) {
    int value = tos, v6 = e->name_bytes == sizeof(struct sockaddr_in6), priority = -1;
    if (*now == value) return 0;
    if (setsockopt(fd, v6 ? SOL_IPV6 : SOL_IP, v6 ? IPV6_TCLASS : IP_TOS, &value, sizeof value)) return errno;
    for (int i = 0; i < e->config.classes; i++)
        if (!((e->config.class[i].tos ^ tos) & DSCP)) priority = e->config.class[i].priority;
    if (priority < 0 && v6) priority = 0; /* IPv4 derives it from the TOS byte */
    if (priority >= 0 && setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority)) return errno;
    *now = value;
    return 0;
}

int ft_engine_use_first_class(const ft_engine *e, int fd) {
    int tos = -1;
    return ft_use_class(e, fd, &tos, e->config.class[0].tos);
}

/* The socket takes each packet's class from itself, not from the message: kernels before Linux 6.14 set no priority
 * by message, and the socket's is that of its last probe. */
int ft_engine_send(ft_engine *e, int path, int class, const uint8_t *data, size_t size,
                   const struct sockaddr_storage *target, int ttl) {
    int v6 = e->name_bytes == sizeof(struct sockaddr_in6),
        fd = path < 0 ? e->responder_fd : e->paths[path].fd;
    int error =
        ft_use_class(e, fd, path < 0 ? &e->responder_tos : &e->paths[path].tos, e->config.class[class].tos);
    if (error) return error;
    union {
        struct cmsghdr head;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof ttl),
                                    .cmsg_level = v6 ? SOL_IPV6 : SOL_IP,
                                    .cmsg_type = v6 ? IPV6_HOPLIMIT : IP_TTL};
    memcpy(CMSG_DATA(&control.head), &ttl, sizeof ttl);
    struct iovec vector = {(void *)(uintptr_t)data, size};
    struct msghdr m = {.msg_name = (void *)(uintptr_t)target,
                       .msg_namelen = e->name_bytes,
                       .msg_iov = &vector,
                       .msg_iovlen = 1,
                       .msg_control = ttl ? &control : NULL,
                       .msg_controllen = ttl ? sizeof control.bytes : 0};
    for (int i = 0; i < REPORTED_ERRORS; i++) {
        if (sendmsg(fd, &m, MSG_DONTWAIT) >= 0) return 0;
        if (!ft_is_from_network(errno)) break;
    }
    return errno;
}

/* Note what became of a probe's TOS byte: `returned` by the peer, `tos` of the reply, -1: not known. */
void ft_note_marks(ft_engine *e, const probe *s, half *h, uint32_t returned, int tos) {
    uint8_t sent = e->config.class[s->class].tos, there = (uint8_t)returned, back = (uint8_t)tos;
    if (!(returned & FT_TOS_KNOWN) || tos < 0) return;
    int forward = (there & ECN) == CE, reverse = (back & ECN) == CE;
    e->counters.ce_forward += (uint64_t)forward;
    e->counters.ce_reverse += (uint64_t)reverse;
    int there_changed = ((there ^ sent) & DSCP) != 0, back_changed = ((back ^ sent) & DSCP) != 0;
    e->counters.dscp_changed += there_changed || back_changed;
    ft_losses_dscps(e->losses, path_of(e, s), s->class, (uint8_t)(there_changed ? 1 + (there >> 2) : 0),
                    (uint8_t)(back_changed ? 1 + (back >> 2) : 0));
    if ((there & ECN) && (back & ECN))
        h->marks = (uint8_t)(FT_ECN_BOTH | (forward ? FT_CE_FORWARD : 0) | (reverse ? FT_CE_REVERSE : 0));
    else
        e->counters.ecn_cleared += (sent & ECN) != 0;
}
