/* Numbers. All bounds and values that the assertions of a typed site speak of are points; a state knows which points its digits so far are
 * equal to (a range of the points sorted by digits), how large it is, what is left of its steps, and so what every assertion says of it.
 * Such states are few, and interned; they are found as they are entered. A state from which no accepted number can be reached is dead.
 *
 * Numbers without bounds and steps may be written in every way. Others have an exponent only behind one digit before the point (1e21, 1.5e-7:
 * what programs write), because with any exponent every beginning could still become everything; whole numbers with bounds have none. */
#include "grammar/impl.h"

#include <stdlib.h>

#define MAX_STEPS 16
#define SEARCH 20000
enum { SYMBOLS = 14 }; /* 0..9 - + . e */
enum { START, MINUS, ZERO, WHOLE, POINT, FRACTION, EXPONENT, EXPONENT_SIGN, EXPONENT_DIGITS };

struct number_key {
    uint8_t phase, negative, nonzero, point; /* point: has a point or an exponent */
    uint8_t fraction_nonzero, exponent_negative, off_step[MAX_STEPS];
    uint8_t pad[2];            /* the key has no holes: it is compared as bytes */
    int16_t size;              /* digits before the point, or minus the zeros behind it; cut where no point is that large or small */
    uint16_t low, high, depth; /* the points whose digits begin like this, and how many digits that are */
    uint16_t places;           /* digits behind the point up to the last that is not 0 */
    uint16_t zeros;            /* 0s behind those */
    uint16_t exponent;
    uint16_t digits_behind; /* digits behind the point as far as steps ask */
    uint32_t rest[MAX_STEPS];
};

struct number_state {
    struct number_key key;
    uint32_t chain, next[SYMBOLS]; /* UINT32_MAX: unknown */
    uint8_t live;
    uint32_t *memo;
};

static int by_digits(const void *a, const void *b)
{
    const struct decimal *x = a, *y = b;
    int c = decimal_compare_digits(x, y);
    return c ? c : (x->exponent > y->exponent) - (x->exponent < y->exponent);
}

static uint32_t intern(struct di_grammar *g, struct numbers *n, const struct number_key *key)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    const uint32_t *v = (const uint32_t *)key;
    for (size_t i = 0; i < sizeof *key / 4; i++)
        h = (h ^ v[i] ^ h >> 31) * 0xD6E8FEB86659FD93u;
    uint32_t *head = n->heads + (h >> 32 & n->mask);
    for (uint32_t i = *head; i; i = n->states[i].chain)
        if (memcmp(&n->states[i].key, key, sizeof *key) == 0)
            return i;
    if (n->n >= g->options.limits.regex_nodes) {
        g->over = "regex_nodes";
        return 0;
    }
    if (!gr_grow(g, (void **)&n->states, &n->cap, n->n + 1, sizeof *n->states))
        return 0;
    struct number_state *s = n->states + n->n;
    *s = (struct number_state){.chain = *head};
    s->key = *key;
    memset(s->next, 0xFF, sizeof s->next);
    *head = (uint32_t)n->n;
    return (uint32_t)n->n++;
}

static void add_point(struct numbers *n, const struct decimal *d)
{
    struct decimal p = *d;
    p.negative = false;
    n->points[n->n_points++] = p;
}

