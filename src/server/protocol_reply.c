/* Routes that are answered at once: models, token counts, tokenize, detokenize, stored responses (spec/encoding.md §4.5 to §4.7). */
#include "server/protocol_impl.h"
#include "server/response_store.h"

#include "base/utf8.h"

#include <stdio.h>
#include <time.h>

/* ---------------------------------------------------------------- models */

/* Fields of OpenAI's and Anthropic's lists side by side: the two do not contradict. */
static void write_model(struct di_buf *b, const struct di_exchange_setup *s, const char *name)
{
    di_model_info info = {0};
    char date[32] = "1970-01-01T00:00:00Z";
    time_t created = (time_t)s->created;
    struct tm tm;
    if (gmtime_r(&created, &tm))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (s->engine)
        di_engine_info(s->engine, &info, sizeof info, NULL);
    di_buf_adds(b, "{\"id\":");
    di_json_write_string(b, di_str_c(name));
    di_buf_addf(b, ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,\"created_at\":\"%s\",\"owned_by\":\"deepinfer\"",
                (long long)s->created, date);
    di_write_string(b, "display_name", di_str_c(name));
    di_write_string(b, "root", di_str_c(s->names[0]));
    di_buf_addf(b, ",\"parent\":null,\"max_model_len\":%lld}", (long long)info.context);
}

static void write_models(struct di_buf *b, const struct di_exchange_setup *s)
{
    const char *first = NULL, *last = NULL;
    di_buf_adds(b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < s->n_names; i++) {
        size_t n = strlen(s->names[i]);
        if (n && s->names[i][n - 1] == '*')
            continue;
        di_buf_adds(b, first ? "," : "");
        write_model(b, s, s->names[i]);
        first = first ? first : s->names[i];
        last = s->names[i];
    }
    di_buf_adds(b, "],\"has_more\":false");
    di_write_string(b, "first_id", di_str_c(first));
    di_write_string(b, "last_id", di_str_c(last));
    di_buf_addc(b, '}');
}

static di_status model(struct di_exchange *x, di_error *err)
{
    struct di_str id = x->request.id;
    if (!di_utf8_valid(id, NULL) || !di_model_served(x->setup, id))
        return di_fail(err, DI_ERR_NOT_FOUND, "model", "the model \"%.*s\" does not exist here", (int)di_utf8_cut(id, 80), id.p);
    char *name = di_arena_strndup(&x->arena, id.p, id.n);
    if (!name)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    write_model(&x->reply, x->setup, name);
    return DI_OK;
}

/* ---------------------------------------------------------------- tokens */

static di_status count_tokens(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    bool responses = x->request.route == DI_ROUTE_RESPONSE_TOKENS;
    struct di_buf items = {0};
    di_submission s;
    size_t n;
    if (responses)
        TRY(di_stored_conversation(x, &items, err));
    di_exchange_describe(x, &s);
    TRY(di_engine_prompt(x->setup->engine, &s, NULL, 0, &n, err));
    di_buf_addf(&x->reply, responses ? "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}" : "{\"input_tokens\":%zu}", n);
out:
    di_buf_fini(&items);
    return status;
}

di_status di_exchange_encode(const struct di_exchange *x, struct di_str text, int32_t **ids, size_t *n, di_error *err)
{
    *ids = di_malloc((text.n + 1) * sizeof **ids); /* no token is shorter than a byte */
    if (!*ids)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a prompt");
    di_status status = di_engine_encode(x->setup->engine, text.p ? text.p : "", text.n, 1, *ids, text.n, n, err);
    int32_t *fit = status == DI_OK ? di_realloc(*ids, (*n + 1) * sizeof *fit) : NULL;
    *ids = fit ? fit : *ids;
    return status;
}

/* Answers that grow with the request stay within bounds, too: `n` is what was asked for. */
static di_status check_reply(const struct di_exchange *x, size_t bytes, const char *where, size_t n, di_error *err)
{
    size_t most = x->setup->max_reply;
    if (!most || bytes <= most)
        return DI_OK;
    return di_fail(err, DI_ERR_LIMIT, where,
                   "has %zu tokens: the answer would be longer than the %zu bytes that it may have; ask for a part of it", n, most);
}

