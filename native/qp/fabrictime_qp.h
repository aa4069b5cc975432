/* Functions of libfabrictime-qp.so for programs, available while it is loaded.
 *
 * Both are weak symbols: without the library a program still runs, and finds them NULL.
 *
 *     if (fabrictime_qp_standby) fabrictime_qp_standby("mlx5_0", qp->qp_num, take_standby, my_connection); */
#ifndef FABRICTIME_QP_H
#define FABRICTIME_QP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called on the library's thread when a queue pair must leave its path and no other method moved it:
 * continue on a standby queue pair, whose source port should be `source_port`. Return the source port now
 * in force, or a negative errno. */
typedef int (*fabrictime_standby)(void *arg, uint32_t qp_num, uint16_t source_port);

/* Register the function that replaces a queue pair of this process by its standby; NULL removes it. Return
 * 0, or ENOENT for an unknown queue pair. */
int fabrictime_qp_standby(const char *device, uint32_t qp_num, fabrictime_standby take, void *arg)
    __attribute__((weak));

/* Return the UDP source port that kernel and drivers derive from a nonzero flow label (RoCE v2). */
static inline uint16_t fabrictime_source_port(uint32_t flow_label) {
    return (uint16_t)(0xC000u | ((flow_label & 0x3fffu) ^ ((flow_label & 0xfc000u) >> 14)));
}

/* Return a nonzero flow label that gives a source port of 0xC000 to 0xFFFF. */
static inline uint32_t fabrictime_flow_label(uint16_t source_port) {
    uint32_t low = source_port & 0x3fffu;

    return low ? low : 0x4001u;
}

#ifdef __cplusplus
}
#endif
#endif
