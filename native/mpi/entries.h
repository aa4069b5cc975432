/* The functions of MPI that this library stands in front of, and those of MPI itself.
 *
 * A program that calls MPI_Send reaches this library's MPI_Send. That one jumps to its target with all arguments
 * untouched: to the wrapper, or to PMPI_Send where nothing is recorded. So a program without a reporter, or with
 * an MPI of another binary interface, runs as without this library. MPI is found when the program initialises
 * it, so this library needs none to be loaded, and serves one that is loaded later.
 *
 *     FT_WRAPPER(Wait, (MPI_Request *request, MPI_Status *status)) { ... own_Wait(request, status) ... }
 */
#ifndef FABRICTIME_MPI_ENTRIES_H
#define FABRICTIME_MPI_ENTRIES_H

#include <stdbool.h>

struct ft_entry {
    void **target;              /* of the jump; the wrapper at first */
    const char *symbol;         /* MPI's own function */
    void *own;                  /* pointer to it; NULL until MPI is initialised */
} __attribute__((aligned(32))); /* so that the linker lays entries of several files out as one array */

#if defined(__x86_64__)
#define FT_JUMP(target) "endbr64\n\tjmp *" target "(%rip)\n"
#elif defined(__aarch64__)
#define FT_JUMP(target) "adrp x16, " target "\n\tldr x16, [x16, :lo12:" target "]\n\tbr x16\n"
#else
#error "expected x86-64 or AArch64: the jump to a function of MPI is written for these"
#endif

/* Export `symbol`, which jumps to `wrapper` unless nothing is recorded. */
#define FT_ENTRY(symbol, own_symbol, wrapper, own)                                                           \
    __attribute__((visibility("hidden"))) void *ft_target_##symbol = (void *)wrapper;                        \
    __asm__(".pushsection .text\n\t.p2align 4\n\t.globl " #symbol "\n\t.type " #symbol                       \
            ", %function\n" #symbol                                                                          \
            ":\n\t" FT_JUMP("ft_target_" #symbol) "\t.size " #symbol ", . - " #symbol "\n\t.popsection\n");  \
    static const struct ft_entry entry_##symbol                                                              \
        __attribute__((section("ft_entries"), used)) = {&ft_target_##symbol, #own_symbol, (void *)&own}

/* Export another name of an exported symbol. */
#define FT_ALIAS(alias, symbol)                                                                              \
    __asm__(".globl " #alias "\n\t.type " #alias ", %function\n\t.set " #alias ", " #symbol "\n")

/* Define the wrapper of a function of MPI in C. */
#define FT_WRAPPER(name, parameters)                                                                         \
    static __typeof__(PMPI_##name) *own_##name;                                                              \
    static int record_##name parameters;                                                                     \
    FT_ENTRY(MPI_##name, PMPI_##name, record_##name, own_##name);                                            \
    static int record_##name parameters

/* Find MPI's own functions. Return true if operations are to be recorded: a reporter is named, and the program's
 * MPI is of the kind that this library was built for. Otherwise the program's next calls go to MPI itself. Call
 * it before MPI is initialised, as often as you like. */
bool ft_entries_open(void);

#endif
