/* SipHash-2-4 with 64-bit output, written from Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012),
 * sections 2.1 to 2.4. The state is exposed, so that a prefix of whole words can be absorbed once. */
#ifndef FT_SIPHASH_H
#define FT_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t k0, k1;
} ft_key;

typedef struct {
    uint64_t v0, v1, v2, v3;
} ft_sip;

static inline uint64_t ft_rotl(uint64_t x, int b) {
    return (x << b) | (x >> (64 - b));
}

static inline uint64_t ft_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline void ft_sip_round(ft_sip *s) {
    s->v0 += s->v1;
    s->v1 = ft_rotl(s->v1, 13);
    s->v1 ^= s->v0;
    s->v0 = ft_rotl(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = ft_rotl(s->v3, 16);
    s->v3 ^= s->v2;
    s->v0 += s->v3;
    s->v3 = ft_rotl(s->v3, 21);
    s->v3 ^= s->v0;
    s->v2 += s->v1;
    s->v1 = ft_rotl(s->v1, 17);
    s->v1 ^= s->v2;
    s->v2 = ft_rotl(s->v2, 32);
}

static inline ft_sip ft_sip_start(ft_key key) {
    ft_sip s = {key.k0 ^ 0x736f6d6570736575ULL, key.k1 ^ 0x646f72616e646f6dULL,
                key.k0 ^ 0x6c7967656e657261ULL, key.k1 ^ 0x7465646279746573ULL};
    return s;
}

static inline void ft_sip_word(ft_sip *s, uint64_t m) {
    s->v3 ^= m;
    ft_sip_round(s);
    ft_sip_round(s);
    s->v0 ^= m;
}

/* Absorb the message's rest and finish; `before` bytes (a multiple of 8) were absorbed already. */
static inline uint64_t ft_sip_finish(ft_sip s, const uint8_t *data, size_t size, size_t before) {
    size_t whole = size & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8) ft_sip_word(&s, ft_load64(data + i));
    uint64_t last = (uint64_t)(size + before) << 56;
    for (size_t i = 0; i < (size & 7); i++) last |= (uint64_t)data[whole + i] << (8 * i);
    ft_sip_word(&s, last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; i++) ft_sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static inline uint64_t ft_siphash(ft_key key, const uint8_t *data, size_t size) {
    return ft_sip_finish(ft_sip_start(key), data, size, 0);
}

/* 16 bytes are the key; 32 are folded into one: each word is the second half hashed under the first. */
static inline ft_key ft_key_from(const uint8_t *bytes, size_t size) {
    ft_key key = {ft_load64(bytes), ft_load64(bytes + 8)};
    if (size == 32) {
        uint8_t text[17];
        memcpy(text, bytes + 16, 16);
        text[16] = 0;
        uint64_t k0 = ft_siphash(key, text, 17);
        text[16] = 1;
        uint64_t k1 = ft_siphash(key, text, 17);
        key.k0 = k0;
        key.k1 = k1;
    }
    return key;
}

#endif
