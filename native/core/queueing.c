/* Delays above each path's floor in short slots of fabric time; queueing.pyx explains floors and wrong clocks. */
#include "queueing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOW_SIGMAS   2.5    /* the least of some hundred readings lies so far below their middle */
#define IDLE_SIGMAS  3.0    /* a delay that is less above its floor met no queue */
#define STEP_SIGMAS  5.0    /* standard errors below the floor at which a delay shows a wrong clock */
#define STEP_NS      1000.0 /* and beyond those: noise is not known from the first sample on */
#define STEADY       200    /* delays not below a floor after which it shows a wrong clock */
#define AS_LOW       50     /* so many of them is one worth that is as low as the floor */
#define BETTER       0.5    /* share of a floor's bound at which the floor is dropped */
#define MAX_DELAY_NS 1e10   /* a longer delay is no delay */

struct ft_slot_entry {
    int64_t slot;
    int64_t delay; /* number of the delay */
};

/* Differences of stamps wrap as the machine does: absurd stamps give absurd delays, never undefined ones. */
static inline int64_t plus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t minus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static inline int64_t floor_div(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return quotient - (a % b < 0);
}

static inline double lower(double a, double b) {
    return b < a ? b : a;
}

static int grow(void **array, int64_t *capacity, int64_t needed, size_t element) {
    if (needed <= *capacity) return 1;
    int64_t larger = *capacity * 2 > needed ? *capacity * 2 : needed + 64;
    void *moved = realloc(*array, (size_t)larger * element);
    if (moved == NULL) return 0;
    *array = moved;
    *capacity = larger;
    return 1;
}

/* ---- paths ---- */

static uint64_t hash(int32_t pair, int32_t path, int32_t direction, int32_t dscp) {
    uint64_t key = ((uint64_t)(uint32_t)pair << 32) |
                   ((uint32_t)path ^ (uint32_t)dscp << 24 ^ (uint32_t)direction << 30);
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return key ^ (key >> 32);
}

static void place(struct ft_slots *s, int64_t row) {
    const struct ft_path *p = &s->paths[row];
    uint64_t mask = (uint64_t)s->table_size - 1, at = hash(p->pair, p->path, p->direction, p->dscp) & mask;
    while (s->table[at]) at = (at + 1) & mask;
    s->table[at] = row + 1;
}

static int rebuild(struct ft_slots *s, int64_t size) {
    int64_t *table = calloc((size_t)size, sizeof *table);
    if (table == NULL) return 0;
    free(s->table);
    s->table = table;
    s->table_size = size;
    for (int64_t row = 0; row < s->n_paths; row++) place(s, row);
    return 1;
}

int64_t ft_path_row(struct ft_slots *s, int32_t pair, int32_t path, int32_t direction, int32_t dscp,
                    double noise_ns) {
    if (s->table_size) {
        uint64_t mask = (uint64_t)s->table_size - 1;
        for (uint64_t at = hash(pair, path, direction, dscp) & mask; s->table[at]; at = (at + 1) & mask) {
            const struct ft_path *p = &s->paths[s->table[at] - 1];
            if (p->pair == pair && p->path == path && p->direction == direction && p->dscp == dscp)
                return s->table[at] - 1;
        }
    }
    if (!grow((void **)&s->paths, &s->path_capacity, s->n_paths + 1, sizeof *s->paths)) return -1;
    if (2 * (s->n_paths + 1) > s->table_size && !rebuild(s, s->table_size ? 2 * s->table_size : 128))
        return -1;
    s->paths[s->n_paths] = (struct ft_path){.pair = pair,
                                            .path = path,
                                            .direction = direction,
                                            .dscp = dscp,
                                            .floor_ns = {INFINITY, INFINITY},
                                            .noise_ns = noise_ns};
    place(s, s->n_paths);
    return s->n_paths++;
}

double ft_floor_of(const struct ft_path *path) {
    double floor_ns = lower(path->floor_ns[0], path->floor_ns[1]) + LOW_SIGMAS * path->noise_ns;
    return isfinite(floor_ns) ? floor_ns : 0;
}

int ft_set_floor(struct ft_slots *s, int32_t pair, int32_t path, int32_t direction, int32_t dscp,
                 double noise_ns, double floor_ns, int64_t at_ns) {
    int64_t row = ft_path_row(s, pair, path, direction, dscp, noise_ns);
    if (row < 0) return 0;
    struct ft_path *p = &s->paths[row];
    if (isfinite(floor_ns) && floor_ns < p->floor_ns[0]) {
        p->floor_ns[0] = floor_ns - LOW_SIGMAS * p->noise_ns;
        p->stretch = floor_div(at_ns, s->floor_ns);
        p->steady = STEADY;
    }
    return 1;
}

