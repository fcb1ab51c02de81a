/* Request fields that the three dialects share: thinking, response format, sampling (spec/encoding.md §2.4, §2.9, §4.2). */
#include "base/utf8.h"
#include "text/chat_build.h"
#include "text/schema.h"

#include <math.h>
#include <stdio.h>

/* ---- thinking and effort ---- */

static const struct di_effort official_efforts[] = {{"minimal", 50}, {"low", 50},  {"medium", 75}, {"high", 75},
                                                    {"xhigh", 75},   {"max", 100}, {"ultra", 100}};

static const struct di_effort *efforts(const struct di_chat_options *opt, size_t *n)
{
    *n = opt->efforts ? opt->n_efforts : sizeof official_efforts / sizeof *official_efforts;
    return opt->efforts ? opt->efforts : official_efforts;
}

/* *percent: 1..100, 0 for "none", -1 if absent. */
static di_status read_effort(struct di_build *b, const struct di_json *v, const struct di_path *at, int *percent)
{
    size_t n;
    const struct di_effort *table = efforts(b->opt, &n);
    int64_t number;
    *percent = -1;
    if (!v || v->type == DI_JSON_NULL)
        return DI_OK;
    if (di_json_int(v, &number) && number >= 1 && number <= 100) {
        *percent = (int)number;
        return DI_OK;
    }
    if (di_json_is(v, DI_JSON_STRING) && di_str_eqc(v->text, "none")) {
        *percent = 0;
        return DI_OK;
    }
    for (size_t i = 0; di_json_is(v, DI_JSON_STRING) && i < n; i++)
        if (di_str_eqc(v->text, table[i].word)) {
            *percent = table[i].percent;
            return DI_OK;
        }
    struct di_buf words = {0};
    for (size_t i = 0; i < n; i++)
        di_buf_addf(&words, "%s, ", table[i].word);
    di_status status = di_path_fail(b->err, at, "must be one of none, %sor a whole number from 1 to 100", words.p ? words.p : "");
    di_buf_fini(&words);
    return status;
}

/* 1 on, 0 off, -1 not said. A plain boolean is accepted beside the official object. */
static di_status read_thinking(struct di_build *b, const struct di_json *v, int8_t *on)
{
    static const char *const types[] = {"disabled", "enabled", "adaptive"};
    const struct di_path *at = DI_FIELD(NULL, "thinking");
    struct di_str type;
    size_t which;
    di_status status = DI_OK;
    *on = -1;
    if (!v)
        return DI_OK;
    if (v->type == DI_JSON_BOOL) {
        *on = (int8_t)v->boolean;
        return DI_OK;
    }
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 3, &which));
    const struct di_json *budget = di_build_get(v, "budget_tokens"); /* a wish; thinking_token_budget is the limit */
    int64_t tokens;
    if (budget && (!di_json_int(budget, &tokens) || tokens < 1))
        TRY(di_path_fail(b->err, DI_FIELD(at, "budget_tokens"), "must be a whole number of at least 1"));
    *on = which > 0;
out:
    return status;
}

di_status di_build_thinking(struct di_build *b, const struct di_json *effort, const struct di_path *effort_at)
{
    const struct di_path *kwargs_at = DI_FIELD(NULL, "chat_template_kwargs");
    const struct di_json *kwargs;
    struct di_chat *c = b->chat;
    int8_t type, flag, enable, drop;
    int percent, more, standard = 75;
    size_t n;
    const struct di_effort *table = efforts(b->opt, &n);
    di_status status = DI_OK;
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].word, b->opt->default_effort) == 0)
            standard = table[i].percent;
    TRY(di_build_member(b, b->request, NULL, "chat_template_kwargs", DI_JSON_OBJECT, false, &kwargs));
    TRY(di_build_bool(b, kwargs, kwargs_at, "thinking", &flag));
    TRY(di_build_bool(b, kwargs, kwargs_at, "enable_thinking", &enable));
    TRY(di_build_bool(b, kwargs, kwargs_at, "drop_thinking", &drop));
    TRY(read_thinking(b, di_build_get(b->request, "thinking"), &type));
    TRY(read_effort(b, effort, effort_at, &percent));
    TRY(read_effort(b, di_build_get(kwargs, "reasoning_effort"), DI_FIELD(kwargs_at, "reasoning_effort"), &more));
    if (percent < 0)
        percent = more;
    if (flag < 0)
        flag = enable;
    c->thinking = type >= 0 ? type : flag >= 0 ? flag : percent >= 0 ? percent > 0 : b->opt->thinking;
    c->effort = percent > 0 ? percent : standard;
    c->reasoning_history = b->opt->reasoning_history;
    if (drop >= 0)
        c->reasoning_history = drop ? DI_REASONING_DROP : DI_REASONING_KEEP;
out:
    return status;
}

/* ---- response format ---- */

static struct di_json json_object_type = {.type = DI_JSON_STRING, .key = {"type", 4}, .text = {"json_object", 11}};
static const struct di_json json_object_shown = {.type = DI_JSON_OBJECT, .count = 1, .child = &json_object_type};

