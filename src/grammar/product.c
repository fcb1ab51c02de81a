#include "grammar/impl.h"

#define SEARCH 3000 /* states that are looked at before a state counts as live */

struct product *product_create(struct di_grammar *g, const rx_id *start, uint32_t n)
{
    struct product *p = di_calloc(1, sizeof *p);
    if (!p || !gr_grow(g, (void **)&p->states, &p->cap, n, sizeof *p->states) || !(p->heads = di_calloc(256, sizeof *p->heads))) {
        g->out_of_memory = true;
        product_destroy(p);
        return NULL;
    }
    p->n = n;
    p->mask = 255;
    memcpy(p->states, start, n * sizeof *start);
    if (!gr_grow(g, (void **)&p->live, &p->cap_live, 1, 1) || !gr_grow(g, (void **)&p->chain, &p->cap_chain, 1, sizeof *p->chain)) {
        product_destroy(p);
        return NULL;
    }
    p->live[0] = 0;
    p->chain[0] = 0;
    p->count = 1; /* the start is found by nobody, and so may exist twice */
    return p;
}

void product_destroy(struct product *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->cap_next; i++)
        di_free(p->next[i]);
    di_free(p->next);
    di_free(p->states);
    di_free(p->live);
    di_free(p->loops);
    di_free(p->classes);
    di_free(p->heads);
    di_free(p->chain);
    di_free(p);
}

/* The state of the components behind a byte. */
static uint32_t step_components(struct di_grammar *g, struct product *p, uint32_t state, unsigned byte)
{
    size_t at = p->count;
    if (!gr_grow(g, (void **)&p->states, &p->cap, (at + 1) * p->n, sizeof *p->states))
        return 0;
    rx_id *to = p->states + at * p->n;
    uint64_t h = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        to[i] = rx_step(&g->rx, p->states[(size_t)state * p->n + i], byte);
        h = (h ^ to[i]) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    uint32_t *head = p->heads + (h & p->mask);
    for (uint32_t i = *head; i; i = p->chain[i])
        if (memcmp(p->states + (size_t)i * p->n, to, p->n * sizeof *to) == 0)
            return i;
    if (at >= g->options.limits.regex_nodes) {
        g->over = "regex_nodes";
        return 0;
    }
    if (!gr_grow(g, (void **)&p->live, &p->cap_live, at + 1, 1) || !gr_grow(g, (void **)&p->chain, &p->cap_chain, at + 1, sizeof *p->chain))
        return 0;
    p->live[at] = 0;
    p->chain[at] = *head;
    *head = (uint32_t)at;
    return (uint32_t)p->count++;
}

uint32_t product_derive(struct di_grammar *g, struct product *p, uint32_t state, unsigned byte)
{
    size_t old = p->cap_next;
    if (!gr_grow(g, (void **)&p->next, &p->cap_next, (size_t)state + 1, sizeof *p->next))
        return 0;
    memset(p->next + old, 0, (p->cap_next - old) * sizeof *p->next);
    if (!p->next[state] && g->rx.tables * 4 <= g->rx.limit) { /* counted with those of expressions; beyond, steps are only slower */
        p->next[state] = di_malloc(256 * sizeof **p->next);
        if (!p->next[state]) {
            g->out_of_memory = true;
            return 0;
        }
        memset(p->next[state], 0xFF, 256 * sizeof **p->next);
        g->rx.tables++;
    }
    uint32_t to = step_components(g, p, state, byte);
    if (p->next[state] && !rx_failed(&g->rx) && !g->over && !g->out_of_memory)
        p->next[state][byte] = to;
    return to;
}

/* ---- loops ---- */

struct loop_search {
    uint32_t home;
    uint32_t (*step)(void *ctx, uint32_t state, unsigned byte);
    void *ctx;
    bool line; /* but for U+2028 and U+2029 */
};

/* All continuations of `left` bytes behind `at` lead home. `text`: the bytes so far. */
static bool returns(struct loop_search *s, uint32_t at, unsigned low, unsigned high, unsigned left, unsigned text)
{
    uint32_t last = UINT32_MAX;
    for (unsigned byte = low; byte <= high; byte++) {
        unsigned now = text << 8 | byte;
        uint32_t to = s->step(s->ctx, at, byte);
        if (left == 1 && to != s->home) {
            if (now != 0xE280A8 && now != 0xE280A9)
                return false;
            s->line = true;
        }
        if (left > 1 && to != last && !returns(s, to, 0x80, 0xBF, left - 1, now))
            return false;
        last = now == 0xE280 ? UINT32_MAX : to;
    }
    return true;
}

