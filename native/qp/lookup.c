/* Finds the real functions behind the wrapped names, and returns the wrappers from dlsym and dlvsym: NCCL
 * and UCX load verbs themselves and look up its functions by name and version.
 *
 * dlsym itself is wrapped, so the real one is read from the C library's symbol table. Other lookups are
 * passed on by a jump instead of a call: RTLD_NEXT means 'after the caller', and the caller must stay the
 * same. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#include "qp.h"

typedef void *ft_dlsym(void *handle, const char *name);
typedef void *ft_dlvsym(void *handle, const char *name, const char *version);

FT_EXPORT void *ibv_open_device(void *device);
FT_EXPORT struct ft_qp *ibv_create_qp(void *pd, void *init_attr);
FT_EXPORT int ibv_modify_qp(struct ft_qp *qp, struct ft_qp_attr *attr, int mask);
FT_EXPORT int ibv_destroy_qp(struct ft_qp *qp);
FT_EXPORT struct ft_qp *mlx5dv_create_qp(struct ft_context *context, void *init_attr, void *mlx5_attr);

static struct {
    const char *name;
    void *wrapper;
    _Atomic(void *) real;
} verbs[FT_VERBS] = {
    [FT_OPEN_DEVICE] = {"ibv_open_device", (void *)ibv_open_device, NULL},
    [FT_CREATE_QP] = {"ibv_create_qp", (void *)ibv_create_qp, NULL},
    [FT_MODIFY_QP] = {"ibv_modify_qp", (void *)ibv_modify_qp, NULL},
    [FT_DESTROY_QP] = {"ibv_destroy_qp", (void *)ibv_destroy_qp, NULL},
    [FT_MLX5_CREATE_QP] = {"mlx5dv_create_qp", (void *)mlx5dv_create_qp, NULL},
};
static _Atomic(ft_dlsym *) real_dlsym;
static _Atomic(ft_dlvsym *) real_dlvsym;

struct wanted {
    const char *name;
    bool of_libc;
    void *found;
};

/* Return the address of a dynamic section, which the loader relocates on some machines only. */
static const void *at(const struct dl_phdr_info *object, ElfW(Addr) value) {
    return (const void *)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

static void *in_object(const struct dl_phdr_info *object, const char *name) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hashes = NULL;
    const ElfW(Half) *versions = NULL;
    uint32_t wanted = 5381;
    const ElfW(Dyn) *entry = NULL;

    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            strings = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            hashes = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_VERSYM)
            versions = at(object, entry->d_un.d_ptr);
    }
    if (!symbols || !strings || !hashes) return NULL;
    for (const char *c = name; *c; c++) wanted = wanted * 33 + (unsigned char)*c;

    uint32_t buckets = hashes[0], first = hashes[1], blooms = hashes[2];
    const uint32_t *bucket = hashes + 4 + blooms * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t n = buckets ? bucket[wanted % buckets] : 0;

    if (n < first) return NULL;
    for (;; n++) {
        uint32_t hash = chain[n - first];

        /* The highest bit of a version marks symbols that only old programs are linked to. */
        if ((hash | 1) == (wanted | 1) && !(versions && versions[n] & 0x8000) &&
            symbols[n].st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbols[n].st_info) == STT_FUNC &&
            !strcmp(strings + symbols[n].st_name, name))
            return (void *)(object->dlpi_addr + symbols[n].st_value);
        if (hash & 1) return NULL;
    }
}

static int visit(struct dl_phdr_info *object, size_t size, void *arg) {
    struct wanted *wanted = arg;
    const char *file = strrchr(object->dlpi_name, '/');

    (void)size;
    file = file ? file + 1 : object->dlpi_name;
    if (wanted->of_libc && strncmp(file, "libc.so", 7) && strncmp(file, "libdl.so", 8)) return 0;
    wanted->found = in_object(object, wanted->name);
    for (int verb = 0; verb < FT_VERBS; verb++)
        if (wanted->found == verbs[verb].wrapper) wanted->found = NULL;
    return wanted->found != NULL;
}

/* Search all loaded objects, including those loaded for their loader alone (as Python loads pyverbs). */
static void *anywhere(const char *name, bool of_libc) {
    struct wanted wanted = {name, of_libc, NULL};

    dl_iterate_phdr(visit, &wanted);
    return wanted.found;
}

static ft_dlsym *the_dlsym(void) {
    ft_dlsym *found = atomic_load_explicit(&real_dlsym, memory_order_relaxed);

    if (!found) {
        found = (ft_dlsym *)anywhere("dlsym", true);
        atomic_store_explicit(&real_dlsym, found, memory_order_relaxed);
    }
    return found;
}

static ft_dlvsym *the_dlvsym(void) {
    ft_dlvsym *found = atomic_load_explicit(&real_dlvsym, memory_order_relaxed);

    if (!found) {
        found = (ft_dlvsym *)anywhere("dlvsym", true);
        atomic_store_explicit(&real_dlvsym, found, memory_order_relaxed);
    }
    return found;
}

static int verb_of(const char *name) {
    if (!name || (strncmp(name, "ibv_", 4) && strncmp(name, "mlx5dv_", 7))) return FT_VERBS;
    int verb = 0;

    while (verb < FT_VERBS && strcmp(name, verbs[verb].name)) verb++;
    return verb;
}

/* Return the wrapper for a wrapped name, else `found`. */
static void *wrapped(int verb, void *found) {
    if (!found) return NULL;
    if (found != verbs[verb].wrapper) {
        void *none = NULL;

        atomic_compare_exchange_strong(&verbs[verb].real, &none, found);
    }
    return verbs[verb].wrapper;
}

FT_EXPORT void *dlsym(void *handle, const char *name) {
    ft_dlsym *real = the_dlsym();

    if (!real) return NULL;
    int verb = verb_of(name);

    if (verb == FT_VERBS) return real(handle, name);
    return wrapped(verb, real(handle, name));
}

FT_EXPORT void *dlvsym(void *handle, const char *name, const char *version) {
    ft_dlvsym *real = the_dlvsym();

    if (!real) return NULL;
    int verb = verb_of(name);

    if (verb == FT_VERBS) return real(handle, name, version);
    return wrapped(verb, real(handle, name, version));
}

void *ft_real(enum ft_verb verb) {
    void *found = atomic_load_explicit(&verbs[verb].real, memory_order_acquire);

    if (!found) {
        found = the_dlsym() ? the_dlsym()(RTLD_NEXT, verbs[verb].name) : NULL;
        if (!found) found = anywhere(verbs[verb].name, false);
        if (found) atomic_store_explicit(&verbs[verb].real, found, memory_order_release);
    }
    return found;
}

/* Return another function of libibverbs, preferably of the copy that created these queue pairs. */
void *ft_verbs_symbol(const char *name) {
    void *found = the_dlsym() ? the_dlsym()(RTLD_NEXT, name) : NULL;
    void *modify = ft_real(FT_MODIFY_QP), *handle;
    Dl_info where;

    if (!found && modify && dladdr(modify, &where)) {
        handle = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        found = handle ? the_dlsym()(handle, name) : NULL;
    }
    return found;
}

void *ft_mlx5_symbol(const char *name) {
    return anywhere(name, false);
}
