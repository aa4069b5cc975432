/* Whose a program's flows are, and flows that may be moved and paced: for C and C++, header only, Linux, no library.
 *
 * In: connected sockets, and two Unix sockets of this host's agents, which may be missing, late, or go and come back.
 * Out: each flow registered with the flow reporter, and the actuator's wishes as calls of the program's functions.
 * Nothing blocks, allocates or starts a thread. One thread at a time.
 *
 *   static int move(ft_flow *flow, int port) { ...; return port; }
 *   ft_owner owner;
 *   ft_flow flow = {.job = "train-7", .tenant = "blue", .move = move};
 *   ft_owner_open(&owner, NULL, NULL, NULL);
 *   ft_owner_add(&owner, &flow, fd);
 *   for (;;) { poll for reading on ft_owner_fd(&owner), a second at most; ft_owner_poll(&owner); }
 *   ft_owner_close(&owner);
 *
 * Needs GCC or Clang and _GNU_SOURCE or a -std=gnu dialect. docs/clients.md says more. */
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

/* Zero it, set the first part, hand it to ft_owner_add; it must live until ft_owner_remove. */
struct ft_flow {
  const char *job, *tenant; /* printable, at most 128 bytes; NULL: not said */
  void *context;            /* the program's own */
  /* Have the flow go on from another source port. Returns the port in force; 0: ft_flow_moved or ft_flow_failed comes
   * later; below 0: refused, an errno. NULL: the flow cannot be moved. */
  int (*move)(ft_flow *flow, int port);
  /* Send at most so many bit/s, 0: as fast as it goes. Returns 0, or below 0: refused, an errno. NULL: cannot. */
  int (*pace)(ft_flow *flow, int64_t rate_bps);

  char key[32]; /* names the flow for good: sock:<cookie of its first socket> */
  uint64_t cookie, sent_bytes;
  int64_t rate_limit_bps;
  int udp, source_port, peer_port;
  char source_address[INET6_ADDRSTRLEN], peer_address[INET6_ADDRSTRLEN];
  int unsaid;         /* bits: the reporter, the actuator are to be told */
  uint64_t asked;     /* id of a MOVE that is open */
  int asked_open;
  ft_flow *next;
};

typedef struct {
  int fd;
  int64_t due_ns;
  char path[512];
  char out[4096], in[4096]; /* what is under way, and a line that is not whole yet */
  size_t out_bytes, in_bytes;
} ft_wire;

typedef struct {
  int epoll;
  char host[128];
  ft_wire wire[2]; /* the reporter, the actuator */
  ft_flow *first;
  uint64_t refused; /* lines that an agent did not take */
} ft_owner;

#define FT_REPORTER_ 0
#define FT_ACTUATOR_ 1
#define FT_RETRY_NS_ INT64_C(1000000000)

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

/* Send what is under way; whether all is gone. */
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

