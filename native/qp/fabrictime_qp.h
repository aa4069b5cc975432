/* What a program may say to libfabrictime-qp.so, where that is loaded.

   Both are weak: a program built with this header runs without the library, and then finds them NULL.

	if (fabrictime_qp_standby)
		fabrictime_qp_standby("mlx5_0", qp->qp_num, take_standby, my_connection);
*/
#ifndef FABRICTIME_QP_H
#define FABRICTIME_QP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called on the library's own thread where a queue pair shall leave its path and nothing else moved it: go on
   with your standby queue pair, whose source port should be `source_port`. Return the source port that is now
   in force, or a negative errno. */
typedef int (*fabrictime_standby)(void *arg, uint32_t qp_num, uint16_t source_port);

/* Name what takes over from a queue pair of this process; NULL takes that back. Returns 0, ENOENT where the
   library knows no such queue pair. */
int fabrictime_qp_standby(const char *device, uint32_t qp_num, fabrictime_standby take, void *arg)
	__attribute__((weak));

/* The source port of RoCE v2 packets with a flow label other than 0, as kernel and drivers make it. */
static inline uint16_t fabrictime_source_port(uint32_t flow_label)
{
	return (uint16_t)(0xC000u | ((flow_label & 0x3fffu) ^ ((flow_label & 0xfc000u) >> 14)));
}

/* A flow label, never 0, that gives a source port of 0xC000 to 0xFFFF. */
static inline uint32_t fabrictime_flow_label(uint16_t source_port)
{
	uint32_t low = source_port & 0x3fffu;

	return low ? low : 0x4001u;
}

#ifdef __cplusplus
}
#endif
#endif
