/* Hardware stamps: Documentation/networking/timestamping.rst of Linux, sections 2.1, 3 and 3.1. A configuration that
 * someone else made is used where it stamps every packet and left alone where it does not. */
#include "hwstamp.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>

static int ask(int fd, const char *device, unsigned long request, void *data) {
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strncpy(r.ifr_name, device, IFNAMSIZ - 1);
    r.ifr_data = data;
    return ioctl(fd, request, &r);
}

static int stamps_all(const struct hwtstamp_config *c) {
    return c->tx_type == HWTSTAMP_TX_ON && c->rx_filter == HWTSTAMP_FILTER_ALL;
}

int ft_hwstamp_start(int fd, const char *device, ft_hwstamp *state) {
    memset(state, 0, sizeof *state);
    state->phc = -1;
    struct ethtool_ts_info info;
    memset(&info, 0, sizeof info);
    info.cmd = ETHTOOL_GET_TS_INFO;
    if (ask(fd, device, SIOCETHTOOL, &info)) return 0;
    unsigned wanted =
        SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
    if ((info.so_timestamping & wanted) != wanted || info.phc_index < 0 ||
        !(info.rx_filters & (1U << HWTSTAMP_FILTER_ALL)))
        return 0;
    struct hwtstamp_config now;
    memset(&now, 0, sizeof now);
    int known = !ask(fd, device, SIOCGHWTSTAMP, &now);
    if (!known || !stamps_all(&now)) {
        if (known && (now.tx_type != HWTSTAMP_TX_OFF || now.rx_filter != HWTSTAMP_FILTER_NONE)) return 0;
        struct hwtstamp_config all = {
            .flags = 0, .tx_type = HWTSTAMP_TX_ON, .rx_filter = HWTSTAMP_FILTER_ALL};
        if (!known || ask(fd, device, SIOCSHWTSTAMP, &all)) return 0;
        state->before = now;
        state->changed = 1;
        if (!stamps_all(&all)) { /* the driver enabled less than requested */
            ft_hwstamp_restore(fd, device, state);
            state->changed = 0;
            return 0;
        }
    }
    state->phc = info.phc_index;
    return 1;
}

void ft_hwstamp_restore(int fd, const char *device, const ft_hwstamp *state) {
    struct hwtstamp_config before = state->before;
    if (state->changed) ask(fd, device, SIOCSHWTSTAMP, &before);
}

void ft_link(int fd, const char *device, int64_t *speed_bps, int *mtu_bytes) {
    *speed_bps = *mtu_bytes = -1;
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strncpy(r.ifr_name, device, IFNAMSIZ - 1);
    if (!ioctl(fd, SIOCGIFMTU, &r)) *mtu_bytes = r.ifr_mtu;
    struct {
        struct ethtool_link_settings head;
        uint32_t masks[3 * 127];
    } link;
    memset(&link, 0, sizeof link);
    link.head.cmd = ETHTOOL_GLINKSETTINGS;
    if (ask(fd, device, SIOCETHTOOL, &link) || link.head.link_mode_masks_nwords >= 0) return;
    int8_t mask_length = (int8_t)-link.head.link_mode_masks_nwords;
    memset(&link, 0, sizeof link);
    link.head.cmd = ETHTOOL_GLINKSETTINGS;
    link.head.link_mode_masks_nwords = mask_length;
    if (ask(fd, device, SIOCETHTOOL, &link)) return;
    if (link.head.speed && link.head.speed != (uint32_t)SPEED_UNKNOWN)
        *speed_bps = link.head.speed * 1000000LL;
}
