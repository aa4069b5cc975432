/* Size probes: packets of any size, which the far end confirms with one of FT_TRACE_BYTES. A path that drops large
 * packets drops them silently, or a router answers that they are too big.
 *
 * The far end confirms the size that arrived, so only the request's direction is tested. The peer's own probes test
 * the other one. */
#include "engine_state.h"

#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>

#ifndef IPV6_DONTFRAG
#define IPV6_DONTFRAG 62
#endif

/* Send whole packets or none, whatever path MTU the kernel has learned. Returns 0, or an errno. */
int ft_fragments_off(const ft_engine *e, int fd) {
    int v4 = IP_PMTUDISC_PROBE, v6 = IPV6_PMTUDISC_PROBE, one = 1;
    if (e->name_bytes == sizeof(struct sockaddr_in))
        return setsockopt(fd, SOL_IP, IP_MTU_DISCOVER, &v4, sizeof v4) ? errno : 0;
    if (setsockopt(fd, SOL_IPV6, IPV6_MTU_DISCOVER, &v6, sizeof v6)) return errno;
    return setsockopt(fd, SOL_IPV6, IPV6_DONTFRAG, &one, sizeof one) ? errno : 0;
}

/* Whether a router states that a packet is too big for its next link. */
int ft_is_too_big(const ft_engine *e, const ancillary *a) {
    return e->name_bytes == sizeof(struct sockaddr_in)
               ? a->icmp_type == ICMP_DEST_UNREACH && a->icmp_code == ICMP_FRAG_NEEDED
               : a->icmp_type == ICMP6_PACKET_TOO_BIG;
}

/* A size probe of `size` bytes arrived here, of which the first MAX_BYTES were read: confirm it. */
void ft_answer_size(ft_engine *e, const struct sockaddr_storage *own, const uint8_t *p, int size,
                    const struct sockaddr_storage *from) {
    if (size < FT_TRACE_BYTES || get32(p + 28) != (uint32_t)size) {
        e->counters.malformed++;
        return;
    }
    if (!ft_is_acceptable(e, own, p, from)) return;
    e->counters.bytes_asked += (uint64_t)size;
    e->counters.sizes_answered += (uint64_t)ft_confirm(e, -1, own, p, from, KIND_SIZED);
}

/* The far end confirms a size probe of ours. */
void ft_on_sized(ft_engine *e, int path, const uint8_t *p, int size, const struct sockaddr_storage *from) {
    const struct sockaddr_storage *own = &e->paths[path].address;
    if (size != FT_TRACE_BYTES)
        e->counters.malformed++;
    else if (get64(p + 8) != e->config.run)
        e->counters.stale_run++;
    else if (ft_mac_of(e, from, own, p, FT_TRACE_BYTES - MAC) ^ get64(p + FT_TRACE_BYTES - MAC))
        e->counters.bad_mac++;
    else
        ft_put_hit(e, &e->sizes, 1, path, NULL, from, p, size);
}
