/* Moves a queue pair of a driver that is not there. Prints the states that the driver was given, each with the one
   that the program saw meanwhile; `stuck` lets the queue pair never leave SQD. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "qp.h"

static struct ft_context context;
static struct ft_qp qp = {.context = &context, .state = FT_QPS_RTS, .qp_type = FT_QPT_RC};
static uint64_t now_ns;
static bool stuck;

static int driver(struct ft_qp *of, struct ft_qp_attr *attr, int mask) {
    if (mask & FT_QP_STATE) printf("%u while %u\n", attr->qp_state, of->state);
    return stuck && attr->qp_state == FT_QPS_RTS ? EINVAL : 0;
}

static int library(struct ft_qp *of, struct ft_qp_attr *attr, int mask) {
    int error = driver(of, attr, mask);

    if (!error && (mask & FT_QP_STATE)) of->state = attr->qp_state;
    return error;
}

void *ft_real(enum ft_verb verb) {
    return verb == FT_MODIFY_QP ? (void *)library : NULL;
}

void *ft_verbs_symbol(const char *name) {
    (void)name;
    return NULL;
}

void *ft_mlx5_symbol(const char *name) {
    (void)name;
    return NULL;
}

uint64_t ft_now_ns(void) {
    return now_ns;
}

int main(int count, char **arguments) {
    struct ft_pair pair = {
        .qp = &qp, .qp_type = FT_QPT_RC, .state = FT_QPS_RTS, .has_path = true, .roce_v2 = true};
    struct ft_result result;

    strcpy(pair.device, "made_up0");
    stuck = count > 1 && !strcmp(arguments[1], "stuck");
    context.modify_qp = driver;
    ft_move(&pair, 50000, &result);
    if (result.outcome == FT_DRAINING) {
        now_ns = 4000000000u;
        ft_finish_drain(&pair, &result);
    }
    printf("%s %s, the program sees %u\n", result.outcome == FT_DONE ? "DONE" : "FAILED",
           result.outcome == FT_DONE ? result.how : result.text, qp.state);
    return 0;
}
