#include "cache/state_pool.h"

#include "base/assert.h"
#include "base/mem.h"

static size_t ring_rows(int window, int rollback)
{
    return (size_t)(window - 1 + rollback);
}

static size_t raw_row_bytes(const struct di_kv_layout *l)
{
    return 2 * (size_t)l->d * sizeof(float);
}

size_t di_state_bytes(const struct di_kv_layout *l, int window, int rollback)
{
    size_t rings = (size_t)l->ring_layers * ring_rows(window, rollback) * l->window_row_bytes;
    return rings + (size_t)l->n_raw_rings * (size_t)(rollback + 1) * raw_row_bytes(l);
}

void di_state_pool_plan(const struct di_state_params *p, di_memory_plan *plan)
{
    di_memory_region r = {.group = DI_GROUP_CACHE,
                          .name = "snapshots",
                          .count = (uint64_t)p->count,
                          .unit_bytes = di_state_bytes(p->layout, p->window, p->rollback)};
    di_plan_add(plan, &r, "of request states: %zu rows of each window ring, %d of each raw ring", ring_rows(p->window, p->rollback),
                p->rollback + 1);
    r = (di_memory_region){.group = DI_GROUP_CACHE,
                           .place = DI_PLACE_HOST,
                           .name = "snapshot accounts",
                           .count = (uint64_t)p->count,
                           .unit_bytes = sizeof(struct di_state)};
    di_plan_add(plan, &r, "where each belongs");
}

di_status di_state_pool_create(const struct di_state_params *params, struct di_state_pool **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_state_pool *p = NULL;
    size_t bytes;
    *out = NULL;
    CHECK(params->count >= 0 && params->count <= DI_MAX_STATES && params->window >= 1 && params->rollback >= 1 &&
              params->rollback < DI_RAW_ROWS && ring_rows(params->window, params->rollback) <= DI_RING_ROWS,
          err, DI_ERR_INVALID, "",
          "a state of %d window rows and %d rows of rollback does not fit window rings of %d and raw rings of %d rows", params->window,
          params->rollback, DI_RING_ROWS, DI_RAW_ROWS);
    p = di_calloc(1, sizeof *p);
    CHECK(p, err, DI_ERR_MEMORY, "", "out of memory for the state pool");
    p->params = *params;
    p->layout = *params->layout;
    p->params.layout = &p->layout;
    p->bytes_each = di_state_bytes(&p->layout, params->window, params->rollback);
    p->oldest = p->newest = p->first_free = -1;
    CHECK(di_mul((size_t)params->count, p->bytes_each, &bytes), err, DI_ERR_LIMIT, "", "%d states are too many", params->count);
    p->state = di_calloc((size_t)params->count, sizeof *p->state);
    p->data = di_device_alloc(params->be, bytes);
    p->spans = di_calloc(2 * (size_t)(p->layout.ring_layers + p->layout.n_raw_rings), sizeof *p->spans);
    CHECK(p->state && p->data && p->spans, err, DI_ERR_MEMORY, "", "out of memory for %d states of %zu bytes", params->count,
          p->bytes_each);
    for (int32_t s = params->count; s-- > 0; p->first_free = s)
        p->state[s].next = p->first_free;
    *out = p;
    p = NULL;
out:
    di_state_pool_destroy(p);
    return status;
}

void di_state_pool_destroy(struct di_state_pool *p)
{
    if (!p)
        return;
    di_free(p->state);
    di_device_free(p->params.be, p->data);
    di_free(p->spans);
    di_free(p);
}

static void list_add(struct di_state_pool *p, int32_t s)
{
    p->state[s].prev = p->newest;
    p->state[s].next = -1;
    *(p->newest >= 0 ? &p->state[p->newest].next : &p->oldest) = s;
    p->newest = s;
}

static void list_remove(struct di_state_pool *p, int32_t s)
{
    const struct di_state *st = &p->state[s];
    *(st->prev >= 0 ? &p->state[st->prev].next : &p->oldest) = st->next;
    *(st->next >= 0 ? &p->state[st->next].prev : &p->newest) = st->prev;
}