static di_status set_schema(struct di_build *b, const struct di_json *schema, bool strict, const struct di_path *at)
{
    struct di_constraint *f = &b->chat->format;
    struct di_json *normal;
    di_status status = DI_OK;
    f->kind = DI_CONSTRAIN_JSON_SCHEMA;
    f->schema = schema;
    b->chat->format_shown = schema;
    if (!strict)
        return di_schema_check(schema, at, b->err);
    TRY(di_schema_strict(schema, &b->chat->arena, at, &normal, b->err));
    f->schema = normal;
    f->declared = true;
out:
    return status;
}

di_status di_build_format(struct di_build *b, const struct di_json *v, const struct di_path *at, bool flat)
{
    static const char *const types[] = {"text", "json_object", "json_schema", "regex", "structural_tag"}, *const labels[] = {"name",
                                                                                                                             "description"};
    enum { TEXT, JSON_OBJECT, JSON_SCHEMA, REGEX, STRUCTURAL_TAG };
    struct di_chat *c = b->chat;
    struct di_str type;
    size_t which;
    int8_t strict;
    di_status status = DI_OK;
    if (!v)
        return DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 5, &which));
    if (which == STRUCTURAL_TAG) {
        c->format.kind = DI_CONSTRAIN_STRUCTURAL;
        c->format.schema = v;
    } else if (which == JSON_OBJECT) {
        c->json_mode = true;
        c->format.kind = DI_CONSTRAIN_JSON;
        c->format_shown = &json_object_shown;
    } else if (which == REGEX) {
        c->format.kind = DI_CONSTRAIN_REGEX;
        TRY(di_build_string(b, v, at, "regex", true, &c->format.text));
    } else if (which == JSON_SCHEMA) {
        const struct di_path *here = flat ? at : DI_FIELD(at, "json_schema");
        if (!flat)
            TRY(di_build_member(b, v, at, "json_schema", DI_JSON_OBJECT, true, &v));
        TRY(di_build_bool(b, v, here, "strict", &strict));
        for (int i = 0; i < 2; i++)
            TRY(di_build_string(b, v, here, labels[i], false, &type));
        const struct di_json *schema = di_build_get(v, "schema");
        if (!schema)
            TRY(di_path_fail(b->err, DI_FIELD(here, "schema"), "is missing"));
        TRY(set_schema(b, schema, strict == 1, DI_FIELD(here, "schema")));
    }
    TRY(di_build_path(b, at, &c->format.path));
out:
    return status;
}

/* vLLM's and SGLang's ways to ask for a form. JSON is shown in the prompt as that of a response format is. */
static const struct {
    const char *outer, *key; /* outer NULL: at the top of the request */
    enum di_constraint_kind kind;
} structured[] = {
    {"structured_outputs", "json", DI_CONSTRAIN_JSON_SCHEMA},
    {"structured_outputs", "json_object", DI_CONSTRAIN_JSON},
    {"structured_outputs", "regex", DI_CONSTRAIN_REGEX},
    {"structured_outputs", "choice", DI_CONSTRAIN_CHOICE},
    {"structured_outputs", "grammar", DI_CONSTRAIN_GRAMMAR},
    {"structured_outputs", "structural_tag", DI_CONSTRAIN_STRUCTURAL},
    {NULL, "guided_json", DI_CONSTRAIN_JSON_SCHEMA},
    {NULL, "guided_json_object", DI_CONSTRAIN_JSON},
    {NULL, "guided_regex", DI_CONSTRAIN_REGEX},
    {NULL, "guided_choice", DI_CONSTRAIN_CHOICE},
    {NULL, "guided_grammar", DI_CONSTRAIN_GRAMMAR},
    {NULL, "json_schema", DI_CONSTRAIN_JSON_SCHEMA},
    {NULL, "regex", DI_CONSTRAIN_REGEX},
    {NULL, "ebnf", DI_CONSTRAIN_GRAMMAR},
};

static di_status set_structured(struct di_build *b, enum di_constraint_kind kind, const struct di_json *v, const struct di_path *at)
{
    struct di_constraint *f = &b->chat->format;
    di_status status = DI_OK;
    if (kind == DI_CONSTRAIN_JSON) {
        if (v->type != DI_JSON_BOOL)
            TRY(di_path_fail(b->err, at, "must be true or false, not %s", di_json_type_name(v)));
        if (!v->boolean)
            return DI_OK;
        b->chat->format_shown = &json_object_shown;
    }
    if (f->kind != DI_CONSTRAIN_NONE)
        TRY(di_path_fail(b->err, at, "cannot stand beside %s", f->path));
    TRY(di_build_path(b, at, &f->path));
    if ((kind == DI_CONSTRAIN_JSON_SCHEMA || kind == DI_CONSTRAIN_STRUCTURAL) && v->type == DI_JSON_STRING) { /* as JSON text */
        struct di_json *parsed;
        struct di_json_limits limits = di_json_request_limits(v->text.n);
        if (di_json_parse(v->text, &limits, &b->chat->arena, &parsed, NULL) != DI_OK)
            TRY(di_path_fail(b->err, at, "must be a %s, as an object or as JSON text",
                             kind == DI_CONSTRAIN_STRUCTURAL ? "structural tag" : "JSON Schema"));
        v = parsed;
    }
    if (kind == DI_CONSTRAIN_JSON_SCHEMA)
        return set_schema(b, v, false, at);
    if (kind == DI_CONSTRAIN_CHOICE) {
        size_t i = 0;
        if (v->type != DI_JSON_ARRAY || v->count == 0)
            TRY(di_path_fail(b->err, at, "must be an array of strings that is not empty"));
        for (const struct di_json *m = v->child; m; m = m->next, i++)
            if (m->type != DI_JSON_STRING)
                TRY(di_path_fail(b->err, DI_ITEM(at, i), "must be a string"));
        f->schema = v;
    } else if (kind == DI_CONSTRAIN_STRUCTURAL) {
        if (v->type != DI_JSON_OBJECT)
            TRY(di_path_fail(b->err, at, "must be an object, not %s", di_json_type_name(v)));
        f->schema = v;
    } else if (kind != DI_CONSTRAIN_JSON) {
        if (v->type != DI_JSON_STRING)
            TRY(di_path_fail(b->err, at, "must be a string, not %s", di_json_type_name(v)));
        f->text = v->text;
    }
    f->kind = kind;
out:
    return status;
}