int ft_forget_paths(struct ft_slots *s, int64_t before_ns) {
    int64_t remaining = 0, size = 128;
    for (int64_t row = 0; row < s->n_paths; row++) {
        struct ft_path *p = &s->paths[row];
        if ((p->stretch + 2) * s->floor_ns < before_ns) continue;
        s->paths[remaining] = *p;
        s->paths[remaining].suspect = s->paths[remaining].lost = 0;
        remaining++;
    }
    if (remaining == s->n_paths) return 1;
    s->n_paths = remaining;
    while (size < 2 * remaining + 2) size *= 2;
    return rebuild(s, size);
}

/* ---- delays ---- */

int ft_reserve_delays(struct ft_slots *s, int64_t delays) {
    return grow((void **)&s->delays, &s->delay_capacity, s->n_delays + delays, sizeof *s->delays);
}

static inline void put(struct ft_slots *s, int64_t row, int64_t at_ns, double delay_ns, double bound_ns,
                       int is_single, int is_marked) {
    struct ft_path *p = &s->paths[row];
    int64_t stretch = floor_div(at_ns, s->floor_ns);
    if (stretch > p->stretch) {
        p->floor_ns[1] = stretch == p->stretch + 1 ? p->floor_ns[0] : INFINITY;
        p->bound_ns[1] = p->bound_ns[0];
        p->floor_ns[0] = INFINITY;
        p->stretch = stretch;
    }
    for (int k = 0; k < 2; k++)
        if (p->bound_ns[k] > p->noise_ns && bound_ns < BETTER * p->bound_ns[k]) {
            p->floor_ns[k] = INFINITY;
            p->bound_ns[k] = bound_ns;
        }
    double near_ns = STEP_SIGMAS * p->noise_ns + bound_ns, low_ns = lower(p->floor_ns[0], p->floor_ns[1]);
    if (delay_ns < low_ns - near_ns)
        p->steady = 0;
    else if (delay_ns <= low_ns + near_ns)
        p->steady = p->steady + AS_LOW < STEADY ? p->steady + AS_LOW : STEADY;
    else if (p->steady < STEADY)
        p->steady++;
    if (delay_ns < p->floor_ns[0]) {
        p->floor_ns[0] = delay_ns;
        p->bound_ns[0] = bound_ns;
    }
    s->delays[s->n_delays++] =
        (struct ft_path_delay){at_ns, delay_ns, (int32_t)row, (int8_t)is_single, (int8_t)is_marked};
}

static inline int clock_is_wrong(const struct ft_path *out, const struct ft_path *back, double there,
                                 double home, double bound_ns) {
    double forward = lower(out->floor_ns[0], out->floor_ns[1]);
    double reverse = lower(back->floor_ns[0], back->floor_ns[1]);
    double margin = STEP_NS + STEP_SIGMAS * out->noise_ns + bound_ns;
    if (!isfinite(forward) || !isfinite(reverse)) return 0;
    int falls = (there < forward - margin && out->steady == STEADY) ||
                (home < reverse - margin && back->steady == STEADY);
    return falls && there + home > forward + reverse - margin;
}

static inline int floors_are_met(const struct ft_path *out, const struct ft_path *back, double there,
                                 double home, double bound_ns) {
    double margin = STEP_NS + STEP_SIGMAS * out->noise_ns + bound_ns;
    return there <= lower(out->floor_ns[0], out->floor_ns[1]) + margin &&
           home <= lower(back->floor_ns[0], back->floor_ns[1]) + margin;
}

/* Whether sample i is the next marked one of a direction, which is passed then. */
static inline int is_marked(const struct ft_batches *b, int direction, int64_t mark[2], int64_t i) {
    if (mark[direction] == b->marks[direction] || b->marked[direction][mark[direction]] != i) return 0;
    mark[direction]++;
    return 1;
}

static inline int is_single(const struct ft_batches *b, int64_t g, int64_t i) {
    return b->spacing_ns[g] == 0 || (i - b->start[g]) % 2 == 0;
}

