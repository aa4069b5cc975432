#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "job_name.h"

typedef const char *(*getter)(const char *variable);

/* Text that is built piece by piece. */
struct text {
    char bytes[1024];
};

static void add(struct text *text, const char *before, const char *piece, const char *after) {
    size_t used = strlen(text->bytes);

    snprintf(text->bytes + used, sizeof(text->bytes) - used, "%s%s%s", before, piece, after);
}

static const char *value_of(getter get, const char *variable) {
    const char *value = get(variable);

    return value && *value ? value : NULL;
}

static void add_value(struct text *text, getter get, const char *before, const char *variable,
                      const char *after) {
    const char *value = value_of(get, variable);

    if (value) add(text, before, value, after);
}

/* Add the number of a restart, unless it is the first run. */
static void add_restart(struct text *text, getter get, const char *variable) {
    const char *value = value_of(get, variable);

    if (value && strcmp(value, "0")) add(text, "-r", value, "");
}

/* mpirun starts the ranks of one host beside itself and others in a step: the step is not the same for all. */
static bool is_started_by_mpirun(getter get) {
    return value_of(get, "OMPI_COMM_WORLD_SIZE") || value_of(get, "HYDI_CONTROL_FD") ||
           value_of(get, "MPI_LOCALNRANKS");
}

/* cluster:1234_7.0-r1: cluster, job or array and task, step, restart. */
static void slurm(struct text *text, getter get) {
    const char *job = value_of(get, "SLURM_JOB_ID"), *array = value_of(get, "SLURM_ARRAY_JOB_ID");

    if (!job) return;
    add_value(text, get, "", "SLURM_CLUSTER_NAME", ":");
    add(text, "", array ? array : job, "");
    if (array) add_value(text, get, "_", "SLURM_ARRAY_TASK_ID", "");
    if (!is_started_by_mpirun(get)) add_value(text, get, ".", "SLURM_STEP_ID", "");
    add_restart(text, get, "SLURM_RESTART_COUNT");
}

/* 1234[7].server: the scheduler's id has array and server. */
static void pbs(struct text *text, getter get) {
    add_value(text, get, "", "PBS_JOBID", "");
}

/* 1234[7] */
static void lsf(struct text *text, getter get) {
    const char *index = value_of(get, "LSB_JOBINDEX");

    add_value(text, get, "", "LSB_JOBID", "");
    if (*text->bytes && index && strcmp(index, "0")) add(text, "[", index, "]");
}

/* namespace:name: the name of the Job, else that of an indexed Job's pod without its index. */
static void kubernetes(struct text *text, getter get) {
    const char *job = value_of(get, "JOB_NAME"), *pod = value_of(get, "HOSTNAME");
    const char *index = value_of(get, "JOB_COMPLETION_INDEX");
    char ending[32];
    size_t length;

    if (!value_of(get, "KUBERNETES_SERVICE_HOST")) return;
    if (job) {
        add_value(text, get, "", "POD_NAMESPACE", ":");
        add(text, "", job, "");
    } else if (pod && index && snprintf(ending, sizeof(ending), "-%s", index) < (int)sizeof(ending)) {
        length = strlen(pod);
        if (length <= strlen(ending) || strcmp(pod + length - strlen(ending), ending)) return;
        add_value(text, get, "", "POD_NAMESPACE", ":");
        add(text, "", pod, "");
        text->bytes[strlen(text->bytes) - strlen(ending)] = 0;
    }
}

static void torchrun(struct text *text, getter get) {
    const char *run = value_of(get, "TORCHELASTIC_RUN_ID");

    if (run && strcmp(run, "none")) add(text, "", run, "");
}

static void ray(struct text *text, getter get) {
    add_value(text, get, "ray-", "RAY_JOB_ID", "");
}

void ft_copy_name(char name[FT_JOB_NAME], const char *given) {
    enum { CHECKSUM = 9 };
    size_t bytes = strlen(given);
    uint32_t hash = 2166136261u; /* FNV-1a */

    memset(name, 0, FT_JOB_NAME);
    if (bytes < FT_JOB_NAME) {
        memcpy(name, given, bytes);
        return;
    }
    for (size_t n = 0; n < bytes; n++) hash = (hash ^ (unsigned char)given[n]) * 16777619u;
    bytes = FT_JOB_NAME - 1 - CHECKSUM;
    while (bytes && ((unsigned char)given[bytes] & 0xc0) == 0x80) bytes--;
    memcpy(name, given, bytes);
    snprintf(name + bytes, CHECKSUM + 1, "~%08x", hash);
}

void ft_job_name(getter get, char name[FT_JOB_NAME]) {
    static void (*const sources[])(struct text *, getter) = {slurm, pbs, lsf, kubernetes, torchrun, ray};
    const char *given = value_of(get, "FABRICTIME_JOB");
    struct text text = {""};

    for (size_t n = 0; !given && n < sizeof(sources) / sizeof(*sources) && !*text.bytes; n++)
        sources[n](&text, get);
    if (*text.bytes) add_restart(&text, get, "TORCHELASTIC_RESTART_COUNT");
    ft_copy_name(name, given ? given : text.bytes);
}