struct numbers *numbers_create(struct di_grammar *g, struct typed_site *t)
{
    struct numbers *n = di_calloc(1, sizeof *n);
    size_t points = 1;
    if (!n)
        return NULL;
    for (uint32_t i = 0; i < t->n_atoms; i++)
        points += 2 + (g->schemas.v[t->atoms[i].schema].number ? g->schemas.v[t->atoms[i].schema].number->n_set : 0);
    n->rules = di_arena_alloc(&g->arena, (t->n_atoms + 1) * sizeof *n->rules);
    n->rule_atom = di_arena_alloc(&g->arena, (t->n_atoms + 1) * sizeof *n->rule_atom);
    n->points = di_arena_alloc(&g->arena, points * sizeof *n->points);
    n->steps = di_arena_alloc(&g->arena, MAX_STEPS * sizeof *n->steps);
    n->rule_step = di_arena_alloc(&g->arena, t->n_atoms + 1);
    n->mask = 255;
    n->heads = di_calloc(n->mask + 1, sizeof *n->heads);
    if (!n->rules || !n->rule_atom || !n->points || !n->steps || !n->rule_step || !n->heads || points > 60000) {
        numbers_destroy(n);
        return NULL;
    }
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        struct number_rule *r = g->schemas.v[t->atoms[i].schema].number;
        n->rules[n->n_rules] = r;
        n->rule_atom[n->n_rules] = i;
        n->whole |= r->integer;
        if (r->has_low)
            add_point(n, &r->low);
        if (r->has_high)
            add_point(n, &r->high);
        for (uint32_t k = 0; k < r->n_set; k++)
            add_point(n, &r->set[k]);
        if (r->step.n) {
            uint32_t k = 0;
            while (k < n->n_steps && decimal_compare(n->steps[k], &r->step) != 0)
                k++;
            if (k == MAX_STEPS) {
                g->over = "16 values of multipleOf for one number";
                numbers_destroy(n);
                return NULL;
            }
            n->steps[k] = &r->step;
            n->rule_step[n->n_rules] = (uint8_t)k;
            n->n_steps += k == n->n_steps;
        }
        n->n_rules++;
    }
    size_t kept = 0;
    if (n->n_points)
        qsort(n->points, n->n_points, sizeof *n->points, by_digits);
    n->highest = 1;
    n->lowest = -1;
    for (uint32_t i = 0; i < n->n_points; i++) {
        const struct decimal p = n->points[i];
        if (!p.n || (kept && by_digits(&n->points[kept - 1], &p) == 0))
            continue;
        n->points[kept++] = p;
        n->highest = p.exponent > n->highest ? p.exponent : n->highest;
        n->lowest = p.exponent < n->lowest ? p.exponent : n->lowest;
    }
    bool bounds = n->n_points > 0;
    n->n_points = (uint32_t)kept;
    n->free = !bounds && !n->n_steps;
    n->most_exponent = n->free ? 2000 : 2 + (n->highest > -n->lowest ? n->highest : -n->lowest);
    for (uint32_t i = 0; i < n->n_rules; i++)
        n->digits_only |= n->rules[i]->integer_text && t->hard[n->rule_atom[i]];
    n->n = 1;
    if (!gr_grow(g, (void **)&n->states, &n->cap, 2, sizeof *n->states)) {
        numbers_destroy(n);
        return NULL;
    }
    n->states[0] = (struct number_state){.live = 2};
    memset(n->states[0].next, 0, sizeof n->states[0].next);
    intern(g, n, &(struct number_key){.high = (uint16_t)kept});
    return n;
}

void numbers_destroy(struct numbers *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->n; i++)
        di_free(n->states[i].memo);
    di_free(n->states);
    di_free(n->heads);
    di_free(n);
}

/* ---- what a finished number is ---- */

