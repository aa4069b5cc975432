/* Identifies the library that loads the plugin, NCCL or RCCL, and the GPU of a rank. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "plugin.h"

typedef int get_version(int *version);
typedef int get_device(int *device);
typedef int get_address(char *text, int size, int device);

static void *symbol_of(const char *library, const char *symbol) {
    void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *found = NULL;

    if (loaded) {
        found = dlsym(loaded, symbol);
        dlclose(loaded);
    }
    return found;
}

/* Return the source of the caller, an address in it, and write its version and the interface's: 2.30.7/v6. */
enum ft_source ft_library(const void *caller, int version, char *text, size_t size) {
    Dl_info info;
    get_version *get = NULL;
    int number = 0;
    bool rccl;

    if (!dladdr(caller, &info) || !info.dli_fname) info.dli_fname = "";
    rccl = strstr(info.dli_fname, "rccl") != NULL;
    *(void **)&get = symbol_of(*info.dli_fname ? info.dli_fname : NULL, "ncclGetVersion");
    if (!get) *(void **)&get = dlsym(RTLD_DEFAULT, "ncclGetVersion");
    if (get && !get(&number) && number > 0) {
        if (number < 10000) /* to 2.8: 2804 */
            snprintf(text, size, "%d.%d.%d/v%d", number / 1000, number % 1000 / 100, number % 100, version);
        else
            snprintf(text, size, "%d.%d.%d/v%d", number / 10000, number % 10000 / 100, number % 100, version);
    } else {
        snprintf(text, size, "unknown/v%d", version);
    }
    return rccl ? FT_SOURCE_RCCL : FT_SOURCE_NCCL;
}

/* Write the PCI address of the calling thread's GPU, if its driver is loaded. */
void ft_library_gpu(enum ft_source source, char *text, size_t size) {
    bool rccl = source == FT_SOURCE_RCCL;
    const char *driver = rccl ? "libamdhip64.so" : "libcuda.so.1";
    get_device *device_of = NULL;
    get_address *address_of = NULL;
    int device = 0;

    *(void **)&device_of = symbol_of(driver, rccl ? "hipGetDevice" : "cuCtxGetDevice");
    *(void **)&address_of = symbol_of(driver, rccl ? "hipDeviceGetPCIBusId" : "cuDeviceGetPCIBusId");
    if (!device_of || !address_of || device_of(&device) || address_of(text, (int)size, device)) *text = 0;
    text[size - 1] = 0;
}