/* The members of structured_outputs that say how the form is meant, and those that cannot be had: they may be there and false. */
static const char *const manners[] = {"disable_any_whitespace", "end_in_time", "property_order"}, *const missing[] = {
                                                                                                      "whitespace_pattern",
                                                                                                      "disable_additional_properties"};

static bool is_one_of(struct di_str name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (di_str_eqc(name, list[i]))
            return true;
    return false;
}

/* A form that is misspelled would be no form: nothing would be enforced, and nobody would know. */
static di_status refuse_unknown_members(struct di_build *b, const struct di_json *outer)
{
    di_status status = DI_OK;
    for (const struct di_json *m = outer ? outer->child : NULL; m; m = m->next) {
        bool known =
            is_one_of(m->key, manners, sizeof manners / sizeof *manners) || is_one_of(m->key, missing, sizeof missing / sizeof *missing);
        for (size_t i = 0; i < sizeof structured / sizeof *structured; i++)
            known = known || (structured[i].outer && di_str_eqc(m->key, structured[i].key));
        if (!known)
            TRY(di_path_fail(b->err, DI_MEMBER(DI_FIELD(NULL, "structured_outputs"), m->key), "is not known"));
    }
out:
    return status;
}

/* How the form is meant: white space, the order of properties, what happens when tokens run out. */
static di_status read_manner(struct di_build *b, const struct di_json *v)
{
    static const char *const orders[] = {"any", "declared"};
    const struct di_path *at = DI_FIELD(NULL, "structured_outputs");
    struct di_constraint *f = &b->chat->format;
    struct di_str order;
    size_t which;
    int8_t compact, in_time;
    di_status status = DI_OK;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        const struct di_json *m = di_build_get(v, missing[i]);
        if (m && !(m->type == DI_JSON_BOOL && !m->boolean)) {
            const char *path;
            TRY(di_build_path(b, DI_MEMBER(at, di_str_c(missing[i])), &path));
            return di_fail(b->err, DI_ERR_UNSUPPORTED, path, "is not supported");
        }
    }
    TRY(di_build_bool(b, v, at, "disable_any_whitespace", &compact));
    TRY(di_build_bool(b, v, at, "end_in_time", &in_time));
    TRY(di_build_string(b, v, at, "property_order", false, &order));
    if (di_build_get(v, "property_order")) {
        TRY(di_build_word(b, order, DI_FIELD(at, "property_order"), orders, 2, &which));
        f->declared = which == 1;
    }
    f->compact = compact == 1;
    f->not_in_time = in_time == 0;
out:
    return status;
}

static di_status read_structured(struct di_build *b)
{
    const struct di_json *outer;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "structured_outputs", DI_JSON_OBJECT, false, &outer));
    TRY(refuse_unknown_members(b, outer));
    TRY(read_manner(b, outer));
    for (size_t i = 0; i < sizeof structured / sizeof *structured; i++) {
        const struct di_path *up = structured[i].outer ? DI_FIELD(NULL, "structured_outputs") : NULL;
        const struct di_json *v = di_build_get(structured[i].outer ? outer : b->request, structured[i].key);
        if (v)
            TRY(set_structured(b, structured[i].kind, v, DI_MEMBER(up, di_str_c(structured[i].key))));
    }
out:
    return status;
}

/* ---- sampling ---- */

enum field_type { F_DOUBLE, F_INT, F_BOOL };
/* How the member of di_sampling_options is stored. O_NOT: what the field says the other way round. */
enum option_type { O_NONE, O_DOUBLE, O_INT64, O_INT32, O_FLAG, O_NOT };

#define S(field) offsetof(struct di_sampling, field)
#define O(type, field) O_##type, offsetof(di_sampling_options, field)
/* Every field under its name in requests, with its range, and where di_sampling_options has it. `above`: the low end itself is not
 * allowed. */
