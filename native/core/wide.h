/* Loops over all samples, several at a time: the compiler's own vectors, and a build of each such loop for wide
 * registers beside the plain one, chosen when the module is loaded. Both do the same sums in the same order. */
#ifndef FABRICTIME_WIDE_H
#define FABRICTIME_WIDE_H

#include <stdint.h>

#define FT_SIMD_WIDTH 4

typedef double ft_wide __attribute__((vector_size(32)));
typedef int64_t ft_whole __attribute__((vector_size(32)));
typedef uint64_t ft_count __attribute__((vector_size(32)));
typedef double ft_wide_at __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t ft_whole_at __attribute__((vector_size(32), aligned(8), may_alias));

#define FT_LOAD(p)       (*(const ft_wide_at *)(p))
#define FT_LOAD_WHOLE(p) (*(const ft_whole_at *)(p))
#define FT_STORE(p, v)   (*(ft_wide_at *)(p) = (v))
#define FT_ALL(v)        ((ft_wide){(v), (v), (v), (v)})
/* a where the mask (of a comparison) is set, else b; a or 0 */
#define FT_PICK(mask, a, b) ((ft_wide)(((ft_whole)(a) & (mask)) | ((ft_whole)(b) & ~(mask))))
#define FT_KEEP(mask, a)    ((ft_wide)((ft_whole)(a) & (mask)))
#define FT_LESS(a, b)       FT_PICK((a) < (b), a, b)
#define FT_MORE(a, b)       FT_PICK((a) > (b), a, b)
#define FT_SIZE(v)          ((ft_wide)((ft_whole)(v) & INT64_MAX))
#define FT_ANY(mask)        ((mask)[0] | (mask)[1] | (mask)[2] | (mask)[3])
#define FT_SUM(v)           ((v)[0] + (v)[1] + ((v)[2] + (v)[3]))

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                 \
    !defined(__SANITIZE_ADDRESS__)
#define FT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FT_WIDE
#endif

#endif