/* A group whose clocks are not both known: its round trips. */
static int add_round_trips(struct ft_slots *s, const struct ft_batches *b, int64_t g, int64_t mark[2],
                           int32_t pair, double noise_ns, int64_t offset_ns) {
    int64_t row = ft_path_row(s, pair, b->path[g], FT_ROUND_TRIP, b->dscp[g], noise_ns);
    if (row < 0) return 0;
    s->paths[row].lost += b->lost[g];
    s->paths[row].noise_ns = noise_ns * sqrt(2.0);
    for (int64_t i = b->start[g]; i < b->start[g + 1]; i++) {
        int marked = is_marked(b, 0, mark, i);
        marked |= is_marked(b, 1, mark, i);
        double trip = (double)b->column[1][i] + (double)b->column[3][i];
        if (0 <= trip && trip < MAX_DELAY_NS)
            put(s, row, plus(b->column[0][i], offset_ns), trip, 0, is_single(b, g, i), marked);
    }
    s->unsynced += b->start[g + 1] - b->start[g];
    return 1;
}

int ft_add_group(struct ft_slots *s, const struct ft_batches *b, int64_t g, int64_t mark[2], int32_t pair,
                 double noise_ns, const struct ft_clock *own, const struct ft_clock *other,
                 int64_t system_ns) {
    if (!own->is_usable || !other->is_usable)
        return add_round_trips(s, b, g, mark, pair, noise_ns, own->is_usable ? own->offset_ns : system_ns);
    int64_t row = ft_path_row(s, pair, b->path[g], FT_TO_PEER, b->dscp[g], noise_ns);
    int64_t back = row < 0 ? -1 : ft_path_row(s, pair, b->path[g], FT_FROM_PEER, b->dscp[g], noise_ns);
    if (back < 0) return 0;
    s->paths[row].lost += b->lost[g];
    s->paths[row].noise_ns = s->paths[back].noise_ns = noise_ns;
    int64_t whole = minus(other->offset_ns, own->offset_ns), round_trip = -1;
    int64_t models = 1 + (own->at_ns ^ (int64_t)((uint64_t)other->at_ns << 1));
    double rest = other->fraction_ns - own->fraction_ns, bound = own->bound_ns + other->bound_ns;
    for (int64_t i = b->start[g]; i < b->start[g + 1]; i++) {
        int out_marked = is_marked(b, 0, mark, i), back_marked = is_marked(b, 1, mark, i);
        int64_t t1 = b->column[0][i], t2 = plus(t1, b->column[1][i]);
        int64_t t3 = plus(t2, b->column[2][i]), t4 = plus(t3, b->column[3][i]);
        double there =
            (double)plus(b->column[1][i], whole) + (rest + other->rate * (double)minus(t2, other->at_ns) -
                                                    own->rate * (double)minus(t1, own->at_ns));
        double home =
            (double)minus(b->column[3][i], whole) - (rest + other->rate * (double)minus(t3, other->at_ns) -
                                                     own->rate * (double)minus(t4, own->at_ns));
        if (!(-MAX_DELAY_NS < there && there < MAX_DELAY_NS && -MAX_DELAY_NS < home && home < MAX_DELAY_NS))
            continue;
        int single = is_single(b, g, i);
        double drifted = floor(own->fraction_ns + own->rate * (double)minus(t1, own->at_ns) + 0.5);
        int64_t at = plus(plus(t1, own->offset_ns), (int64_t)drifted);
        if (s->paths[row].suspect == models) {
            if (floors_are_met(&s->paths[row], &s->paths[back], there, home, bound))
                s->paths[row].suspect = 0;
        } else if (clock_is_wrong(&s->paths[row], &s->paths[back], there, home, bound)) {
            s->paths[row].suspect = models;
        }
        if (s->paths[row].suspect == models) {
            if (round_trip < 0) {
                round_trip = ft_path_row(s, pair, b->path[g], FT_ROUND_TRIP, b->dscp[g], noise_ns);
                if (round_trip < 0) return 0;
                s->paths[round_trip].noise_ns = noise_ns * sqrt(2.0);
            }
            put(s, round_trip, at, there + home, 0, single, out_marked | back_marked);
            s->unsynced++;
            continue;
        }
        put(s, row, at, there, bound, single, out_marked);
        put(s, back, plus(plus(at, (int64_t)there), b->column[2][i]), home, bound, single, back_marked);
    }
    return 1;
}

/* ---- slots ---- */

