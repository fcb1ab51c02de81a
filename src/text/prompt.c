#include "text/prompt.h"

static const char *const spellings[DI_CTL_COUNT] = {
    [DI_CTL_BOS] = "<｜begin▁of▁sentence｜>",
    [DI_CTL_EOS] = "<｜end▁of▁sentence｜>",
    [DI_CTL_SYSTEM] = "<｜System｜>",
    [DI_CTL_USER] = "<｜User｜>",
    [DI_CTL_ASSISTANT] = "<｜Assistant｜>",
    [DI_CTL_REMINDER] = "<｜latest_reminder｜>",
    [DI_CTL_THINK] = "<think>",
    [DI_CTL_THINK_END] = "</think>",
    [DI_CTL_DSML] = "｜DSML｜",
    [DI_CTL_IMAGE] = "<｜deepseek_image｜>",
    [DI_CTL_ACTION] = "<｜action｜>",
    [DI_CTL_QUERY] = "<｜query｜>",
    [DI_CTL_AUTHORITY] = "<｜authority｜>",
    [DI_CTL_DOMAIN] = "<｜domain｜>",
    [DI_CTL_TITLE] = "<｜title｜>",
    [DI_CTL_READ_URL] = "<｜read_url｜>",
    [DI_CTL_REF] = "<｜ref｜>",
    [DI_CTL_REF_END] = "<｜/ref｜>",
    [DI_CTL_BOX] = "<｜box｜>",
    [DI_CTL_BOX_END] = "<｜/box｜>",
    [DI_CTL_POINT] = "<｜point｜>",
    [DI_CTL_POINT_END] = "<｜/point｜>",
    [DI_CTL_POLYGON] = "<｜polygon｜>",
    [DI_CTL_POLYGON_END] = "<｜/polygon｜>",
};

struct di_str di_control_spelling(enum di_control c)
{
    return di_str_c(spellings[c]);
}

void di_prompt_fini(struct di_prompt *p)
{
    di_buf_fini(&p->text);
    di_free(p->marks);
    di_free(p->turns);
    *p = (struct di_prompt){0};
}

void di_prompt_control(struct di_prompt *p, enum di_control c)
{
    if (p->n_marks == p->cap_marks) {
        size_t cap = p->cap_marks ? p->cap_marks * 2 : 64;
        struct di_prompt_mark *m = di_realloc(p->marks, cap * sizeof *m);
        if (!m) {
            p->text.failed = true;
            return;
        }
        p->marks = m;
        p->cap_marks = cap;
    }
    p->marks[p->n_marks++] = (struct di_prompt_mark){p->text.n, c};
    di_buf_adds(&p->text, spellings[c]);
}

void di_prompt_add_turn(struct di_prompt *p, size_t first, const void *message, bool reasons)
{
    if (p->n_turns == p->cap_turns) {
        size_t cap = p->cap_turns ? p->cap_turns * 2 : 16;
        struct di_prompt_turn *turns = di_realloc(p->turns, cap * sizeof *turns);
        if (!turns) {
            p->text.failed = true;
            return;
        }
        p->turns = turns;
        p->cap_turns = cap;
    }
    p->turns[p->n_turns++] = (struct di_prompt_turn){first, p->n_marks - 1, message, reasons};
}

void di_prompt_text(struct di_prompt *p, struct di_str s)
{
    di_buf_addv(&p->text, s);
}

void di_prompt_grounded(struct di_prompt *p, struct di_str s)
{
    const struct di_str open = DI_STR("<｜");
    size_t plain = 0;
    for (size_t at = di_str_find(s, open, 0); at != SIZE_MAX; at = di_str_find(s, open, at)) {
        struct di_str rest = {s.p + at, s.n - at};
        int c = DI_CTL_REF;
        while (c <= DI_CTL_POLYGON_END && !di_str_starts(rest, di_str_c(spellings[c])))
            c++;
        if (c > DI_CTL_POLYGON_END) {
            at += open.n;
            continue;
        }
        di_prompt_text(p, (struct di_str){s.p + plain, at - plain});
        di_prompt_control(p, (enum di_control)c);
        plain = at += strlen(spellings[c]);
    }
    di_prompt_text(p, (struct di_str){s.p + plain, s.n - plain});
}

di_status di_prompt_ok(const struct di_prompt *p, di_error *err)
{
    return di_buf_ok(&p->text, err);
}

static bool optional(int c)
{
    return c == DI_CTL_REMINDER || c >= DI_CTL_IMAGE;
}

di_status di_control_ids_find(const struct di_tokenizer *t, int32_t image_id, struct di_control_ids *out, di_error *err)
{
    for (int c = 0; c < DI_CTL_COUNT; c++) {
        out->id[c] = di_tokenizer_find_added(t, di_str_c(spellings[c]));
        if (out->id[c] < 0 && !optional(c))
            return di_fail(err, DI_ERR_UNSUPPORTED, "tokenizer.json", "the vocabulary has no added token \"%s\", which prompts need",
                           spellings[c]);
    }
    if (out->id[DI_CTL_IMAGE] < 0) /* the other spelling in use */
        out->id[DI_CTL_IMAGE] = di_tokenizer_find_added(t, DI_STR("<｜image｜>"));
    if (image_id >= 0)
        out->id[DI_CTL_IMAGE] = image_id;
    return DI_OK;
}

di_status di_prompt_encode(const struct di_prompt *p, const struct di_tokenizer *t, const struct di_control_ids *ids,
                           const struct di_prompt_recall *recall, struct di_ids *out, di_error *err)
{
    di_status status = DI_OK;
    size_t from = 0, turn = 0;
    for (size_t i = 0; i <= p->n_marks; i++) {
        size_t to = i < p->n_marks ? p->marks[i].at : p->text.n;
        enum di_control c = i < p->n_marks ? p->marks[i].control : DI_CTL_COUNT;
        if (c >= DI_CTL_REF && c < DI_CTL_COUNT && ids->id[c] < 0)
            continue;
        if (to > from)
            TRY(di_tokenizer_encode(t, (struct di_str){p->text.p + from, to - from}, DI_TOKENIZER_PLAIN, out, err));
        if (c == DI_CTL_COUNT)
            break;
        CHECK(ids->id[c] >= 0, err, DI_ERR_UNSUPPORTED, "tokenizer.json",
              "the vocabulary has no added token \"%s\", which this prompt needs", spellings[c]);
        CHECK(di_ids_reserve(out, 1), err, DI_ERR_MEMORY, "", "out of memory for a prompt of %zu bytes", p->text.n);
        out->v[out->n++] = ids->id[c];
        if (recall && turn < p->n_turns && p->turns[turn].first == i && recall->find(recall->ctx, &p->turns[turn], out)) {
            i = p->turns[turn].last;
            to = p->marks[i].at;
            c = p->marks[i].control;
        }
        while (turn < p->n_turns && p->turns[turn].first <= i)
            turn++;
        from = to + strlen(spellings[c]);
    }
out:
    return status;
}
