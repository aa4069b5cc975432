/* Passes all calls on to another profiler plugin, such as NCCL's Inspector: FABRICTIME_FORWARD_PROFILER names it
 * as NCCL_PROFILER_PLUGIN would. It receives the events of its own mask, with its own handles.
 *
 * It may have another version of the interface if the descriptors agree in all that it reads: 5 and 6 with
 * each other, and a newer one for 7. An event that both receive has a handle here, the ordinal of an entry in
 * a ring; after as many further events as the ring has entries, the other profiler no longer learns of its
 * end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

enum { ENTRIES = 65536 };

struct entry {
    uint64_t ordinal; /* 0: never used, or being written */
    uint64_t own;     /* this library's handle; 0: none */
    void *other;
    uint64_t context; /* handle */
    uint8_t stopped;
};

static struct entry *entries;
static uint64_t ordinals = 1;
static struct ft_nccl_profiler *other; /* atomic; NULL: no forwarding */
static int other_version, own_version;
static int other_mask;
static bool tried;

bool ft_forward_active(void) {
    return __atomic_load_n(&other, __ATOMIC_RELAXED) != NULL;
}

/* The newest version that takes this version's descriptors, or 0. */
static int compatible(int version, void *library, struct ft_nccl_profiler **found) {
    char symbol[32];

    for (int n = version; n >= FT_NCCL_FIRST; n--) {
        if (n != version && (version < 5 || n < 5)) break;
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", n);
        if ((*found = dlsym(library, symbol))) return n;
    }
    if (version == 5 && (*found = dlsym(library, "ncclProfiler_v6"))) return 6;
    return 0;
}