int32_t di_state_take(struct di_state_pool *p)
{
    int32_t s = p->first_free;
    if (s < 0)
        return -1;
    DI_ASSERT(!p->state[s].used && p->n_used < p->params.count);
    p->first_free = p->state[s].next;
    p->state[s] = (struct di_state){.used = true, .block = -1, .block_next = -1, .bucket_next = -1};
    p->n_used++;
    list_add(p, s);
    return s;
}

void di_state_free(struct di_state_pool *p, int32_t s)
{
    DI_ASSERT(p->state[s].used && p->n_used > 0);
    list_remove(p, s);
    p->state[s].used = false;
    p->state[s].next = p->first_free;
    p->first_free = s;
    p->n_used--;
}

void di_state_touch(struct di_state_pool *p, int32_t s)
{
    DI_ASSERT(p->state[s].used);
    list_remove(p, s);
    list_add(p, s);
}

static int64_t first_row(int64_t at, size_t rows)
{
    return at > (int64_t)rows ? at - (int64_t)rows : 0;
}

bool di_state_can_save(const struct di_state_pool *p, int64_t at, int64_t written)
{
    int64_t ring = first_row(at, ring_rows(p->params.window, p->params.rollback));
    int64_t raw = first_row(at, (size_t)p->params.rollback + 1);
    return written >= at && ring + DI_RING_ROWS >= written && (p->layout.n_raw_rings == 0 || raw + DI_RAW_ROWS >= written);
}

/* Rows of positions [first, at) in a ring of `ring_rows`, against consecutive rows; to the ring or from it. */
struct part {
    uint8_t DI_DEVICE *ring, *rows;
    int64_t first, at;
    int ring_rows;
    size_t row_bytes;
    bool to_ring;
};

/* The number of spans written. */
static int list_part(const struct part *s, struct di_copy_span *spans)
{
    uint8_t DI_DEVICE *rows = s->rows;
    int count = 0;
    for (int64_t pos = s->first; pos < s->at;) {
        int64_t slot = pos % s->ring_rows, n = s->ring_rows - slot;
        if (n > s->at - pos)
            n = s->at - pos;
        uint8_t DI_DEVICE *ring = s->ring + (size_t)slot * s->row_bytes;
        size_t bytes = (size_t)n * s->row_bytes;
        spans[count++] = s->to_ring ? (struct di_copy_span){ring, rows, bytes} : (struct di_copy_span){rows, ring, bytes};
        rows += bytes;
        pos += n;
    }
    return count;
}

static void copy_state(struct di_state_pool *p, int32_t id, const struct di_kv *kv, int slot, bool to_ring)
{
    const struct di_kv_layout *l = &p->layout;
    size_t rows = ring_rows(p->params.window, p->params.rollback), raw = (size_t)p->params.rollback + 1;
    int64_t at = p->state[id].at;
    uint8_t DI_DEVICE *data = p->data + (size_t)id * p->bytes_each;
    struct part s = {.rows = data,
                     .first = first_row(at, rows),
                     .at = at,
                     .ring_rows = DI_RING_ROWS,
                     .row_bytes = l->window_row_bytes,
                     .to_ring = to_ring};
    int n = 0;
    for (int i = 0; i < l->ring_layers; i++, s.rows += rows * s.row_bytes) {
        s.ring = di_kv_window_row(kv, slot, i, 0);
        n += list_part(&s, p->spans + n);
    }
    s = (struct part){
        .rows = s.rows, .first = first_row(at, raw), .at = at, .ring_rows = DI_RAW_ROWS, .row_bytes = raw_row_bytes(l), .to_ring = to_ring};
    for (int i = 0; i < l->n_raw_rings; i++, s.rows += raw * s.row_bytes) {
        s.ring = (uint8_t DI_DEVICE *)di_kv_raw_row(kv, slot, i, 0);
        n += list_part(&s, p->spans + n);
    }
    p->params.be->ops->copy(p->params.be, &(struct di_op_copy){n, p->spans});
}

void di_state_store(struct di_state_pool *p, int32_t s, const struct di_kv *kv, int slot)
{
    copy_state(p, s, kv, slot, false);
}

void di_state_load(struct di_state_pool *p, int32_t s, const struct di_kv *kv, int slot)
{
    copy_state(p, s, kv, slot, true);
}
