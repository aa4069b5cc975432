/* The end of nonblocking operations, and the start of persistent ones. An operation ends when the program learns
 * of it: at the return of the wait or test that completes its request. See trace.h. */
#include <stdlib.h>

#include "trace.h"

/* MPICH declares statuses as an array, and the constant that ignores them as an address without one. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

enum { FEW = 256 /* requests of one call without an allocation */ };

/* The requests of one call. */
struct taken {
    int count;
    struct ft_request **requests; /* NULL: not recorded */
    MPI_Status *statuses;         /* in place of those that the program ignores; NULL: not needed */
    void *memory;                 /* NULL: the arrays below suffice */
    struct ft_request *few[FEW];
    MPI_Status few_statuses[FEW];
};

static void take(struct taken *taken, int count, const MPI_Request handles[], bool needs_statuses) {
    bool receives = false;

    taken->count = count > 0 ? count : 0;
    taken->memory = NULL;
    taken->requests = taken->few;
    taken->statuses = taken->few_statuses;
    if (count > FEW) {
        taken->memory = malloc((size_t)count * (sizeof(struct ft_request *) + sizeof(MPI_Status)));
        taken->statuses = taken->memory;
        taken->requests = taken->memory ? (struct ft_request **)(void *)(taken->statuses + count) : NULL;
        if (!taken->memory) {
            ft_trace_dropped();
            taken->count = 0;
            return;
        }
    }
    for (int n = 0; n < taken->count; n++) {
        taken->requests[n] = handles[n] == FT_REQUEST_NULL ? NULL : ft_request_take(handles[n]);
        receives |= taken->requests[n] && taken->requests[n]->operation.function == FT_RECEIVE;
    }
    if (!receives || !needs_statuses) taken->statuses = NULL;
}

/* End the operation of a completed request. */
static void end(struct taken *taken, int n, const MPI_Status *status) {
    struct ft_request *request = n >= 0 && n < taken->count ? taken->requests[n] : NULL;

    if (!request) return;
    taken->requests[n] = NULL;
    if (request->operation.open) ft_operation_end(&request->operation, request->communicator, status);
    ft_request_return(request, !request->operation.persistent);
}

/* End the operations whose requests MPI has freed, as after an error, and return the others to the table. */
static void return_all(struct taken *taken, const MPI_Request handles[]) {
    for (int n = 0; n < taken->count; n++) {
        if (!taken->requests[n]) continue;
        if (handles[n] == FT_REQUEST_NULL)
            end(taken, n, NULL);
        else
            ft_request_return(taken->requests[n], false);
    }
    free(taken->memory);
}

static void end_all(struct taken *taken, int code, const MPI_Status *statuses) {
    for (int n = 0; n < taken->count && code == MPI_SUCCESS; n++)
        end(taken, n, statuses ? &statuses[n] : NULL);
}

static void end_some(struct taken *taken, int code, int count, const int indices[],
                     const MPI_Status *statuses) {
    for (int n = 0; n < count && code == MPI_SUCCESS; n++)
        end(taken, indices[n], statuses ? &statuses[n] : NULL);
}

/* Return the program's statuses, or those of `taken` where it ignores them and they are needed. */
static MPI_Status *statuses_for(struct taken *taken, MPI_Status *given) {
    return given == MPI_STATUSES_IGNORE && taken->statuses ? taken->statuses : given;
}

static const MPI_Status *known(const MPI_Status *statuses) {
    return statuses == MPI_STATUSES_IGNORE ? NULL : statuses;
}

/* Put the call that completes a request between its take and its end. */
#define ONE(completes, call)                                                                                 \
    struct ft_request *taken = *request == FT_REQUEST_NULL ? NULL : ft_request_take(*request);               \
    MPI_Status own;                                                                                          \
                                                                                                             \
    if (status == MPI_STATUS_IGNORE && taken) status = &own;                                                 \
    int code = call;                                                                                         \
                                                                                                             \
    if (!taken) return code;                                                                                 \
    if ((code == MPI_SUCCESS && completes) || *request == FT_REQUEST_NULL) {                                 \
        if (taken->operation.open)                                                                           \
            ft_operation_end(&taken->operation, taken->communicator, code == MPI_SUCCESS ? status : NULL);   \
        ft_request_return(taken, !taken->operation.persistent);                                              \
    } else {                                                                                                 \
        ft_request_return(taken, false);                                                                     \
    }                                                                                                        \
    return code;

