/* Prints the name of a job from the variables of the environment. */
#include <stdio.h>
#include <stdlib.h>

#include "job_name.h"

static const char *variable(const char *name) {
    return getenv(name);
}

int main(void) {
    char name[FT_JOB_NAME];

    ft_job_name(variable, name);
    puts(name);
    return 0;
}