/* |number| against a point. */
static int compare_size(const struct numbers *n, const struct number_key *k, const struct decimal *p)
{
    if (!k->nonzero || !p->n)
        return k->nonzero ? 1 : p->n ? -1 : 0;
    int32_t exponent = k->size - 1;
    if (k->phase == EXPONENT_DIGITS)
        exponent += k->exponent_negative ? -(int32_t)k->exponent : k->exponent;
    if (exponent != p->exponent)
        return exponent > p->exponent ? 1 : -1;
    uint32_t low = 0, high = n->n_points; /* where p stands among the points */
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (by_digits(&n->points[mid], p) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < k->low ? 1 : low >= k->high ? -1 : k->depth >= p->n ? 0 : -1;
}

static int compare(const struct numbers *n, const struct number_key *k, const struct decimal *p)
{
    bool negative = k->negative && k->nonzero;
    if (negative != p->negative)
        return negative ? -1 : 1;
    int c = compare_size(n, k, p);
    return negative ? -c : c;
}

static uint64_t power(uint32_t n)
{
    uint64_t p = 1;
    while (n-- > 0)
        p *= 10;
    return p;
}

/* A step as whole / 10^places. */
static void step_parts(const struct decimal *d, uint64_t *whole, uint32_t *places)
{
    int32_t last = d->exponent - (int32_t)d->n + 1; /* exponent of the last digit */
    *whole = 0;
    for (uint32_t i = 0; i < d->n; i++)
        *whole = *whole * 10 + (uint64_t)d->digits[i];
    if (last > 0)
        *whole *= power((uint32_t)last);
    *places = last < 0 ? (uint32_t)-last : 0;
}

static bool rule_holds(const struct numbers *n, const struct number_key *k, const struct number_rule *r, uint32_t rule)
{
    if (r->integer_text && k->point)
        return false;
    if (r->integer) {
        bool whole = k->phase == EXPONENT_DIGITS
                         ? !k->nonzero || (k->exponent_negative ? k->exponent == 0 && !k->places : k->places <= k->exponent)
                         : !k->fraction_nonzero;
        if (!whole)
            return false;
    }
    int c;
    if (r->has_low && ((c = compare(n, k, &r->low)) < 0 || (c == 0 && r->open_low)))
        return false;
    if (r->has_high && ((c = compare(n, k, &r->high)) > 0 || (c == 0 && r->open_high)))
        return false;
    if (r->has_set) {
        uint32_t i = 0;
        while (i < r->n_set && compare(n, k, &r->set[i]) != 0)
            i++;
        if (i == r->n_set)
            return false;
    }
    if (r->step.n) {
        uint64_t whole;
        uint32_t places, i = n->rule_step[rule];
        step_parts(&r->step, &whole, &places);
        return !k->off_step[i] &&
               (unsigned __int128)k->rest[i] * power(k->digits_behind < places ? places - k->digits_behind : 0) % whole == 0;
    }
    return true;
}

static bool ended(const struct number_key *k)
{
    return k->phase == ZERO || k->phase == WHOLE || k->phase == FRACTION || k->phase == EXPONENT_DIGITS;
}

void numbers_assign(struct typed_site *t, uint32_t state, bool *atoms)
{
    const struct numbers *n = t->numbers;
    for (uint32_t i = 0; i < n->n_rules; i++)
        atoms[n->rule_atom[i]] = rule_holds(n, &n->states[state].key, n->rules[i], i);
}

static bool accepts(struct di_grammar *g, struct typed_site *t, uint32_t state)
{
    struct numbers *n = t->numbers;
    bool few[64], *atoms = few, yes;
    if (!ended(&n->states[state].key))
        return false;
    if (!t->n_atoms)
        return true;
    if (t->n_atoms > 64 && !(atoms = di_malloc(t->n_atoms * sizeof *atoms))) {
        g->out_of_memory = true;
        return false;
    }
    numbers_assign(t, state, atoms);
    yes = bdd_value(&g->bdd, t->formula, atoms);
    for (uint32_t i = 0; i < t->n_atoms && yes; i++)
        yes = !t->hard[i] || atoms[i];
    if (atoms != few)
        di_free(atoms);
    return yes;
}

/* ---- digits ---- */

static unsigned digit_of(const struct decimal *p, unsigned i)
{
    return i < p->n ? (unsigned char)p->digits[i] : 0;
}

static void take_digit(const struct numbers *n, struct number_key *k, unsigned digit, bool behind)
{
    if (k->nonzero || digit) {
        while (k->low < k->high && digit_of(&n->points[k->low], k->depth) < digit)
            k->low++;
        while (k->low < k->high && digit_of(&n->points[k->high - 1], k->depth) > digit)
            k->high--;
        k->depth++;
        if (k->low == k->high)
            k->depth = 0;
        else if (k->depth > n->points[k->high - 1].n)
            k->depth = (uint16_t)n->points[k->high - 1].n; /* zeros behind all digits change nothing more */
        k->nonzero = 1;
    }
    if (!behind) {
        if (k->size <= n->highest + 2)
            k->size++;
    } else if (!k->nonzero && k->size > n->lowest - 2) {
        k->size--;
    }
    if (behind && digit)
        k->fraction_nonzero = 1;
    for (uint32_t i = 0; i < n->n_steps; i++) {
        uint64_t whole;
        uint32_t places;
        step_parts(n->steps[i], &whole, &places);
        if (behind && k->digits_behind >= places)
            k->off_step[i] |= digit != 0;
        else
            k->rest[i] = (uint32_t)(((unsigned __int128)k->rest[i] * 10 + digit) % whole);
    }
    if (behind && n->n_steps) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < n->n_steps; i++) {
            uint64_t whole;
            uint32_t places;
            step_parts(n->steps[i], &whole, &places);
            most = places > most ? places : most;
        }
        k->digits_behind = (uint16_t)(k->digits_behind + (k->digits_behind < most));
    }
    if (behind && n->free && k->size == 1 && k->places < 1000 && k->zeros < 1000) {
        if (digit)
            k->places = (uint16_t)(k->places + k->zeros + 1), k->zeros = 0;
        else
            k->zeros++;
    }
}

