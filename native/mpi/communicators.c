/* Init, finalize and communicators. See trace.h.
 *
 * The id of a communicator is equal at all of its ranks and needs no message: it is a hash of the job's id, of
 * the world ranks of its members in order, and of how many communicators with just these members came
 * before. All members create these in the same order, because creation is collective. Communicators between
 * two groups, and those with one rank, are not recorded. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

enum { BUCKET = 8, BUCKETS = 128 };

static struct ft_communicator communicators[BUCKETS][BUCKET];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool recording;
static uint64_t job_id;
static __thread struct ft_communicator *last __attribute__((tls_model("initial-exec")));

static struct ft_communicator *bucket_of(uintptr_t handle) {
    return communicators[ft_hash(2, handle) % BUCKETS];
}

/* Return the entry of a communicator, or NULL if it is not recorded. */
struct ft_communicator *ft_communicator(MPI_Comm handle) {
    uintptr_t key = (uintptr_t)handle;
    struct ft_communicator *bucket;

    if (!atomic_load_explicit(&recording, memory_order_relaxed)) return NULL;
    if (last && atomic_load_explicit(&last->handle, memory_order_relaxed) == key) return last;
    bucket = bucket_of(key);
    for (int n = 0; n < BUCKET; n++)
        if (atomic_load_explicit(&bucket[n].handle, memory_order_acquire) == key) return last = &bucket[n];
    return NULL;
}

/* Hash the world ranks of a communicator's members. Return 0 without memory. */
static uint64_t members(MPI_Comm handle) {
    MPI_Group group, world;
    uint64_t hash = 0;
    int *ranks, count = 0;

    if (ft_mpi.Comm_group(handle, &group) != MPI_SUCCESS) return 0;
    ft_mpi.Comm_group(FT_COMM_WORLD, &world);
    ft_mpi.Group_size(group, &count);
    ranks = malloc(2 * (size_t)count * sizeof(*ranks));
    if (ranks) {
        for (int n = 0; n < count; n++) ranks[n] = n;
        ft_mpi.Group_translate_ranks(group, count, ranks, world, ranks + count);
        hash = ft_hash(job_id, (uint64_t)count);
        for (int n = 0; n < count; n++) hash = ft_hash(hash, (uint64_t)(uint32_t)ranks[count + n]);
    }
    free(ranks);
    ft_mpi.Group_free(&group);
    ft_mpi.Group_free(&world);
    return hash;
}

/* Count the neighbours that a rank sends to, which the neighbourhood collectives of a topology have. */
static int neighbours(MPI_Comm handle, MPI_Comm same_group, int rank) {
    int topology = MPI_UNDEFINED, in = 0, out = 0, weighted;

    if (handle != same_group) return 0; /* it is not complete yet */
    ft_mpi.Topo_test(handle, &topology);
    if (topology == MPI_CART && ft_mpi.Cartdim_get(handle, &out) == MPI_SUCCESS) return 2 * out;
    if (topology == MPI_GRAPH) ft_mpi.Graph_neighbors_count(handle, rank, &out);
    if (topology == MPI_DIST_GRAPH) ft_mpi.Dist_graph_neighbors_count(handle, &in, &out, &weighted);
    return out;
}

/* Record a new communicator. `same_group`: one with the same members whose group may be read. */
void ft_communicator_created(MPI_Comm handle, MPI_Comm same_group) {
    struct ft_segment_communicator row = {0};
    struct ft_communicator *bucket;
    int rank, ranks, between = 0, n = 0;
    uint64_t hash;

    if (!atomic_load_explicit(&recording, memory_order_relaxed) || handle == FT_COMM_NULL) return;
    ft_mpi.Comm_test_inter(same_group, &between);
    ft_mpi.Comm_size(same_group, &ranks);
    ft_mpi.Comm_rank(same_group, &rank);
    if (between || (ranks < 2 && handle != FT_COMM_WORLD) || !(hash = members(same_group))) return;
    row.id = ft_hash(hash, ft_count(hash));
    row.rank = (uint32_t)rank;
    row.ranks = (uint32_t)ranks;
    if (handle == FT_COMM_WORLD) strcpy(row.name, "FT_COMM_WORLD");
    bucket = bucket_of((uintptr_t)handle);
    pthread_mutex_lock(&lock);
    while (n < BUCKET && atomic_load_explicit(&bucket[n].handle, memory_order_relaxed)) n++;
    if (n < BUCKET && (bucket[n].index = ft_trace_communicator(&row)) >= 0) {
        bucket[n].id = row.id;
        bucket[n].rank = rank;
        bucket[n].ranks = ranks;
        bucket[n].out = neighbours(handle, same_group, rank);
        atomic_store_explicit(&bucket[n].operations, 0, memory_order_relaxed);
        atomic_store_explicit(&bucket[n].handle, (uintptr_t)handle, memory_order_release);
    } else {
        ft_trace_dropped();
    }
    pthread_mutex_unlock(&lock);
}

void ft_communicator_freed(uintptr_t handle) {
    struct ft_communicator *bucket = bucket_of(handle);

    for (int n = 0; n < BUCKET; n++) {
        uintptr_t expected = handle;

        if (atomic_load_explicit(&bucket[n].handle, memory_order_relaxed) != handle) continue;
        int index = bucket[n].index;

        if (!atomic_compare_exchange_strong(&bucket[n].handle, &expected, 0)) continue;
        ft_trace_communicator_end(index);
        return;
    }
}

