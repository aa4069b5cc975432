/* Longs as Avro writes them: zigzag, then seven bits a byte, low ones first, top bit set on all but the last. */
#include "decode.h"

#include <string.h>

/* Spread 56 bits to eight bytes of seven: the inverse of gather7 in decode.c. */
static inline uint64_t spread7(uint64_t w) {
    w = (w & UINT64_C(0x000000000fffffff)) | ((w & UINT64_C(0x00fffffff0000000)) << 4);
    w = (w & UINT64_C(0x00003fff00003fff)) | ((w & UINT64_C(0x0fffc0000fffc000)) << 2);
    return (w & UINT64_C(0x007f007f007f007f)) | ((w & UINT64_C(0x3f803f803f803f80)) << 1);
}

static inline uint8_t *put(uint8_t *out, int64_t value) {
    uint64_t u = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    if (__builtin_expect(u < (UINT64_C(1) << 56), 1)) {
        int bytes = (63 - __builtin_clzll(u | 1)) / 7 + 1;
        uint64_t more = UINT64_C(0x8080808080808080) & ((UINT64_C(1) << (8 * bytes - 1)) - 1);
        uint64_t chunk = spread7(u) | more;
        memcpy(out, &chunk, 8);
        return out + bytes;
    }
    while (u >= 0x80) {
        *out++ = (uint8_t)(u | 0x80);
        u >>= 7;
    }
    *out++ = (uint8_t)u;
    return out;
}

uint8_t *ft_put_long(uint8_t *out, int64_t value) {
    return put(out, value);
}

uint8_t *ft_put_array(uint8_t *out, const int64_t *values, int64_t n) {
    if (n > 0) out = put(out, n);
    for (int64_t i = 0; i < n; i++) out = put(out, values[i]);
    return put(out, 0);
}

uint8_t *ft_put_stamps(uint8_t *out, const int64_t *values, int64_t n) {
    int64_t last = 0, step;
    if (n > 0) out = put(out, n);
    for (int64_t i = 0; i < n; i++) {
        if (__builtin_sub_overflow(values[i], last, &step) || step > FT_MAX_NS || step < -FT_MAX_NS)
            return NULL;
        out = put(out, step);
        last = values[i];
    }
    return put(out, 0);
}
