/* A program with one flow: endpoint FLOWS CONTROL HOST ADDRESS PORT {tcp|udp}. It moves to a new socket,
 * and runs until standard input ends. */
#include "fabrictime_flow.h"

#include <poll.h>

static struct sockaddr_in peer;
static int fd = -1, kind;
static ft_endpoint endpoint;

static int dial(int port) {
    struct sockaddr_in own;
    socklen_t size = sizeof own;
    int fresh = socket(AF_INET, kind | SOCK_CLOEXEC, 0);
    memset(&own, 0, sizeof own);
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    own.sin_port = htons((uint16_t)port);
    if (bind(fresh, (struct sockaddr *)&own, size) || connect(fresh, (struct sockaddr *)&peer, sizeof peer)) {
        int code = errno;
        close(fresh);
        return -code;
    }
    return fresh;
}

static int move(ft_flow *flow, int port) {
    int fresh = dial(port);
    if (fresh < 0) return fresh;
    close(fd);
    fd = fresh;
    return ft_flow_moved(&endpoint, flow, fd) ? -errno : 0;
}

static int pace(ft_flow *flow, int64_t rate_bps) {
    printf("pace %s %lld\n", flow->key, (long long)rate_bps);
    fflush(stdout);
    return 0;
}

int main(int count, char **word) {
    if (count != 7) return 2;
    kind = strcmp(word[6], "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM;
    peer.sin_family = AF_INET;
    peer.sin_port = htons((uint16_t)atoi(word[5]));
    inet_pton(AF_INET, word[4], &peer.sin_addr);
    ft_flow flow;
    memset(&flow, 0, sizeof flow);
    flow.job = "train \"7\"";
    flow.tenant = "blue";
    flow.move = move;
    flow.pace = pace;
    fd = dial(0);
    if (fd < 0 || ft_endpoint_open(&endpoint, word[1], word[2], word[3]) ||
        ft_endpoint_add(&endpoint, &flow, fd))
        return 3;
    printf("%s %d\n", flow.key, flow.source_port);
    fflush(stdout);
    struct pollfd waiting[2] = {{.fd = 0, .events = POLLIN},
                                {.fd = ft_endpoint_fd(&endpoint), .events = POLLIN}};
    while (!waiting[0].revents) {
        ft_endpoint_poll(&endpoint);
        poll(waiting, 2, 50);
    }
    ft_endpoint_close(&endpoint);
    return 0;
}
