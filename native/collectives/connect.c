#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "connect.h"
#include "segment.h"

enum { RETRY_MS = 500, EXIT_MS = 1000 };

static char path[4096];
static int segment = -1;
static _Atomic int connection = -1;
static atomic_bool running, tried;

bool ft_is_first_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID",
                                        "RANK"};

    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
        if (getenv(names[n])) return !strcmp(getenv(names[n]), "0");
    return true;
}

/* Connect to the socket. A path that is too long for an address is reached by its directory's descriptor. */
static bool reach(int fd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = strrchr(path, '/');
    char parent[sizeof(path)];
    int directory, result;

    if (strlen(path) < sizeof(address.sun_path)) {
        memcpy(address.sun_path, path, strlen(path) + 1);
        return !connect(fd, (struct sockaddr *)&address, sizeof(address));
    }
    if (!name || strlen(name) > 64) return false;
    memcpy(parent, path, (size_t)(name - path));
    parent[name - path] = 0;
    directory = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return false;
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d%s", directory, name);
    result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    close(directory);
    return !result;
}

/* Print one line a process about a reporter that cannot be used. */
static void complain(const char *reason) {
    static bool reported;

    if (!reported && ft_is_first_rank()) fprintf(stderr, "fabrictime: %s: %s\n", path, reason);
    reported = true;
}

/* Return true if the user of root, of this process, or that FABRICTIME_REPORTER_USER names listens. */
static bool trusted(int fd) {
    const char *other = secure_getenv("FABRICTIME_REPORTER_USER");
    struct ucred peer;
    socklen_t size = sizeof(peer);
    char text[160];

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) return false;
    if (peer.uid == geteuid() || !peer.uid || (other && strtoul(other, NULL, 10) == peer.uid)) return true;
    snprintf(text, sizeof(text),
             "its reporter runs as user %u, expected root, your user, or that of FABRICTIME_REPORTER_USER: "
             "nothing is recorded",
             (unsigned)peer.uid);
    complain(text);
    return false;
}

static bool pass(int fd) {
    static const char greeting[] = "SEGMENT 1";
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec text = {.iov_base = (void *)greeting, .iov_len = sizeof(greeting) - 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control};
    struct cmsghdr *header;

    memset(&control, 0, sizeof(control));
    message.msg_controllen = sizeof(control.bytes);
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &segment, sizeof(int));
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)text.iov_len;
}

/* Read the reporter's answer. Return false at the end of the connection. */
static bool answered(int fd) {
    char line[256], text[300];
    ssize_t size = recv(fd, line, sizeof(line) - 1, 0);

    if (size < 0 && errno == ECONNRESET) /* it closed without reading; its answer waits behind that error */
        size = recv(fd, line, sizeof(line) - 1, 0);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    line[size > 0 ? size : 0] = 0;
    if (!strncmp(line, "ERROR", 5)) {
        snprintf(text, sizeof(text), "refused the trace: %.*s", (int)strcspn(line, "\n"), line);
        complain(text);
    }
    return size > 0;
}

static int attempt(void) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || (reach(fd) && trusted(fd) && pass(fd))) return fd;
    if (errno == EPIPE) answered(fd); /* refused before the segment was sent */
    if (errno == EACCES || errno == EPERM)
        complain("no access for this user: nothing is recorded (collectives.socket_users)");
    close(fd);
    return -1;
}

static void *work(void *arg) {
    const struct timespec pause = {0, RETRY_MS * 1000000};

    (void)arg;
    for (;;) {
        int fd = attempt();
        struct pollfd wait = {.fd = fd, .events = POLLIN};

        atomic_store(&connection, fd);
        atomic_store(&tried, true);
        if (fd >= 0) {
            do poll(&wait, 1, -1);
            while (answered(fd));
            atomic_store(&connection, -1);
            close(fd);
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Before a short process exits, wait for the first attempt: the reporter then reads what the process wrote. */
static void __attribute__((destructor)) pass_at_exit(void) {
    const struct timespec pause = {0, 1000000};

    for (int i = 0; atomic_load(&running) && !atomic_load(&tried) && i < EXIT_MS; i++)
        nanosleep(&pause, NULL);
}

bool ft_connect_start(const char *socket_path, int segment_fd) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    bool started;

    snprintf(path, sizeof(path), "%s", socket_path);
    segment = segment_fd;
    /* Leave signals to the application's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    started = !pthread_create(&thread, &attributes, work, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&running, started);
    return started;
}

void ft_connect_forget(void) {
    int fd = atomic_exchange(&connection, -1);

    if (fd >= 0) close(fd);
    atomic_store(&running, false);
    atomic_store(&tried, false);
}
