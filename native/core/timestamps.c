/* Timestamps and batches: messages to and from the kernel, and the control data beside them. */
#include "engine_state.h"

ancillary ft_read_control(ft_engine *e, struct msghdr *message) {
    ancillary found = {.stamp = FT_NO_STAMP, .tos = -1};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING) {
            struct timespec t[3];
            memcpy(t, CMSG_DATA(c), sizeof t);
            const struct timespec *use = e->config.hardware ? &t[2] : &t[0];
            if (use->tv_sec || use->tv_nsec) {
                int64_t ns = use->tv_sec * 1000000000LL + use->tv_nsec;
                found.raw = ns;
                found.stamp = reading(e, ns);
            }
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            memcpy(&found.drops, CMSG_DATA(c), 4);
            found.has_drops = 1;
        } else if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS) {
            found.tos = *CMSG_DATA(c);
        } else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_TCLASS) {
            memcpy(&found.tos, CMSG_DATA(c), sizeof found.tos);
        } else if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            found.device_index = info.ipi_ifindex;
        } else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            found.device_index = (int)info.ipi6_ifindex;
        } else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
                   (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
            struct sock_extended_err error;
            memcpy(&error, CMSG_DATA(c), sizeof error);
            if (error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING) {
                found.is_transmit = 1;
                found.kind = error.ee_info;
                found.id = error.ee_data;
            } else if (error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6) {
                size_t bytes =
                    c->cmsg_level == SOL_IPV6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
                found.is_icmp = 1;
                found.icmp_type = error.ee_type;
                found.icmp_code = error.ee_code;
                found.mtu = (int)error.ee_info;
                if (c->cmsg_len >= CMSG_LEN(sizeof error + bytes))
                    memcpy(&found.offender, CMSG_DATA(c) + sizeof error, bytes);
            }
        }
    }
    return found;
}

void ft_batch_init(ft_engine *e, batch *b) {
    for (int i = 0; i < BATCH; i++) {
        b->vectors[i].iov_base = b->data[i];
        b->messages[i].msg_hdr.msg_iov = &b->vectors[i];
        b->messages[i].msg_hdr.msg_iovlen = 1;
        b->messages[i].msg_hdr.msg_name = &b->names[i];
    }
}

/* Whether a call may have failed only since the network sent an error back for an earlier packet: each such error
 * fails one call on its socket, whatever that call is about. */
int ft_is_from_network(int error) {
    return error == EHOSTUNREACH || error == ECONNREFUSED || error == ENETUNREACH || error == ENOPROTOOPT ||
           error == EMSGSIZE || error == EHOSTDOWN || error == ENONET || error == EACCES || error == EPROTO;
}

int ft_batch_receive(ft_engine *e, batch *b, int fd, int want, int flags) {
    for (int i = 0; i < want; i++) {
        struct msghdr *m = &b->messages[i].msg_hdr;
        m->msg_control = b->control[i];
        m->msg_controllen = CONTROL;
        m->msg_namelen = sizeof b->names[i];
        m->msg_flags = 0;
        b->vectors[i].iov_len = MAX_BYTES;
    }
    int got = -1;
    for (int i = 0; i < REPORTED_ERRORS && got < 0; i++) {
        got = recvmmsg(fd, b->messages, (unsigned)want, MSG_DONTWAIT | flags, NULL);
        if (got < 0 && !ft_is_from_network(errno)) break;
    }
    return got;
}

/* Message i has `size` bytes; `stamps` selects transmit timestamps, which arrive under `id`. */
void ft_batch_put(ft_engine *e, batch *b, int i, int size, uint32_t stamps, uint32_t id) {
    struct msghdr *m = &b->messages[i].msg_hdr;
    m->msg_namelen = e->name_bytes;
    m->msg_flags = 0;
    b->vectors[i].iov_len = (size_t)size;
    if (!stamps) {
        m->msg_control = NULL;
        m->msg_controllen = 0;
        return;
    }
    m->msg_control = b->control[i];
    m->msg_controllen = CMSG_SPACE(4) * (e->id_by_counter ? 1 : 2);
    struct cmsghdr *c = (struct cmsghdr *)b->control[i];
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SO_TIMESTAMPING;
    c->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(c), &stamps, 4);
    if (!e->id_by_counter) {
        c = (struct cmsghdr *)(b->control[i] + CMSG_SPACE(4));
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_TS_OPT_ID;
        c->cmsg_len = CMSG_LEN(4);
        memcpy(CMSG_DATA(c), &id, 4);
    }
}