static di_status tokenize(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    int32_t *own = NULL;
    const int32_t *ids;
    di_prepared *p = NULL;
    di_submission s;
    size_t n = 0;
    di_model_info info;
    struct di_str bytes;
    char room[256];
    bool special = true, strings = false;
    const struct di_json *prompt = di_field(x->json, "prompt");
    TRY(di_field_switch(x->json, "add_special_tokens", true, &special, err));
    TRY(di_field_switch(x->json, "return_token_strs", false, &strings, err));
    if (di_field(x->json, "messages")) {
        di_exchange_describe(x, &s);
        TRY(di_engine_prepare(x->setup->engine, &s, &p, err));
        ids = di_prepared_prompt(p, &n);
    } else {
        CHECK(di_json_is(prompt, DI_JSON_STRING), err, DI_ERR_INVALID, "prompt", "must be a string, or give messages");
        TRY(di_exchange_encode(x, prompt->text, &own, &n, err));
        ids = own;
    }
    TRY(check_reply(x, 2 * n, "prompt", n, err)); /* before it is written */
    TRY(di_engine_info(x->setup->engine, &info, sizeof info, err));
    bool bos = di_json_is(prompt, DI_JSON_STRING) && special && !(n && ids[0] == info.bos_id);
    di_buf_addf(&x->reply, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", n + bos, (long long)info.context);
    if (bos)
        di_buf_addf(&x->reply, n ? "%d," : "%d", info.bos_id);
    for (size_t i = 0; i < n; i++)
        di_buf_addf(&x->reply, i ? ",%d" : "%d", ids[i]);
    di_buf_adds(&x->reply, "],\"token_strs\":");
    if (strings) {
        di_buf_addc(&x->reply, '[');
        if (bos) {
            di_write_token(&x->reply, x->setup->engine, info.bos_id, &bytes, room);
            di_buf_adds(&x->reply, n ? "," : "");
        }
        for (size_t i = 0; i < n; i++) {
            di_buf_adds(&x->reply, i ? "," : "");
            di_write_token(&x->reply, x->setup->engine, ids[i], &bytes, room);
            TRY(check_reply(x, x->reply.n, "prompt", n, err));
        }
        di_buf_adds(&x->reply, "]}");
    } else {
        di_buf_adds(&x->reply, "null}");
    }
    TRY(check_reply(x, x->reply.n, "prompt", n, err));
out:
    di_prepared_free(p);
    di_free(own);
    return status;
}

static void write_special(struct di_buf *b, const di_engine *engine, const char *name, int32_t id)
{
    struct di_str bytes;
    char room[256];
    di_buf_addf(b, ",\"%s_token\":", name);
    di_write_token(b, engine, id, &bytes, room);
    di_buf_addf(b, ",\"%s_token_id\":%d", name, id);
}

/* What evaluation programs ask before they use /tokenize and /detokenize as their tokenizer. The prompts of conversations are made here, so
 * there is no template. */
static di_status tokenizer_info(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf *b = &x->reply;
    di_model_info info;
    TRY(di_engine_info(x->setup->engine, &info, sizeof info, err));
    di_buf_addf(b, "{\"tokenizer_class\":\"deepinfer\",\"vocab_size\":%d,\"model_max_length\":%lld", info.vocab_size,
                (long long)info.context);
    write_special(b, x->setup->engine, "bos", info.bos_id);
    write_special(b, x->setup->engine, "eos", info.eos_id);
    write_special(b, x->setup->engine, "pad", info.pad_id);
    di_buf_adds(b, ",\"unk_token\":null,\"chat_template\":null}");
out:
    return status;
}

static di_status detokenize(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    const struct di_json *tokens = di_field(x->json, "tokens");
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0, bytes;
    CHECK(di_json_is(tokens, DI_JSON_ARRAY), err, DI_ERR_INVALID, "tokens", "must be a list of token ids");
    ids = di_calloc(tokens->count, sizeof *ids);
    CHECK(ids, err, DI_ERR_MEMORY, "", "out of memory for %zu ids", tokens->count);
    for (const struct di_json *v = tokens->child; v; v = v->next) {
        int64_t id;
        CHECK(di_json_int(v, &id) && id >= 0 && id <= INT32_MAX, err, DI_ERR_INVALID, "tokens", "entry %zu is no token id", n);
        ids[n++] = (int32_t)id;
    }
    TRY(di_engine_decode(x->setup->engine, ids, n, NULL, 0, &bytes, err));
    TRY(check_reply(x, bytes, "tokens", n, err));
    text = di_malloc(bytes);
    CHECK(text, err, DI_ERR_MEMORY, "", "out of memory for %zu bytes", bytes);
    TRY(di_engine_decode(x->setup->engine, ids, n, text, bytes, &bytes, err));
    di_buf_adds(&x->reply, "{\"prompt\":");
    di_json_write_string(&x->reply, (struct di_str){text, bytes});
    di_buf_addc(&x->reply, '}');
out:
    di_free(ids);
    di_free(text);
    return status;
}

/* ---------------------------------------------------------------- stored responses */

static di_status stored(struct di_exchange *x, bool drop, di_error *err)
{
    struct di_response_store *s = x->setup->store;
    struct di_str id = x->request.id;
    bool found =
        s && (drop ? di_response_store_delete(s, x->request.tenant, id) : di_response_store_get(s, x->request.tenant, id, NULL, &x->reply));
    if (!found)
        return di_fail(err, DI_ERR_NOT_FOUND, "id", "there is no response with this id");
    if (drop) {
        di_buf_adds(&x->reply, "{\"id\":");
        di_json_write_string(&x->reply, id);
        di_buf_adds(&x->reply, ",\"object\":\"response\",\"deleted\":true}");
    }
    return DI_OK;
}

di_status di_exchange_reply(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    switch (x->request.route) {
    case DI_ROUTE_MODELS: write_models(&x->reply, x->setup); break;
    case DI_ROUTE_MODEL: TRY(model(x, err)); break;
    case DI_ROUTE_COUNT_TOKENS:
    case DI_ROUTE_RESPONSE_TOKENS: TRY(count_tokens(x, err)); break;
    case DI_ROUTE_TOKENIZE: TRY(tokenize(x, err)); break;
    case DI_ROUTE_TOKENIZER_INFO: TRY(tokenizer_info(x, err)); break;
    case DI_ROUTE_DETOKENIZE: TRY(detokenize(x, err)); break;
    case DI_ROUTE_RESPONSE_ITEMS: TRY(di_stored_input_items(x, err)); break;
    case DI_ROUTE_RESPONSE_GET: TRY(stored(x, false, err)); break;
    case DI_ROUTE_RESPONSE_DELETE: TRY(stored(x, true, err)); break;
    default: break;
    }
    TRY(di_buf_ok(&x->reply, err));
out:
    return status;
}
