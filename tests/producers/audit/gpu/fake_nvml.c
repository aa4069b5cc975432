/* A stand-in for libnvidia-ml.so.1: eight healthy H100 GPUs with 18 NVLinks each.
 *
 * It has the C ABI of NVML's public documentation, so that the real nvidia-ml-py package loads it. NVML_FAULT
 * names the fault that GPU 3 shows.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 8, LINKS = 18, BAD = 3 };
enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

typedef struct gpu {
    int index;
} gpu_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long used_gpu_memory;
    unsigned int gpu_instance_id, compute_instance_id;
} process_info_t;

typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_usec;
    unsigned int value_type, nvml_return;
    unsigned long long value;
} field_value_t;

typedef struct {
    unsigned int version;
    unsigned char cluster_uuid[16];
    unsigned int status;
    uint32_t clique_id;
    unsigned char state;
    uint32_t health_mask;
} fabric_info_v2_t;

typedef struct {
    unsigned int version;
    unsigned long long aggregate_unc_parity, aggregate_unc_sec_ded, aggregate_cor;
    unsigned long long volatile_counts[3], aggregate_unc_buckets[5];
    unsigned int threshold_exceeded;
} sram_status_t;

static gpu_t gpus[GPUS];

/* Return 1 if this fault was planted. */
static int planted(const char *name) {
    const char *fault = getenv("NVML_FAULT");
    return fault != NULL && strcmp(fault, name) == 0;
}

/* Return 1 if this GPU shows this fault. */
static int shows(const gpu_t *gpu, const char *name) {
    return gpu->index == BAD && planted(name);
}

/* Define a call that answers one unsigned number. */
#define NUMBER(function, expression)                                                                         \
    int function(gpu_t *gpu, unsigned int *value) {                                                          \
        (void)gpu;                                                                                           \
        *value = (expression);                                                                               \
        return SUCCESS;                                                                                      \
    }

/* Define a call that answers one unsigned number, chosen by a kind. */
#define CHOSEN(function, type, expression)                                                                   \
    int function(gpu_t *gpu, unsigned int kind, type *value) {                                               \
        (void)gpu;                                                                                           \
        (void)kind;                                                                                          \
        *value = (expression);                                                                               \
        return SUCCESS;                                                                                      \
    }

/* Define a call that answers two unsigned numbers. */
#define PAIR(function, one, two)                                                                             \
    int function(gpu_t *gpu, unsigned int *first, unsigned int *second) {                                    \
        (void)gpu;                                                                                           \
        *first = (one);                                                                                      \
        *second = (two);                                                                                     \
        return SUCCESS;                                                                                      \
    }

/* Define a call that answers a text. */
#define TEXT(function, expression)                                                                           \
    int function(gpu_t *gpu, char *text, unsigned int size) {                                                \
        (void)gpu;                                                                                           \
        snprintf(text, size, "%s", (expression));                                                            \
        return SUCCESS;                                                                                      \
    }

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (planted("hang")) sleep(600);
    return planted("no driver") ? 9 : SUCCESS;
}

int nvmlShutdown(void) {
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    return result == GPU_IS_LOST ? "GPU is lost" : "an error of NVML";
}

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "%s", planted("driver mismatch") ? "570.86.15" : "550.127.08");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned int size) {
    snprintf(text, size, "12.550.127.08");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12040;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = planted("missing") ? GPUS - 1 : GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu_t **gpu) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    gpus[index].index = (int)index;
    *gpu = &gpus[index];
    return shows(*gpu, "lost") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_info_t *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x19 + 0x10 * gpu->index);
    return SUCCESS;
}

TEXT(nvmlDeviceGetName, shows(gpu, "other model") ? "NVIDIA H100 PCIe" : "NVIDIA H100 80GB HBM3")
TEXT(nvmlDeviceGetUUID, "GPU-00000000-0000-0000-0000-000000000000")
TEXT(nvmlDeviceGetVbiosVersion, shows(gpu, "other vbios") ? "96.00.61.00.01" : "96.00.99.00.01")
TEXT(nvmlDeviceGetInforomImageVersion, "G520.0200.00.05")
NUMBER(nvmlDeviceGetIndex, (unsigned int)gpu->index)
NUMBER(nvmlDeviceGetPersistenceMode, !shows(gpu, "no persistence"))
NUMBER(nvmlDeviceGetComputeMode, shows(gpu, "compute prohibited") ? 2 : 0)
NUMBER(nvmlDeviceGetPowerUsage, 121000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, shows(gpu, "power cap") ? 500000 : 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, shows(gpu, "retirement pending"))
PAIR(nvmlDeviceGetEccMode, !shows(gpu, "ECC off"), 1)
PAIR(nvmlDeviceGetMigMode, shows(gpu, "MIG on"), shows(gpu, "MIG on"))
PAIR(nvmlDeviceGetGspFirmwareMode, !shows(gpu, "GSP off"), 1)
CHOSEN(nvmlDeviceGetTemperature, unsigned int, shows(gpu, "hot") ? 86 : 41)
CHOSEN(nvmlDeviceGetTemperatureThreshold, unsigned int, kind == 2 ? 95 : 87)
CHOSEN(nvmlDeviceGetMaxClockInfo, unsigned int, shows(gpu, "low clock") ? 1155 : 1980)
CHOSEN(nvmlDeviceGetApplicationsClock, unsigned int, shows(gpu, "lowered clock") ? 1200 : 1980)
CHOSEN(nvmlDeviceGetDefaultApplicationsClock, unsigned int, 1980)

