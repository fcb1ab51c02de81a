/* Masks of answers that have a form. */
#include "api/follower.h"

#include "base/threads.h"

#include <stdio.h>

#define MOST_ROWS 8      /* of one question: the token to come and guesses behind it */
#define MARGIN 3         /* tokens more than the shortest end needs, at which the answer is brought to it */
#define NEAR 64          /* tokens left beside the distance from which on the way to the end is searched for */
#define LONGEST_END 1024 /* bytes that an end may have to be found */
#define MOST_AHEAD 24    /* bytes that a search for something nearer to the end may go */
#define MOST_TRIED 400   /* texts that it may try */
/* Bytes that may be taken on trial, each some microseconds of a thread that all answers share: by one search, */
#define MOST_TRIALS 20000
#define MOST_IN_VAIN 2      /* by so many that found nothing for all that; then the answer is not looked after any more, */
#define MOST_WATCHED 100000 /* and by all of one answer until its end comes as soon as it is near: */
#define NEAR_ENOUGH 16      /* with at most so many tokens to spare */

enum phase {
    PHASE_BEFORE, /* the reasoning, or whatever comes before the trigger */
    PHASE_BOUND,  /* the rest of the trigger */
    PHASE_FORM,
    PHASE_FREE, /* calls that nobody demanded: behind them while min_tokens wants more, or where forced ids are none of theirs */
    PHASE_OVER  /* an end id was passed that does not end the answer (ignore_end) */
};

/* White space that the answer ends with so far. A line break tells that it stands between the tokens of JSON: within a string it would be
 * escaped. */
struct blanks {
    size_t bytes, breaks;
};
#define MOST_BREAKS 2           /* then something else has to follow, */
#define MOST_BREAKS_OF_CALLS 16 /* whose values may be any text */
#define MOST_BLANKS 64          /* or behind so many bytes with a line break among them, */
#define MOST_BLANKS_INSIDE 256  /* or without one: perhaps within a string */

/* Looks at the way to the end. Those of guesses are taken back. */
struct look {
    int64_t next;   /* positions before it were looked at */
    int64_t end_at; /* position at which the answer goes to its end, -1: not yet */
    int64_t left;   /* tokens left at which the way is looked at again; -1: never */
    int64_t last_left;
    size_t last_distance, growth;
    size_t trials; /* bytes that were taken on trial */
    int in_vain;   /* searches that used up all they may try */
};

enum work { WORK_NONE, WORK_WAITS, WORK_RUNS, WORK_DONE };

/* Guarded by the crew's lock: work, next, previous. The rest belongs to whoever does the work, between start and wait; otherwise to the
 * pipeline's worker. */
struct di_follower {
    struct di_follower_crew *crew;
    enum work work;
    struct di_follower *next, *previous; /* while it waits */
    /* fixed */
    const struct di_forms *forms;
    struct di_form form;
    int32_t *end_ids, *trigger;
    size_t n_end_ids, n_trigger, words; /* words: of a mask, 64 bits each */
    int64_t min_tokens, begin, prompt, limit;
    int32_t mark_id, bound_id;
    bool ignore_end, may_end_before;
    /* the question */
    const int32_t *tokens;
    int64_t at;
    int n;
    /* where it stands: all tokens before `known` were read */
    int64_t known;
    enum phase phase;
    size_t bound_at; /* PHASE_BOUND: of the trigger, the ids that have come */
    struct blanks blanks;
    struct di_matcher *matcher;
    uint32_t *scratch;
    uint64_t *rows[MOST_ROWS];        /* made when they are needed */
    const uint64_t *masks[MOST_ROWS]; /* the answer: one of rows, or NULL */
    di_status status;                 /* final once it is an error */
    di_error err;
    /* the end of an answer whose tokens run out */
    struct di_ids end; /* decided: these ids follow from position look.end_at on */
    struct look look;
};

struct di_follower_crew {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for the thread; for those who wait for it */
    struct di_follower *first, *last;
    bool asleep, ending, has_thread;
    pthread_t thread;
};

/* ---------------------------------------------------------------- where the answer stands */

static bool is_end_id(const struct di_follower *f, int32_t id)
{
    for (size_t i = 0; i < f->n_end_ids; i++)
        if (f->end_ids[i] == id)
            return true;
    return false;
}

static di_status fail_at(struct di_follower *f, int64_t position, di_status code, const char *what)
{
    char where[48];
    snprintf(where, sizeof where, "token %lld of the answer", (long long)(position - f->begin));
    return di_fail(&f->err, code, where, "%s", what);
}

