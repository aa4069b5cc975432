/* The reporter's side of a segment, within the process that writes it: accepts the segment and drains it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <poll.h>

#include "reader.h"
#include "replay.h"

static int listener = -1, connection = -1;
static struct ft_reader reader;
static bool opened, elsewhere; /* elsewhere: another process reads */

/* Listen in a folder, unless FABRICTIME_COLLECTIVES names a reporter. The plugin finds the socket by its
 * environment. */
bool drain_open(const char *folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    elsewhere = getenv("FABRICTIME_COLLECTIVES") != NULL;
    if (elsewhere) return true;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/collectives.sock", folder);
    unlink(address.sun_path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return listener >= 0 && !bind(listener, (struct sockaddr *)&address, sizeof(address)) &&
           !listen(listener, 4) && !setenv("FABRICTIME_COLLECTIVES", address.sun_path, 1);
}

/* Accept the segment, at most 5 s after its creation. */
bool drain_wait(void) {
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char greeting[64] = "";
    struct iovec part = {.iov_base = greeting, .iov_len = sizeof(greeting) - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *head;
    char refusal[FT_READER_TEXT];
    int fd;

    if (opened || elsewhere) return true;
    if (poll(&ready, 1, 5000) != 1 || (connection = accept(listener, NULL, NULL)) < 0) return false;
    if (recvmsg(connection, &message, 0) < 0 || strncmp(greeting, "SEGMENT 1", 9)) return false;
    head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS) return false;
    memcpy(&fd, CMSG_DATA(head), sizeof(fd));
    opened = ft_reader_open(&reader, fd, refusal);
    if (!opened) fprintf(stderr, "replay: %s\n", refusal);
    return opened && send(connection, "OK", 2, MSG_NOSIGNAL) == 2;
}

/* Visit the events that were written since the last call. Return their number. */
uint64_t drain(void (*visit)(const struct ft_event *event, void *user), void *user) {
    static struct ft_event events[4096];
    uint64_t count = opened ? ft_reader_drain(&reader, events, sizeof(events) / sizeof(events[0])) : 0;

    for (uint64_t n = 0; visit && n < count; n++) visit(&events[n], user);
    if (count) ft_reader_commit(&reader);
    return count;
}

struct counters drain_counters(void) {
    struct ft_reader_counters counters = {0};
    struct counters result = {0};

    if (!opened) return result;
    ft_reader_count(&reader, &counters);
    for (uint32_t n = 0; n < counters.rings; n++) result.read += reader.ring[n].at;
    result.dropped = counters.dropped + counters.ringless;
    result.misuse = counters.misuse;
    result.invalid = counters.invalid;
    result.closed = counters.closed;
    return result;
}
