#define DI_ON_DEVICE /* it is the device */
#include "testing/null_model.h"

#include "testing/device.h"

/* Cached rows of 8 bytes hold the hash of the prefix that ends with their position; key rows of source 0 the token too. */
#define KEY_BYTES 16
static const struct di_kv_layout layout = {.d = 2,
                                           .di = 2,
                                           .window_row_bytes = 8,
                                           .comp_row_bytes = 8,
                                           .key_row_bytes = KEY_BYTES,
                                           .ring_layers = DI_NULL_LAYERS,
                                           .n_sources = 2,
                                           .ratio = {1, 2},
                                           .raw_ring = {-1, 0},
                                           .n_raw_rings = 1,
                                           .key_offset = {0, 64 * KEY_BYTES},
                                           .comp_offset = {96 * KEY_BYTES, 96 * KEY_BYTES + 64 * 8},
                                           .block_bytes = 96 * KEY_BYTES + 96 * 8,
                                           .ring_bytes = (size_t)DI_NULL_LAYERS * DI_RING_ROWS * 8,
                                           .raw_bytes = DI_RAW_ROWS * 16};

di_status di_null_model_init(struct di_null_model *m, int vocab, int window, int64_t context, di_error *err)
{
    *m = (struct di_null_model){.vocab = vocab, .window = window, .context = context};
    m->hash = di_calloc((size_t)context + 1, sizeof *m->hash);
    m->ring = di_calloc((size_t)context * DI_NULL_LAYERS, sizeof *m->ring);
    if (m->hash && m->ring)
        return DI_OK;
    di_null_model_fini(m);
    return di_fail(err, DI_ERR_MEMORY, "", "out of memory for the null model");
}

void di_null_model_fini(struct di_null_model *m)
{
    di_free(m->hash);
    di_free(m->ring);
    m->hash = m->ring = NULL;
}

/* ---------------------------------------------------------------- the function that it computes */

static uint64_t hash_of(uint64_t before, int32_t token)
{
    return (before ^ ((uint64_t)(uint32_t)token + 1)) * 1099511628211u;
}

/* Place in a prefix of n tokens, -1 = the end. */
static int64_t place_of(uint64_t hash, int64_t n)
{
    uint64_t x = hash ^ hash >> 29;
    return x % 32 == 0 ? -1 : (int64_t)((x >> 8) % (uint64_t)n);
}

/* What greedy sampling answers to tokens[0, n), n > 0. */
static int32_t next_token(const int32_t *tokens, int64_t n)
{
    uint64_t h = 0;
    for (int64_t i = 0; i < n; i++)
        h = hash_of(h, tokens[i]);
    int64_t place = place_of(h, n);
    return place < 0 ? DI_NULL_END : tokens[place];
}

/* ---------------------------------------------------------------- a step */

static uint64_t load(const void *row)
{
    uint64_t x;
    memcpy(&x, row, sizeof x);
    return x;
}
static void store(void *row, uint64_t x)
{
    memcpy(row, &x, sizeof x);
}

/* The chunk of one request. */
struct part {
    struct di_null_model *m;
    const struct di_kv *kv;
    struct di_chunk c;
    struct di_replay replay;
    const int32_t *tokens;
};

static uint64_t *new_row(const struct part *a, int layer, int32_t pos)
{
    return &a->m->ring[(size_t)layer * (size_t)a->m->context + (size_t)(pos - a->c.pos0)];
}

/* Does the window of a row hold what it should in this layer? */
static bool window_right(const struct part *a, int layer, int32_t pos)
{
    int32_t from = pos >= a->m->window ? pos - a->m->window + 1 : 0;
    bool right = from >= a->replay.floor;
    for (int32_t q = from; q <= pos && right; q++)
        right = (q >= a->c.pos0 ? *new_row(a, layer, q) : load(di_kv_window_row(a->kv, a->c.slot, layer, q))) ==
                a->m->hash[q + 1] + (uint64_t)layer;
    return right;
}