enum loops find_loops(uint32_t state, uint32_t (*step)(void *ctx, uint32_t state, unsigned byte), void *ctx)
{
    static const struct {
        uint8_t first, last, low, high, left;
    } leads[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2}, {0xED, 0xED, 0x80, 0x9F, 2},
                 {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3}, {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
    struct loop_search s = {state, step, ctx, false};
    bool any = true;
    for (unsigned byte = 0x7F; byte < 0x80; byte--) { /* letters before control characters: most states fail at once */
        if (step(ctx, state, byte) == state)
            continue;
        any = false;
        if (byte >= 0x20 && byte != '"' && byte != '\\')
            return LOOPS_NOT;
    }
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        uint32_t last = UINT32_MAX;
        for (unsigned byte = leads[i].first; byte <= leads[i].last; byte++) {
            uint32_t to = step(ctx, state, byte);
            if ((to != last || byte == 0xE2) && !returns(&s, to, leads[i].low, leads[i].high, leads[i].left, byte))
                return LOOPS_NOT;
            last = byte == 0xE2 ? UINT32_MAX : to;
        }
    }
    return s.line ? LOOPS_LINE : any ? LOOPS_ANY : LOOPS_CONTENT;
}

struct stepping {
    struct di_grammar *g;
    struct product *p;
};

static uint32_t step_of(void *ctx, uint32_t state, unsigned byte)
{
    struct stepping *s = ctx;
    return product_step(s->g, s->p, state, byte);
}

enum loops product_loops(struct di_grammar *g, struct product *p, uint32_t state)
{
    size_t old = p->cap_loops;
    if (!gr_grow(g, (void **)&p->loops, &p->cap_loops, p->count, 1))
        return LOOPS_NOT;
    memset(p->loops + old, 0, p->cap_loops - old);
    if (!p->loops[state]) {
        enum loops found = find_loops(state, step_of, &(struct stepping){g, p});
        p->loops[state] = (uint8_t)(1 + found); /* states that were made meanwhile lie behind */
    }
    return (enum loops)(p->loops[state] - 1);
}

uint64_t product_matches(const struct di_grammar *g, const struct product *p, uint32_t state)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < p->n; i++)
        bits |= (uint64_t)rx_accepts(&g->rx, p->states[(size_t)state * p->n + i]) << i;
    return bits;
}

bool product_live(struct di_grammar *g, struct product *p, uint32_t state, bdd_id formula, uint32_t tracks,
                  bool (*accept)(struct di_grammar *g, struct product *p, uint32_t state, void *ctx), void *ctx)
{
    if (p->formula != formula || p->tracks != tracks) {
        memset(p->live, 0, p->count);
        p->formula = formula;
        p->tracks = tracks;
    }
    if (p->live[state])
        return p->live[state] == 1;
    if (!rx_may_search(&g->rx))
        return true;
    uint32_t *queue = di_malloc(SEARCH * sizeof *queue);
    size_t n = 0;
    bool found = false, whole = true;
    if (!queue) {
        g->out_of_memory = true;
        return false;
    }
    queue[n++] = state;
    p->live[state] = 3; /* in the queue */
    for (size_t i = 0; i < n && !found; i++) {
        found = accept(g, p, queue[i], ctx);
        uint32_t last = UINT32_MAX;
        for (unsigned byte = 0; byte < 256 && !found; byte++) {
            uint32_t to = product_step(g, p, queue[i], byte);
            if (to == last || g->over || g->out_of_memory)
                continue;
            last = to;
            found = p->live[to] == 1;
            if (p->live[to])
                continue;
            whole = n < SEARCH && rx_may_search(&g->rx);
            if (!whole)
                break;
            p->live[to] = 3;
            queue[n++] = to;
        }
        if (!whole)
            break;
    }
    for (size_t i = 0; i < n; i++)
        p->live[queue[i]] = found || !whole ? 0 : 2;
    if (found || !whole)
        p->live[state] = 1;
    di_free(queue);
    return p->live[state] == 1;
}
