/* Longs as Avro writes them, without touching a byte beyond: ft_put_long in encode.c is faster and does. */
#ifndef FT_VARINT_H
#define FT_VARINT_H

#include <stddef.h>
#include <stdint.h>

static inline uint8_t *ft_put_varint(uint8_t *out, int64_t value) {
    uint64_t left = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (left >= 0x80) {
        *out++ = (uint8_t)(left | 0x80);
        left >>= 7;
    }
    *out++ = (uint8_t)left;
    return out;
}

/* Return the end of the number at `at`. NULL: the bytes end before it does (value 0), or it has over 64 bits (1). */
static inline const uint8_t *ft_get_varint(const uint8_t *at, const uint8_t *end, int64_t *value) {
    uint64_t bits = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (at == end) {
            *value = 0;
            return NULL;
        }
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1) break;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)((bits >> 1) ^ (0 - (bits & 1)));
            return at;
        }
    }
    *value = 1;
    return NULL;
}

#endif
