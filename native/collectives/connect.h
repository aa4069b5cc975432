/* The thread that passes a process's segment to the reporter, and again to each reporter that follows. */
#ifndef FABRICTIME_CONNECT_H
#define FABRICTIME_CONNECT_H

#include <stdbool.h>

/* Start the thread that passes the descriptor to the socket `path`. */
bool ft_connect_start(const char *path, int segment_fd);

/* Return true for one of several ranks that would print the same line: the first, or one without a number. */
bool ft_is_first_rank(void);

/* Close the connection in a child after fork, where the thread does not exist. */
void ft_connect_forget(void);

#endif
