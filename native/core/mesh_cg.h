/* Conjugate gradients for one part of a mesh, for a number of right-hand sides at once; see mesh.c.
 *
 * In: CG_NAME, CG_REAL, CG_COLUMNS and, for variances too, CG_DRAWN and CG_SQUARES, defined before each inclusion.
 * Out: functions of those names.
 */

/* Solve (L + P) x = r over a part; r is used up and sums to `ask`. `workspace` holds 2 * n * CG_COLUMNS. If
 * the sum of P is 0, `ask` is 0 and x is known up to a constant. Ends as soon as the gradient, in units of
 * the diagonal, is `tolerance` of its start or its square is below `min`. With `settled` > 0, x must also
 * have grown by less than that share in the last third of the steps: smooth errors, those of a long chain,
 * hardly show in the gradient. Returns the steps taken, or -1 if the steps allowed for a part of that size
 * did not suffice. */
static int CG_NAME(const struct part *part, CG_REAL *restrict x, CG_REAL *restrict r, const double *ask,
                   double tolerance, double min, double settled, CG_REAL *restrict workspace) {
    enum { K = CG_COLUMNS };
    const int64_t n = part->n;
    const int32_t *restrict b = part->b;
    const double *restrict inverse = part->inverse, *restrict ground = part->ground, *restrict w = part->w;
    const int anchored = part->hold > 0;
    const int max = (int)fmin(MAX_STEPS, MIN_STEPS + MAX_WORK / (double)n);
    double rz[K], first[K], sum[K], step[K], direction[K], grown[MAX_STEPS + 1];

    /* The constant, which gradients find last, is solved for separately; r and p stay orthogonal to it. The
     * sum of r beyond `ask` is rounding. */
    for (int c = 0; c < K; c++) sum[c] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < K; c++) sum[c] += r[i * K + c];
    for (int c = 0; c < K; c++) {
        sum[c] = (sum[c] - (anchored ? ask[c] : 0)) / part->whole;
        step[c] = anchored ? ask[c] / part->hold : 0;
    }
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < K; c++) {
            x[i * K + c] = (CG_REAL)step[c];
            r[i * K + c] -= (CG_REAL)(sum[c] / inverse[i] + ground[i] * step[c]);
        }
    for (int c = 0; c < K; c++) rz[c] = first[c] = direction[c] = step[c] = 0;
    for (int steps = 0;; steps++) {
        double next[K], lean[K], size = 0;
        for (int c = 0; c < K; c++) next[c] = lean[c] = 0;
        for (int64_t i = 0; i < n; i++) {
            CG_REAL each = (CG_REAL)inverse[i], prior_inverse = (CG_REAL)ground[i];
            const CG_REAL *p = workspace + 2 * i * K,
                          *q = p + K; /* p and q = (L + P) p of a node side by side */
            double square = 0;
            for (int c = 0; c < K; c++) {
                CG_REAL left = r[i * K + c];
                if (steps) {
                    CG_REAL at = x[i * K + c] += (CG_REAL)step[c] * p[c];
                    square += at * at;
                    r[i * K + c] = left -= (CG_REAL)step[c] * q[c];
                }
                next[c] += left * left * each;
                lean[c] += prior_inverse * left * each;
            }
            size += square / inverse[i];
        }
        grown[steps] = size;
        int going = 0;
        for (int c = 0; c < K; c++) {
            if (steps == 0)
                first[c] = next[c];
            else if (!(step[c] > 0))
                next[c] = 0;
            direction[c] = steps && rz[c] > 0 ? next[c] / rz[c] : 0;
            rz[c] = next[c];
            lean[c] = anchored ? lean[c] / part->hold : 0;
            going |= rz[c] > tolerance * tolerance * first[c] && rz[c] > min && rz[c] < 1e12 * first[c];
        }
        if (settled > 0 && steps > 3)
            going |= grown[steps] - grown[steps - steps / 3] > settled * grown[steps];
        if (!going || steps == max) return going ? -1 : steps;
        for (int64_t i = 0; i < n; i++) {
            CG_REAL *p = workspace + 2 * i * K, *q = p + K, prior_inverse = (CG_REAL)ground[i],
                    each = (CG_REAL)inverse[i];
            for (int c = 0; c < K; c++) {
                p[c] = r[i * K + c] * each - (CG_REAL)lean[c] + (steps ? (CG_REAL)direction[c] * p[c] : 0);
                q[c] = prior_inverse * p[c];
            }
        }
        for (int c = 0; c < K; c++) sum[c] = 0;
        for (int64_t i = 0, e = 0; i < n; i++) {
            CG_REAL *p = workspace + 2 * i * K, *q = p + K, own[K], squares[K];
            for (int c = 0; c < K; c++) {
                own[c] = (CG_REAL)ground[i] * p[c];
                squares[c] = own[c] * p[c];
                own[c] = 0;
            }
            for (const int64_t to = part->out[i + 1] - part->first; e < to; e++) {
                __builtin_prefetch(workspace + 2 * (int64_t)(b[e + AHEAD] - part->lowest) * K, 1);
                CG_REAL *near = workspace + 2 * (int64_t)(b[e] - part->lowest) * K, each = (CG_REAL)w[e];
                for (int c = 0; c < K; c++) {
                    CG_REAL off = p[c] - near[c], pull = each * off;
                    own[c] += pull;
                    near[K + c] -= pull;
                    squares[c] += pull * off;
                }
            }
            for (int c = 0; c < K; c++) {
                q[c] += own[c];
                sum[c] += squares[c];
            }
        }
        for (int c = 0; c < K; c++) step[c] = sum[c] > 0 ? rz[c] / sum[c] : 0;
    }
}

