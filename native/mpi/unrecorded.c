/* Functions whose operations are not recorded: the first use of each kind prints one line. See trace.h. */
#include <stdio.h>

#include "trace.h"

enum kind { ONE_SIDED, FILES, BETWEEN_GROUPS, PARTITIONED, COMBINED, SESSIONS, KINDS };

static void unrecorded(enum kind kind, const char *function) {
    static const char *const texts[KINDS] = {
        [ONE_SIDED] = "one-sided operations",
        [FILES] = "operations on files",
        [BETWEEN_GROUPS] = "operations between two groups",
        [PARTITIONED] = "partitioned messages",
        [COMBINED] = "nonblocking combined sends and receives",
        [SESSIONS] = "programs with sessions instead of MPI_Init",
    };
    static atomic_bool reported[KINDS];

    if (!ft_entries_open() || atomic_exchange(&reported[kind], true) || !ft_is_first_rank()) return;
    fprintf(stderr, "fabrictime: %s (%s) are not recorded\n", texts[kind], function);
}

#define UNRECORDED(kind, name, parameters, arguments)                                                        \
    FT_WRAPPER(name, parameters) {                                                                           \
        unrecorded(kind, "MPI_" #name);                                                                      \
        return own_##name arguments;                                                                         \
    }

UNRECORDED(ONE_SIDED, Win_create,
           (void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win *made),
           (base, size, unit, info, comm, made))
UNRECORDED(ONE_SIDED, Win_allocate,
           (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *made),
           (size, unit, info, comm, base, made))
UNRECORDED(ONE_SIDED, Win_allocate_shared,
           (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *made),
           (size, unit, info, comm, base, made))
UNRECORDED(ONE_SIDED, Win_create_dynamic, (MPI_Info info, MPI_Comm comm, MPI_Win *made), (info, comm, made))
UNRECORDED(FILES, File_open, (MPI_Comm comm, const char *name, int mode, MPI_Info info, MPI_File *made),
           (comm, name, mode, info, made))
UNRECORDED(BETWEEN_GROUPS, Intercomm_create,
           (MPI_Comm local, int leader, MPI_Comm peers, int remote, int tag, MPI_Comm *made),
           (local, leader, peers, remote, tag, made))
UNRECORDED(BETWEEN_GROUPS, Comm_spawn,
           (const char *command, char *arguments[], int count, MPI_Info info, int root, MPI_Comm comm,
            MPI_Comm *made, int errors[]),
           (command, arguments, count, info, root, comm, made, errors))

#if MPI_VERSION >= 4
UNRECORDED(PARTITIONED, Psend_init,
           (const void *buffer, int parts, MPI_Count count, MPI_Datatype type, int peer, int tag,
            MPI_Comm comm, MPI_Info info, MPI_Request *request),
           (buffer, parts, count, type, peer, tag, comm, info, request))
UNRECORDED(PARTITIONED, Precv_init,
           (void *buffer, int parts, MPI_Count count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
            MPI_Info info, MPI_Request *request),
           (buffer, parts, count, type, peer, tag, comm, info, request))
UNRECORDED(COMBINED, Isendrecv,
           (const void *in, int sent, MPI_Datatype type, int peer, int tag, void *out, int received,
            MPI_Datatype out_type, int source, int out_tag, MPI_Comm comm, MPI_Request *request),
           (in, sent, type, peer, tag, out, received, out_type, source, out_tag, comm, request))
UNRECORDED(COMBINED, Isendrecv_replace,
           (void *buffer, int count, MPI_Datatype type, int peer, int tag, int source, int out_tag,
            MPI_Comm comm, MPI_Request *request),
           (buffer, count, type, peer, tag, source, out_tag, comm, request))
UNRECORDED(SESSIONS, Session_init, (MPI_Info info, MPI_Errhandler handler, MPI_Session *made),
           (info, handler, made))
#endif
