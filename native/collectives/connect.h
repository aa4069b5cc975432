/* The thread that passes a process's segment to the reporter, and again to each reporter that follows. */
#ifndef FABRICTIME_CONNECT_H
#define FABRICTIME_CONNECT_H

#include <stdbool.h>

/* Start the thread that passes the descriptor to the socket `path`. */
bool ft_connect_start(const char *path, int segment_fd);

/* Close the connection in a child after fork, where the thread does not exist. */
void ft_connect_forget(void);

#endif
