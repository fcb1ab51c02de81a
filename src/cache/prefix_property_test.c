/* also run on the hostile device, seeds 10 16 */
/* not run under TSan: no threads */
/* The whole cache against a trivially correct model. Requests with random texts live in a real store; the "network" writes, at every
 * position, a hash of everything up to it into G, window and raw rings, and before each chunk everything that the chunk's rows may read is
 * compared with what a cold run would have written. Matches are compared with a search through plain lists of what the index holds. */
#define DI_ON_DEVICE /* the test is its own network */
#include "cache/hit_plan.h"
#include "cache/kv_store.h"
#include "cache/prefix.h"

#include "base/mem.h"
#include "base/philox.h"
#include "testing/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SLOTS 6
#define CONTEXT 640
#define TENANTS 3
#define BANK 24
#define MAX_BLOCKS 128
#define MAX_STATES 16
#define WINDOW 128
#define LAYERS 2 /* exact replay: 255 rows */
#define IMAGE_TOKEN 9
#define TAINT 0x5555555555555555u

/* One source of ratio 1 and one of ratio 2 with keys and compressed rows of 8 bytes, LAYERS rings, one raw ring of 16 bytes a row. */
static const struct di_kv_layout layout = {.d = 2,
                                           .di = 2,
                                           .window_row_bytes = 8,
                                           .comp_row_bytes = 8,
                                           .key_row_bytes = 8,
                                           .ring_layers = LAYERS,
                                           .n_sources = 2,
                                           .ratio = {1, 2},
                                           .raw_ring = {-1, 0},
                                           .key_offset = {0, 1024},
                                           .comp_offset = {512, 1280},
                                           .block_bytes = 1536,
                                           .ring_bytes = 8 * LAYERS * DI_RING_ROWS,
                                           .raw_bytes = DI_RAW_ROWS * 16,
                                           .n_raw_rings = 1};

/* A position: the token, and which place of which image it is (0 = none). */
struct symbol {
    int32_t token, image, index;
};
struct prompt {
    int tenant;
    int64_t n;
    struct symbol s[CONTEXT];
};

struct request {
    bool live, bounded_ok, tainted; /* tainted: it used bounded replay */
    struct prompt text;             /* grows while it answers */
    int64_t prompt, end, done, written, write_from;
    int32_t tokens[CONTEXT];
    struct di_key_image images[CONTEXT];
    int n_images;
    uint64_t hash[CONTEXT];
};

/* What a block of the index holds, by the model. */
struct held {
    bool cached, bounded;
    int n;              /* tokens in the block */
    struct prompt text; /* from position 0 to the block's last token */
    uint64_t stamp;     /* when it was released last */
};

struct world {
    uint64_t seed, draws, clock;
    int blocks;
    struct di_kv_store *store;
    struct di_state_pool *states;
    struct di_prefix *p;
    struct di_kv kv;
    struct di_key root[TENANTS];
    struct request r[SLOTS];
    struct prompt bank[BANK];
    struct held held[MAX_BLOCKS];
    uint64_t hits, partial, resumed, replayed, bounded_hits;
};

static uint32_t draw(struct world *w, uint32_t below)
{
    uint64_t n = w->draws++;
    return di_philox(w->seed, (struct di_philox){{(uint32_t)n, (uint32_t)(n >> 32), 0, 0}}).w[0] % below;
}

static bool same_symbol(const struct symbol *a, const struct symbol *b)
{
    return a->token == b->token && a->image == b->image && a->index == b->index;
}

static int64_t common(const struct prompt *a, const struct prompt *b, int64_t limit)
{
    int64_t n = 0;
    while (n < limit && n < a->n && n < b->n && a->tenant == b->tenant && same_symbol(&a->s[n], &b->s[n]))
        n++;
    return n;
}

/* ---------------------------------------------------------------- texts */

static void push(struct prompt *t, struct symbol s)
{
    if (t->n < CONTEXT - 10)
        t->s[t->n++] = s;
}

