/* Flow endpoint for C and C++: registers a program's flows, and lets the actuator move and pace them.
 * Header only, Linux, no library.
 *
 * It takes connected sockets, and uses two Unix sockets of this host's agents, which may be missing, late,
 * or restart. It registers each flow with the flow reporter, and calls the program's functions for the
 * actuator's commands. Nothing blocks, allocates or starts a thread. Not thread-safe.
 *
 *     static int move(ft_flow *flow, int port) { ...; return port; }
 *     ft_endpoint endpoint;
 *     ft_flow flow = {.job = "train-7", .tenant = "blue", .move = move};
 *     ft_endpoint_open(&endpoint, NULL, NULL, NULL);
 *     ft_endpoint_add(&endpoint, &flow, fd);
 *     for (;;) { poll for reading on ft_endpoint_fd(&endpoint), a second at most; ft_endpoint_poll(&endpoint); }
 *     ft_endpoint_close(&endpoint);
 *
 * Needs GCC or Clang, and _GNU_SOURCE or a -std=gnu dialect. See docs/clients.md. */
#ifndef FABRICTIME_FLOW_H
#define FABRICTIME_FLOW_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ft_flow ft_flow;

/* Zero it, set the first part and pass it to ft_endpoint_add. It must live until ft_endpoint_remove. */
struct ft_flow {
    const char *job, *tenant; /* printable, at most 128 bytes; NULL: none */
    void *context;            /* for the program */
    /* Move the flow to another source port. Return the port in force; 0: ft_flow_moved or ft_flow_failed
     * follows; below 0: refused, an errno. NULL: the flow cannot be moved. */
    int (*move)(ft_flow *flow, int port);
    /* Limit the rate to this many bit/s, 0: no limit. Return 0, or below 0: refused, an errno. NULL: not
     * supported. */
    int (*pace)(ft_flow *flow, int64_t rate_bps);

    char key[32]; /* permanent name of the flow: sock:<cookie of its first socket> */
    uint64_t cookie, sent_bytes;
    int64_t rate_limit_bps;
    int udp, source_port, peer_port;
    char source_address[INET6_ADDRSTRLEN], peer_address[INET6_ADDRSTRLEN];
    int unsent;          /* bits: messages to the reporter, to the actuator */
    uint64_t pending_id; /* id of the pending MOVE */
    int asked_open;
    ft_flow *next;
};

#ifndef FT_WIRE_BYTES_
#define FT_WIRE_BYTES_ 4096
#endif

typedef struct {
    int fd;
    int64_t due_ns;
    char path[512];                     /* empty: no connection */
    char out[FT_WIRE_BYTES_], in[4096]; /* unsent bytes, and an incomplete line */
    size_t out_bytes, in_bytes;
} ft_wire;

typedef struct {
    int epoll;
    char host[128];
    ft_wire wire[2]; /* the reporter, the actuator */
    ft_flow *first;
    uint64_t refused; /* lines that an agent refused */
} ft_endpoint;

#define FT_REPORTER_ 0
#define FT_ACTUATOR_ 1
#define FT_RETRY_NS_ INT64_C(500000000)

static inline int64_t ft_flow_now_ns_(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + (int64_t)t.tv_nsec;
}

static inline void ft_wire_close_(ft_wire *wire) {
    if (wire->fd >= 0) close(wire->fd);
    wire->fd = -1;
    wire->out_bytes = wire->in_bytes = 0;
}

/* Send pending bytes. Return 1 if none are left. */
static inline int ft_wire_flush_(ft_wire *wire) {
    while (wire->fd >= 0 && wire->out_bytes) {
        ssize_t done = send(wire->fd, wire->out, wire->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno != EAGAIN) ft_wire_close_(wire);
        if (done <= 0) return 0;
        memmove(wire->out, wire->out + done, wire->out_bytes - (size_t)done);
        wire->out_bytes -= (size_t)done;
    }
    return wire->fd >= 0;
}