static uint32_t advance(struct di_grammar *g, struct typed_site *t, uint32_t state, unsigned symbol)
{
    const struct numbers *n = t->numbers;
    struct number_key k = n->states[state].key;
    bool digit = symbol < 10;
    unsigned phase = k.phase;
    switch (phase) {
    case START:
    case MINUS:
        if (symbol == 10 && phase == START) {
            k.phase = MINUS;
            k.negative = 1;
        } else if (digit) {
            k.phase = symbol ? WHOLE : ZERO;
            if (symbol)
                take_digit(n, &k, symbol, false);
        } else {
            return 0;
        }
        break;
    case ZERO:
    case WHOLE:
    case POINT:
    case FRACTION:
        if (digit && phase != ZERO) {
            take_digit(n, &k, symbol, phase != WHOLE);
            k.phase = phase == WHOLE ? WHOLE : FRACTION;
        } else if (n->digits_only) {
            return 0;
        } else if (symbol == 12 && (phase == ZERO || phase == WHOLE)) {
            k.phase = POINT;
            k.point = 1;
        } else if (symbol == 13 && phase != POINT) {
            if (n->n_steps || (n->whole && !n->free) || ((n->whole || !n->free) && (k.size != 1 || !k.nonzero)))
                return 0;
            k.phase = EXPONENT;
            k.point = 1;
        } else {
            return 0;
        }
        break;
    case EXPONENT:
    case EXPONENT_SIGN:
        if ((symbol == 10 || symbol == 11) && phase == EXPONENT) {
            k.phase = EXPONENT_SIGN;
            k.exponent_negative = symbol == 10;
            break;
        }
        /* fall through */
    default:
        if (!digit)
            return 0;
        k.phase = EXPONENT_DIGITS;
        k.exponent = (uint16_t)(k.exponent * 10 + symbol);
        if (k.exponent > n->most_exponent)
            k.exponent = (uint16_t)n->most_exponent;
    }
    if (n->free && !n->whole) { /* nothing but the syntax counts */
        k.size = 1;
        k.nonzero = k.fraction_nonzero = k.negative = k.exponent_negative = 0;
        k.exponent = 0;
    }
    return intern(g, t->numbers, &k);
}

static unsigned symbol_of(unsigned byte)
{
    return byte >= '0' && byte <= '9'   ? byte - '0'
           : byte == '-'                ? 10
           : byte == '+'                ? 11
           : byte == '.'                ? 12
           : byte == 'e' || byte == 'E' ? 13
                                        : 255;
}

static uint32_t follow(struct di_grammar *g, struct typed_site *t, uint32_t state, unsigned symbol)
{
    uint32_t to = t->numbers->states[state].next[symbol];
    if (to == UINT32_MAX) {
        to = advance(g, t, state, symbol);
        t->numbers->states[state].next[symbol] = to;
    }
    return to;
}

static bool live(struct di_grammar *g, struct typed_site *t, uint32_t state)
{
    struct numbers *n = t->numbers;
    if (n->states[state].live)
        return n->states[state].live == 1;
    uint32_t *queue = di_malloc(SEARCH * sizeof *queue);
    size_t count = 0;
    bool found = false, whole = true;
    if (!queue) {
        g->out_of_memory = true;
        return false;
    }
    queue[count++] = state;
    n->states[state].live = 3;
    for (size_t i = 0; i < count && !found && whole; i++) {
        found = accepts(g, t, queue[i]);
        for (unsigned symbol = 0; symbol < SYMBOLS && !found && whole; symbol++) {
            uint32_t to = follow(g, t, queue[i], symbol);
            found = to && n->states[to].live == 1;
            if (!to || n->states[to].live)
                continue;
            whole = count < SEARCH && !g->over;
            if (!whole)
                break;
            n->states[to].live = 3;
            queue[count++] = to;
        }
    }
    for (size_t i = 0; i < count; i++)
        n->states[queue[i]].live = found || !whole ? 0 : 2;
    if (found || !whole)
        n->states[state].live = 1;
    di_free(queue);
    return n->states[state].live == 1;
}

uint32_t numbers_step(struct di_grammar *g, struct typed_site *t, uint32_t state, unsigned byte)
{
    unsigned symbol = symbol_of(byte);
    if (symbol == 255)
        return 0;
    uint32_t to = follow(g, t, state, symbol);
    return to && live(g, t, to) ? to : 0;
}

bool numbers_accept(struct di_grammar *g, struct typed_site *t, uint32_t state)
{
    return state == UINT32_MAX ? live(g, t, 1) : accepts(g, t, state);
}

uint32_t **numbers_memo(struct typed_site *t, uint32_t state)
{
    return &t->numbers->states[state].memo;
}