/* Sort by slot; entries of one slot keep their order. `scratch` has room for half of them. */
static void sort_slots(struct ft_slot_entry *entry, int64_t n, struct ft_slot_entry *scratch) {
    if (n <= 12) {
        for (int64_t i = 1; i < n; i++) {
            struct ft_slot_entry moving = entry[i];
            int64_t j = i;
            for (; j > 0 && entry[j - 1].slot > moving.slot; j--) entry[j] = entry[j - 1];
            entry[j] = moving;
        }
        return;
    }
    int64_t half = n / 2;
    sort_slots(entry, half, scratch);
    sort_slots(entry + half, n - half, scratch);
    if (entry[half - 1].slot <= entry[half].slot) return;
    memcpy(scratch, entry, (size_t)half * sizeof *entry);
    int64_t left = 0, right = half, at = 0;
    while (left < half && right < n)
        entry[at++] = entry[right].slot < scratch[left].slot ? entry[right++] : scratch[left++];
    memcpy(entry + at, scratch + left, (size_t)(half - left) * sizeof *entry);
}

/* Append the cells of one path, whose entries are sorted. */
static void cut_cells(struct ft_slots *s, const struct ft_slot_entry *entry, int64_t n,
                      struct ft_used_path *used, int64_t first) {
    const struct ft_path *p = &s->paths[used->row];
    double floor_ns = lower(p->floor_ns[0], p->floor_ns[1]) + LOW_SIGMAS * p->noise_ns;
    double idle_ns = IDLE_SIGMAS * p->noise_ns;
    for (int64_t i = 0; i < n;) {
        struct ft_cell *cell = &s->cells[s->n_cells++];
        int64_t slot = entry[i].slot, begin = i;
        double sum = 0, within = 0;
        *cell = (struct ft_cell){.slot = (int32_t)(slot - first), .min_ns = INFINITY};
        for (; i < n && entry[i].slot == slot; i++) {
            const struct ft_path_delay *d = &s->delays[entry[i].delay];
            double above = d->delay_ns - floor_ns;
            sum += above;
            within += (double)(d->at_ns - slot * s->slot_ns);
            cell->min_ns = lower(cell->min_ns, above);
            cell->marked += d->is_marked;
            used->singles += d->is_single;
            used->idle += d->is_single && above < idle_ns;
        }
        cell->count = (int32_t)(i - begin);
        cell->mean_ns = sum / (double)(i - begin);
        cell->at_ns = (int64_t)(within / (double)(i - begin));
        used->cells++;
    }
}

/* List the paths with delays or losses in the order of their rows; end[row] becomes the end of its delays. */
static int list_used(struct ft_slots *s, int64_t *end) {
    int64_t total = 0;
    for (int64_t i = 0; i < s->n_delays; i++) end[s->delays[i].row]++;
    s->n_used = 0;
    for (int64_t row = 0; row < s->n_paths; row++) {
        if (end[row] || s->paths[row].lost) {
            if (!grow((void **)&s->used, &s->used_capacity, s->n_used + 1, sizeof *s->used)) return 0;
            s->used[s->n_used++] = (struct ft_used_path){.row = (int32_t)row};
        }
        total += end[row];
        end[row] = total;
    }
    return 1;
}

int ft_take_slots(struct ft_slots *s, int64_t *first) {
    int64_t n = s->n_delays;
    s->n_cells = s->n_used = 0;
    *first = 0;
    int64_t *end = calloc((size_t)s->n_paths + 1, sizeof *end);
    if (end == NULL || !grow((void **)&s->cells, &s->cell_capacity, n, sizeof *s->cells) ||
        !grow((void **)&s->entries, &s->entry_capacity, n + n / 2 + 1, sizeof *s->entries) ||
        !list_used(s, end)) {
        free(end);
        return 0;
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        int64_t slot = floor_div(s->delays[i].at_ns, s->slot_ns);
        s->entries[--end[s->delays[i].row]] = (struct ft_slot_entry){slot, i};
        if (i == n - 1 || slot < *first) *first = slot;
    }
    for (int64_t k = 0; k < s->n_used; k++) {
        struct ft_used_path *used = &s->used[k];
        int64_t begin = end[used->row], stop = used->row + 1 < s->n_paths ? end[used->row + 1] : n;
        sort_slots(s->entries + begin, stop - begin, s->entries + n);
        cut_cells(s, s->entries + begin, stop - begin, used, *first);
    }
    s->n_delays = 0;
    free(end);
    return 1;
}

void ft_slots_free(struct ft_slots *s) {
    free(s->paths);
    free(s->table);
    free(s->delays);
    free(s->used);
    free(s->cells);
    free(s->entries);
    memset(s, 0, sizeof *s);
}