/* The grammar's own reason, at its place in the answer. */
static di_status fail_inside(struct di_follower *f, int64_t position, const di_error *inner)
{
    return fail_at(f, position, inner->code == DI_ERR_INVALID ? DI_ERR_FORMAT : inner->code, inner->message);
}

static void count_blanks(struct di_follower *f, int32_t id)
{
    struct di_str s = di_vocabulary_token(di_forms_vocabulary(f->forms), (size_t)id);
    if (!(di_forms_tokens(f->forms, DI_TOKENS_BLANK)[id / 64] >> id % 64 & 1)) {
        f->blanks = (struct blanks){0};
        return;
    }
    f->blanks.bytes += s.n;
    for (size_t i = 0; i < s.n; i++)
        f->blanks.breaks += s.p[i] != ' ' && !(f->form.calls && s.p[i] == '\t'); /* a text in a call may be a table */
}

/* Do the tokens up to `position` end with the first k ids of the trigger? */
static bool ends_with_trigger(const struct di_follower *f, int64_t position, size_t k)
{
    return position - f->begin + 1 >= (int64_t)k && memcmp(f->tokens + position + 1 - k, f->trigger, k * sizeof *f->trigger) == 0;
}

/* A mark is one if it stands behind a bracket; else the model quotes it. */
static bool opens_block(const struct di_follower *f, int64_t position)
{
    size_t n = di_vocabulary_size(di_forms_vocabulary(f->forms));
    int32_t before = position > f->begin ? f->tokens[position - 1] : -1;
    return before >= 0 && (size_t)before < n &&
           di_str_ends(di_vocabulary_token(di_forms_vocabulary(f->forms), (size_t)before), DI_STR("<"));
}

static void take_before(struct di_follower *f, int64_t position, int32_t id)
{
    size_t k = f->n_trigger;
    if (ends_with_trigger(f, position, k)) {
        if (f->form.opens && !opens_block(f, position))
            return;
        f->phase = PHASE_FORM;
    } else if (f->ignore_end && is_end_id(f, id)) {
        f->phase = PHASE_OVER;
    } else if (id == f->bound_id) {
        for (k--; !ends_with_trigger(f, position, k);)
            k--;
        f->bound_at = k;
        f->phase = PHASE_BOUND;
    }
}

static di_status take_bound(struct di_follower *f, int64_t position, int32_t id)
{
    if (id != f->trigger[f->bound_at])
        return fail_at(f, position, DI_ERR_FORMAT, "the token is none of the trigger, which had to follow");
    f->phase = ++f->bound_at == f->n_trigger ? PHASE_FORM : PHASE_BOUND;
    return DI_OK;
}

/* Read the token at `position`. */
static di_status take_token(struct di_follower *f, int64_t position, int32_t id)
{
    di_error inner;
    if (f->phase == PHASE_BEFORE) {
        take_before(f, position, id);
        return DI_OK;
    }
    if (f->phase == PHASE_BOUND)
        return take_bound(f, position, id);
    if (f->phase == PHASE_OVER || f->phase == PHASE_FREE)
        return DI_OK;
    if (is_end_id(f, id) && di_matcher_is_accepting(f->matcher)) {
        f->phase = PHASE_OVER;
        return DI_OK;
    }
    if (di_matcher_accept_token(f->matcher, id, &inner) != DI_OK) {
        if (!f->form.opens || inner.code != DI_ERR_INVALID)
            return fail_inside(f, position, &inner);
        f->phase = PHASE_FREE; /* it was forced, and no form was asked for */
        return DI_OK;
    }
    count_blanks(f, id);
    return DI_OK;
}

/* ---------------------------------------------------------------- the way to the end */

/* One text behind where the matcher stands that may lead nearer to an end. */
struct ahead {
    size_t distance; /* to an end from there, as it is estimated */
    uint16_t n;
    bool looked_at;
    char bytes[MOST_AHEAD];
    uint64_t follows[4]; /* bytes that may come next, once it was looked at */
};

/* What a byte leads to. */
struct behind {
    size_t distance[256]; /* SIZE_MAX: it may not come, or leads to no end */
    size_t nearest, farthest;
    unsigned char best;
};

/* All that may follow where the matcher stands, or up to the first byte that leads nearer to an end than `from` (0: all): as the distance
 * shrinks with each step, that is enough. Printable bytes are preferred: white space leads nowhere. A byte that may come
 * counts as a trial, and those that may not as some together. */