static uint32_t report_flags(const ft_engine *e) {
    uint32_t flags = SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
    return flags | (e->config.hardware ? SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE
                                       : SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE);
}

/* Enable network errors, which traces need. */
int ft_errors_on(const ft_engine *e, int fd) {
    int one = 1;
    if (e->name_bytes == sizeof(struct sockaddr_in6) &&
        setsockopt(fd, SOL_IPV6, IPV6_RECVERR, &one, sizeof one))
        return errno;
    if (e->name_bytes == sizeof(struct sockaddr_in) && setsockopt(fd, SOL_IP, IP_RECVERR, &one, sizeof one))
        return errno;
    return setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one) ? errno : 0;
}

/* Have the kernel name the interface that receives each packet. */
int ft_device_on(const ft_engine *e, int fd) {
    int one = 1, is_ipv6 = e->name_bytes == sizeof(struct sockaddr_in6);
    return setsockopt(fd, is_ipv6 ? SOL_IPV6 : SOL_IP, is_ipv6 ? IPV6_RECVPKTINFO : IP_PKTINFO, &one,
                      sizeof one)
               ? errno
               : 0;
}

int ft_stamping_on(ft_engine *e, int fd) {
    uint32_t flags = report_flags(e), off = flags & ~(uint32_t)SOF_TIMESTAMPING_OPT_ID;
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &off, sizeof off)) return errno;
    return setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) ? errno : 0;
}

/* Without ids of our own (before Linux 6.13) the kernel numbers timestamped packets itself, and a refused one
 * may or may not have been numbered. So its count restarts after any refusal, and timestamps in flight are
 * lost. */
void ft_restart_ids(ft_engine *e, int fd) {
    for (int i = 0; i < 64 && ft_batch_receive(e, &e->in, fd, BATCH, MSG_ERRQUEUE) > 0; i++) {
    }
    ft_stamping_on(e, fd);
    if (fd == e->responder_fd) {
        e->next_ticket = 0;
        for (uint32_t i = 0; i <= e->reply_mask; i++) e->replies[i].ticket = ~i;
    }
    for (int p = 0; p < e->config.paths; p++) {
        if (e->paths[p].fd != fd) continue;
        e->paths[p].next_id = 0;
        e->paths[p].queued_ns = 0;
        memset(e->paths[p].seq_of, 0xff, (e->paths[p].id_mask + 1) * sizeof(uint32_t));
    }
}

/* Send messages [from, to) of `b`. Returns how many the kernel took. If fewer, errno is the failure of the
 * next one, and is that packet's own failure unless it is EAGAIN. */
int ft_batch_send(ft_engine *e, batch *b, int fd, int from, int to) {
    int done = 0, errors = 0, pending;
    socklen_t size = sizeof pending;
    if (e->id_by_counter) getsockopt(fd, SOL_SOCKET, SO_ERROR, &pending, &size); /* clears it */
    while (done < to - from) {
        int sent = sendmmsg(fd, b->messages + from + done, (unsigned)(to - from - done), MSG_DONTWAIT);
        if (sent > 0) {
            done += sent;
            errors = 0;
            errno = EAGAIN;
            if (e->id_by_counter) break; /* whatever stopped it may have been numbered */
        } else if (e->id_by_counter || !ft_is_from_network(errno) || ++errors == REPORTED_ERRORS) {
            break;
        }
    }
    if (!done && errno == EINVAL && !e->id_by_counter && b->messages[from].msg_hdr.msg_control) {
        e->id_by_counter = 1;
        ft_restart_ids(e, e->responder_fd);
        for (int p = 0; p < e->config.paths; p++) ft_restart_ids(e, e->paths[p].fd);
        errno = EAGAIN;
    }
    return done;
}

void ft_note_drops(ft_engine *e, const ancillary *a, uint32_t *last) {
    if (!a->has_drops || (int32_t)(a->drops - *last) <= 0)
        return; /* stamped on a packet that came before the last */
    e->counters.rx_queue_drops += a->drops - *last;
    *last = a->drops;
}
