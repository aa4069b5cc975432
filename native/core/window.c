/* The pieces of one window, chained by peer and by (peer, path): no sample is copied before it is used. */
#include "window.h"

#include <stdlib.h>
#include <string.h>

static int grow(void **array, int64_t *capacity, int64_t wanted, size_t element) {
    if (wanted <= *capacity) return 1;
    int64_t larger = *capacity * 2 > wanted ? *capacity * 2 : wanted + 16;
    void *moved = realloc(*array, (size_t)larger * element);
    if (moved == NULL) return 0;
    *array = moved;
    *capacity = larger;
    return 1;
}

static uint64_t hash(int32_t peer, int32_t path, int32_t dscp) {
    uint64_t key = ((uint64_t)(uint32_t)peer << 32) | ((uint32_t)path ^ (uint32_t)dscp << 24);
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return key ^ (key >> 32);
}

static void place(struct ft_window *w, int64_t row) {
    uint64_t mask = (uint64_t)w->n_slots - 1,
             slot = hash(w->rows[row].peer, w->rows[row].path, w->rows[row].dscp) & mask;
    while (w->slots[slot]) slot = (slot + 1) & mask;
    w->slots[slot] = row + 1;
}

/* The row of (peer, path, class), made where it is new; -1 without memory. */
static int64_t row_of(struct ft_window *w, int32_t peer, int32_t path, int32_t dscp) {
    if (w->n_slots) {
        uint64_t mask = (uint64_t)w->n_slots - 1;
        for (uint64_t slot = hash(peer, path, dscp) & mask; w->slots[slot]; slot = (slot + 1) & mask) {
            const struct ft_row *row = &w->rows[w->slots[slot] - 1];
            if (row->peer == peer && row->path == path && row->dscp == dscp) return w->slots[slot] - 1;
        }
    }
    if (!grow((void **)&w->rows, &w->row_capacity, w->n_rows + 1, sizeof *w->rows)) return -1;
    if (2 * (w->n_rows + 1) > w->n_slots) {
        int64_t n = w->n_slots ? 2 * w->n_slots : 128;
        int64_t *slots = calloc((size_t)n, sizeof *slots);
        if (slots == NULL) return -1;
        free(w->slots);
        w->slots = slots;
        w->n_slots = n;
        for (int64_t r = 0; r < w->n_rows; r++) place(w, r);
    }
    w->rows[w->n_rows] = (struct ft_row){.peer = peer, .path = path, .dscp = dscp, .chain = {-1, -1, 0}};
    place(w, w->n_rows);
    return w->n_rows++;
}

int ft_window_add(struct ft_window *w, int32_t peer, int32_t path, int32_t dscp, struct ft_piece piece,
                  const int64_t counts[FT_COUNTS]) {
    if (!grow((void **)&w->peers, &w->peer_capacity, peer + 1, sizeof *w->peers) ||
        !grow((void **)&w->pieces, &w->piece_capacity, w->n_pieces + 1, sizeof *w->pieces))
        return 0;
    while (w->n_peers <= peer) w->peers[w->n_peers++] = (struct ft_chain){-1, -1, 0};
    int64_t r = row_of(w, peer, path, dscp);
    if (r < 0) return 0;
    struct ft_row *row = &w->rows[r];
    row->lost += counts[0];
    row->no_t3 += counts[1];
    row->ecn += counts[2];
    for (int direction = 0; direction < 2; direction++) row->ce[direction] += counts[3 + direction];
    if (piece.n == 0) return 1;
    int64_t at = w->n_pieces++;
    piece.next_of_peer = piece.next_of_row = -1;
    w->pieces[at] = piece;
    struct ft_chain *chain = &w->peers[peer];
    if (chain->last >= 0)
        w->pieces[chain->last].next_of_peer = at;
    else
        chain->first = at;
    chain->last = at;
    chain->samples += piece.n;
    if (row->chain.last >= 0)
        w->pieces[row->chain.last].next_of_row = at;
    else
        row->chain.first = at;
    row->chain.last = at;
    row->chain.samples += piece.n;
    w->samples += piece.n;
    return 1;
}

void ft_window_free(struct ft_window *w) {
    free(w->pieces);
    free(w->rows);
    free(w->peers);
    free(w->slots);
    free(w->scratch);
    memset(w, 0, sizeof *w);
}

double *ft_window_scratch(struct ft_window *w, int64_t n) {
    return grow((void **)&w->scratch, &w->scratch_capacity, n, sizeof *w->scratch) ? w->scratch : NULL;
}