static void look_behind(struct di_matcher *m, size_t from, struct behind *b, uint64_t follows[4], size_t *trials)
{
    memset(follows, 0, 4 * sizeof *follows);
    b->nearest = SIZE_MAX;
    b->farthest = 0;
    *trials += 4;
    for (unsigned i = 0; i < 256 && b->nearest >= from; i++) {
        unsigned byte = (i + 0x21) & 255;
        char c = (char)byte;
        b->distance[byte] = SIZE_MAX;
        if (di_matcher_accept_bytes(m, (struct di_str){&c, 1}, NULL) != DI_OK)
            continue;
        size_t d = b->distance[byte] = di_matcher_distance(m);
        di_matcher_rollback(m, 1);
        ++*trials;
        follows[byte / 64] |= (uint64_t)1 << byte % 64;
        b->farthest = d != SIZE_MAX && d > b->farthest ? d : b->farthest;
        if (d < b->nearest) {
            b->nearest = d;
            b->best = (unsigned char)byte;
        }
    }
}

/* Does another text of the same length have the same bytes behind it? Then one of them is enough. */
static bool is_like_another(const struct ahead *list, size_t n, const struct ahead *a)
{
    for (const struct ahead *o = list; o < list + n; o++)
        if (o != a && o->looked_at && o->n == a->n && memcmp(o->follows, a->follows, sizeof a->follows) == 0)
            return true;
    return false;
}

/* The text that seems to be on the shortest way; the longer one of two. */
static struct ahead *most_promising(struct ahead *list, size_t n)
{
    struct ahead *best = NULL;
    for (struct ahead *a = list; a < list + n; a++)
        if (!a->looked_at &&
            (!best || a->distance + a->n < best->distance + best->n || (a->distance + a->n == best->distance + best->n && a->n > best->n)))
            best = a;
    return best;
}

/* A text that leads nearer to an end than `from` is appended to `path`: mostly a byte. Where the distance is only an estimate (patterns,
 * numbers, keys) it may take several, and is searched for. */
static bool search_nearer(struct di_matcher *m, size_t from, struct ahead *list, struct di_buf *path, size_t *trials)
{
    struct behind behind;
    size_t n = 1;
    list[0] = (struct ahead){.distance = from};
    for (struct ahead *a; *trials < MOST_TRIALS && (a = most_promising(list, n));) {
        a->looked_at = true;
        if (a->n && di_matcher_accept_bytes(m, (struct di_str){a->bytes, a->n}, NULL) != DI_OK)
            continue;
        look_behind(m, from, &behind, a->follows, trials);
        if (a->n)
            di_matcher_rollback(m, 1);
        if (behind.nearest < from) {
            di_buf_add(path, a->bytes, a->n);
            di_buf_addc(path, (char)behind.best);
            return true;
        }
        if (is_like_another(list, n, a))
            continue;
        for (unsigned k = 0; k < 256 && n < MOST_TRIED && a->n < MOST_AHEAD; k++) {
            unsigned byte = (k + 0x21) & 255;
            if (behind.distance[byte] == SIZE_MAX)
                continue;
            list[n] = *a;
            list[n].looked_at = false;
            list[n].distance = behind.distance[byte];
            list[n].bytes[list[n].n++] = (char)byte;
            n++;
        }
    }
    return false;
}

/* A text that ends the answer, appended to `path`; false: none was found. The matcher stays where it is. */
static bool search_end(struct di_matcher *m, struct di_buf *path, size_t *trials)
{
    struct ahead *list = di_malloc(MOST_TRIED * sizeof *list);
    size_t steps = 0, from;
    bool found = list != NULL;
    while (found && (from = di_matcher_distance(m)) > 0) {
        size_t begin = path->n;
        found = path->n < LONGEST_END && search_nearer(m, from, list, path, trials) && !path->failed &&
                di_matcher_accept_bytes(m, (struct di_str){path->p + begin, path->n - begin}, NULL) == DI_OK;
        steps += found;
    }
    if (steps)
        di_matcher_rollback(m, steps);
    di_free(list);
    return found;
}

static bool has_end_id(const struct di_follower *f, const struct di_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (is_end_id(f, ids->v[i]))
            return true;
    return false;
}