FT_WRAPPER(Wait, (MPI_Request * request, MPI_Status *status)){ONE(true, own_Wait(request, status))}

FT_WRAPPER(Test, (MPI_Request * request, int *flag, MPI_Status *status)){
    ONE(*flag, own_Test(request, flag, status))}

FT_WRAPPER(Waitall, (int count, MPI_Request handles[], MPI_Status statuses[])) {
    struct taken taken;

    take(&taken, count, handles, true);
    statuses = statuses_for(&taken, statuses);
    int code = own_Waitall(count, handles, statuses);

    end_all(&taken, code, known(statuses));
    return_all(&taken, handles);
    return code;
}

FT_WRAPPER(Testall, (int count, MPI_Request handles[], int *flag, MPI_Status statuses[])) {
    struct taken taken;

    take(&taken, count, handles, true);
    statuses = statuses_for(&taken, statuses);
    int code = own_Testall(count, handles, flag, statuses);

    if (*flag) end_all(&taken, code, known(statuses));
    return_all(&taken, handles);
    return code;
}

FT_WRAPPER(Waitany, (int count, MPI_Request handles[], int *index, MPI_Status *status)) {
    struct taken taken;
    MPI_Status own;

    take(&taken, count, handles, false);
    if (status == MPI_STATUS_IGNORE) status = &own;
    int code = own_Waitany(count, handles, index, status);

    if (*index != MPI_UNDEFINED) end_some(&taken, code, 1, index, status);
    return_all(&taken, handles);
    return code;
}

FT_WRAPPER(Testany, (int count, MPI_Request handles[], int *index, int *flag, MPI_Status *status)) {
    struct taken taken;
    MPI_Status own;

    take(&taken, count, handles, false);
    if (status == MPI_STATUS_IGNORE) status = &own;
    int code = own_Testany(count, handles, index, flag, status);

    if (*flag && *index != MPI_UNDEFINED) end_some(&taken, code, 1, index, status);
    return_all(&taken, handles);
    return code;
}

FT_WRAPPER(Waitsome, (int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[])) {
    struct taken taken;

    take(&taken, count, handles, true);
    statuses = statuses_for(&taken, statuses);
    int code = own_Waitsome(count, handles, done, indices, statuses);

    if (*done != MPI_UNDEFINED) end_some(&taken, code, *done, indices, known(statuses));
    return_all(&taken, handles);
    return code;
}

FT_WRAPPER(Testsome, (int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[])) {
    struct taken taken;

    take(&taken, count, handles, true);
    statuses = statuses_for(&taken, statuses);
    int code = own_Testsome(count, handles, done, indices, statuses);

    if (*done != MPI_UNDEFINED) end_some(&taken, code, *done, indices, known(statuses));
    return_all(&taken, handles);
    return code;
}

/* Begin a persistent operation again. */
void ft_request_restart(MPI_Request handle) {
    struct ft_request *request = handle == FT_REQUEST_NULL ? NULL : ft_request_take(handle);

    if (!request) return;
    if (request->operation.persistent) ft_operation_begin(&request->operation, request->communicator);
    ft_request_return(request, false);
}

FT_WRAPPER(Start, (MPI_Request * request)) {
    ft_request_restart(*request);
    return own_Start(request);
}

FT_WRAPPER(Startall, (int count, MPI_Request handles[])) {
    for (int n = 0; n < count; n++) ft_request_restart(handles[n]);
    return own_Startall(count, handles);
}

/* The end of an operation whose request the program frees is not known: it ends here. */
void ft_request_freed(MPI_Request handle) {
    struct ft_request *taken = handle == FT_REQUEST_NULL ? NULL : ft_request_take(handle);

    if (!taken) return;
    if (taken->operation.open) ft_operation_end(&taken->operation, taken->communicator, NULL);
    ft_request_return(taken, true);
}

FT_WRAPPER(Request_free, (MPI_Request * request)) {
    ft_request_freed(*request);
    return own_Request_free(request);
}