static void random_prompt(struct world *w, struct prompt *t)
{
    static const int edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 143, 144, 145, 191, 192, 193, 255, 256, 257, 320, 384, 385, 600};
    const struct prompt *base = &w->bank[draw(w, BANK)];
    int64_t n = draw(w, 3) ? 1 + (int64_t)draw(w, 600) : edges[draw(w, sizeof edges / sizeof *edges)];
    int64_t keep = draw(w, 8) ? (draw(w, 2) ? base->n : (int64_t)draw(w, (uint32_t)base->n + 1)) : 0;
    *t = *base;
    t->n = keep < n ? keep : n;
    while (t->n > 0 && t->s[t->n - 1].image && keep < base->n && base->s[t->n].index > 0)
        t->n--; /* images are whole */
    if (!draw(w, 6))
        t->tenant = (int)draw(w, TENANTS);
    while (t->n < n) {
        if (!draw(w, 150)) {
            int32_t image = 1 + (int32_t)draw(w, 3), size = 20 + 30 * image; /* an image always has the same number of tokens */
            for (int32_t i = 0; i < size; i++)
                push(t, (struct symbol){IMAGE_TOKEN, image, i});
        } else
            push(t, (struct symbol){(int32_t)draw(w, 2), 0, 0});
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

/* Token and image lists as the engine passes them, and the values that the network would compute. */
static void spell(struct request *r)
{
    uint64_t h = 77 + (uint64_t)r->text.tenant;
    r->n_images = 0;
    for (int64_t i = 0; i < r->text.n; i++) {
        const struct symbol *s = &r->text.s[i];
        r->tokens[i] = s->token;
        h = mix(h * 31 + (uint64_t)s->token + ((uint64_t)s->image << 8) + ((uint64_t)s->index << 16) + 1);
        r->hash[i] = h;
        if (s->image && s->index == 0) {
            struct di_key_image *m = &r->images[r->n_images++];
            *m = (struct di_key_image){.begin = i, .end = i};
            m->digest[31] = (uint8_t)s->image;
        }
        if (s->image)
            r->images[r->n_images - 1].end = i + 1;
    }
}

static struct di_key_text text_of(const struct request *r)
{
    return (struct di_key_text){r->tokens, r->text.n, r->images, r->n_images};
}

/* ---------------------------------------------------------------- the network */

static void is_value(const struct request *r, const void *row, int64_t pos)
{
    uint64_t v;
    memcpy(&v, row, sizeof v);
    if (v != r->hash[pos] && !(r->bounded_ok && v == (r->hash[pos] ^ TAINT)))
        fail_msg("a row of position %lld is wrong (%s request)", (long long)pos, r->bounded_ok ? "bounded" : "exact");
}

/* The caches as the network sees them, with the pages that the slots have now. */
static struct di_kv see(const struct world *w)
{
    di_kv_send_pages(w->store);
    return di_test_view_kv(w->store);
}

/* Everything that rows from `pos` on may read was written by rows before it. */
static void check_visible(struct world *w, int slot, int64_t pos)
{
    const struct request *r = &w->r[slot];
    struct di_kv kv = see(w);
    int64_t g = pos > r->write_from ? pos : r->write_from; /* a hit gives more G than was computed so far */
    for (int src = 0; src < 2; src++)
        for (int32_t j = 0; j < g / layout.ratio[src]; j++) {
            is_value(r, di_kv_comp_row(&kv, slot, src, j), (int64_t)(j + 1) * layout.ratio[src] - 1);
            is_value(r, di_kv_key_row(&kv, slot, src, j), (int64_t)(j + 1) * layout.ratio[src] - 1);
        }
    for (int layer = 0; layer < LAYERS; layer++)
        for (int64_t p = pos > WINDOW - 1 ? pos - (WINDOW - 1) : 0; p < pos; p++)
            is_value(r, di_kv_window_row(&kv, slot, layer, (int32_t)p), p);
    if (pos % 2)
        is_value(r, di_kv_raw_row(&kv, slot, 0, (int32_t)pos - 1), pos - 1);
}

/* Nobody writes to a page that others read as theirs, or to rows that the index counts. */
static void own_page(const struct world *w, int slot, int page)
{
    int32_t b = w->store->lease[slot].pages[page];
    for (int i = 0; i < SLOTS; i++)
        for (int k = 0; i != slot && k < w->store->lease[i].n; k++)
            assert_int_not_equal(w->store->lease[i].pages[k], b);
}

/* Row `pos`. wrong: the window of this layer lacks rows, as at the start of a replay. */
static void compute_row(struct world *w, int slot, int64_t pos, const bool *wrong)
{
    struct request *r = &w->r[slot];
    struct di_kv kv = see(w);
    uint64_t v = pos < r->text.n ? r->hash[pos] : mix((uint64_t)pos + 5); /* behind the end: a step that nobody wanted */
    if (r->tainted)
        v ^= TAINT;
    for (int layer = 0; layer < LAYERS; layer++) {
        uint64_t x = wrong && wrong[layer] ? 0xbad : v;
        memcpy(di_kv_window_row(&kv, slot, layer, (int32_t)pos), &x, sizeof x);
    }
    memcpy(di_kv_raw_row(&kv, slot, 0, (int32_t)pos), &v, sizeof v);
    for (int src = 0; src < 2; src++)
        if (pos >= r->write_from && (pos + 1) % layout.ratio[src] == 0 && pos / DI_BLOCK_TOKENS < w->store->lease[slot].n) {
            int32_t j = (int32_t)(pos / layout.ratio[src]);
            own_page(w, slot, (int)(pos / DI_BLOCK_TOKENS));
            memcpy(di_kv_comp_row(&kv, slot, src, j), &v, sizeof v);
            memcpy(di_kv_key_row(&kv, slot, src, j), &v, sizeof v);
        }
}

/* ---------------------------------------------------------------- the model */

static struct prompt content_of(const struct world *w, int slot, int page, int n)
{
    struct prompt t = w->r[slot].text;
    t.n = (int64_t)page * DI_BLOCK_TOKENS + n;
    return t;
}

/* The longest match by looking at everything that is cached. */
static void best_match(const struct world *w, const struct request *r, int *n_blocks, int64_t *most)
{
    int64_t limit = r->text.n - 1;
    *n_blocks = 0;
    *most = 0;
    for (int pass = 0; pass < 2; pass++) /* full chains first: the rest hangs behind the longest */
        for (int b = 0; b < w->blocks; b++) {
            const struct held *h = &w->held[b];
            if (!h->cached || (h->bounded && !r->bounded_ok))
                continue;
            int64_t n = common(&h->text, &r->text, limit), before = h->text.n - h->n;
            if (pass == 0 && h->n == DI_BLOCK_TOKENS && n == h->text.n && n / DI_BLOCK_TOKENS > *n_blocks)
                *n_blocks = (int)(n / DI_BLOCK_TOKENS);
            if (pass == 1 && before == (int64_t)*n_blocks * DI_BLOCK_TOKENS && n >= before && n > *most)
                *most = n;
        }
    if (*most < (int64_t)*n_blocks * DI_BLOCK_TOKENS)
        *most = (int64_t)*n_blocks * DI_BLOCK_TOKENS;
}

static int64_t best_resume(const struct world *w, const struct request *r, int64_t limit)
{
    int64_t best = 0;
    for (int i = 0; i < w->states->params.count; i++) {
        const struct di_state *s = &w->states->state[i];
        if (!s->used || (s->bounded && !r->bounded_ok))
            continue;
        int64_t n = common(&w->held[s->block].text, &r->text, limit);
        n = n < s->at ? n : s->at;
        if (s->at - n <= w->states->params.rollback && n >= (s->at - 1) / DI_BLOCK_TOKENS * DI_BLOCK_TOKENS && n > best)
            best = n;
    }
    return best;
}

/* Learn what changed in the index: `slot` published (or -1). What left must have been replaced by something that contains it, or be the
 * cached-only blocks released longest ago. */
static void observe(struct world *w, int slot)
{
    const struct di_lease *l = slot >= 0 ? &w->store->lease[slot] : NULL;
    uint64_t evicted_last = 0;
    bool contained[MAX_BLOCKS] = {false};
    for (int i = 0; l && i < l->n; i++) {
        bool bounded;
        int32_t b = l->pages[i];
        int n = di_prefix_node(w->p, b, &bounded);
        struct held *h = &w->held[b];
        if (n == 0 || (h->cached && h->n == n && h->bounded == bounded))
            continue;
        struct prompt t = content_of(w, slot, i, n);
        for (int k = 0; k < w->blocks; k++)
            if (w->held[k].cached && common(&w->held[k].text, &t, CONTEXT) == w->held[k].text.n)
                contained[k] = true;
        if (!bounded) /* exact content drives out the bounded one and all behind it */
            for (int k = 0; k < w->blocks; k++)
                if (w->held[k].cached && w->held[k].bounded && common(&w->held[k].text, &t, CONTEXT) == t.n)
                    contained[k] = true;
        *h = (struct held){.cached = true, .bounded = bounded, .n = n, .text = t};
    }
    for (int b = 0; b < w->blocks; b++) {
        bool bounded;
        int n = di_prefix_node(w->p, b, &bounded);
        if (n > 0)
            assert_true(w->held[b].cached);
        if (n > 0 || !w->held[b].cached)
            continue;
        w->held[b].cached = false;
        for (int i = 0; l && i < l->n && !contained[b]; i++) { /* its own leaf, equal to a page that it switched to */
            const struct held *h = &w->held[l->pages[i]];
            contained[b] = h->cached && common(&w->held[b].text, &h->text, CONTEXT) == w->held[b].text.n;
        }
        if (!contained[b] && w->held[b].stamp > evicted_last)
            evicted_last = w->held[b].stamp;
        if (!contained[b])
            assert_true(w->held[b].stamp > 0);
    }
    for (int b = 0; b < w->blocks; b++)
        if (w->held[b].cached && w->store->pool.refs[b] == 0)
            assert_true(w->held[b].stamp > evicted_last);
}

static void invariants(struct world *w)
{
    struct di_block_counts n;
    int64_t refs = 0;
    const char *wrong = di_prefix_check(w->p);
    if (wrong)
        fail_msg("%s (draw %llu)", wrong, (unsigned long long)w->draws);
    assert_true(di_block_pool_count(&w->store->pool, &n));
    assert_int_equal(n.free + n.held + n.cached + n.held_cached, w->blocks);
    for (int i = 0; i < SLOTS; i++)
        refs += w->store->lease[i].n + (w->store->lease[i].source >= 0);
    assert_int_equal(n.refs, refs);
    assert_int_equal(di_kv_available(w->store), n.free + n.cached);
}

static void stamp(struct world *w, int32_t b)
{
    if (w->store->pool.refs[b] == 0)
        w->held[b].stamp = ++w->clock;
}

static void drop_source(struct world *w, int slot)
{
    int32_t source = w->store->lease[slot].source;
    di_lease_copied(&w->store->pool, &w->store->lease[slot]);
    if (source >= 0)
        stamp(w, source);
}

static void release(struct world *w, int slot)
{
    int32_t pages[CONTEXT];
    struct di_lease *l = &w->store->lease[slot];
    int n = l->n;
    memcpy(pages, l->pages, (size_t)n * sizeof *pages);
    drop_source(w, slot);
    di_kv_release(w->store, slot);
    while (n-- > 0)
        stamp(w, pages[n]);
    w->r[slot].live = false;
}

/* ---------------------------------------------------------------- life of a request */

static void publish(struct world *w, int slot, bool partial)
{
    struct di_key_text t = text_of(&w->r[slot]);
    di_prefix_publish(w->p, &w->store->lease[slot], &t, w->r[slot].done, partial);
    observe(w, slot);
}

static void save(struct world *w, int slot)
{
    struct request *r = &w->r[slot];
    struct di_key_text t = text_of(r);
    struct di_lease *l = &w->store->lease[slot];
    int spare = DI_RAW_ROWS - 2; /* what the raw rings allow with one row of rollback */
    bool possible = w->states->params.count > 0 && r->done > 0 && r->written <= r->done + spare;
    if (w->states->params.rollback == 1)
        assert_int_equal(di_state_can_save(w->states, r->done, r->written), r->written <= (r->done < 2 ? DI_RAW_ROWS : r->done + spare));
    bool saved = di_prefix_save(w->p, l, &t, r->done,
                                &(struct di_state_from){.kv = &w->kv, .slot = slot, .written = r->written, .draft_lo = 0, .least = 0});
    observe(w, slot);
    if (possible && w->states->params.rollback == 1 && !l->broken && !r->tainted)
        assert_true(saved);
}

/* Compute up to `to`, as one chunk. */
static void compute(struct world *w, int slot, int64_t to)
{
    struct request *r = &w->r[slot];
    check_visible(w, slot, r->done);
    for (; r->done < to; r->done++)
        compute_row(w, slot, r->done, NULL);
    if (r->written < to)
        r->written = to;
}

static void follow_plan(struct world *w, int slot, const struct di_match *m, const struct di_hit_plan *plan)
{
    struct request *r = &w->r[slot];
    r->write_from = plan->write_from;
    r->done = plan->start;
    r->tainted = m->bounded || (plan->how == DI_RESUME_STATE && m->state_bounded);
    if (plan->how == DI_RESUME_BOUNDED || (r->bounded_ok && draw(w, 2))) /* or the decoder side of bounded replay */
        r->tainted = w->store->lease[slot].bounded = true;
    if (plan->how == DI_RESUME_STATE && m->state_bounded)
        w->store->lease[slot].bounded = true;
    if (plan->how == DI_RESUME_REPLAY || plan->how == DI_RESUME_BOUNDED) {
        for (int64_t p = plan->start; p < plan->write_from;
             p++) { /* layer l is right from l * (window - 1) rows on; bounded replay takes all as right */
            bool wrong[LAYERS];
            for (int l = 0; l < LAYERS; l++)
                wrong[l] = plan->how == DI_RESUME_REPLAY && p < plan->start + l * (WINDOW - 1);
            compute_row(w, slot, p, wrong);
        }
        r->done = r->written = plan->write_from;
    }
    if (r->written < r->done)
        r->written = r->done;
    w->hits += m->n_blocks > 0;
    w->partial += m->source >= 0;
    w->resumed += plan->how == DI_RESUME_STATE;
    w->replayed += plan->how == DI_RESUME_REPLAY;
    w->bounded_hits += m->bounded;
}

static void admit(struct world *w, int slot)
{
    struct request *r = &w->r[slot];
    struct di_lease *l = &w->store->lease[slot];
    int n_blocks;
    int64_t most;
    *r = (struct request){.bounded_ok = !draw(w, 3)};
    random_prompt(w, &r->text);
    spell(r);
    r->prompt = r->text.n;
    r->end = r->prompt + draw(w, (uint32_t)(CONTEXT - 9 - r->prompt));
    struct di_key_text t = text_of(r);
    const struct di_key *root = &w->root[r->text.tenant];
    struct di_match m = di_prefix_match(w->p, root, &t, r->bounded_ok);
    best_match(w, r, &n_blocks, &most);
    assert_int_equal(m.n_blocks, n_blocks);
    assert_int_equal(m.common, most);
    assert_int_equal(m.tokens, most - most % 2);
    assert_int_equal(m.source_tokens, most - 64 * n_blocks);
    assert_int_equal(m.resume, best_resume(w, r, r->prompt - 1));
    assert_int_equal(m.miss == DI_MISS_REASON_NONE, m.common >= r->prompt - 1);
    if (m.source >= 0)
        assert_true(w->held[m.source].cached && common(&w->held[m.source].text, &r->text, r->prompt - 1) == most);
    struct di_hit_plan plan = di_hit_plan(&(struct di_hit){
        .n = r->prompt, .hit = m.tokens, .resume = m.resume, .window = WINDOW, .layers = LAYERS, .tail = r->bounded_ok ? r->prompt : 0});
    assert_true(plan.start < r->prompt && plan.start >= m.resume);
    size_t state_bytes = di_kv_state_bytes(&layout);
    memset(see(w).state + (size_t)slot * state_bytes, 0xee, state_bytes); /* what another request left */
    int32_t anchor = m.state >= 0 ? w->states->state[m.state].block : -1, path[CONTEXT / 64 + 1];
    if (plan.how == DI_RESUME_STATE)
        di_prefix_restore(w->p, &m, &w->kv, slot);
    bool ok = di_prefix_acquire(w->p, l, root, &t, &m, di_kv_blocks_for(r->end + 4));
    if (!ok) {
        assert_int_equal(l->n, 0);
        if (m.source >= 0)
            stamp(w, m.source);
        for (int b = 0, k = n_blocks; k > 0; k--) { /* the blocks found are the newest now, the last first */
            for (b = 0; b < w->blocks; b++)
                if (w->held[b].cached && w->held[b].n == 64 && w->held[b].text.n == 64 * k && (r->bounded_ok || !w->held[b].bounded) &&
                    common(&w->held[b].text, &r->text, r->prompt - 1) == 64 * k)
                    path[k - 1] = b;
            stamp(w, path[k - 1]);
        }
        return;
    }
    r->live = true;
    if (anchor >= 0)
        stamp(w, anchor);
    observe(w, -1);
    if (m.source >= 0)
        di_kv_copy_block(w->store, m.source, l->pages[n_blocks], m.source_tokens);
    if (draw(w, 2))
        drop_source(w, slot);
    follow_plan(w, slot, &m, &plan);
    check_visible(w, slot, r->done);
}

static void end(struct world *w, int slot, bool finished)
{
    struct request *r = &w->r[slot];
    if (finished) {
        for (int64_t over = r->done + draw(w, 4); r->written < over; r->written++)
            compute_row(w, slot, r->written, NULL); /* steps that were launched before the end was known */
        save(w, slot);
    } else if (draw(w, 2))
        publish(w, slot, draw(w, 2));
    if (!draw(w, 3))
        w->bank[draw(w, BANK)] = r->text;
    release(w, slot);
}

static void step(struct world *w, int slot)
{
    struct request *r = &w->r[slot];
    if (draw(w, 2))
        drop_source(w, slot);
    if (r->done < r->prompt) {
        int64_t to = r->done + 1 + draw(w, 200);
        compute(w, slot, to < r->prompt ? to : r->prompt);
        if (draw(w, 2))
            publish(w, slot, draw(w, 2));
        if (r->done == r->prompt)
            save(w, slot);
        return;
    }
    int64_t more = 1 + draw(w, 80);
    for (; more > 0 && r->text.n < r->end; more--)
        push(&r->text, (struct symbol){(int32_t)draw(w, 2), 0, 0});
    spell(r);
    compute(w, slot, r->text.n);
    if (r->text.n == r->end)
        end(w, slot, true);
    else if (draw(w, 2))
        publish(w, slot, draw(w, 2));
}

static void fork_request(struct world *w, int from, int to)
{
    struct request *r = &w->r[from];
    struct di_lease *l = &w->store->lease[to];
    int64_t n = r->done;
    if (r->done < r->prompt || w->store->lease[from].source >= 0)
        return;
    di_prefix_fork(w->p, &w->store->lease[from], l, n);
    w->r[to] = *r;
    if (!di_lease_grow(&w->store->pool, l, w->store->lease[from].n)) {
        release(w, to);
        return;
    }
    if (n % 64)
        di_kv_copy_block(w->store, w->store->lease[from].pages[n / 64], l->pages[n / 64], (int)(n % 64));
    size_t state_bytes = di_kv_state_bytes(&layout);
    uint8_t *states = see(w).state;
    memcpy(states + (size_t)to * state_bytes, states + (size_t)from * state_bytes, state_bytes);
    w->r[to].write_from = n;
    observe(w, -1);
}

static void operation(struct world *w)
{
    int slot = (int)draw(w, SLOTS), other = (int)draw(w, SLOTS);
    if (!w->r[slot].live)
        admit(w, slot);
    else if (!draw(w, 12))
        end(w, slot, false); /* abort, or preemption */
    else if (!draw(w, 10) && !w->r[other].live)
        fork_request(w, slot, other);
    else
        step(w, slot);
    invariants(w);
}

static void open_world(struct world *w, uint64_t seed, int blocks, int states, int rollback)
{
    static const uint8_t model[32] = {3};
    *w = (struct world){.seed = seed, .blocks = blocks};
    assert_int_equal(di_kv_store_create(di_test_memory(), &layout, SLOTS, blocks, CONTEXT, &w->store, NULL), DI_OK);
    struct di_state_params sp = {.be = w->store->be, .layout = &layout, .count = states, .window = WINDOW, .rollback = rollback};
    assert_int_equal(di_state_pool_create(&sp, &w->states, NULL), DI_OK);
    struct di_prefix_params pp = {.pool = &w->store->pool, .states = w->states, .max_tokens = CONTEXT, .seen = 64};
    assert_int_equal(di_prefix_create(&pp, &w->p, NULL), DI_OK);
    w->kv = di_kv_view(w->store);
    for (int i = 0; i < TENANTS; i++)
        assert_true(di_key_of_root(di_prefix_hasher(w->p), &(struct di_key_root){model, "test", &i, i ? sizeof i : 0}, &w->root[i]));
    for (int i = 0; i < BANK; i++)
        w->bank[i].tenant = i % TENANTS;
}

static void close_world(struct world *w)
{
    struct di_block_counts n;
    for (int i = 0; i < SLOTS; i++)
        if (w->r[i].live)
            release(w, i);
    invariants(w);
    assert_true(di_block_pool_count(&w->store->pool, &n));
    assert_int_equal(n.refs, 0);
    assert_int_equal(n.held + n.held_cached, 0);
    di_prefix_destroy(w->p);
    assert_int_equal(w->store->pool.n_free, w->blocks);
    assert_int_equal(w->states->n_used, 0);
    di_state_pool_destroy(w->states);
    struct di_backend *be = w->store->be;
    di_kv_store_destroy(w->store);
    di_test_memory_close(be);
}

static void random_life_agrees_with_the_model(void **state)
{
    (void)state;
    static const struct {
        int blocks, states, rollback;
    } worlds[] = {{12, 2, 1}, {24, 6, 1}, {48, 16, 1}, {128, 16, 1}, {11, 0, 1}, {60, 4, 3}, {40, 8, 1}, {96, 10, 2}};
    const int operations = DI_TEST_SHORT ? 1500 : 30000;
    struct world *w = di_malloc(sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        open_world(w, 1000 + i, worlds[i].blocks, worlds[i].states, worlds[i].rollback);
        uint64_t calls = di_mem_calls();
        for (int k = 0; k < operations; k++)
            operation(w);
        assert_int_equal(di_mem_calls(), calls); /* nothing is allocated while running */
        struct di_prefix_stats s = di_prefix_stats(w->p);
        printf("%d blocks: %llu lookups, %llu with blocks, %llu with a partial block, %llu resumed, %llu replayed, %llu bounded; %llu "
               "inserted, "
               "%llu switched, %llu superseded, %llu replaced, %llu evicted\n",
               w->blocks, (unsigned long long)s.lookups, (unsigned long long)w->hits, (unsigned long long)w->partial,
               (unsigned long long)w->resumed, (unsigned long long)w->replayed, (unsigned long long)w->bounded_hits,
               (unsigned long long)s.inserted, (unsigned long long)s.switched, (unsigned long long)s.superseded,
               (unsigned long long)s.replaced, (unsigned long long)s.evicted);
        assert_true(w->hits > 0 && w->partial > 0 && s.evicted > 0);
        close_world(w);
    }
    di_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_life_agrees_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