/* Queue a line. If it does not fit, close the connection: all is sent again on the next one. */
static inline void ft_wire_send_(ft_wire *wire, const char *line) {
    size_t bytes = strlen(line);
    if (wire->fd < 0) return;
    if (wire->out_bytes + bytes + 1 > sizeof wire->out) ft_wire_flush_(wire);
    if (wire->fd < 0 || wire->out_bytes + bytes + 1 > sizeof wire->out) {
        ft_wire_close_(wire);
        return;
    }
    memcpy(wire->out + wire->out_bytes, line, bytes);
    wire->out[wire->out_bytes + bytes] = '\n';
    wire->out_bytes += bytes + 1;
    ft_wire_flush_(wire);
}

/* Connect if it is time to, and only to an agent of our user or root. Return 1 if it has just connected. */
static inline int ft_wire_open_(ft_wire *wire) {
    int64_t now_ns = ft_flow_now_ns_();
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (wire->fd >= 0 || now_ns < wire->due_ns || !wire->path[0]) return 0;
    wire->due_ns = now_ns + FT_RETRY_NS_;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    int directory = -1;
    const char *slash = strrchr(wire->path, '/');
    if (strlen(wire->path) < sizeof address.sun_path) {
        memcpy(address.sun_path, wire->path, strlen(wire->path) + 1);
    } else if (slash) { /* a long path: use its directory's descriptor */
        char parent[sizeof wire->path];
        memcpy(parent, wire->path, (size_t)(slash - wire->path) + 1);
        parent[slash - wire->path + 1] = 0;
        directory = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (directory < 0 || strlen(slash + 1) > 64) goto end;
        snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%.64s", directory, slash + 1);
    }
    wire->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (wire->fd >= 0 && (connect(wire->fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
                          getsockopt(wire->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
                          (peer.uid != 0 && peer.uid != geteuid())))
        ft_wire_close_(wire);
end:
    if (directory >= 0) close(directory);
    return wire->fd >= 0;
}

/* Read the bytes that have arrived. Return 1 if there were any. */
static inline int ft_wire_read_(ft_wire *wire) {
    ssize_t got;
    if (wire->fd < 0) return 0;
    do got = recv(wire->fd, wire->in + wire->in_bytes, sizeof wire->in - wire->in_bytes, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) { /* closed by the agent, or a line that is too long */
        ft_wire_close_(wire);
        return 0;
    }
    wire->in_bytes += (size_t)got;
    return 1;
}

/* Take the next whole line, without its end, to `line`, which holds as much as `in`. Return 0 without one. */
static inline int ft_wire_line_(ft_wire *wire, char *line) {
    char *end = (char *)memchr(wire->in, '\n', wire->in_bytes);
    if (!end) return 0;
    size_t bytes = (size_t)(end - wire->in);
    memcpy(line, wire->in, bytes);
    line[bytes] = 0;
    wire->in_bytes -= bytes + 1;
    memmove(wire->in, end + 1, wire->in_bytes);
    return 1;
}

/* Write `text` as a JSON string or null to `to`. Return 1 if it fits. */
static inline int ft_json_(char *to, size_t size, const char *text) {
    size_t at = 0;
    if (!text) return snprintf(to, size, "null") < (int)size;
    to[at++] = '"';
    for (; *text; text++) {
        if (at + 8 > size) return 0;
        if ((unsigned char)*text < 32) {
            at += (size_t)snprintf(to + at, size - at, "\\u%04x", (unsigned)*text);
            continue;
        }
        if (*text == '"' || *text == '\\') to[at++] = '\\';
        to[at++] = *text;
    }
    to[at++] = '"';
    to[at] = 0;
    return 1;
}

static inline void ft_suffix_(const ft_endpoint *endpoint, char *to, size_t size) {
    snprintf(to, size, "%s%.120s", endpoint->host[0] ? " " : "", endpoint->host);
}

static inline void ft_flow_line_(const ft_endpoint *endpoint, const ft_flow *flow, char *line, size_t size) {
    char suffix[128];
    ft_suffix_(endpoint, suffix, sizeof suffix);
    snprintf(line, size, "FLOW %s %d %s%s%s%s", flow->key, flow->source_port, flow->move ? "MOVE" : "",
             flow->move && flow->pace ? "," : "",
             flow->pace   ? "PACE"
             : flow->move ? ""
                          : "-",
             suffix);
}

static inline int ft_flow_registration_(const ft_flow *flow, char *line, size_t size) {
    char job[300], tenant[300], counts[160] = "";
    if (!ft_json_(job, sizeof job, flow->job) || !ft_json_(tenant, sizeof tenant, flow->tenant)) return 0;
    if (flow->udp) {
        int at = snprintf(counts, sizeof counts,
                          ",\"cookie\":%" PRIu64 ",\"sent_bytes\":%" PRIu64 ",\"at_ns\":%" PRId64,
                          flow->cookie, flow->sent_bytes, ft_flow_now_ns_());
        if (flow->rate_limit_bps)
            snprintf(counts + at, sizeof counts - (size_t)at, ",\"rate_limit_bps\":%" PRId64,
                     flow->rate_limit_bps);
    }
    return snprintf(
               line, size,
               "{\"protocol\":\"%s\",\"source_address\":\"%s\",\"source_port\":%d,\"peer_address\":\"%s\","
               "\"peer_port\":%d,\"job\":%s,\"tenant\":%s,\"flow\":\"%s\",\"can\":[%s%s%s]%s}",
               flow->udp ? "udp" : "tcp", flow->source_address, flow->source_port, flow->peer_address,
               flow->peer_port, job, tenant, flow->key, flow->move ? "\"MOVE\"" : "",
               flow->move && flow->pace ? "," : "", flow->pace ? "\"PACE\"" : "", counts) < (int)size;
}

/* Send pending messages, as far as the sockets take them. */
static inline void ft_endpoint_send_(ft_endpoint *endpoint) {
    char line[2048];
    for (int which = 0; which < 2; which++) {
        for (ft_flow *flow = endpoint->first; flow && ft_wire_flush_(&endpoint->wire[which]);
             flow = flow->next) {
            if (!(flow->unsent & 1 << which)) continue;
            flow->unsent &= ~(1 << which);
            if (which == FT_ACTUATOR_) {
                ft_flow_line_(endpoint, flow, line, sizeof line);
            } else if (!ft_flow_registration_(flow, line, sizeof line)) {
                endpoint->refused++;
                continue;
            }
            ft_wire_send_(&endpoint->wire[which], line);
        }
    }
}

static inline int ft_flow_address_(const struct sockaddr_storage *from, char *text, int *port) {
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)from;
        *port = ntohs(four->sin_port);
        return inet_ntop(AF_INET, &four->sin_addr, text, INET6_ADDRSTRLEN) ? 0 : -1;
    }
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)from;
        *port = ntohs(six->sin6_port);
        return inet_ntop(AF_INET6, &six->sin6_addr, text, INET6_ADDRSTRLEN) ? 0 : -1;
    }
    errno = EAFNOSUPPORT;
    return -1;
}