static void *open_library(const char *name) {
    char path[512];
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (library || strchr(name, '/')) return library;
    snprintf(path, sizeof(path), "libnccl-profiler-%s.so", name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void open_other(int version, ft_nccl_log *log) {
    const char *name = secure_getenv("FABRICTIME_FORWARD_PROFILER"), *refusal = NULL;
    struct ft_nccl_profiler *found = NULL;
    Dl_info here, there;
    void *library;

    if (tried || !name || !*name) return;
    tried = true;
    library = open_library(name);
    if (!library)
        refusal = "cannot be loaded";
    else if (!(other_version = compatible(version, library, &found)))
        refusal = "has no compatible version of the interface";
    else if (dladdr((void *)open_other, &here) && dladdr(found, &there) && here.dli_fbase == there.dli_fbase)
        refusal = "is this plugin itself";
    else if (!entries && !(entries = calloc(ENTRIES, sizeof(*entries))))
        refusal = "has no memory";
    if (refusal) {
        if (log)
            log(FT_NCCL_LOG_WARN, FT_NCCL_SUBSYSTEM_INIT, __FILE__, __LINE__,
                "fabrictime: FABRICTIME_FORWARD_PROFILER %s %s for version %d; nothing is forwarded", name,
                refusal, version);
        return;
    }
    own_version = version;
    __atomic_store_n(&other, found, __ATOMIC_RELEASE);
}

/* Initialize the other profiler for a communicator, and add its mask. */
void ft_forward_init(int version, struct ft_nccl_context *context, const char *name, ft_nccl_log *log,
                     int *mask) {
    const struct ft_segment_communicator *of = &context->description;
    int refused;

    open_other(version, log);
    FT_SET(context->forwarded, NULL);
    if (!ft_forward_active() || version != own_version) return;
    if (other_version >= 5)
        refused = other->init(&context->forwarded, of->id, &other_mask, name, (int)of->nodes, (int)of->ranks,
                              (int)of->rank, log);
    else if (other_version == 4)
        refused = other->init_v4(&context->forwarded, &other_mask, name, of->id, (int)of->nodes,
                                 (int)of->ranks, (int)of->rank, log);
    else
        refused = other->init_v1(&context->forwarded, &other_mask);
    if (refused)
        context->forwarded = NULL;
    else
        *mask |= FT_GET(other_mask);
}

static struct entry *entry_of(uint64_t handle) {
    uint64_t ordinal = handle & ((UINT64_C(1) << 50) - 1);
    struct entry *entry;

    if (ft_handle_kind(handle) != FT_HANDLE_FORWARD || !entries || !ordinal) return NULL;
    entry = &entries[ordinal % ENTRIES];
    return __atomic_load_n(&entry->ordinal, __ATOMIC_ACQUIRE) == ordinal ? entry : NULL;
}

/* This library's handle behind a forwarded one; any other as it is. */
uint64_t ft_forward_own(uint64_t handle) {
    struct entry *entry;

    if (ft_handle_kind(handle) != FT_HANDLE_FORWARD) return handle;
    entry = entry_of(handle);
    return entry ? FT_GET(entry->own) : 0;
}

/* The other profiler's handle behind a forwarded one, while its context lives. */
static void *other_handle(uint64_t handle) {
    struct entry *entry = entry_of(handle);

    return entry && ft_context_of(FT_GET(entry->context)) ? FT_GET(entry->other) : NULL;
}

/* NCCL issues an event if the mask has its type or one below it. */
static bool wanted(unsigned type) {
    enum {
        CHANNELS = FT_NCCL_PROXY_OP | FT_NCCL_PROXY_STEP | FT_NCCL_KERNEL_CHANNEL | FT_NCCL_NET_PLUGIN |
            FT_NCCL_KERNEL_PHASE,
        STEPS = FT_NCCL_PROXY_STEP | FT_NCCL_NET_PLUGIN,
        COPIES = FT_NCCL_CE_COLLECTIVE | FT_NCCL_CE_SYNC | FT_NCCL_CE_BATCH,
        TASKS = FT_NCCL_COLLECTIVE | FT_NCCL_P2P | CHANNELS,
        CALLS = FT_NCCL_GROUP_API | FT_NCCL_COLLECTIVE_API | FT_NCCL_P2P_API | FT_NCCL_KERNEL_LAUNCH,
    };
    static const struct {
        unsigned type, mask;
    } below[] = {
        {FT_NCCL_GROUP, FT_NCCL_GROUP | TASKS},
        {FT_NCCL_COLLECTIVE, FT_NCCL_COLLECTIVE | CHANNELS},
        {FT_NCCL_P2P, FT_NCCL_P2P | CHANNELS},
        {FT_NCCL_PROXY_OP, FT_NCCL_PROXY_OP | STEPS},
        {FT_NCCL_PROXY_STEP, STEPS},
        {FT_NCCL_KERNEL_CHANNEL, FT_NCCL_KERNEL_CHANNEL | FT_NCCL_KERNEL_PHASE},
        {FT_NCCL_GROUP_API, CALLS | FT_NCCL_GROUP | TASKS | COPIES},
        {FT_NCCL_COLLECTIVE_API, FT_NCCL_COLLECTIVE_API | FT_NCCL_COLLECTIVE | CHANNELS | COPIES},
        {FT_NCCL_P2P_API, FT_NCCL_P2P_API | FT_NCCL_P2P | CHANNELS},
        {FT_NCCL_CE_COLLECTIVE, COPIES},
    };
    unsigned mask = (unsigned)FT_GET(other_mask);

    if (other_version < 6 && type >= FT_NCCL_CE_COLLECTIVE) return false;
    if (other_version < 7 && type >= FT_NCCL_KERNEL_PHASE) return false;
    for (unsigned n = 0; n < sizeof(below) / sizeof(below[0]); n++)
        if (below[n].type == type) return mask & below[n].mask;
    return mask & type;
}

/* Start the event at the other profiler too, and put a handle of both in place of `*handle`. */
void ft_forward_start(int version, uint64_t context, const struct ft_nccl_descriptor *of, uint64_t *handle) {
    unsigned type = ft_type_of(version, of);
    struct ft_nccl_context *known = ft_context_of(context);
    void *theirs = NULL, *their_context = known ? FT_GET(known->forwarded) : NULL;
    struct ft_nccl_descriptor copy;
    struct entry *entry;
    uint64_t ordinal;

    if (!their_context || version != own_version || !wanted(type)) return;
    memset(&copy, 0, sizeof(copy));
    memcpy(&copy, of, ft_nccl_descriptor_bytes[version]);
    copy.parent = other_handle((uint64_t)(uintptr_t)of->parent);
    if (version >= 5 && type == FT_NCCL_COLLECTIVE)
        copy.coll.group = other_handle((uint64_t)(uintptr_t)of->coll.group);
    if (version >= 5 && type == FT_NCCL_P2P)
        copy.p2p.group = other_handle((uint64_t)(uintptr_t)of->p2p.group);
    if (other->start(their_context, &theirs, &copy) || !theirs) return;
    ordinal = __atomic_fetch_add(&ordinals, 1, __ATOMIC_RELAXED) & ((UINT64_C(1) << 50) - 1);
    entry = &entries[ordinal % ENTRIES];
    __atomic_store_n(&entry->ordinal, 0, __ATOMIC_RELEASE);
    FT_SET(entry->own, *handle);
    FT_SET(entry->other, theirs);
    FT_SET(entry->context, context);
    FT_SET(entry->stopped, 0);
    __atomic_store_n(&entry->ordinal, ordinal, __ATOMIC_RELEASE);
    *handle = ft_handle(FT_HANDLE_FORWARD, ordinal);
}

void ft_forward_stop(uint64_t handle) {
    void *theirs = other_handle(handle);
    struct entry *entry = entry_of(handle);

    if (theirs && entry && !__atomic_exchange_n(&entry->stopped, 1, __ATOMIC_ACQ_REL)) other->stop(theirs);
}

void ft_forward_record(uint64_t handle, int state, union ft_nccl_arguments *arguments) {
    void *theirs = other_handle(handle);
    struct entry *entry = entry_of(handle);

    if (theirs && entry && !FT_GET(entry->stopped)) other->record(theirs, state, arguments);
}

void ft_forward_finalize(struct ft_nccl_context *context) {
    void *theirs = FT_GET(context->forwarded);

    FT_SET(context->forwarded, NULL);
    if (theirs) other->finalize(theirs);
}
