/* Longs as Avro writes them, without touching a byte beyond: ft_put_long in encode.c is faster and does. */
#ifndef FT_VARINT_H
#define FT_VARINT_H

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

#endif