static inline int ft_flow_socket_(ft_flow *flow, int fd) {
    struct sockaddr_storage source, peer;
    socklen_t bytes = sizeof source;
    if (getsockname(fd, (struct sockaddr *)&source, &bytes) != 0) return -1;
    bytes = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0) return -1;
    if (ft_flow_address_(&source, flow->source_address, &flow->source_port) != 0) return -1;
    return ft_flow_address_(&peer, flow->peer_address, &flow->peer_port);
}

/* -- functions for programs
 * ---------------------------------------------------------------------------------- */

/* Open an endpoint. `flows`, `control`: paths of the reporter's and the actuator's sockets; NULL:
 * $FABRICTIME_FLOWS and $FABRICTIME_CONTROL, else below $XDG_RUNTIME_DIR/fabrictime or /run/fabrictime.
 * `host`: NULL, or this host's name if one actuator serves several. Return 0, or -1 with errno. */
static inline int ft_endpoint_open(ft_endpoint *endpoint, const char *flows, const char *control,
                                   const char *host) {
    const char *given[2] = {flows ? flows : getenv("FABRICTIME_FLOWS"),
                            control ? control : getenv("FABRICTIME_CONTROL")};
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    static const char *const name[2] = {"flows.sock", "control.sock"};
    memset(endpoint, 0, sizeof *endpoint);
    for (int which = 0; which < 2; which++) {
        int bytes =
            given[which]
                ? snprintf(endpoint->wire[which].path, sizeof endpoint->wire[which].path, "%s", given[which])
                : snprintf(endpoint->wire[which].path, sizeof endpoint->wire[which].path, "%s/fabrictime/%s",
                           runtime && runtime[0] ? runtime : "/run", name[which]);
        endpoint->wire[which].fd = -1;
        if (bytes >= (int)sizeof endpoint->wire[which].path) {
            errno = ENAMETOOLONG;
            return -1;
        }
    }
    snprintf(endpoint->host, sizeof endpoint->host, "%s", host ? host : "");
    endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
    return endpoint->epoll < 0 ? -1 : 0;
}