/* One row: its ring rows, its G. False if its result is not that of its prefix. */
static bool compute_row(const struct part *a, int32_t pos)
{
    int slot = a->c.slot;
    const uint64_t *hash = a->m->hash;
    bool right = true;
    for (int l = 0; l < DI_NULL_LAYERS; l++) {
        *new_row(a, l, pos) = right ? hash[pos + 1] + (uint64_t)l : 0;
        right = right && window_right(a, l, pos);
    }
    uint64_t value = right ? hash[pos + 1] : 0;
    if (pos >= a->replay.write_from) {
        uint8_t *key = di_kv_key_row(a->kv, slot, 0, pos);
        store(key, value);
        store(key + 8, (uint64_t)a->tokens[pos]);
        store(di_kv_comp_row(a->kv, slot, 0, pos), value);
        if (pos % 2) { /* closes a group, whose other member lies in the raw ring */
            bool pair = right && load(di_kv_raw_row(a->kv, slot, 0, pos - 1)) == hash[pos];
            store(di_kv_key_row(a->kv, slot, 1, pos / 2), pair ? hash[pos + 1] : 0);
            store(di_kv_comp_row(a->kv, slot, 1, pos / 2), pair ? hash[pos + 1] : 0);
        }
    }
    store(di_kv_raw_row(a->kv, slot, 0, pos), value); /* one row at a time, so the chunk itself never overwrites what it needs */
    return right;
}

/* G of all rows up to the last of the chunk, as the attention of that row reads it. */
static bool g_right(const struct part *a, int32_t n)
{
    int slot = a->c.slot;
    const uint64_t *hash = a->m->hash;
    bool right = true;
    for (int32_t p = 0; p < n && right; p++)
        right = load(di_kv_key_row(a->kv, slot, 0, p)) == hash[p + 1] && load(di_kv_comp_row(a->kv, slot, 0, p)) == hash[p + 1];
    for (int32_t g = 0; g < n / 2 && right; g++)
        right = load(di_kv_key_row(a->kv, slot, 1, g)) == hash[2 * g + 2] && load(di_kv_comp_row(a->kv, slot, 1, g)) == hash[2 * g + 2];
    return right;
}

static void compute_part(const struct part *a)
{
    int32_t n = a->c.pos0 + a->c.n, keep = a->c.n < DI_RING_ROWS ? a->c.n : DI_RING_ROWS;
    for (int32_t p = 0; p < n; p++)
        a->m->hash[p + 1] = hash_of(a->m->hash[p], a->tokens[p]);
    for (int32_t p = a->c.pos0; p < n; p++)
        a->m->wrong += !compute_row(a, p) && p >= a->replay.write_from;
    for (int l = 0; l < DI_NULL_LAYERS; l++)
        for (int32_t p = n - keep; p < n; p++)
            store(di_kv_window_row(a->kv, a->c.slot, l, p), *new_row(a, l, p));
    a->m->wrong += !g_right(a, n);
}

/* What the row at position p of a computed chunk says: its own value stands in the raw ring, all that it reads in G. */
static void logits_of(const struct part *a, int32_t p, float *logits)
{
    uint64_t hash = 0;
    for (int32_t i = 0; i <= p; i++)
        a->m->hash[i + 1] = hash = hash_of(hash, a->tokens[i]);
    bool right = load(di_kv_raw_row(a->kv, a->c.slot, 0, p)) == hash && g_right(a, p + 1);
    int64_t place = place_of(load(di_kv_key_row(a->kv, a->c.slot, 0, p)), p + 1);
    uint64_t token = place < 0 ? DI_NULL_END : load(di_kv_key_row(a->kv, a->c.slot, 0, (int32_t)place) + 8);
    for (int i = 0; i < a->m->vocab; i++)
        logits[i] = -(float)((i * 31 + a->tokens[p]) % 17);
    logits[(token + !right) % (uint64_t)a->m->vocab] = 5;
}

static struct part part_of(struct di_null_model *m, const struct di_step *step, int k)
{
    struct part a = {.m = m, .kv = &step->kv, .c = step->chunks[k], .tokens = step->tokens[k]};
    if (step->replay)
        a.replay = step->replay[k];
    return a;
}

static di_status null_compute(void *model, const struct di_step *step, di_error *err)
{
    struct di_null_model *m = model;
    if (m->before)
        m->before(m->before_ctx, step);
    if (m->fail)
        return di_fail(err, DI_ERR_INTERNAL, "null", "told to fail");
    for (int k = 0; k < step->n_chunks; k++) {
        struct part a = part_of(m, step, k);
        compute_part(&a);
    }
    return DI_OK;
}

static void null_head(void *model, const struct di_step *step, int first, int n, float *logits)
{
    struct di_null_model *m = model;
    for (int i = first, k = 0; i < first + n; i++, logits += m->vocab) {
        while (step->logit_rows[i] >= step->chunks[k].row0 + step->chunks[k].n)
            k++;
        struct part a = part_of(m, step, k);
        logits_of(&a, a.c.pos0 + step->logit_rows[i] - a.c.row0, logits);
    }
}