/* The path in tokens, none of which may end the answer: as the tokenizer writes it, or byte by byte. */
static bool path_ids(const struct di_follower *f, struct di_str path, struct di_ids *ids)
{
    ids->n = 0;
    if (!path.n ||
        (di_tokenizer_encode(di_forms_text(f->forms)->tokenizer, path, DI_TOKENIZER_PLAIN, ids, NULL) == DI_OK && !has_end_id(f, ids)))
        return true;
    if (!di_ids_reserve(ids, path.n))
        return false;
    for (size_t i = 0; i < path.n; i++) {
        ids->v[i] = di_forms_byte_token(f->forms, (unsigned char)path.p[i]);
        if (ids->v[i] < 0)
            return false;
    }
    ids->n = path.n;
    return !has_end_id(f, ids);
}

/* A short way from here to a complete text, as ids; false: none was found. The matcher stays where it is. */
static bool find_end(struct di_follower *f, struct di_ids *ids)
{
    struct di_buf path = {0};
    size_t trials = 0;
    bool found = search_end(f->matcher, &path, &trials) && path_ids(f, di_buf_str(&path), ids);
    f->look.trials += trials;
    f->look.in_vain += !found && trials >= MOST_TRIALS;
    di_buf_fini(&path);
    return found;
}

/* How far the next token may move the end away, in bytes: as far as a byte may, or as some token did so far. */
static size_t possible_growth(struct di_follower *f, size_t distance, int64_t left)
{
    struct behind behind, comma;
    uint64_t follows[4];
    if (f->look.last_left > left && f->look.last_distance && distance > f->look.last_distance) {
        size_t tokens = (size_t)(f->look.last_left - left), each = (distance - f->look.last_distance + tokens - 1) / tokens;
        f->look.growth = each > f->look.growth ? each : f->look.growth;
    }
    f->look.last_left = left;
    f->look.last_distance = distance;
    look_behind(f->matcher, 0, &behind, follows, &f->look.trials);
    size_t growth = behind.farthest > distance ? behind.farthest - distance : 0;
    if (f->form.json && behind.distance[','] != SIZE_MAX && di_matcher_accept_bytes(f->matcher, DI_STR(","), NULL) == DI_OK) {
        look_behind(f->matcher, 0, &comma, follows,
                    &f->look.trials); /* a key has to follow, which the distance behind the comma does not count */
        di_matcher_rollback(f->matcher, 1);
        growth = comma.nearest != SIZE_MAX && comma.nearest > distance + growth ? comma.nearest - distance : growth;
    }
    return growth > f->look.growth ? growth : f->look.growth;
}

/* `left` tokens are left from `position` on, an end id among them. Is it time to go to the end? Then `end` has the way. It is looked at
 * seldom while tokens are many. */
static bool must_end(struct di_follower *f, int64_t position, int64_t left)
{
    if (f->look.end_at >= 0)
        return true;
    if (!f->form.in_time || f->ignore_end || left > f->look.left)
        return false;
    size_t distance = di_matcher_distance(f->matcher);
    int64_t spare = left; /* without a way to the end */
    if (distance <= LONGEST_END) {
        int64_t margin = 1 + MARGIN;
        spare = left - (int64_t)distance - NEAR;
        if (spare <= 0) {
            margin += (int64_t)possible_growth(f, distance, left) / 2;
            spare = find_end(f, &f->end) ? left - (int64_t)f->end.n - margin : left;
            spare = spare <= NEAR_ENOUGH && f->look.trials > MOST_WATCHED ? 0 : spare;
        }
        if (spare <= 0) {
            f->look.end_at = position;
            return true;
        }
    }
    f->look.left = f->look.in_vain >= MOST_IN_VAIN ? -1 : left - (spare > 4 ? spare / 4 : 1);
    return false;
}

/* Every position is looked at once, in order, whether a mask is made for it or not. */
static void look_at(struct di_follower *f, int64_t position)
{
    if (position < f->look.next)
        return;
    f->look.next = position + 1;
    if (f->phase == PHASE_BEFORE && !f->may_end_before && f->n_trigger == 1 && must_end(f, position + 1, f->limit - position - 1))
        f->look.end_at = position + 1;
    if (f->phase != PHASE_FORM || !must_end(f, position, f->limit - position) || position < f->look.end_at + (int64_t)f->end.n)
        return;
    if (position - f->prompt < f->min_tokens || !di_matcher_is_accepting(f->matcher)) {
        f->look.end_at = -1; /* it came too early for min_tokens: there will be another one */
        f->look.left = INT64_MAX;
    }
}

/* ---------------------------------------------------------------- masks */

static void set_bit(uint64_t *mask, int32_t id, size_t words, bool on)
{
    if (id < 0 || (size_t)id / 64 >= words)
        return;
    uint64_t bit = (uint64_t)1 << id % 64;
    mask[id / 64] = on ? mask[id / 64] | bit : mask[id / 64] & ~bit;
}

