/* Test program for the C header. Every command prints one line of numbers. */
#include "fabrictime_clock.h"

#define PRINT(name) printf("%s %zu\n", #name, name)

static int layout(void) {
    PRINT(sizeof(ft_page_head));
    PRINT(offsetof(ft_page_head, crc));
    PRINT(offsetof(ft_page_head, boot_id));
    PRINT(offsetof(ft_page_head, host));
    PRINT(sizeof(ft_page_model));
    PRINT(offsetof(ft_page_model, reopen_raw_ns));
    PRINT(offsetof(ft_page_model, steps));
    PRINT(offsetof(ft_page_model, tables_crc));
    PRINT(offsetof(ft_page_model, expires_ms));
    PRINT(offsetof(ft_page_model, domain));
    PRINT(sizeof(ft_page_clock));
    PRINT(offsetof(ft_page_clock, since_ns));
    PRINT(sizeof(ft_page_nic));
    PRINT(sizeof(ft_page_copy));
    return 0;
}

static int64_t number(const char *text) {
    return (int64_t)strtoll(text, NULL, 10);
}

/* Models in which fabric time is n * 10^12 ns ahead of the raw clock with a bound of n ns, which reveals
 * torn reads. */
static int consistent(ft_reader *r, int64_t wanted_ns) {
    int64_t reads = 0, torn = 0, unsynced = 0, seen = 0, last = -1, end = ft_raw_ns_() + wanted_ns;
    while (ft_raw_ns_() < end) {
        int64_t time_ns, bound_ns;
        for (int i = 0; i < 100; i++, reads++) {
            if (ft_now(r, &time_ns, &bound_ns) == FT_UNSYNCED) {
                unsynced++;
                continue;
            }
            int64_t number_of = (time_ns - ft_raw_ns_() + INT64_C(500000000000)) / INT64_C(1000000000000);
            torn += number_of != bound_ns - 2;
            seen += number_of != last;
            last = number_of;
        }
    }
    printf("%lld %lld %lld %lld\n", (long long)reads, (long long)torn, (long long)unsynced, (long long)seen);
    return 0;
}

static int monotonic(ft_reader *r, int64_t wanted_ns) {
    int64_t reads = 0, back = 0, last = 0, end = ft_raw_ns_() + wanted_ns;
    while (ft_raw_ns_() < end) {
        int64_t time_ns, bound_ns;
        for (int i = 0; i < 100; i++, reads++) {
            if (ft_now(r, &time_ns, &bound_ns) == FT_UNSYNCED) continue;
            back += time_ns < last;
            last = time_ns;
        }
    }
    printf("%lld %lld\n", (long long)reads, (long long)back);
    return 0;
}

/* Print a reading for each line of stdin, so that a test can change the page in between. */
static int follow(ft_reader *r) {
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        int64_t time_ns, bound_ns, raw_ns = ft_raw_ns_();
        int state = ft_now(r, &time_ns, &bound_ns);
        printf("%d %lld %lld %lld\n", state, (long long)time_ns, (long long)bound_ns, (long long)raw_ns);
        fflush(stdout);
    }
    return 0;
}

int main(int count, char **words) {
    ft_reader reader;
    int64_t time_ns, bound_ns;
    if (count < 2) return 2;
    if (!strcmp(words[1], "layout")) return layout();
    if (count < 3) return 2;
    int error = ft_open(&reader, *words[2] ? words[2] : NULL);
    if (error) {
        printf("%d\n", error);
        return 0;
    }
    int result = 0;
    if (!strcmp(words[1], "now")) {
        int64_t before_ns = ft_raw_ns_();
        int state = ft_now(&reader, &time_ns, &bound_ns);
        printf("%d %lld %lld %lld %lld\n", state, (long long)time_ns, (long long)bound_ns,
               (long long)before_ns, (long long)ft_raw_ns_());
    } else if (!strcmp(words[1], "convert") && count == 5) {
        int state = ft_convert(&reader, words[3], number(words[4]), &time_ns, &bound_ns);
        printf("%d %lld %lld\n", state, (long long)time_ns, (long long)bound_ns);
    } else if (!strcmp(words[1], "consistent") && count == 4) {
        result = consistent(&reader, number(words[3]));
    } else if (!strcmp(words[1], "monotonic") && count == 4) {
        result = monotonic(&reader, number(words[3]));
    } else if (!strcmp(words[1], "follow")) {
        result = follow(&reader);
    } else {
        result = 2;
    }
    ft_close(&reader);
    return result;
}