static const struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    double min, max;
    bool above;
    enum option_type option_type;
    size_t option;
} fields[] = {
    {"temperature", F_DOUBLE, S(temperature), 0, 2, false, O(DOUBLE, temperature)},
    {"top_p", F_DOUBLE, S(top_p), 0, 1, true, O(DOUBLE, top_p)},
    {"min_p", F_DOUBLE, S(min_p), 0, 1, false, O(DOUBLE, min_p)},
    {"repetition_penalty", F_DOUBLE, S(repetition_penalty), 0, 100, true, O(DOUBLE, repetition_penalty)},
    {"frequency_penalty", F_DOUBLE, S(frequency_penalty), -2, 2, false, O(DOUBLE, frequency_penalty)},
    {"presence_penalty", F_DOUBLE, S(presence_penalty), -2, 2, false, O(DOUBLE, presence_penalty)},
    {"top_k", F_INT, S(top_k), -1, INT32_MAX, false, O(INT64, top_k)},
    {"seed", F_INT, S(seed), -9.3e18, 9.3e18, false, O(INT64, seed)},
    {"min_tokens", F_INT, S(min_tokens), 0, INT32_MAX, false, O(INT64, min_tokens)},
    {"n", F_INT, S(n), 1, 128, false, O_NONE, 0},
    {"best_of", F_INT, S(best_of), 1, 128, false, O_NONE, 0},
    {"top_logprobs", F_INT, S(top_logprobs), 0, 20, false, O(INT32, top_logprobs)},
    {"prompt_logprobs", F_INT, S(prompt_logprobs), 0, 20, false, O_NONE, 0},
    {"priority", F_INT, S(priority), INT32_MIN, INT32_MAX, false, O_NONE, 0},
    {"thinking_token_budget", F_INT, S(thinking_token_budget), 0, INT32_MAX, false, O_NONE, 0},
    {"truncate_prompt_tokens", F_INT, S(truncate_prompt_tokens), 1, INT32_MAX, false, O_NONE, 0},
    {"logprobs", F_BOOL, S(logprobs), 0, 0, false, O(FLAG, logprobs)},
    {"ignore_eos", F_BOOL, S(ignore_eos), 0, 0, false, O(FLAG, ignore_eos)},
    {"include_stop_str_in_output", F_BOOL, S(include_stop_str_in_output), 0, 0, false, O(FLAG, include_stop)},
    {"skip_special_tokens", F_BOOL, S(skip_special_tokens), 0, 0, false, O(NOT, show_control)},
    {"spaces_between_special_tokens", F_BOOL, S(spaces_between_special_tokens), 0, 0, false, O_NONE, 0},
    {"stream", F_BOOL, S(stream), 0, 0, false, O_NONE, 0},
    {"include_reasoning", F_BOOL, S(include_reasoning), 0, 0, false, O_NONE, 0},
    {"return_token_ids", F_BOOL, S(return_token_ids), 0, 0, false, O_NONE, 0},
    {"return_tokens_as_token_ids", F_BOOL, S(return_tokens_as_token_ids), 0, 0, false, O_NONE, 0},
    {"echo", F_BOOL, S(echo), 0, 0, false, O_NONE, 0},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

/* `known`: it is a whole number of 64 bits. */
static di_status check_int(struct di_build *b, bool known, int64_t x, const struct di_path *at, double min, double max)
{
    if (known && (double)x >= min && (double)x <= max)
        return DI_OK;
    return max > 9e18 ? di_path_fail(b->err, at, "must be a whole number from -9223372036854775808 to 9223372036854775807")
                      : di_path_fail(b->err, at, "must be a whole number from %.0f to %.0f", min, max);
}

static di_status read_int(struct di_build *b, const struct di_json *v, const struct di_path *at, double min, double max, int64_t *out)
{
    int64_t x = 0;
    bool known = di_json_int(v, &x);
    di_status status = check_int(b, known, x, at, min, max);
    if (status == DI_OK)
        *out = x;
    return status;
}

static di_status check_double(struct di_build *b, const struct field *f, bool known, double x)
{
    if (known && x >= f->min && x <= f->max && !(f->above && x <= f->min))
        return DI_OK;
    return di_path_fail(b->err, DI_MEMBER(NULL, di_str_c(f->name)), "must be a number %s %g %s %g", f->above ? "greater than" : "from",
                        f->min, f->above ? "and at most" : "to", f->max);
}

static di_status read_double(struct di_build *b, const struct di_json *v, const struct field *f, double *out)
{
    double x = 0;
    bool known = di_json_double(v, &x);
    di_status status = check_double(b, f, known, x);
    if (status == DI_OK)
        *out = x;
    return status;
}

/* Completions say how many with the switch itself (§4.4). */
static di_status read_logprobs_count(struct di_build *b, const struct di_json *v, const struct di_path *at)
{
    b->chat->sampling.logprobs = 1;
    return read_int(b, v, at, 0, 20, &b->chat->sampling.top_logprobs);
}

static di_status read_table(struct di_build *b)
{
    di_status status = DI_OK;
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        const struct di_json *v = di_build_get(b->request, f->name);
        const struct di_path *at = DI_MEMBER(NULL, di_str_c(f->name));
        void *to = (char *)&b->chat->sampling + f->offset;
        if (!v)
            continue;
        if (f->type == F_DOUBLE)
            TRY(read_double(b, v, f, to));
        else if (f->type == F_INT)
            TRY(read_int(b, v, at, f->min, f->max, to));
        else if (f->offset == S(logprobs) && b->chat->protocol == DI_PROTOCOL_COMPLETION && v->type == DI_JSON_NUMBER)
            TRY(read_logprobs_count(b, v, at));
        else
            TRY(di_build_bool(b, b->request, NULL, f->name, to));
    }
out:
    return status;
}

