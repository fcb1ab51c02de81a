#include "base/plan.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

const char *di_memory_group_name(di_memory_group group)
{
    static const char *const names[] = {"weights", "cache", "activations", "scratch"};
    size_t i = (size_t)group;
    return i < sizeof names / sizeof *names ? names[i] : "";
}

const char *di_memory_place_name(di_memory_place place)
{
    static const char *const names[] = {"device", "host", "mapped", "file"};
    size_t i = (size_t)place;
    return i < sizeof names / sizeof *names ? names[i] : "";
}

/* ---------------------------------------------------------------- the list */

static uint64_t add_up(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t *sum_of(di_memory_plan *p, const di_memory_region *r)
{
    uint64_t *const sums[] = {&p->weights_packed, &p->cache, &p->activations, &p->scratch};
    return r->place == DI_PLACE_MAPPED ? &p->weights_mapped : sums[r->group];
}

void di_plan_add(di_memory_plan *p, const di_memory_region *region, const char *note, ...)
{
    va_list ap;
    di_memory_region r = *region;
    if (__builtin_mul_overflow(r.count, r.unit_bytes, &r.bytes))
        r.bytes = UINT64_MAX;
    if (r.bytes == 0)
        return;
    va_start(ap, note);
    vsnprintf(r.note, sizeof r.note, note, ap);
    va_end(ap);
    if (r.place != DI_PLACE_FILE) {
        uint64_t *sum = sum_of(p, &r);
        *sum = add_up(*sum, r.bytes);
        p->total = add_up(p->total, r.bytes);
    }
    if (p->n_regions < DI_MEMORY_REGIONS_MAX)
        p->regions[p->n_regions] = r;
    p->n_regions++;
}

di_status di_plan_check(const di_memory_plan *p, di_error *err)
{
    if (p->n_regions > DI_MEMORY_REGIONS_MAX)
        return di_fail(err, DI_ERR_INTERNAL, "", "a memory plan has %d regions, more than %d", (int)p->n_regions, DI_MEMORY_REGIONS_MAX);
    if (p->total > INT64_MAX)
        return di_fail(err, DI_ERR_LIMIT, "", "the memory for %d requests of %lld tokens passes 2^63 bytes", (int)p->max_batch,
                       (long long)p->context);
    return DI_OK;
}

uint64_t di_plan_taken(const di_memory_plan *p)
{
    return p->total - p->weights_mapped;
}

/* ---------------------------------------------------------------- writing it */

const char *di_grouped(uint64_t x, char s[32])
{
    char *p = s + 31;
    *p = 0;
    for (int digits = 0; x || digits == 0; digits++, x /= 10) {
        if (digits && digits % 3 == 0)
            *--p = ',';
        *--p = (char)('0' + x % 10);
    }
    return p;
}

void di_add_human_bytes(struct di_buf *b, uint64_t bytes)
{
    static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)bytes;
    int unit = 0;
    for (; x >= 1024 && unit < 5; unit++)
        x /= 1024;
    di_buf_addf(b, "%10.*f %s", unit ? 2 : 0, x, units[unit]);
}

static void add_region(struct di_buf *b, const di_memory_region *r)
{
    char t[3][32];
    di_buf_addf(b, "  %-11s %-18s %-6s %10s %15s %17s", di_memory_group_name(r->group), r->name, di_memory_place_name(r->place),
                di_grouped(r->count, t[0]), di_grouped(r->unit_bytes, t[1]), di_grouped(r->bytes, t[2]));
    di_add_human_bytes(b, r->bytes);
    di_buf_addf(b, "  %s\n", r->note);
}

static void add_total(struct di_buf *b, const char *name, uint64_t bytes, const char *note)
{
    char t[32];
    di_buf_addf(b, "  %-64s %17s", name, di_grouped(bytes, t));
    di_add_human_bytes(b, bytes);
    di_buf_addf(b, "%s%s\n", *note ? "  " : "", note);
}

void di_plan_write(struct di_buf *b, const di_memory_plan *p)
{
    char t[32];
    di_buf_addf(b, "memory plan: %d request%s of %s tokens, at most %d rows a step, %s\n", (int)p->max_batch, p->max_batch == 1 ? "" : "s",
                di_grouped((uint64_t)p->context, t), (int)p->max_rows, p->arithmetic);
    di_buf_addf(b, "  %-11s %-18s %-6s %10s %15s %17s\n", "group", "region", "place", "count", "bytes each", "bytes");
    for (int i = 0; i < p->n_regions; i++)
        add_region(b, &p->regions[i]);
    add_total(b, "taken at start", di_plan_taken(p), "");
    add_total(b, "read in place from the files", p->weights_mapped, "resident as touched");
    add_total(b, "total", p->total, "at most");
}

void di_plan_write_json(struct di_buf *b, const di_memory_plan *p)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } sums[] = {{"mapped_bytes", p->weights_mapped},
                {"allocated_bytes", di_plan_taken(p)},
                {"weights_packed", p->weights_packed},
                {"weights_mapped", p->weights_mapped},
                {"cache", p->cache},
                {"activations", p->activations},
                {"scratch", p->scratch},
                {"total", p->total}};
    di_buf_addf(b, "{\"context\":%lld,\"batch\":%d,\"rows\":%d,\"arithmetic\":\"%s\",", (long long)p->context, (int)p->max_batch,
                (int)p->max_rows, p->arithmetic);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        di_buf_addf(b, "\"%s\":%llu,", sums[i].name, (unsigned long long)sums[i].bytes);
    di_buf_adds(b, "\"regions\":[");
    for (int i = 0; i < p->n_regions; i++) {
        const di_memory_region *r = &p->regions[i];
        di_buf_addf(b, "%s{\"group\":\"%s\",\"name\":\"%s\",\"place\":\"%s\",\"count\":%llu,\"unit_bytes\":%llu,\"bytes\":%llu,\"note\":",
                    i ? "," : "", di_memory_group_name(r->group), r->name, di_memory_place_name(r->place), (unsigned long long)r->count,
                    (unsigned long long)r->unit_bytes, (unsigned long long)r->bytes);
        di_json_write_string(b, di_str_c(r->note));
        di_buf_addc(b, '}');
    }
    di_buf_adds(b, "]}");
}
