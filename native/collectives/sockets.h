/* The TCP connections of a process, for programs whose library moves data over TCP (sockets.c). */
#ifndef FABRICTIME_SOCKETS_H
#define FABRICTIME_SOCKETS_H

/* Start to register the connections, with the name of the job. Without a flow reporter, nothing happens. A child
 * after fork registers none until it starts again. */
void ft_sockets_start(void);

/* Stop, and remove the connections from the reporter. They keep their pace. */
void ft_sockets_stop(void);

#endif