/* Put a line on its way; one that finds no room ends the connection, since all is said again on the next one. */
static inline void ft_wire_say_(ft_wire *wire, const char *line) {
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

static inline void ft_wire_open_(ft_owner *owner, int which) {
  ft_wire *wire = &owner->wire[which];
  int64_t now_ns = ft_flow_now_ns_();
  struct sockaddr_un address;
  struct ucred peer;
  socklen_t size = sizeof peer;
  struct epoll_event event;
  if (wire->fd >= 0 || now_ns < wire->due_ns) return;
  wire->due_ns = now_ns + FT_RETRY_NS_;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  int directory = -1;
  const char *slash = strrchr(wire->path, '/');
  if (strlen(wire->path) < sizeof address.sun_path) {
    memcpy(address.sun_path, wire->path, strlen(wire->path) + 1);
  } else if (slash) { /* a long path: by its directory's descriptor */
    char parent[sizeof wire->path];
    memcpy(parent, wire->path, (size_t)(slash - wire->path) + 1);
    parent[slash - wire->path + 1] = 0;
    directory = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || strlen(slash + 1) > 64) goto end;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%.64s", directory, slash + 1);
  }
  wire->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (wire->fd < 0) goto end;
  memset(&event, 0, sizeof event);
  event.events = EPOLLIN;
  if (connect(wire->fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
      getsockopt(wire->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || (peer.uid != 0 && peer.uid != geteuid()) ||
      epoll_ctl(owner->epoll, EPOLL_CTL_ADD, wire->fd, &event) != 0) {
    ft_wire_close_(wire);
  } else {
    for (ft_flow *flow = owner->first; flow; flow = flow->next) flow->unsaid |= 1 << which;
  }
end:
  if (directory >= 0) close(directory);
}

/* `text` as a JSON string or null, into `to`; whether it fits. */
static inline int ft_json_(char *to, size_t room, const char *text) {
  size_t at = 0;
  if (!text) return snprintf(to, room, "null") < (int)room;
  to[at++] = '"';
  for (; *text; text++) {
    if (at + 8 > room) return 0;
    if (*text == '"' || *text == '\\') to[at++] = '\\';
    if ((unsigned char)*text < 32) return 0;
    to[at++] = *text;
  }
  to[at++] = '"';
  to[at] = 0;
  return 1;
}

static inline void ft_suffix_(const ft_owner *owner, char *to, size_t room) {
  snprintf(to, room, "%s%.120s", owner->host[0] ? " " : "", owner->host);
}

static inline void ft_flow_line_(const ft_owner *owner, const ft_flow *flow, char *line, size_t room) {
  char suffix[128];
  ft_suffix_(owner, suffix, sizeof suffix);
  snprintf(line, room, "FLOW %s %d %s%s%s%s", flow->key, flow->source_port, flow->move ? "MOVE" : "",
           flow->move && flow->pace ? "," : "", flow->pace ? "PACE" : flow->move ? "" : "-", suffix);
}

static inline int ft_flow_registration_(const ft_flow *flow, char *line, size_t room) {
  char job[300], tenant[300], counts[160] = "";
  if (!ft_json_(job, sizeof job, flow->job) || !ft_json_(tenant, sizeof tenant, flow->tenant)) return 0;
  if (flow->udp) {
    int at = snprintf(counts, sizeof counts, ",\"cookie\":%" PRIu64 ",\"sent_bytes\":%" PRIu64 ",\"at_ns\":%" PRId64,
                      flow->cookie, flow->sent_bytes, ft_flow_now_ns_());
    if (flow->rate_limit_bps)
      snprintf(counts + at, sizeof counts - (size_t)at, ",\"rate_limit_bps\":%" PRId64, flow->rate_limit_bps);
  }
  return snprintf(line, room,
                  "{\"protocol\":\"%s\",\"source_address\":\"%s\",\"source_port\":%d,\"peer_address\":\"%s\","
                  "\"peer_port\":%d,\"job\":%s,\"tenant\":%s,\"flow\":\"%s\",\"can\":[%s%s%s]%s}",
                  flow->udp ? "udp" : "tcp", flow->source_address, flow->source_port, flow->peer_address,
                  flow->peer_port, job, tenant, flow->key, flow->move ? "\"MOVE\"" : "",
                  flow->move && flow->pace ? "," : "", flow->pace ? "\"PACE\"" : "", counts) < (int)room;
}

/* Say what is unsaid, as far as the sockets take it. */
static inline void ft_owner_say_(ft_owner *owner) {
  char line[2048];
  for (int which = 0; which < 2; which++) {
    for (ft_flow *flow = owner->first; flow && ft_wire_flush_(&owner->wire[which]); flow = flow->next) {
      if (!(flow->unsaid & 1 << which)) continue;
      flow->unsaid &= ~(1 << which);
      if (which == FT_ACTUATOR_) {
        ft_flow_line_(owner, flow, line, sizeof line);
      } else if (!ft_flow_registration_(flow, line, sizeof line)) {
        owner->refused++;
        continue;
      }
      ft_wire_say_(&owner->wire[which], line);
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

/* -- what a program calls --------------------------------------------------------------------------------------- */

/* `flows`, `control`: paths of the reporter's and the actuator's sockets; NULL: $FABRICTIME_FLOWS and
 * $FABRICTIME_CONTROL, else below $XDG_RUNTIME_DIR/fabrictime or /run/fabrictime. `host`: NULL, or this host's name
 * where one actuator serves several. Returns 0, or -1 with errno. */
static inline int ft_owner_open(ft_owner *owner, const char *flows, const char *control, const char *host) {
  const char *given[2] = {flows ? flows : getenv("FABRICTIME_FLOWS"), control ? control : getenv("FABRICTIME_CONTROL")};
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  static const char *const name[2] = {"flows.sock", "control.sock"};
  memset(owner, 0, sizeof *owner);
  for (int which = 0; which < 2; which++) {
    int bytes = given[which]
                    ? snprintf(owner->wire[which].path, sizeof owner->wire[which].path, "%s", given[which])
                    : snprintf(owner->wire[which].path, sizeof owner->wire[which].path, "%s/fabrictime/%s",
                               runtime && runtime[0] ? runtime : "/run", name[which]);
    owner->wire[which].fd = -1;
    if (bytes >= (int)sizeof owner->wire[which].path) {
      errno = ENAMETOOLONG;
      return -1;
    }
  }
  snprintf(owner->host, sizeof owner->host, "%s", host ? host : "");
  owner->epoll = epoll_create1(EPOLL_CLOEXEC);
  return owner->epoll < 0 ? -1 : 0;
}

/* A descriptor that is readable when ft_owner_poll has something to do. */
static inline int ft_owner_fd(const ft_owner *owner) { return owner->epoll; }

/* Take in a flow on a connected TCP or UDP socket. Returns 0, or -1 with errno. */
static inline int ft_owner_add(ft_owner *owner, ft_flow *flow, int fd) {
  int type = 0;
  socklen_t size = sizeof flow->cookie;
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &flow->cookie, &size) != 0) return -1;
  size = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || ft_flow_socket_(flow, fd) != 0) return -1;
  flow->udp = type == SOCK_DGRAM;
  snprintf(flow->key, sizeof flow->key, "sock:%" PRIu64, flow->cookie);
  flow->unsaid = 3;
  flow->next = owner->first;
  owner->first = flow;
  ft_owner_say_(owner);
  return 0;
}

/* The MOVE that was left open has failed. */
static inline void ft_flow_failed(ft_owner *owner, ft_flow *flow, const char *reason) {
  char line[512];
  if (!flow->asked_open) return;
  flow->asked_open = 0;
  snprintf(line, sizeof line, "FAILED %" PRIu64 " %.400s", flow->asked, reason);
  ft_wire_say_(&owner->wire[FT_ACTUATOR_], line);
}

static inline void ft_flow_done_(ft_owner *owner, ft_flow *flow) {
  char line[128];
  flow->unsaid = 3;
  ft_owner_say_(owner);
  if (!flow->asked_open) return;
  flow->asked_open = 0;
  snprintf(line, sizeof line, "DONE %" PRIu64 " %d SOCKET", flow->asked, flow->source_port);
  ft_wire_say_(&owner->wire[FT_ACTUATOR_], line);
}

/* Another socket carries the flow now; answers a MOVE that was left open. Returns 0, or -1 with errno. */
static inline int ft_flow_moved(ft_owner *owner, ft_flow *flow, int fd) {
  if (ft_flow_socket_(flow, fd) != 0) return -1;
  ft_flow_done_(owner, flow);
  return 0;
}

/* What a UDP flow has sent since it began, bytes of frames; ten times a second is enough. */
static inline void ft_flow_sent(ft_owner *owner, ft_flow *flow, uint64_t frame_bytes) {
  flow->sent_bytes = frame_bytes;
  flow->unsaid |= 1 << FT_REPORTER_;
  ft_owner_say_(owner);
}

static inline void ft_owner_remove(ft_owner *owner, ft_flow *flow) {
  char line[256], suffix[128];
  for (ft_flow **at = &owner->first; *at; at = &(*at)->next) {
    if (*at != flow) continue;
    *at = flow->next;
    ft_suffix_(owner, suffix, sizeof suffix);
    snprintf(line, sizeof line, "GONE %s%s", flow->key, suffix);
    ft_wire_say_(&owner->wire[FT_ACTUATOR_], line);
    return;
  }
}

/* The whole number at `*at`, behind which a blank or the line's end comes, and go there; whether it is one. */
static inline int ft_number_(const char **at, uint64_t most, uint64_t *number) {
  const char *digit = *at;
  for (*number = 0; *digit >= '0' && *digit <= '9'; digit++) {
    uint64_t more = (uint64_t)(*digit - '0');
    if (*number > (most - more) / 10) return 0;
    *number = *number * 10 + more;
  }
  if (digit == *at || (*digit && *digit != ' ')) return 0;
  *at = digit + (*digit == ' ');
  return 1;
}

/* `MOVE|PACE <id> <key> <value> [<host>]`; whether it is that. */
static inline int ft_order_(const char *line, int *moves, uint64_t *id, char key[32], int64_t *value) {
  uint64_t number;
  size_t bytes;
  *moves = strncmp(line, "MOVE ", 5) == 0;
  if (!*moves && strncmp(line, "PACE ", 5) != 0) return 0;
  line += 5;
  if (!ft_number_(&line, UINT64_MAX, id)) return 0;
  bytes = strcspn(line, " ");
  if (!bytes || bytes >= 32 || line[bytes] != ' ') return 0;
  memcpy(key, line, bytes);
  key[bytes] = 0;
  line += bytes + 1;
  if (!ft_number_(&line, INT64_MAX, &number)) return 0;
  *value = (int64_t)number;
  return 1;
}

static inline void ft_owner_obey_(ft_owner *owner, const char *line) {
  char key[32], answer[512];
  uint64_t id;
  int64_t value;
  int moves;
  ft_wire *wire = &owner->wire[FT_ACTUATOR_];
  ft_flow *flow = owner->first;
  if (strncmp(line, "ERROR", 5) == 0) {
    owner->refused++;
    return;
  }
  if (!ft_order_(line, &moves, &id, key, &value)) {
    ft_wire_say_(wire, "ERROR expected MOVE or PACE, id, key and value");
    return;
  }
  while (flow && strcmp(flow->key, key) != 0) flow = flow->next;
  int code = !flow                                      ? -ENOENT
             : (moves ? !flow->move : !flow->pace)      ? -EOPNOTSUPP
             : moves && (value < 1 || value > 65535)    ? -EINVAL
                                                        : 0;
  if (code == 0 && moves) {
    snprintf(answer, sizeof answer, "superseded by %" PRIu64, id);
    ft_flow_failed(owner, flow, answer);
    flow->asked = id;
    flow->asked_open = 1;
    code = flow->move(flow, (int)value);
    if (code > 0 && flow->asked_open) {
      flow->source_port = code;
      ft_flow_done_(owner, flow);
    }
    if (code >= 0) return;
    flow->asked_open = 0;
  } else if (code == 0) {
    code = flow->pace(flow, value);
    if (code == 0) {
      flow->rate_limit_bps = value;
      flow->unsaid |= 1 << FT_REPORTER_;
      snprintf(answer, sizeof answer, "DONE %" PRIu64 " %" PRId64 " PACING", id, value);
      ft_wire_say_(wire, answer);
      return;
    }
  }
  snprintf(answer, sizeof answer, "FAILED %" PRIu64 " %s", id,
           code == -ENOENT && !flow ? "no such flow here" : strerror(code < 0 ? -code : EIO));
  ft_wire_say_(wire, answer);
}

/* Connect, say and hear what is due, call `move` and `pace`. */
static inline void ft_owner_poll(ft_owner *owner) {
  for (int which = 0; which < 2; which++) {
    ft_wire *wire = &owner->wire[which];
    ft_wire_open_(owner, which);
    for (int turn = 0; turn < 16 && wire->fd >= 0; turn++) { /* more of it wakes us again */
      ssize_t got = recv(wire->fd, wire->in + wire->in_bytes, sizeof wire->in - 1 - wire->in_bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) {
        ft_wire_close_(wire);
        break;
      }
      wire->in_bytes += (size_t)got;
      wire->in[wire->in_bytes] = 0;
      char *line = wire->in, *end;
      while (wire->fd >= 0 && (end = (char *)memchr(line, '\n', wire->in_bytes - (size_t)(line - wire->in))) != NULL) {
        *end = 0;
        if (which == FT_ACTUATOR_)
          ft_owner_obey_(owner, line);
        else
          owner->refused++;
        line = end + 1;
      }
      if (wire->fd < 0) break;
      size_t used = (size_t)(line - wire->in);
      memmove(wire->in, line, wire->in_bytes - used);
      wire->in_bytes -= used;
      if (wire->in_bytes >= sizeof wire->in - 1) ft_wire_close_(wire);
    }
  }
  ft_owner_say_(owner);
}

/* Take leave of both agents. The flows themselves are the program's. */
static inline void ft_owner_close(ft_owner *owner) {
  while (owner->first) ft_owner_remove(owner, owner->first);
  for (int which = 0; which < 2; which++) ft_wire_close_(&owner->wire[which]);
  if (owner->epoll >= 0) close(owner->epoll);
  owner->epoll = -1;
}

#ifdef __cplusplus
}
#endif

#endif