/* Return a descriptor that is readable when ft_endpoint_poll has work. */
static inline int ft_endpoint_fd(const ft_endpoint *endpoint) {
    return endpoint->epoll;
}

/* Add a flow on a connected TCP or UDP socket. Return 0, or -1 with errno. */
static inline int ft_endpoint_add(ft_endpoint *endpoint, ft_flow *flow, int fd) {
    int type = 0;
    socklen_t size = sizeof flow->cookie;
    if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &flow->cookie, &size) != 0) return -1;
    size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || ft_flow_socket_(flow, fd) != 0) return -1;
    flow->udp = type == SOCK_DGRAM;
    snprintf(flow->key, sizeof flow->key, "sock:%" PRIu64, flow->cookie);
    flow->unsent = 3;
    flow->next = endpoint->first;
    endpoint->first = flow;
    ft_endpoint_send_(endpoint);
    return 0;
}

/* Report that the pending MOVE has failed. */
static inline void ft_flow_failed(ft_endpoint *endpoint, ft_flow *flow, const char *reason) {
    char line[512];
    if (!flow->asked_open) return;
    flow->asked_open = 0;
    snprintf(line, sizeof line, "FAILED %" PRIu64 " %.400s", flow->pending_id, reason);
    ft_wire_send_(&endpoint->wire[FT_ACTUATOR_], line);
}

static inline void ft_flow_done_(ft_endpoint *endpoint, ft_flow *flow) {
    char line[128];
    flow->unsent = 3;
    ft_endpoint_send_(endpoint);
    if (!flow->asked_open) return;
    flow->asked_open = 0;
    snprintf(line, sizeof line, "DONE %" PRIu64 " %d SOCKET", flow->pending_id, flow->source_port);
    ft_wire_send_(&endpoint->wire[FT_ACTUATOR_], line);
}

/* Report that another socket carries the flow now; answers a pending MOVE. Return 0, or -1 with errno. */
static inline int ft_flow_moved(ft_endpoint *endpoint, ft_flow *flow, int fd) {
    if (ft_flow_socket_(flow, fd) != 0) return -1;
    ft_flow_done_(endpoint, flow);
    return 0;
}

/* Report the frame bytes that a UDP flow has sent since it began; ten times a second is enough. */
static inline void ft_flow_sent(ft_endpoint *endpoint, ft_flow *flow, uint64_t frame_bytes) {
    flow->sent_bytes = frame_bytes;
    flow->unsent |= 1 << FT_REPORTER_;
    ft_endpoint_send_(endpoint);
}

static inline void ft_endpoint_remove(ft_endpoint *endpoint, ft_flow *flow) {
    char line[256], suffix[128];
    for (ft_flow **at = &endpoint->first; *at; at = &(*at)->next) {
        if (*at != flow) continue;
        *at = flow->next;
        ft_suffix_(endpoint, suffix, sizeof suffix);
        snprintf(line, sizeof line, "GONE %s%s", flow->key, suffix);
        ft_wire_send_(&endpoint->wire[FT_ACTUATOR_], line);
        return;
    }
}

/* Parse a whole number that a blank or the end of the line follows, and advance. Return 1 on success. */
static inline int ft_number_(const char **at, uint64_t max, uint64_t *number) {
    const char *digit = *at;
    for (*number = 0; *digit >= '0' && *digit <= '9'; digit++) {
        uint64_t more = (uint64_t)(*digit - '0');
        if (*number > (max - more) / 10) return 0;
        *number = *number * 10 + more;
    }
    if (digit == *at || (*digit && *digit != ' ')) return 0;
    *at = digit + (*digit == ' ');
    return 1;
}