static void set_ends(const struct di_follower *f, uint64_t *mask, bool on)
{
    for (size_t i = 0; i < f->n_end_ids; i++)
        set_bit(mask, f->end_ids[i], f->words, on);
}

static void mask_only(const struct di_follower *f, uint64_t *mask, int32_t id)
{
    memset(mask, 0, f->words * sizeof *mask);
    set_bit(mask, id, f->words, true);
}

/* Of the reasoning: no end before the answer itself has begun, and that while there are tokens enough for it. */
static void mask_before(struct di_follower *f, int64_t position, uint64_t *mask)
{
    look_at(f, position);
    if (!f->may_end_before && f->look.end_at == position + 1) {
        mask_only(f, mask, f->trigger[0]);
        return;
    }
    memset(mask, 0xff, f->words * sizeof *mask);
    if (!f->may_end_before)
        set_ends(f, mask, false);
    if (f->form.calls) /* no block inside the reasoning: the form has it */
        set_bit(mask, f->mark_id, f->words, false);
}

/* The ids that were decided; behind them an end, if it may come yet. */
static bool mask_of_end(const struct di_follower *f, int64_t position, bool may_end, uint64_t *mask)
{
    int64_t i = position - f->look.end_at;
    if (i < 0 || i > (int64_t)f->end.n || (i == (int64_t)f->end.n && !may_end))
        return false;
    mask_only(f, mask, i < (int64_t)f->end.n ? f->end.v[i] : -1);
    if (i == (int64_t)f->end.n)
        set_ends(f, mask, true);
    return true;
}

/* Unless nothing would be left. */
static void forbid_set(const struct di_follower *f, enum di_token_set set, bool complete, uint64_t *mask)
{
    const uint64_t *tokens = di_forms_tokens(f->forms, set);
    bool left = complete;
    for (size_t i = 0; i < f->words && !left; i++)
        left = mask[i] & ~tokens[i];
    for (size_t i = 0; i < f->words && left; i++)
        mask[i] &= ~tokens[i];
}

/* A model may write white space for ever, and none is needed in front of a document and behind it. */
static void forbid_blanks(const struct di_follower *f, bool complete, uint64_t *mask)
{
    size_t most = f->blanks.breaks ? MOST_BLANKS : MOST_BLANKS_INSIDE;
    bool within = di_matcher_steps(f->matcher) > 0 && !complete;
    if (f->form.calls ? f->blanks.breaks < MOST_BREAKS_OF_CALLS
                      : !f->form.json || (within && f->blanks.bytes < most && f->blanks.breaks < MOST_BREAKS))
        return;
    forbid_set(f, DI_TOKENS_BLANK, complete, mask);
}

static bool accepts(struct di_matcher *m, const char *text)
{
    bool yes = di_matcher_accept_bytes(m, di_str_c(text), NULL) == DI_OK;
    if (yes)
        di_matcher_rollback(m, 1);
    return yes;
}

/* Is a number complete that the matcher stands in? */
static bool number_is_complete(struct di_matcher *m)
{
    return di_matcher_is_accepting(m) || accepts(m, ",") || accepts(m, "}") || accepts(m, "]");
}

/* Does a number stand here of which a fraction can be nothing but zeros, or goes on with an exponent only: an integer? */
static bool is_integer(struct di_matcher *m)
{
    bool half = di_matcher_accept_bytes(m, DI_STR(".5"), NULL) == DI_OK, zero, integer = half && !number_is_complete(m);
    if (integer && (integer = di_matcher_accept_bytes(m, DI_STR("e1"), NULL) == DI_OK)) {
        integer = number_is_complete(m);
        di_matcher_rollback(m, 1);
    }
    if (half) {
        di_matcher_rollback(m, 1);
        return integer;
    }
    zero = di_matcher_accept_bytes(m, DI_STR(".0"), NULL) == DI_OK;
    integer = zero && number_is_complete(m);
    if (zero)
        di_matcher_rollback(m, 1);
    return integer;
}

static bool has_byte(const struct di_follower *f, const uint64_t *mask, unsigned char byte)
{
    int32_t id = di_forms_byte_token(f->forms, byte);
    return id >= 0 && mask[id / 64] >> id % 64 & 1;
}

/* Does a number stand here, and not a word of a list? */
static bool has_exponent(struct di_matcher *m)
{
    return (accepts(m, "e+") && accepts(m, "E+")) || (accepts(m, "e-") && accepts(m, "E-"));
}