/* A list of strings; `single`: one string may stand for the list. */
static di_status read_strings(struct di_build *b, const char *key, bool single, size_t most, const struct di_str **out, size_t *n)
{
    const struct di_json *v = di_build_get(b->request, key);
    const struct di_path *at = DI_MEMBER(NULL, di_str_c(key));
    bool one = single && di_json_is(v, DI_JSON_STRING);
    void *mem;
    di_status status = DI_OK;
    if (!v)
        return DI_OK;
    *n = 0;
    if (!one && v->type != DI_JSON_ARRAY)
        TRY(di_path_fail(b->err, at, "must be %san array of strings", single ? "a string or " : ""));
    if (!one && v->count > most)
        TRY(di_path_fail(b->err, at, "has %zu entries, at most %zu are allowed", v->count, most));
    TRY(di_build_alloc(b, (one ? 1 : v->count) * sizeof **out + 1, &mem));
    struct di_str *list = mem;
    for (const struct di_json *m = one ? v : v->child; m; m = one ? NULL : m->next) {
        if (m->type != DI_JSON_STRING || m->text.n == 0)
            TRY(di_path_fail(b->err, one ? at : DI_ITEM(at, *n), "must be a string that is not empty"));
        list[(*n)++] = m->text;
    }
    *out = list;
out:
    return status;
}

static di_status read_ids(struct di_build *b, const char *key, const int32_t **out, size_t *n)
{
    const struct di_json *v;
    const struct di_path *at = DI_MEMBER(NULL, di_str_c(key));
    void *mem;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, key, DI_JSON_ARRAY, false, &v));
    if (!v)
        return DI_OK;
    *n = 0;
    TRY(di_build_alloc(b, v->count * sizeof **out + 1, &mem));
    int32_t *list = mem;
    for (const struct di_json *m = v->child; m; m = m->next) {
        int64_t id = 0;
        TRY(read_int(b, m, DI_ITEM(at, *n), 0, INT32_MAX, &id));
        list[(*n)++] = (int32_t)id;
    }
    *out = list;
out:
    return status;
}

static di_status read_bias(struct di_build *b)
{
    struct di_sampling *s = &b->chat->sampling;
    const struct di_json *v;
    const struct di_path *at = DI_FIELD(NULL, "logit_bias");
    void *mem;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "logit_bias", DI_JSON_OBJECT, false, &v));
    if (!v)
        return DI_OK;
    TRY(di_build_alloc(b, v->count * sizeof *s->logit_bias + 1, &mem));
    di_bias *list = mem;
    s->n_logit_bias = 0;
    for (const struct di_json *m = v->child; m; m = m->next) {
        const struct di_json key = {.type = DI_JSON_NUMBER, .text = m->key};
        int64_t id = -1;
        double bias;
        for (size_t i = 0; i < m->key.n; i++)
            if (m->key.p[i] < '0' || m->key.p[i] > '9')
                TRY(di_path_fail(b->err, at, "must have token ids as keys, not \"%.*s\"", di_path_shown(m->key), m->key.p));
        if (m->key.n == 0 || !di_json_int(&key, &id) || id > INT32_MAX)
            TRY(di_path_fail(b->err, at, "must have token ids as keys"));
        if (!di_json_double(m, &bias) || bias < -100 || bias > 100)
            TRY(di_path_fail(b->err, DI_MEMBER(at, m->key), "must be a number from -100 to 100"));
        list[s->n_logit_bias++] = (di_bias){(int32_t)id, (float)bias};
    }
    s->logit_bias = list;
out:
    return status;
}

/* The newer name of chat wins. Messages lowers what the others refuse. */
static const char *const max_tokens_names[][2] = {[DI_PROTOCOL_CHAT] = {"max_completion_tokens", "max_tokens"},
                                                  [DI_PROTOCOL_RESPONSES] = {"max_output_tokens", NULL},
                                                  [DI_PROTOCOL_MESSAGES] = {"max_tokens", NULL},
                                                  [DI_PROTOCOL_COMPLETION] = {"max_completion_tokens", "max_tokens"}};

static double max_tokens_limit(const struct di_build *b)
{
    return b->chat->protocol == DI_PROTOCOL_MESSAGES ? INT32_MAX : (double)b->opt->max_tokens_limit;
}

static di_status read_max_tokens(struct di_build *b)
{
    const char *const *names = max_tokens_names[b->chat->protocol];
    int64_t limit = b->opt->max_tokens_limit, *out = &b->chat->sampling.max_tokens;
    const struct di_json *v = NULL;
    for (int i = 0; i < 2 && names[i] && !v; i++) {
        v = di_build_get(b->request, names[i]);
        di_status status = v ? read_int(b, v, DI_MEMBER(NULL, di_str_c(names[i])), 1, max_tokens_limit(b), out) : DI_OK;
        if (status != DI_OK)
            return status;
    }
    if (*out > limit)
        *out = limit;
    return DI_OK;
}