/* Return a number that is equal at all ranks of the job: a hash of the names that launcher and user give it. */
static uint64_t job_number(void) {
    static const char *const names[] = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID",
                                        "LSB_JOBID",      "PBS_JOBID",    "FABRICTIME_JOB"};
    uint64_t hash = 0;

    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
        for (const char *at = getenv(names[n]); at && *at; at++) hash = ft_hash(hash, (unsigned char)*at);
    return hash;
}

static void forget_in_child(void) {
    atomic_store(&recording, false);
}

/* Write the library's name and version, such as 'Open MPI v4.1.4/pmpi'. */
static void version(char *text, int size) {
    static char library[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
    int bytes;

    ft_mpi.Get_library_version(library, &bytes);
    library[strcspn(library, ",\n")] = 0;
    snprintf(text, (size_t)size, "%.*s/pmpi", size - 6, library);
}

/* Begin to record, after MPI's init. No message is sent: other ranks may run without this library. */
void ft_mpi_begin(void) {
    char text[64];

    if (!ft_entries_open()) return;
    job_id = job_number();
    version(text, sizeof(text));
    if (!ft_trace_open(FT_SOURCE_MPI, text)) return;
    pthread_atfork(NULL, NULL, forget_in_child);
    atomic_store(&recording, true);
    ft_communicator_created(FT_COMM_WORLD, FT_COMM_WORLD);
    ft_sockets_start();
}

/* Stop recording, after MPI's finalize. Operations that are still open count as misuse. */
void ft_mpi_end(void) {
    if (!atomic_exchange(&recording, false)) return;
    for (uint64_t open = ft_requests_open(); open; open--) ft_trace_misuse();
    ft_sockets_stop();
    ft_trace_close();
}

/* -- wrappers ------------------------------------------------------------------------------------------- */

FT_WRAPPER(Init, (int *argc, char ***argv)) {
    ft_entries_open();
    int code = own_Init(argc, argv);

    if (code == MPI_SUCCESS) ft_mpi_begin();
    return code;
}

FT_WRAPPER(Init_thread, (int *argc, char ***argv, int required, int *provided)) {
    ft_entries_open();
    int code = own_Init_thread(argc, argv, required, provided);

    if (code == MPI_SUCCESS) ft_mpi_begin();
    return code;
}

FT_WRAPPER(Finalize, (void)) {
    int code = own_Finalize();

    ft_mpi_end();
    return code;
}

/* A function that creates a communicator with its last argument, in the parameters' names. */
#define CREATES(name, created, parameters, arguments)                                                        \
    FT_WRAPPER(name, parameters) {                                                                           \
        int code = own_##name arguments;                                                                     \
                                                                                                             \
        if (code == MPI_SUCCESS) ft_communicator_created(*created, *created);                                \
        return code;                                                                                         \
    }

CREATES(Comm_dup, made, (MPI_Comm comm, MPI_Comm *made), (comm, made))
CREATES(Comm_dup_with_info, made, (MPI_Comm comm, MPI_Info info, MPI_Comm *made), (comm, info, made))
CREATES(Comm_create, made, (MPI_Comm comm, MPI_Group group, MPI_Comm *made), (comm, group, made))
CREATES(Comm_create_group, made, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made),
        (comm, group, tag, made))
CREATES(Comm_split, made, (MPI_Comm comm, int color, int key, MPI_Comm *made), (comm, color, key, made))
CREATES(Comm_split_type, made, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made),
        (comm, type, key, info, made))
CREATES(Intercomm_merge, made, (MPI_Comm comm, int high, MPI_Comm *made), (comm, high, made))
CREATES(Cart_create, made,
        (MPI_Comm comm, int dimensions, const int sizes[], const int periods[], int reorder, MPI_Comm *made),
        (comm, dimensions, sizes, periods, reorder, made))
CREATES(Cart_sub, made, (MPI_Comm comm, const int remain[], MPI_Comm *made), (comm, remain, made))
CREATES(Graph_create, made,
        (MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *made),
        (comm, nodes, index, edges, reorder, made))
CREATES(Dist_graph_create, made,
        (MPI_Comm comm, int count, const int sources[], const int degrees[], const int destinations[],
         const int weights[], MPI_Info info, int reorder, MPI_Comm *made),
        (comm, count, sources, degrees, destinations, weights, info, reorder, made))
CREATES(Dist_graph_create_adjacent, made,
        (MPI_Comm comm, int in, const int sources[], const int in_weights[], int out,
         const int destinations[], const int out_weights[], MPI_Info info, int reorder, MPI_Comm *made),
        (comm, in, sources, in_weights, out, destinations, out_weights, info, reorder, made))

FT_WRAPPER(Comm_idup, (MPI_Comm comm, MPI_Comm *made, MPI_Request *request)) {
    int code = own_Comm_idup(comm, made, request);

    if (code == MPI_SUCCESS) ft_communicator_created(*made, comm);
    return code;
}

FT_WRAPPER(Comm_free, (MPI_Comm * comm)) {
    if (*comm != FT_COMM_NULL) ft_communicator_freed((uintptr_t)*comm);
    return own_Comm_free(comm);
}

FT_WRAPPER(Comm_disconnect, (MPI_Comm * comm)) {
    if (*comm != FT_COMM_NULL) ft_communicator_freed((uintptr_t)*comm);
    return own_Comm_disconnect(comm);
}