/* Numbers are written as people write them, where that is possible: 2.5e37 and 3.0 are integers by the standard, but few readers take them
 * for one. Neither a letter nor a quotation mark can come within a number. */
static void forbid_odd_numbers(const struct di_follower *f, bool complete, uint64_t *mask)
{
    bool point = has_byte(f, mask, '.'), exponent = has_byte(f, mask, 'e');
    if ((!f->form.json && !f->form.calls) || !(point || exponent) || has_byte(f, mask, '"') || has_byte(f, mask, 'a'))
        return;
    if (point && is_integer(f->matcher))
        forbid_set(f, DI_TOKENS_FRACTION, complete, mask);
    if (exponent && has_exponent(f->matcher))
        forbid_set(f, DI_TOKENS_EXPONENT, complete, mask);
}

static di_status mask_form(struct di_follower *f, int64_t position, uint64_t *mask)
{
    const struct di_vocabulary *v = di_forms_vocabulary(f->forms);
    size_t words = di_mask_words(di_vocabulary_size(v));
    bool may_end = position - f->prompt >= f->min_tokens && di_matcher_is_accepting(f->matcher), any = may_end;
    di_error inner;
    look_at(f, position);
    if (f->look.end_at >= 0 && mask_of_end(f, position, may_end, mask))
        return DI_OK;
    if (di_matcher_mask(f->matcher, f->scratch, &inner) != DI_OK)
        return fail_inside(f, position, &inner);
    for (size_t i = 0; i < f->words; i++) {
        uint64_t low = 2 * i < words ? f->scratch[2 * i] : 0, high = 2 * i + 1 < words ? f->scratch[2 * i + 1] : 0;
        mask[i] = low | high << 32;
    }
    forbid_blanks(f, may_end, mask);
    forbid_odd_numbers(f, may_end, mask);
    if (!f->form.calls)
        set_bit(mask, f->mark_id, f->words, false);
    set_ends(f, mask, may_end);
    for (size_t i = 0; i < f->words && !any; i++)
        any = mask[i] != 0;
    if (any)
        return DI_OK;
    if (f->form.opens && di_matcher_is_accepting(f->matcher)) {
        f->phase = PHASE_FREE;
        return DI_OK;
    }
    return fail_at(f, position, DI_ERR_FORMAT,
                   position - f->prompt < f->min_tokens && di_matcher_is_accepting(f->matcher)
                       ? "the answer is complete, but min_tokens wants more and nothing may follow"
                       : "nothing may follow here that leads to an answer of the form that was asked for");
}

static di_status make_mask(struct di_follower *f, int i)
{
    int64_t position = f->at + i;
    f->masks[i] = NULL;
    if (f->phase == PHASE_FREE || (f->phase == PHASE_BEFORE && f->form.opens)) /* whatever may follow */
        return DI_OK;
    if (!f->rows[i])
        f->rows[i] = di_malloc(f->words * sizeof **f->rows);
    if (!f->rows[i])
        return fail_at(f, position, DI_ERR_MEMORY, "out of memory for a mask");
    f->masks[i] = f->rows[i];
    switch (f->phase) {
    case PHASE_BEFORE: mask_before(f, position, f->rows[i]); return DI_OK;
    case PHASE_BOUND: mask_only(f, f->rows[i], f->trigger[f->bound_at]); return DI_OK;
    case PHASE_FORM:
        if (mask_form(f, position, f->rows[i]) != DI_OK)
            return f->err.code;
        f->masks[i] = f->phase == PHASE_FREE ? NULL : f->masks[i];
        return DI_OK;
    case PHASE_FREE:
    case PHASE_OVER: break;
    }
    memset(f->rows[i], 0, f->words * sizeof **f->rows);
    set_ends(f, f->rows[i], true);
    return DI_OK;
}