static di_status read_stream_options(struct di_build *b)
{
    struct di_sampling *s = &b->chat->sampling;
    const struct di_path *at = DI_FIELD(NULL, "stream_options");
    const struct di_json *v;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "stream_options", DI_JSON_OBJECT, false, &v));
    if (v && s->stream != 1 && b->chat->protocol == DI_PROTOCOL_CHAT)
        TRY(di_path_fail(b->err, at, "needs \"stream\": true"));
    TRY(di_build_bool(b, v, at, "include_usage", &s->include_usage));
    TRY(di_build_bool(b, v, at, "continuous_usage_stats", &s->continuous_usage_stats));
out:
    return status;
}

/* Fields that change nothing here, or that the server acts on: their types are checked all the same. */
#define OF(protocol) (1u << DI_PROTOCOL_##protocol)
#define OPENAI (OF(CHAT) | OF(RESPONSES) | OF(COMPLETION))
static const struct {
    const char *name;
    enum di_json_type type;
    unsigned protocols;
} others[] = {
    {"user", DI_JSON_STRING, OPENAI},
    {"service_tier", DI_JSON_STRING, OPENAI | OF(MESSAGES)},
    {"store", DI_JSON_BOOL, OF(CHAT) | OF(RESPONSES)},
    {"prompt_cache_key", DI_JSON_STRING, OF(CHAT) | OF(RESPONSES)},
    {"safety_identifier", DI_JSON_STRING, OF(CHAT) | OF(RESPONSES)},
    {"previous_response_id", DI_JSON_STRING, OF(RESPONSES)},
    {"truncation", DI_JSON_STRING, OF(RESPONSES)},
    {"max_tool_calls", DI_JSON_NUMBER, OF(RESPONSES)},
    {"add_special_tokens", DI_JSON_BOOL, OF(COMPLETION)},
};

/* The protocols' own limits: what a client attaches comes back with the answer. */
static di_status read_metadata(struct di_build *b)
{
    enum { PAIRS = 16, KEY = 64, VALUE = 512 };
    const struct di_path *at = DI_FIELD(NULL, "metadata");
    bool openai = b->chat->protocol != DI_PROTOCOL_MESSAGES; /* Messages knows one key, user_id */
    const struct di_json *v;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "metadata", DI_JSON_OBJECT, false, &v));
    if (v && v->count > PAIRS)
        TRY(di_path_fail(b->err, at, "has %zu members, at most %d are allowed", v->count, PAIRS));
    for (const struct di_json *m = v ? v->child : NULL; m; m = m->next) {
        if (di_utf8_count(m->key) > KEY)
            TRY(di_path_fail(b->err, at, "has a key of %zu characters, at most %d are allowed", di_utf8_count(m->key), KEY));
        if (m->type != DI_JSON_STRING && (openai || (m->type != DI_JSON_NULL && di_str_eqc(m->key, "user_id"))))
            TRY(di_path_fail(b->err, DI_MEMBER(at, m->key), "must be a string, not %s", di_json_type_name(m)));
        if (di_utf8_count(m->text) > VALUE)
            TRY(di_path_fail(b->err, DI_MEMBER(at, m->key), "has %zu characters, at most %d are allowed", di_utf8_count(m->text), VALUE));
    }
out:
    return status;
}

/* Text is all that comes out. */
static di_status read_modalities(struct di_build *b)
{
    const struct di_path *at = DI_FIELD(NULL, "modalities");
    const struct di_json *list;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "modalities", DI_JSON_ARRAY, false, &list));
    for (const struct di_json *m = list ? list->child : NULL; m; m = m->next, i++)
        if (m->type != DI_JSON_STRING || !di_str_eqc(m->text, "text"))
            TRY(di_path_fail(b->err, DI_ITEM(at, i), "must be text: the model gives nothing else"));
out:
    return status;
}

static di_status read_others(struct di_build *b)
{
    const struct di_json *v, *list;
    struct di_str s;
    size_t k = 0;
    di_status status = DI_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].protocols >> b->chat->protocol & 1)
            TRY(di_build_member(b, b->request, NULL, others[i].name, others[i].type, false, &v));
    TRY(read_metadata(b));
    if (b->chat->protocol == DI_PROTOCOL_CHAT)
        TRY(read_modalities(b));
    if (b->chat->protocol == DI_PROTOCOL_RESPONSES) {
        TRY(di_build_member(b, b->request, NULL, "include", DI_JSON_ARRAY, false, &list));
        for (const struct di_json *m = list ? list->child : NULL; m; m = m->next, k++)
            if (m->type != DI_JSON_STRING)
                TRY(di_path_fail(b->err, DI_ITEM(DI_FIELD(NULL, "include"), k), "must be a string, not %s", di_json_type_name(m)));
        TRY(di_build_string(b, di_build_get(b->request, "reasoning"), DI_FIELD(NULL, "reasoning"), "summary", false, &s));
        TRY(di_build_string(b, di_build_get(b->request, "text"), DI_FIELD(NULL, "text"), "verbosity", false, &s));
    }
out:
    return status;
}

/* ---- sampling that is no JSON ---- */

static const char *stop_name(const struct di_chat *c)
{
    return c->protocol == DI_PROTOCOL_MESSAGES ? "stop_sequences" : "stop";
}