/* Parse `MOVE|PACE <id> <key> <value> [<host>]`. Return 1 on success. */
static inline int ft_command_(const char *line, int *moves, uint64_t *id, char *key, size_t key_bytes,
                              int64_t *value) {
    uint64_t number;
    size_t bytes;
    *moves = strncmp(line, "MOVE ", 5) == 0;
    if (!*moves && strncmp(line, "PACE ", 5) != 0) return 0;
    line += 5;
    if (!ft_number_(&line, UINT64_MAX, id)) return 0;
    bytes = strcspn(line, " ");
    if (!bytes || bytes >= key_bytes || line[bytes] != ' ') return 0;
    memcpy(key, line, bytes);
    key[bytes] = 0;
    line += bytes + 1;
    if (!ft_number_(&line, INT64_MAX, &number)) return 0;
    *value = (int64_t)number;
    return 1;
}

static inline void ft_owner_obey_(ft_endpoint *endpoint, const char *line) {
    char key[32], answer[512];
    uint64_t id;
    int64_t value;
    int moves;
    ft_wire *wire = &endpoint->wire[FT_ACTUATOR_];
    ft_flow *flow = endpoint->first;
    if (strncmp(line, "ERROR", 5) == 0) {
        endpoint->refused++;
        return;
    }
    if (!ft_command_(line, &moves, &id, key, sizeof key, &value)) {
        ft_wire_send_(wire, "ERROR expected MOVE or PACE, id, key and value");
        return;
    }
    while (flow && strcmp(flow->key, key) != 0) flow = flow->next;
    int code = !flow                                   ? -ENOENT
               : (moves ? !flow->move : !flow->pace)   ? -EOPNOTSUPP
               : moves && (value < 1 || value > 65535) ? -EINVAL
                                                       : 0;
    if (code == 0 && moves) {
        snprintf(answer, sizeof answer, "superseded by %" PRIu64, id);
        ft_flow_failed(endpoint, flow, answer);
        flow->pending_id = id;
        flow->asked_open = 1;
        code = flow->move(flow, (int)value);
        if (code > 0 && flow->asked_open) {
            flow->source_port = code;
            ft_flow_done_(endpoint, flow);
        }
        if (code >= 0) return;
        flow->asked_open = 0;
    } else if (code == 0) {
        code = flow->pace(flow, value);
        if (code == 0) {
            flow->rate_limit_bps = value;
            flow->unsent |= 1 << FT_REPORTER_;
            snprintf(answer, sizeof answer, "DONE %" PRIu64 " %" PRId64 " PACING", id, value);
            ft_wire_send_(wire, answer);
            return;
        }
    }
    snprintf(answer, sizeof answer, "FAILED %" PRIu64 " %s", id,
             code == -ENOENT && !flow ? "no such flow here" : strerror(code < 0 ? -code : EIO));
    ft_wire_send_(wire, answer);
}

/* Connect, send and receive, and call `move` and `pace`. */
static inline void ft_endpoint_poll(ft_endpoint *endpoint) {
    char line[sizeof endpoint->wire[0].in];
    for (int which = 0; which < 2; which++) {
        ft_wire *wire = &endpoint->wire[which];
        if (ft_wire_open_(wire)) {
            struct epoll_event event;
            memset(&event, 0, sizeof event);
            event.events = EPOLLIN;
            if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, wire->fd, &event) != 0) ft_wire_close_(wire);
            for (ft_flow *flow = endpoint->first; flow; flow = flow->next) flow->unsent |= 1 << which;
        }
        for (int reads = 0; reads < 16 && ft_wire_read_(wire); reads++) { /* more data will wake us again */
            while (ft_wire_line_(wire, line)) {
                if (which == FT_ACTUATOR_)
                    ft_owner_obey_(endpoint, line);
                else
                    endpoint->refused++;
            }
        }
    }
    ft_endpoint_send_(endpoint);
}

/* Close both connections. The flows themselves belong to the program. */
static inline void ft_endpoint_close(ft_endpoint *endpoint) {
    while (endpoint->first) ft_endpoint_remove(endpoint, endpoint->first);
    for (int which = 0; which < 2; which++) ft_wire_close_(&endpoint->wire[which]);
    if (endpoint->epoll >= 0) close(endpoint->epoll);
    endpoint->epoll = -1;
}

#ifdef __cplusplus
}
#endif

#endif
