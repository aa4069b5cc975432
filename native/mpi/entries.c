/* Finds MPI in the process, and decides whether its functions are recorded. See entries.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

struct ft_mpi_functions ft_mpi;
struct ft_mpi_constants ft_constants;

extern const struct ft_entry __start_ft_entries[] __attribute__((visibility("hidden")));
extern const struct ft_entry __stop_ft_entries[] __attribute__((visibility("hidden")));

/* Libraries whose symbols are not global: a program that loads MPI by dlopen has such. */
static void *mpi_library, *fortran_library;
static bool opened, recording;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct search {
    const char *symbol;
    void *library;
};

static int search_one(struct dl_phdr_info *info, size_t size, void *given) {
    struct search *search = given;
    void *library;

    (void)size;
    if (!info->dlpi_name || !info->dlpi_name[0]) return 0;
    library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library && dlsym(library, search->symbol)) {
        search->library = library; /* stays referenced */
        return 1;
    }
    if (library) dlclose(library);
    return 0;
}

/* Return a loaded library that has a symbol; NULL if it is global or nowhere. */
static void *library_of(const char *symbol) {
    struct search search = {.symbol = symbol};

    if (!dlsym(RTLD_DEFAULT, symbol)) dl_iterate_phdr(search_one, &search);
    return search.library;
}

static void *find(const char *symbol) {
    void *found = mpi_library ? dlsym(mpi_library, symbol) : NULL;

    if (!found) found = dlsym(RTLD_DEFAULT, symbol);
    return found || !fortran_library ? found : dlsym(fortran_library, symbol);
}

static void store(void *to, const char *symbol) {
    void *found = find(symbol);

    memcpy(to, &found, sizeof(found));
}

/* The name by which the MPI of the build calls itself. Relatives of MPICH share its binary interface. */
static bool is_of_the_build(const char *version) {
#ifdef OPEN_MPI
    return strstr(version, "Open MPI") && !strstr(version, "Open MPI v1.");
#else
    static const char *const names[] = {"MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation MPI"};

    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
        if (strstr(version, names[n])) return true;
    return false;
#endif
}

#ifdef OPEN_MPI
#define BUILT_FOR "Open MPI"
#else
#define BUILT_FOR "MPICH"
#endif

/* Return true if the program's MPI is of the kind of the build; print one line if it is not. */
static bool fits(void) {
    static char version[8192]; /* of any MPI */
    int bytes = 0;

    if (ft_mpi.Get_library_version) ft_mpi.Get_library_version(version, &bytes);
    if (is_of_the_build(version)) return true;
    version[strcspn(version, ",\n")] = 0;
    for (char *at = version; *at; at++)
        if (*at < ' ') *at = ' ';
    if (ft_is_first_rank())
        fprintf(stderr,
                "fabrictime: this program uses %.80s, libfabrictime-mpi.so was built for " BUILT_FOR
                ": nothing is recorded; build one by `make mpi MPICC=...`\n",
                version[0] ? version : "an MPI without a version");
    return false;
}

static void find_constants(void) {
#ifdef OPEN_MPI
    ft_constants.comm_world = find("ompi_mpi_comm_world");
    ft_constants.comm_null = find("ompi_mpi_comm_null");
    ft_constants.request_null = find("ompi_request_null");
    ft_constants.message_null = find("ompi_message_null");
    ft_constants.message_no_proc = find("ompi_message_no_proc");
    ft_constants.byte = find("ompi_mpi_byte");
    ft_constants.status_ignore = find("MPI_F_STATUS_IGNORE");
    ft_constants.statuses_ignore = find("MPI_F_STATUSES_IGNORE");
#endif
}

static void open_entries(void) {
    const char *reporter = secure_getenv("FABRICTIME_COLLECTIVES");

    mpi_library = library_of("PMPI_Init");
    fortran_library = library_of("pmpi_init_");
#define STORE(name) store(&ft_mpi.name, "PMPI_" #name);
    FT_USES(STORE)
    recording = reporter && *reporter && fits();
    if (recording) find_constants();
    for (const struct ft_entry *entry = __start_ft_entries; entry < __stop_ft_entries; entry++) {
        store(entry->own, entry->symbol);
        if (!recording && *(void **)entry->own) *entry->target = *(void **)entry->own;
    }
}

bool ft_entries_open(void) {
    pthread_mutex_lock(&lock);
    if (!opened) open_entries();
    opened = true;
    pthread_mutex_unlock(&lock);
    return recording;
}

/* A program that takes MPI's functions from dlsym passes this library by: say so once. */
static void __attribute__((destructor)) report_unseen(void) {
    const char *reporter = secure_getenv("FABRICTIME_COLLECTIVES");
    int (*initialized)(int *);
    int flag = 0;

    if (opened || !reporter || !*reporter || !ft_is_first_rank()) return;
    mpi_library = library_of("PMPI_Initialized");
    store(&initialized, "PMPI_Initialized");
    if (initialized && !initialized(&flag) && flag)
        fprintf(stderr,
                "fabrictime: this program takes the functions of MPI from dlsym: nothing is recorded\n");
}