/* Masks of the rows behind the first one, as if guesses came true. One that is not allowed cannot: what would follow it is not asked. */
static void follow_guesses(struct di_follower *f)
{
    enum phase phase = f->phase;
    size_t steps = di_matcher_steps(f->matcher), bound_at = f->bound_at;
    struct look look = f->look;
    struct blanks blanks = f->blanks;
    struct di_ids end = f->end; /* another one may be found on the way */
    f->end = (struct di_ids){0};
    for (int i = 1; i < f->n; i++)
        f->masks[i] = NULL;
    if (f->n > 1 && end.n && !di_ids_reserve(&f->end, end.n))
        f->status = fail_at(f, f->at, DI_ERR_MEMORY, "out of memory for the end of an answer");
    if (f->n > 1 && end.n && f->status == DI_OK) {
        memcpy(f->end.v, end.v, end.n * sizeof *end.v);
        f->end.n = end.n;
    }
    for (int i = 1; i < f->n && f->status == DI_OK; i++) {
        int32_t guess = f->tokens[f->at + i - 1];
        if (guess < 0 || (size_t)guess / 64 >= f->words || (f->masks[i - 1] && !(f->masks[i - 1][guess / 64] >> guess % 64 & 1)))
            break;
        f->status = take_token(f, f->at + i - 1, guess); /* an error is a limit or memory: the grammar stays closed */
        if (f->status != DI_OK)
            break;
        if (make_mask(f, i) == DI_OK)
            continue;
        f->status = f->rows[i] ? DI_OK : f->err.code;
        f->masks[i] = f->rows[i];
        if (f->rows[i]) /* should the guess come true, nothing follows it: the row fails by itself */
            memset(f->rows[i], 0, f->words * sizeof **f->rows);
        break;
    }
    di_ids_fini(&f->end);
    f->end = end;
    f->phase = phase;
    f->bound_at = bound_at;
    f->blanks = blanks;
    f->look = look;
    if (di_matcher_steps(f->matcher) > steps)
        di_matcher_rollback(f->matcher, di_matcher_steps(f->matcher) - steps);
}

/* Was an end decided that the token at `position` does not follow? So it is where a branch takes over tokens of an answer that had more left. */
static bool leaves_end(const struct di_follower *f, int64_t position)
{
    int64_t i = position - f->look.end_at;
    if (f->look.end_at < 0)
        return false;
    if (f->phase == PHASE_BEFORE)
        return i == -1 && f->tokens[position] != f->trigger[0];
    return i >= 0 && i < (int64_t)f->end.n && f->tokens[position] != f->end.v[i];
}

static void read_tokens(struct di_follower *f)
{
    for (; f->known < f->at && f->status == DI_OK; f->known++) {
        look_at(f, f->known); /* as a run without guesses does: the masks must not depend on them */
        if (leaves_end(f, f->known)) {
            f->look.end_at = -1;
            f->look.left = INT64_MAX;
        }
        f->status = take_token(f, f->known, f->tokens[f->known]);
    }
}

static void follow(struct di_follower *f)
{
    read_tokens(f);
    if (f->status != DI_OK)
        return;
    di_matcher_forget(f->matcher, 1); /* what is decided stays; one step tells that the document has begun */
    f->status = make_mask(f, 0);
    if (f->status == DI_OK)
        follow_guesses(f);
}

/* ---------------------------------------------------------------- the crew */

/* Both hold the lock. */
static void put_last(struct di_follower_crew *c, struct di_follower *f)
{
    f->next = NULL;
    f->previous = c->last;
    *(c->last ? &c->last->next : &c->first) = f;
    c->last = f;
    f->work = WORK_WAITS;
}

static void take_out(struct di_follower_crew *c, struct di_follower *f)
{
    *(f->previous ? &f->previous->next : &c->first) = f->next;
    *(f->next ? &f->next->previous : &c->last) = f->previous;
    f->work = WORK_RUNS;
}

