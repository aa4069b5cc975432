/* A stream socket of lines to an owner-only listener. It reconnects after it was closed, and never blocks.
 * Unsent lines wait in memory; the connection is closed when that is full. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "qp.h"

enum { OUT_MAX = 1 << 20 };

static const uint64_t RETRY_NS = 500000000;

void ft_channel_init(struct ft_channel *channel, const char *path) {
    memset(channel, 0, sizeof(*channel));
    channel->path = path;
    channel->fd = -1;
}

/* Fill in an address for a path of any length: a long one is reached through its folder's descriptor. */
static bool name(struct sockaddr_un *address, const char *path, int *folder) {
    const char *slash = strrchr(path, '/');
    char parent[4096];

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    *folder = -1;
    if (strlen(path) < sizeof(address->sun_path)) {
        strcpy(address->sun_path, path);
        return true;
    }
    if (!slash || (size_t)(slash - path) >= sizeof(parent)) return false;
    memcpy(parent, path, (size_t)(slash - path));
    parent[slash - path] = 0;
    *folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *folder >= 0 && snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d%s",
                                    *folder, slash) < (int)sizeof(address->sun_path);
}

bool ft_channel_connect(struct ft_channel *channel, uint64_t now_ns) {
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    int folder = -1, error = -1;

    if (!channel->path || channel->fd >= 0 || now_ns < channel->retry_at_ns) return false;
    channel->retry_at_ns = now_ns + RETRY_NS;
    channel->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (channel->fd < 0) return false;
    if (name(&address, channel->path, &folder))
        error = connect(channel->fd, (struct sockaddr *)&address, sizeof(address));
    if (folder >= 0) close(folder);
    /* Only our own user or root may move our queue pairs. */
    if (error || getsockopt(channel->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) ||
        (peer.uid != geteuid() && peer.uid != 0)) {
        ft_channel_close(channel);
        return false;
    }
    return true;
}

void ft_channel_close(struct ft_channel *channel) {
    if (channel->fd >= 0) close(channel->fd);
    channel->fd = -1;
    channel->out_used = channel->in_used = 0;
}

void ft_channel_send(struct ft_channel *channel, const char *format, ...) {
    char line[1024];
    va_list arguments;
    int size;

    if (channel->fd < 0) return;
    va_start(arguments, format);
    size = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (size < 0 || size >= (int)sizeof(line)) return;
    if (channel->out_used + (size_t)size > channel->out_capacity) {
        size_t capacity = channel->out_capacity ? channel->out_capacity * 2 : 4096;
        char *more = capacity <= OUT_MAX ? realloc(channel->out, capacity) : NULL;

        if (!more) {
            ft_channel_close(channel);
            return;
        }
        channel->out = more;
        channel->out_capacity = capacity;
    }
    memcpy(channel->out + channel->out_used, line, (size_t)size);
    channel->out_used += (size_t)size;
}

void ft_channel_flush(struct ft_channel *channel) {
    ssize_t sent;

    if (channel->fd < 0 || !channel->out_used) return;
    sent = send(channel->fd, channel->out, channel->out_used, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR) ft_channel_close(channel);
        return;
    }
    channel->out_used -= (size_t)sent;
    memmove(channel->out, channel->out + sent, channel->out_used);
}

bool ft_channel_read(struct ft_channel *channel) {
    ssize_t got;

    if (channel->in_used == sizeof(channel->in)) {
        ft_channel_close(channel);
        return false;
    }
    got = recv(channel->fd, channel->in + channel->in_used, sizeof(channel->in) - channel->in_used,
               MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
        ft_channel_close(channel);
        return false;
    }
    channel->in_used += (size_t)got;
    return true;
}

/* Return the next whole line without its end, valid until the next call. */
char *ft_channel_line(struct ft_channel *channel) {
    static char line[sizeof(channel->in)];
    char *end = memchr(channel->in, '\n', channel->in_used);
    size_t size;

    if (!end) return NULL;
    size = (size_t)(end - channel->in);
    memcpy(line, channel->in, size);
    line[size] = 0;
    channel->in_used -= size + 1;
    memmove(channel->in, end + 1, channel->in_used);
    return line;
}