static di_status take_option(struct di_build *b, const struct field *f, const di_sampling_options *o)
{
    const struct di_path *at = DI_MEMBER(NULL, di_str_c(f->name));
    const void *from = (const char *)o + f->option;
    void *to = (char *)&b->chat->sampling + f->offset;
    double x;
    int64_t i = 0;
    switch (f->option_type) {
    case O_NONE: return DI_OK;
    case O_DOUBLE:
        memcpy(&x, from, sizeof x);
        if (!isfinite(x))
            return di_path_fail(b->err, at, "must be a finite number");
        memcpy(to, &x, sizeof x);
        return check_double(b, f, true, x);
    case O_INT64: memcpy(&i, from, sizeof i); break;
    case O_INT32: i = *(const int32_t *)from; break;
    case O_FLAG:
    case O_NOT: *(int8_t *)to = (*(const int32_t *)from != 0) == (f->option_type == O_FLAG); return DI_OK;
    }
    memcpy(to, &i, sizeof i);
    return check_int(b, true, i, at, f->min, f->max);
}

static di_status take_stops(struct di_build *b, const di_sampling_options *o)
{
    struct di_sampling *s = &b->chat->sampling;
    const struct di_path *at = DI_MEMBER(NULL, di_str_c(stop_name(b->chat)));
    void *mem;
    di_status status = DI_OK;
    CHECK(!o->n_stop || b->chat->protocol != DI_PROTOCOL_RESPONSES, b->err, DI_ERR_INVALID, "stop",
          "the responses protocol has no stop strings");
    TRY(di_build_alloc(b, o->n_stop * sizeof *s->stop + 1, &mem));
    struct di_str *list = mem;
    for (size_t i = 0; i < o->n_stop; i++) {
        CHECK(o->stop[i] && di_utf8_valid(di_str_c(o->stop[i]), NULL), b->err, DI_ERR_INVALID, "stop", "string %zu is not valid UTF-8", i);
        list[i] = di_str_c(o->stop[i]);
        if (list[i].n == 0)
            TRY(di_path_fail(b->err, DI_ITEM(at, i), "must be a string that is not empty"));
    }
    s->stop = list;
    s->n_stop = o->n_stop;
out:
    return status;
}

static di_status take_ids(struct di_build *b, const di_sampling_options *o)
{
    struct di_sampling *s = &b->chat->sampling;
    const struct di_path *at = DI_FIELD(NULL, "logit_bias");
    di_status status = DI_OK;
    for (size_t i = 0; i < o->n_stop_ids; i++)
        TRY(check_int(b, true, o->stop_ids[i], DI_ITEM(DI_FIELD(NULL, "stop_token_ids"), i), 0, INT32_MAX));
    for (size_t i = 0; i < o->n_bias; i++) {
        float value = o->bias[i].value;
        char id[16];
        CHECK(isfinite(value), b->err, DI_ERR_INVALID, "bias", "entry %zu must be a finite number", i);
        snprintf(id, sizeof id, "%d", o->bias[i].id);
        if (o->bias[i].id < 0)
            TRY(di_path_fail(b->err, at, "must have token ids as keys, not \"%s\"", id));
        if (value < -100 || value > 100)
            TRY(di_path_fail(b->err, DI_MEMBER(at, di_str_c(id)), "must be a number from -100 to 100"));
    }
    s->stop_token_ids = o->stop_ids;
    s->n_stop_token_ids = o->n_stop_ids;
    s->logit_bias = o->bias;
    s->n_logit_bias = o->n_bias;
out:
    return status;
}

static void clear_sampling(struct di_sampling *s)
{
    *s = (struct di_sampling){.max_tokens = INT64_MIN, .include_usage = -1, .continuous_usage_stats = -1};
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        void *to = (char *)s + f->offset;
        if (f->type == F_DOUBLE)
            *(double *)to = NAN;
        else if (f->type == F_INT)
            *(int64_t *)to = INT64_MIN;
        else
            *(int8_t *)to = -1;
    }
}

di_status di_build_sampling_options(struct di_build *b, const di_sampling_options *o)
{
    struct di_sampling *s = &b->chat->sampling;
    di_status status = DI_OK;
    clear_sampling(s);
    if (!o)
        return DI_OK;
    CHECK(o->logprobs || !o->top_logprobs, b->err, DI_ERR_INVALID, "top_logprobs", "needs logprobs");
    for (const struct field *f = fields; f < fields + N_FIELDS; f++)
        TRY(take_option(b, f, o));
    s->has_seed = true;
    if (!o->top_logprobs)
        s->top_logprobs = INT64_MIN;
    if (o->max_tokens) {
        const char *const *names = max_tokens_names[b->chat->protocol];
        int64_t limit = b->opt->max_tokens_limit;
        TRY(check_int(b, true, o->max_tokens, DI_MEMBER(NULL, di_str_c(names[names[1] != NULL])), 1, max_tokens_limit(b)));
        s->max_tokens = o->max_tokens < limit ? o->max_tokens : limit;
    }
    TRY(take_stops(b, o));
    TRY(take_ids(b, o));
out:
    return status;
}

/* ---- all together ---- */