#ifdef CG_DRAWN
/* Sums of squares of the even and the odd columns of a node. */
static inline void CG_SQUARES(const CG_REAL *x, double *even, double *odd) {
    CG_REAL sums[2] = {0, 0};
    for (int c = 0; c < CG_COLUMNS; c++) sums[c & 1] += x[c] * x[c];
    *even = sums[0];
    *odd = sums[1];
}

/* Variances and leverages of a part from draws of noise. E(x^2) = E(u^2) + E(x^2 - u^2) with u = r / L_ii,
 * whose E(u^2) = 1 / L_ii is exact (a control variate). Also exact are the common part of all nodes, 1 /
 * sum(P), and for an edge's ends E((u_b - u_a)^2) = 1 / L_aa + 1 / L_bb + 2 w / (L_aa L_bb). There are more
 * batches of draws if much comes from beyond a node's own edges. Returns 0 without memory. */
static int CG_DRAWN(struct mesh *m, struct part *part, double *variance) {
    enum { K = CG_COLUMNS };
    const int64_t n = part->n, low = part->lowest;
    double *odd = ft_mesh_doubles(n), *leverage = m->of->leverage;
    CG_REAL *x = ft_mesh_alloc(n * K, 4 * sizeof *x), *r = x + n * K, sign[256][8];
    if (x == NULL || odd == NULL) {
        free(x);
        free(odd);
        return 0;
    }
    for (int i = 0; i < 256; i++)
        for (int c = 0; c < 8; c++) sign[i][c] = (i >> c & 1) ? 1 : -1;
    uint64_t seed = 1;
    for (int64_t i = 0; i < n; i++) variance[i] = odd[i] = 0;
    int batches = 1, settled = 1;
    for (int batch = 0; batch < batches; batch++) {
        double ask[K];
        memset(ask, 0, sizeof ask);
        for (int64_t i = 0; i < n; i++) {
            CG_REAL prior_inverse = (CG_REAL)sqrt(part->ground[i]);
            uint64_t bits = prior_inverse > 0 ? next_random(&seed) : 0;
            for (int c = 0; c < K; c++)
                ask[c] += r[i * K + c] = prior_inverse * sign[bits >> (c / 8 * 8) & 255][c % 8];
        }
        for (int64_t i = 0, e = part->first; i < n; i++) {
            CG_REAL own[K];
            memset(own, 0, sizeof own);
            for (; e < part->out[i + 1]; e++) {
                /* noise of +-1 standard error suffices for the variance of a sum */
                __builtin_prefetch(r + (m->b[e + AHEAD] - low) * K, 1);
                CG_REAL each = (CG_REAL)sqrt(m->w[e]), *near = r + (m->b[e] - low) * K;
                uint64_t bits = next_random(&seed);
                for (int c = 0; c < K; c++) {
                    CG_REAL noise = each * sign[bits >> (c / 8 * 8) & 255][c % 8];
                    near[c] += noise;
                    own[c] += noise;
                }
            }
            for (int c = 0; c < K; c++) r[i * K + c] -= own[c];
        }
        for (int64_t i = 0; i < n; i++) {
            double even, other, inverse = part->inverse[i];
            CG_SQUARES(r + i * K, &even, &other);
            variance[i] -= even * inverse * inverse;
            odd[i] -= other * inverse * inverse;
        }
        for (int64_t i = 0, e = part->first; i < n; i++)
            for (const CG_REAL ia = (CG_REAL)part->inverse[i]; e < part->out[i + 1]; e++) {
                __builtin_prefetch(r + (m->b[e + AHEAD] - low) * K);
                const CG_REAL *ra = r + i * K, *rb = r + (m->b[e] - low) * K;
                CG_REAL ib = (CG_REAL)part->inverse[m->b[e] - low], sum = 0;
                for (int c = 0; c < K; c++) sum += (rb[c] * ib - ra[c] * ia) * (rb[c] * ib - ra[c] * ia);
                double *share = leverage + m->edge[e];
                *share = (batch ? *share : 0) - m->w[e] * sum;
            }
        int steps = CG_NAME(part, x, r, ask, part->wide ? WIDE_TOLERANCE : DRAW_TOLERANCE, 0, DRAW_TOLERANCE,
                            r + n * K);
        if (!(part->hold > 0)) {
            double mean[K];
            memset(mean, 0, sizeof mean);
            for (int64_t i = 0; i < n; i++)
                for (int c = 0; c < K; c++) mean[c] += x[i * K + c] / (part->inverse[i] * part->whole);
            for (int64_t i = 0; i < n; i++)
                for (int c = 0; c < K; c++) x[i * K + c] -= (CG_REAL)mean[c];
        }
        double all = 0, common[2] = {0, 0};
        for (int c = 0; part->hold > 0 && c < K; c++)
            common[c & 1] += ask[c] / part->hold * (ask[c] / part->hold);
        for (int64_t i = 0; i < n; i++) {
            double even, other;
            CG_SQUARES(x + i * K, &even, &other);
            variance[i] += even - common[0];
            odd[i] += other - common[1];
            all += (even + other) / part->inverse[i];
        }
        settled &= steps >= 0;
        if (batch == 0 && n < MANY && steps >= 0 && steps < MIN_STEPS && all > FARTHER * K * (double)n)
            batches = BATCHES;
        for (int64_t i = 0, e = part->first; i < n; i++)
            for (; e < part->out[i + 1]; e++) {
                __builtin_prefetch(x + (m->b[e + AHEAD] - low) * K);
                const CG_REAL *xa = x + i * K, *xb = x + (m->b[e] - low) * K;
                CG_REAL sum = 0;
                for (int c = 0; c < K; c++) sum += (xb[c] - xa[c]) * (xb[c] - xa[c]);
                leverage[m->edge[e]] += m->w[e] * sum;
            }
    }
    const double each = 1.0 / (batches * K);
    for (int64_t i = 0, e = part->first; i < n; i++)
        for (; e < part->out[i + 1]; e++) {
            double ia = part->inverse[i], ib = part->inverse[m->b[e] - low], w = m->w[e];
            double *share = leverage + m->edge[e];
            *share = fmin(fmax(*share * each + w * (ia + ib + 2 * w * ia * ib), 0.5 * w * (ia + ib)), 1);
        }
    for (int64_t i = 0; i < n; i++) {
        variance[i] = variance[i] * 2 * each + part->inverse[i];
        odd[i] = odd[i] * 2 * each + part->inverse[i];
    }
    shrink_variance(m, part, variance, odd);
    for (int64_t i = 0; part->hold > 0 && i < n; i++) variance[i] += 1 / part->hold;
    free(x);
    free(odd);
    return settled || bound_by_tree(m, part, variance);
}
#undef CG_DRAWN
#undef CG_SQUARES
#endif

#undef CG_NAME
#undef CG_REAL
#undef CG_COLUMNS