static void *work(void *arg)
{
    struct di_follower_crew *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->ending) {
        struct di_follower *f = c->first;
        c->asleep = !f;
        if (!f) {
            pthread_cond_wait(&c->work, &c->lock);
            continue;
        }
        take_out(c, f);
        pthread_mutex_unlock(&c->lock);
        follow(f);
        pthread_mutex_lock(&c->lock);
        f->work = WORK_DONE;
        pthread_cond_broadcast(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Nobody works on it any more: what waits is done here or forgotten, what runs is waited for. */
static void settle(struct di_follower *f, bool needed)
{
    struct di_follower_crew *c = f->crew;
    pthread_mutex_lock(&c->lock);
    bool mine = f->work == WORK_WAITS;
    if (mine)
        take_out(c, f);
    while (!mine && f->work == WORK_RUNS)
        pthread_cond_wait(&c->done, &c->lock);
    f->work = WORK_NONE;
    pthread_mutex_unlock(&c->lock);
    if (mine && needed)
        follow(f);
}

static void start(void *ctx, const int32_t *tokens, int64_t at, int n)
{
    struct di_follower *f = ctx;
    struct di_follower_crew *c = f->crew;
    settle(f, false); /* the launch before failed */
    f->tokens = tokens;
    f->at = at;
    f->n = n < MOST_ROWS ? n : MOST_ROWS;
    if (f->form.opens && f->phase == PHASE_BEFORE) { /* an answer without calls costs nobody anything */
        read_tokens(f);
        if (f->phase == PHASE_BEFORE && n == 1) {
            f->masks[0] = NULL;
            return;
        }
    }
    pthread_mutex_lock(&c->lock);
    put_last(c, f);
    if (c->asleep)
        pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

static di_status wait_for(void *ctx, int n, const uint64_t **allowed, di_error *err)
{
    struct di_follower *f = ctx;
    settle(f, true);
    if (f->status == DI_OK && n > f->n)
        f->status = fail_at(f, f->at, DI_ERR_INTERNAL, "more masks were asked for than a follower has");
    for (int i = 0; i < n && f->status == DI_OK; i++)
        allowed[i] = f->masks[i];
    if (f->status != DI_OK && err)
        *err = f->err;
    return f->status;
}

di_status di_follower_crew_create(struct di_follower_crew **out, di_error *err)
{
    struct di_follower_crew *c = di_calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for the thread of masks");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    c->has_thread = di_thread_create(&c->thread, work, c) == 0;
    if (c->has_thread)
        return DI_OK;
    di_follower_crew_destroy(c);
    *out = NULL;
    return di_fail(err, DI_ERR_LIMIT, "", "the system grants no thread for masks");
}

void di_follower_crew_destroy(struct di_follower_crew *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    di_free(c);
}

/* ---------------------------------------------------------------- life */

di_status di_follower_create(const struct di_follower_setup *s, struct di_follower **out, di_error *err)
{
    di_status status = DI_OK;
    const struct di_vocabulary *v = di_forms_vocabulary(s->forms);
    struct di_follower *f = di_calloc(1, sizeof *f);
    *out = NULL;
    CHECK(f, err, DI_ERR_MEMORY, "", "out of memory for a request");
    f->crew = s->crew;
    f->forms = s->forms;
    f->form = di_form_hold(s->form);
    f->n_end_ids = s->form->opens && s->n_end_ids ? 1 : s->n_end_ids; /* calls that nobody demanded may be cut by the ids of the request */
    f->ignore_end = s->ignore_end;
    f->min_tokens = s->min_tokens;
    f->n_trigger = s->n_trigger;
    f->mark_id = s->mark_id;
    f->bound_id = s->bound_id;
    f->may_end_before = s->may_end_before;
    f->phase = s->n_trigger ? PHASE_BEFORE : PHASE_FORM;
    f->words = ((size_t)di_forms_vocab(s->forms) + 63) / 64;
    f->look = (struct look){.end_at = -1, .left = INT64_MAX};
    f->end_ids = di_malloc((s->n_end_ids + s->n_trigger + 1) * sizeof *f->end_ids); /* the trigger behind them */
    f->scratch = di_malloc(di_mask_words(di_vocabulary_size(v)) * sizeof *f->scratch);
    CHECK(f->end_ids && f->scratch, err, DI_ERR_MEMORY, "", "out of memory for a request");
    if (s->n_end_ids)
        memcpy(f->end_ids, s->end_ids, s->n_end_ids * sizeof *f->end_ids);
    f->trigger = f->end_ids + s->n_end_ids;
    if (s->n_trigger)
        memcpy(f->trigger, s->trigger, s->n_trigger * sizeof *f->trigger);
    TRY(di_matcher_create(f->form.grammar, v, &f->matcher, err));
    *out = f;
    f = NULL;
out:
    di_follower_destroy(f);
    return status;
}

void di_follower_place(struct di_follower *f, int64_t begin, int64_t prompt, int64_t limit)
{
    f->begin = f->known = begin;
    f->prompt = prompt;
    f->limit = limit;
}

static void release(void *ctx)
{
    di_follower_destroy(ctx);
}

struct di_mask_source di_follower_source(struct di_follower *f)
{
    return (struct di_mask_source){.start = start, .wait = wait_for, .release = release, .ctx = f};
}

void di_follower_destroy(struct di_follower *f)
{
    if (!f)
        return;
    settle(f, false);
    for (int i = 0; i < MOST_ROWS; i++)
        di_free(f->rows[i]);
    di_matcher_destroy(f->matcher);
    di_form_fini(&f->form);
    di_ids_fini(&f->end);
    di_free(f->end_ids);
    di_free(f->scratch);
    di_free(f);
}