static void null_guess(void *model, const struct di_kv *kv, int n, struct di_guess *guesses)
{
    const struct di_null_model *m = model;
    (void)kv;
    for (struct di_guess *g = guesses; g < guesses + n; g++) {
        g->n = (int)(g->at * 7 % (g->most + 1));
        for (int64_t at = g->at + 1; at <= g->at + g->n; at++)
            g->tokens[at] = at % 5 == 0 ? (int32_t)(g->at % m->vocab) : next_token(g->tokens, at);
    }
}

di_status di_null_core(struct di_null_model *m, const struct di_core_config *config, struct di_core **out, di_error *err)
{
    struct di_stepper n = {.layout = layout,
                           .vocab = m->vocab,
                           .window = m->window,
                           .layers = DI_NULL_LAYERS,
                           .context = m->context,
                           .numerics = "null",
                           .compute = null_compute,
                           .head = null_head,
                           .guess = null_guess,
                           .ctx = m,
                           .guess_ctx = m};
    return di_test_core(&n, config, out, err);
}

/* ---------------------------------------------------------------- requests under watch */

static void on_start(void *ctx, int64_t cached)
{
    struct di_watch *w = ctx;
    w->stood_still = w->stood_still || (w->starts > 0 && w->progress == 0);
    w->twice = w->twice || w->over;
    w->cached = cached;
    w->progress = 0;
    w->starts++;
}

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct di_watch *w = ctx;
    w->twice = w->twice || w->over || w->n_got == w->max_tokens;
    if (w->twice)
        return false;
    w->tokens[w->n_prompt + w->n_got++] = s->id;
    w->progress++;
    return w->n_got != w->stop_after;
}

static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct di_watch *w = ctx;
    w->twice = w->twice || w->over;
    w->over = true;
    w->end = end;
    if (err)
        w->err = *err;
}

di_status di_watch_submit(struct di_watch *w, struct di_core *e, di_error *err)
{
    static const int32_t end_ids[] = {DI_NULL_END};
    struct di_request r = {.prompt = w->tokens,
                           .n_prompt = w->n_prompt,
                           .max_tokens = w->max_tokens,
                           .prompt_stays = w->n_prompt % 2, /* it does; half of all tests try what comes of saying so */
                           .sampling = di_sampling_params_default(),
                           .priority = w->priority,
                           .tenant = w->tenant,
                           .deadline_ns = w->deadline_ns,
                           .after = w->after,
                           .save_at = w->save_at,
                           .n_save_at = w->n_save_at,
                           .ignore_end = w->ignore_end,
                           .masks = w->masks,
                           .on_start = on_start,
                           .on_token = on_token,
                           .on_end = on_end,
                           .ctx = w};
    r.sampling.temperature = w->temperature;
    r.sampling.seed = w->seed;
    r.sampling.frequency_penalty = w->frequency_penalty;
    r.sampling.end_ids = end_ids;
    r.sampling.n_end_ids = 1;
    w->cached = w->n_got = w->starts = w->progress = 0;
    w->stood_still = w->over = w->twice = false;
    return di_core_submit(e, &r, &w->id, err);
}

const char *di_watch_wrong(const struct di_watch *w)
{
    di_end_reason want = DI_REASON_LENGTH;
    int n = 0;
    for (bool over = false; n < w->n_got && !over; n++) {
        int32_t token = next_token(w->tokens, w->n_prompt + n);
        over = n + 1 == w->stop_after || (token == DI_NULL_END && !w->ignore_end);
        want = over ? DI_REASON_STOP : want;
        if (w->tokens[w->n_prompt + n] != token)
            return "a token is not the one behind its prefix";
    }
    bool given_up = w->end == DI_REASON_CANCELLED || w->end == DI_REASON_DEADLINE;
    if (!w->over || w->twice)
        return w->over ? "something came after the end" : "it did not end";
    if (n != w->n_got || (!given_up && w->end != want) || (w->end == DI_REASON_LENGTH && n != w->max_tokens))
        return "it ended at the wrong place or for the wrong reason";
    return w->stood_still ? "it was preempted again before it had made progress" : NULL;
}

const char *di_null_left(const struct di_core *e, const struct di_null_model *m)
{
    struct di_core_stats s = di_core_stats(e);
    if (s.running || s.waiting)
        return "a request is still known";
    if (s.free_blocks != s.blocks)
        return "a block is still held";
    if (m->wrong)
        return "a row was read that is not the request's";
    return di_core_check_accounts(e);
}
