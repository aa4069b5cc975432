/* Registers the TCP connections of the process with the host's flow reporter, with the name of the job, and lets
 * the actuator pace them (SO_MAX_PACING_RATE). A thread looks for new connections and serves both sockets
 * (clients/c/fabrictime_flow.h). Connections over the loopback, as to a launcher, are left out. */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/eventfd.h>

#include "fabrictime_flow.h"
#include "job_name.h"
#include "sockets.h"

enum { SEARCH_MS = 1000, FLOWS = 4096 };

struct connection {
    struct ft_flow flow;
    int fd;
};

static struct connection *connections[FLOWS];
static ft_endpoint endpoint;
static pthread_t thread;
static int stop_fd = -1;

static uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;
    socklen_t size = sizeof(cookie);

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) ? 0 : cookie;
}

/* Limit a connection, unless its descriptor is another socket by now. */
static int pace(ft_flow *flow, int64_t rate_bps) {
    const struct connection *connection = flow->context;
    uint64_t bytes = rate_bps ? (uint64_t)rate_bps / 8 : UINT64_MAX;

    if (cookie_of(connection->fd) != flow->cookie) return -EBADF;
    return setsockopt(connection->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof(bytes)) ? -errno : 0;
}

/* Whether a descriptor is a TCP connection to another host. */
static bool leads_away(int fd) {
    struct sockaddr_storage source, peer;
    socklen_t bytes = sizeof(source), type_bytes = sizeof(int);
    char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
    int type = 0, port;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) || type != SOCK_STREAM) return false;
    if (getsockname(fd, (struct sockaddr *)&source, &bytes)) return false;
    bytes = sizeof(peer);
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes)) return false;
    if (ft_flow_address_(&source, from, &port) || ft_flow_address_(&peer, to, &port)) return false;
    return strcmp(from, to) && strncmp(to, "127.", 4);
}

static const char *variable(const char *name) {
    return getenv(name);
}

static void add(int fd) {
    static char job[FT_JOB_NAME];
    static const char *tenant;
    uint64_t cookie = cookie_of(fd);
    int n, none = -1;

    for (n = FLOWS - 1; n >= 0; n--) {
        if (!connections[n]) none = n;
        if (connections[n] && connections[n]->flow.cookie == cookie) return;
    }
    if (none < 0 || !(connections[none] = calloc(1, sizeof(**connections)))) return;
    if (!*job) ft_job_name(variable, job);
    if (!tenant) tenant = getenv("FABRICTIME_TENANT");
    connections[none]->fd = fd;
    connections[none]->flow =
        (ft_flow){.job = *job ? job : NULL, .tenant = tenant, .pace = pace, .context = connections[none]};
    if (ft_endpoint_add(&endpoint, &connections[none]->flow, fd)) {
        free(connections[none]);
        connections[none] = NULL;
    }
}

/* Remove the connections that are closed, and add the new ones. */
static void search(void) {
    DIR *directory;

    for (int n = 0; n < FLOWS; n++) {
        if (!connections[n] || cookie_of(connections[n]->fd) == connections[n]->flow.cookie) continue;
        ft_endpoint_remove(&endpoint, &connections[n]->flow);
        free(connections[n]);
        connections[n] = NULL;
    }
    directory = opendir("/proc/self/fd");
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] != '.' && leads_away(fd)) add(fd);
    }
    if (directory) closedir(directory);
}

/* Forget all connections. The next start registers them again. */
static void forget(void) {
    for (int n = 0; n < FLOWS; n++) {
        free(connections[n]);
        connections[n] = NULL;
    }
}

static void *run(void *unused) {
    struct pollfd wait[2] = {{.fd = stop_fd, .events = POLLIN},
                             {.fd = ft_endpoint_fd(&endpoint), .events = POLLIN}};
    int64_t due_ns = 0;

    (void)unused;
    while (!(wait[0].revents & POLLIN)) {
        if (ft_flow_now_ns_() >= due_ns) {
            search();
            due_ns = ft_flow_now_ns_() + SEARCH_MS * INT64_C(1000000);
        }
        ft_endpoint_poll(&endpoint);
        poll(wait, 2, SEARCH_MS / 2);
    }
    ft_endpoint_close(&endpoint);
    forget();
    return NULL;
}

/* The connections to the agents belong to the parent. */
static void close_in_child(void) {
    for (int n = 0; n < 2; n++)
        if (endpoint.wire[n].fd > 0) close(endpoint.wire[n].fd);
    forget();
    stop_fd = -1;
}

void ft_sockets_start(void) {
    static bool watching;
    sigset_t all, before;

    if (stop_fd >= 0 || ft_endpoint_open(&endpoint, NULL, NULL, getenv("FABRICTIME_HOST"))) return;
    stop_fd = eventfd(0, EFD_CLOEXEC);
    if (!watching) watching = !pthread_atfork(NULL, NULL, close_in_child);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (stop_fd >= 0 && pthread_create(&thread, NULL, run, NULL)) {
        close(stop_fd);
        stop_fd = -1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ft_sockets_stop(void) {
    uint64_t one = 1;

    if (stop_fd < 0) return;
    if (write(stop_fd, &one, sizeof(one)) == sizeof(one)) pthread_join(thread, NULL);
    close(stop_fd);
    stop_fd = -1;
}