/* The fields that no table above has. */
static const struct {
    const char *name;
    unsigned protocols;
} single[] = {
    {"model", OF(CHAT) | OF(COMPLETION)},
    {"request_id", OF(CHAT) | OF(COMPLETION)},
    {"session_id", OF(CHAT) | OF(COMPLETION)}, /* some clients send it to everybody */
    {"cache_salt", OF(CHAT) | OF(COMPLETION)},
    {"metadata", OF(CHAT) | OF(COMPLETION)},
    {"max_tokens", OF(CHAT) | OF(COMPLETION)},
    {"max_completion_tokens", OF(CHAT) | OF(COMPLETION)},
    {"stop", OF(CHAT) | OF(COMPLETION)},
    {"stop_token_ids", OF(CHAT) | OF(COMPLETION)},
    {"allowed_token_ids", OF(CHAT) | OF(COMPLETION)},
    {"bad_words", OF(CHAT) | OF(COMPLETION)},
    {"logit_bias", OF(CHAT) | OF(COMPLETION)},
    {"stream_options", OF(CHAT) | OF(COMPLETION)},
    {"response_format", OF(CHAT) | OF(COMPLETION)},
    {"structured_outputs", OF(CHAT) | OF(COMPLETION)},
    {"prompt", OF(COMPLETION)},
    {"prompt_token_ids", OF(COMPLETION)},
    {"messages", OF(CHAT)},
    {"tools", OF(CHAT)},
    {"tool_choice", OF(CHAT)},
    {"parallel_tool_calls", OF(CHAT)},
    {"functions", OF(CHAT)},
    {"function_call", OF(CHAT)},
    {"thinking", OF(CHAT)},
    {"reasoning_effort", OF(CHAT)},
    {"reasoning_history", OF(CHAT)},
    {"chat_template_kwargs", OF(CHAT)},
    {"continue_final_message", OF(CHAT)},
    {"add_generation_prompt", OF(CHAT)},
    {"modalities", OF(CHAT)},
};

bool di_chat_has_field(enum di_protocol protocol, struct di_str name)
{
    for (const struct field *f = fields; f < fields + N_FIELDS; f++)
        if (di_str_eqc(name, f->name))
            return f->offset == S(echo) ? protocol == DI_PROTOCOL_COMPLETION
                                        : f->offset != S(include_reasoning) || protocol == DI_PROTOCOL_CHAT;
    for (size_t i = 0; i < sizeof structured / sizeof *structured; i++)
        if (!structured[i].outer && di_str_eqc(name, structured[i].key))
            return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (di_str_eqc(name, others[i].name))
            return others[i].protocols >> protocol & 1;
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (di_str_eqc(name, single[i].name))
            return single[i].protocols >> protocol & 1;
    return false;
}

void di_build_sampling_rules(struct di_build *b)
{
    struct di_chat *c = b->chat;
    c->temperature = isnan(c->sampling.temperature) ? 1.0 : c->sampling.temperature;
    c->top_p = isnan(c->sampling.top_p) ? 1.0 : c->sampling.top_p;
    if (b->opt->hosted_sampling) { /* §4.2: what the hosted service makes of it */
        c->temperature = c->thinking ? 1.0 : c->temperature;
        c->top_p = !c->thinking ? 1.0 : c->top_p < 0.95 ? 0.95 : c->top_p;
    }
}

di_status di_build_sampling(struct di_build *b)
{
    struct di_chat *c = b->chat;
    struct di_sampling *s = &c->sampling;
    di_status status = DI_OK;
    TRY(di_build_sampling_options(b, b->opt->sampling));
    TRY(read_table(b));
    if (s->logprobs == 0 && !di_build_get(b->request, "top_logprobs")) /* switched off, the caller's number of them with it */
        s->top_logprobs = INT64_MIN;
    s->has_seed = s->has_seed || di_build_get(b->request, "seed");
    TRY(read_max_tokens(b));
    TRY(read_stream_options(b));
    if (c->protocol != DI_PROTOCOL_RESPONSES) /* Responses has none (§3.6) */
        TRY(read_strings(b, stop_name(c), c->protocol == DI_PROTOCOL_CHAT || c->protocol == DI_PROTOCOL_COMPLETION, DI_PARSE_MAX_STOP,
                         &s->stop, &s->n_stop));
    TRY(read_strings(b, "bad_words", false, 1024, &s->bad_words, &s->n_bad_words));
    TRY(read_ids(b, "stop_token_ids", &s->stop_token_ids, &s->n_stop_token_ids));
    TRY(read_ids(b, "allowed_token_ids", &s->allowed_token_ids, &s->n_allowed_token_ids));
    TRY(read_bias(b));
    TRY(read_structured(b));
    TRY(read_others(b));
    if (c->protocol == DI_PROTOCOL_RESPONSES && s->top_logprobs >= 0)
        s->logprobs = 1;
    else if (c->protocol == DI_PROTOCOL_CHAT && s->top_logprobs >= 0 && s->logprobs != 1)
        TRY(di_path_fail(b->err, DI_FIELD(NULL, "top_logprobs"), "needs \"logprobs\": true"));
    if (s->best_of >= 0 && s->best_of < (s->n >= 0 ? s->n : 1))
        TRY(di_path_fail(b->err, DI_FIELD(NULL, "best_of"), "must be at least n"));
    di_build_sampling_rules(b);
    TRY(di_build_string(b, b->request, NULL, "model", false, &c->model));
    TRY(di_build_string(b, b->request, NULL, "request_id", false, &c->request_id));
    TRY(di_build_string(b, b->request, NULL, "cache_salt", false, &c->cache_salt));
out:
    return status;
}
