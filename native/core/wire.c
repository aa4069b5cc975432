/* Packets on the wire: addresses, headers, authentication. */
#include "engine_state.h"

/* 16 bytes of address (IPv4 mapped) to `p`, the port to `port`. */
void ft_put_address(uint8_t *p, uint8_t *port, const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
        memcpy(p, &in6->sin6_addr, 16);
        memcpy(port, &in6->sin6_port, 2);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        memset(p, 0, 10);
        p[10] = p[11] = 0xff;
        memcpy(p + 12, &in->sin_addr, 4);
        memcpy(port, &in->sin_port, 2);
    }
}

int ft_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return 0;
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const struct sockaddr_in6 *)a, *y = (const struct sockaddr_in6 *)b;
        return x->sin6_port == y->sin6_port && !memcmp(&x->sin6_addr, &y->sin6_addr, 16);
    }
    const struct sockaddr_in *x = (const struct sockaddr_in *)a, *y = (const struct sockaddr_in *)b;
    return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
}

uint64_t ft_mac_of(const ft_engine *e, const struct sockaddr_storage *source,
                   const struct sockaddr_storage *target, const uint8_t *data, size_t size) {
    uint8_t block[ADDRESS_BLOCK] = {0};
    ft_put_address(block, block + 32, source);
    ft_put_address(block + 16, block + 34, target);
    ft_sip s = ft_sip_start(e->config.key);
    for (int i = 0; i < ADDRESS_BLOCK; i += 8) ft_sip_word(&s, ft_load64(block + i));
    return ft_sip_finish(s, data, size, ADDRESS_BLOCK);
}

void ft_head_of(uint8_t *p, int kind, int count, uint32_t seq, uint64_t run) {
    p[0] = 'F';
    p[1] = 'T';
    p[2] = (uint8_t)(VERSION << 4 | kind);
    p[3] = (uint8_t)count;
    put32(p + 4, seq);
    put64(p + 8, run);
}
