/* The timestamping of a NIC, and its port's speed and MTU. */
#ifndef FT_HWSTAMP_H
#define FT_HWSTAMP_H

#include <linux/net_tstamp.h>
#include <stdint.h>

typedef struct {
    int phc;     /* N of /dev/ptpN, -1: none */
    int changed; /* whether `before` is to be put back */
    struct hwtstamp_config before;
} ft_hwstamp;

int ft_hwstamp_start(int fd, const char *device, ft_hwstamp *state); /* 1: the NIC stamps every packet */
void ft_hwstamp_restore(int fd, const char *device, const ft_hwstamp *state);
void ft_link(int fd, const char *device, int64_t *speed_bps,
             int *mtu_bytes); /* -1 if the device does not report it */

#endif
