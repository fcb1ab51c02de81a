/* Any body through any route, then any records: no crash, a body that is one JSON document, a stream that is a sequence of events. There
 * is no engine: what is asked of it is refused.
 *
 * Input: a byte of route and flags, two bytes of length, a body in which bytes from 128 on stand for pieces of JSON, and records. */
#include "server/protocol.h"

#include "base/json.h"
#include "base/utf8.h"
#include "server/response_store.h"

#include <math.h>
#include <stdlib.h>

static const char *const pieces[] = {"\"stream\":true,",
                                     "\"messages\":",
                                     "\"prompt\":",
                                     "\"input\":",
                                     "\"model\":\"m\",",
                                     "\"n\":2,",
                                     "\"best_of\":2,",
                                     "\"echo\":true,",
                                     "\"logprobs\":",
                                     "true",
                                     "\"suffix\":",
                                     "\"tools\":",
                                     "{\"type\":\"",
                                     "\"name\":",
                                     "function\"",
                                     "\"stop\":[\"a\"],",
                                     "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},",
                                     "\"include_reasoning\":false,",
                                     "\"previous_response_id\":\"resp_0\",",
                                     "\"request_id\":\"0\",",
                                     "\"store\":false,",
                                     "\"top_logprobs\":1,",
                                     "\"tokens\":[1,2],",
                                     "\"include\":[\"message.output_text.logprobs\"],",
                                     "\"stop_token_ids\":[1],",
                                     "\"priority\":1,",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     "\"\"",
                                     ",",
                                     "1",
                                     "null"};
#define N_PIECES (sizeof pieces / sizeof *pieces)

static void require(bool condition)
{
    if (!condition)
        abort();
}

static bool zeros(void *ctx, void *bytes, size_t n)
{
    (void)ctx;
    memset(bytes, 0, n);
    return true;
}

static void require_json(struct di_str text)
{
    struct di_arena arena;
    struct di_json *v;
    di_arena_init(&arena);
    require(di_json_parse(text, NULL, &arena, &v, NULL) == DI_OK);
    di_arena_fini(&arena);
}

static void require_events(struct di_str sse)
{
    while (sse.n) {
        size_t end = di_str_find(sse, DI_STR("\n\n"), 0);
        require(end != SIZE_MAX);
        struct di_str line = {sse.p, end};
        if (di_str_starts(line, DI_STR("event: "))) {
            size_t name = di_str_find(line, DI_STR("\n"), 0);
            require(name != SIZE_MAX);
            line.p += name + 1;
            line.n -= name + 1;
        }
        require(di_str_starts(line, DI_STR("data: ")));
        line.p += 6;
        line.n -= 6;
        if (!di_str_eqc(line, "[DONE]"))
            require_json(line);
        sse.p += end + 2;
        sse.n -= end + 2;
    }
}

/* One record from a few bytes of input; returns how many it took. */
static size_t make_record(const uint8_t *data, size_t size, di_output *o, di_alternative *top, struct di_buf *text)
{
    static const di_error broken = {DI_ERR_LIMIT, "broken", "x"};
    size_t n = size > 2 ? data[2] % 16 : 0;
    n = n > size - (size > 3 ? 3 : size) ? 0 : n;
    di_buf_clear(text);
    di_buf_adds(text, "");
    if (n) /* the engine gives well-formed text */
        di_utf8_add_lossy(text, (struct di_str){(const char *)data + 3, n});
    *top = (di_alternative){data[0], -INFINITY};
    *o = (di_output){
        .kind = (di_output_kind)(data[0] % 9), .text = text->p ? text->p : "", .text_bytes = text->n, .logprob = NAN, .stop_index = -1};
    if (size > 1) {
        o->start = (di_answer_start)(data[1] % 5);
        o->thinking = data[1] >> 3 & 1;
        o->phase = (di_answer_phase)(data[1] % 3);
        o->logprob = data[1] & 16 ? NAN : -1;
        o->call_custom = data[1] >> 5 & 1;
        o->call_space = data[1] & 64 ? "a" : "";
        o->call_id = data[1] & 128 ? "call" : NULL;
        o->alternatives = top;
        o->n_alternatives = data[1] & 1;
        o->token = data[1];
    }
    if (o->kind == DI_OUTPUT_FINISHED) {
        o->reason = (di_end_reason)(data[0] / 9 % 7);
        o->stop_index = data[0] & 1 ? 0 : -1;
        o->error = data[0] & 2 ? &broken : NULL;
    }
    return size < 3 ? size : 3 + n;
}

static void run(struct di_exchange *x, const uint8_t *data, size_t size)
{
    struct di_buf out = {0}, text = {0};
    size_t n = di_exchange_submissions(x);
    for (size_t i = 0; i < n; i++) {
        di_submission s;
        di_exchange_submission(x, i, &s);
        require_json((struct di_str){s.json, s.json_bytes});
        di_exchange_submitted(x, i, (di_request_id)i + 1);
    }
    require(di_exchange_begin(x, &out, NULL) == DI_OK);
    while (n && size) {
        di_output o;
        di_alternative top;
        size_t i = data[0] % n, used = make_record(data, size, &o, &top, &text);
        require(di_exchange_output(x, i, &o, &out, NULL) == DI_OK);
        data += used;
        size -= used;
    }
    if (!di_exchange_finished(x)) {
        struct di_http_error e;
        di_http_error_set(&e, 500, NULL, NULL, "over");
        di_exchange_fail(x, &e, true, &out);
    }
    require(di_exchange_finished(x));
    if (di_exchange_streams(x))
        require_events(di_buf_str(&out));
    else
        require_json(di_buf_str(&out));
    di_buf_fini(&out);
    di_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"m", "a*"};
    if (size < 3)
        return 0;
    size_t body = data[1] | (size_t)data[2] << 8;
    body = body < size - 3 ? body : size - 3;
    struct di_buf text = {0};
    for (size_t i = 3; i < 3 + body; i++) {
        if (data[i] >= 0x80 && data[i] < 0x80 + N_PIECES)
            di_buf_adds(&text, pieces[data[i] - 0x80]);
        else
            di_buf_addc(&text, (char)data[i]);
    }
    struct di_exchange_setup setup = {.names = names, .n_names = 2, .random = zeros, .max_submissions = 16};
    setup.usage_on_finish = data[0] & 16;
    setup.reasoning_twin = data[0] & 32;
    setup.reject_unknown_models = data[0] & 64;
    if (data[0] & 128) {
        require(di_response_store_create(4, 1 << 16, &setup.store, NULL) == DI_OK);
        di_response_store_put(setup.store, 0, DI_STR("resp_0"), DI_STR("{\"role\":\"user\",\"content\":\"x\"}"), DI_STR("{}"));
    }
    struct di_exchange_request request = {
        .route = (enum di_route)(data[0] % 16 % (DI_ROUTE_DETOKENIZE + 1)), .body = di_buf_str(&text), .id = di_buf_str(&text)};
    struct di_exchange *x;
    struct di_http_error e;
    if (di_exchange_create(&setup, &request, &x, &e) == DI_OK) {
        run(x, data + 3 + body, size - 3 - body);
        di_exchange_destroy(x);
    } else {
        struct di_buf out = {0};
        require(x == NULL && e.status >= 400 && e.message[0]);
        di_http_error_write(di_route_dialect(request.route), &e, DI_STR("r"), &out);
        require_json(di_buf_str(&out));
        di_buf_fini(&out);
    }
    di_response_store_destroy(setup.store);
    di_buf_fini(&text);
    return 0;
}