int nvmlDeviceGetGspFirmwareVersion(gpu_t *gpu, char *text) {
    (void)gpu;
    strcpy(text, "550.127.08");
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, int kind, int period, unsigned long long *count) {
    (void)period;
    if (shows(gpu, "unreadable ECC")) return UNKNOWN;
    *count = kind ? (shows(gpu, "uncorrectable ECC") ? 2 : 0) : (shows(gpu, "many ECC") ? 30000000 : 0);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, unsigned int rates[2]) {
    if (shows(gpu, "unreadable utilisation")) return UNKNOWN;
    rates[0] = shows(gpu, "stalled") ? 100 : 3;
    rates[1] = 1;
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(gpu_t *gpu, sram_status_t *status) {
    unsigned int version = status->version;
    memset(status, 0, sizeof *status);
    status->version = version;
    status->threshold_exceeded = shows(gpu, "SRAM");
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned int *corrected, unsigned int *uncorrected,
                              unsigned int *pending, unsigned int *failure) {
    *corrected = 0;
    *uncorrected = shows(gpu, "many remaps") ? 600 : 0;
    *pending = shows(gpu, "remap pending");
    *failure = shows(gpu, "remap failed");
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(gpu_t *gpu, int cause, unsigned int *count, unsigned long long *pages) {
    unsigned int found = cause && shows(gpu, "retired pages") ? 11 : 0;
    if (pages != NULL) memset(pages, 0, sizeof *pages * found);
    *count = found;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned int link, unsigned int *active) {
    if (link >= (shows(gpu, "fewer links") ? LINKS - 1 : LINKS)) return INVALID_ARGUMENT;
    *active = !(link == 5 && shows(gpu, "link down"));
    return SUCCESS;
}

int nvmlDeviceGetNvLinkErrorCounter(gpu_t *gpu, unsigned int link, unsigned int counter,
                                    unsigned long long *count) {
    *count = link == 5 && counter == 0 && shows(gpu, "link errors") ? 9 : 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_value_t *values) {
    for (int i = 0; i < count; i++) {
        values[i].value_type = 1;
        values[i].nvml_return = SUCCESS;
        if (values[i].field_id == 82)
            values[i].value = shows(gpu, "hot memory") ? 96 : 52;
        else if (values[i].field_id == 90)
            values[i].value = shows(gpu, "slow links") ? 20000 : 26562;
        else
            values[i].nvml_return = NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(gpu_t *gpu, gpu_t *peer, int kind, int *status) {
    (void)kind;
    *status = shows(gpu, "no peers") || shows(peer, "no peers") ? 5 : 0;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(gpu_t *gpu, fabric_info_v2_t *info) {
    info->state = shows(gpu, "fabric in progress") ? 2 : 3;
    info->status = SUCCESS;
    info->clique_id = 0;
    info->health_mask = shows(gpu, "fabric degraded") ? 1 : 2;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *reasons) {
    *reasons = shows(gpu, "power brake") ? 0x80 : shows(gpu, "thermal slowdown") ? 0x40 : 0x1;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory) {
    memory->total = 85520809984ULL;
    memory->reserved = 600ULL << 20;
    memory->used = shows(gpu, "orphan memory") ? 40ULL << 30 : 0;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

/* Answer a list of processes: one, or none. */
static int processes(int is_busy, unsigned int *count, process_info_t *found) {
    if (!is_busy) {
        *count = 0;
        return SUCCESS;
    }
    if (found == NULL) {
        *count = 1;
        return INSUFFICIENT_SIZE;
    }
    *count = 1;
    memset(found, 0, sizeof *found);
    found->pid = 812;
    found->used_gpu_memory = 1ULL << 30;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned int *count, process_info_t *found) {
    return processes(shows(gpu, "busy"), count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_t *gpu, unsigned int *count, process_info_t *found) {
    return processes(shows(gpu, "graphics"), count, found);
}
