/* Any bytes, any settings, any cuts: the joined events of one feed and of many are equal, every text is valid UTF-8. The input is: 5 bytes
 * of settings, then stretches [kind and length byte][bytes]. A stretch may also name a fragment of markup, to reach all states. */
#include "text/message.h"

#include "base/utf8.h"

#include <stdlib.h>

#define D          \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C"
static const char *const fragments[] = {"</think>",
                                        D,
                                        "<" D,
                                        "</" D,
                                        " calls>",
                                        "invoke name=\"",
                                        "\">",
                                        "parameter name=\"",
                                        "k\" string=\"true\">",
                                        "k\" string=\"false\">",
                                        "```json\n",
                                        "\n```",
                                        "\n\n",
                                        "END",
                                        "{\"a\": 1}",
                                        "\xF0\x9F\x98"};
#define N_FRAGMENTS (sizeof fragments / sizeof *fragments)

struct sink {
    struct di_message message;
    bool bad;
};

static void collect(void *arg, const struct di_parse_event *ev)
{
    struct sink *s = arg;
    s->bad = s->bad || s->message.done || !di_utf8_valid(ev->text, NULL);
    di_message_add(&s->message, ev);
}

static void run(const struct di_parser_settings *settings, const uint8_t *data, size_t n, bool bytewise, enum di_finish fin,
                struct di_buf *out)
{
    struct sink s = {0};
    struct di_parser *p;
    if (di_parser_create(settings, collect, &s, &p, NULL) != DI_OK)
        abort();
    while (n) {
        enum di_parse_bytes kind = data[0] & 1 ? DI_PARSE_CONTROL : DI_PARSE_TEXT;
        struct di_str t;
        if (data[0] & 2) {
            t = di_str_c(fragments[(data[0] >> 2) % N_FRAGMENTS]);
            data++;
            n--;
        } else {
            size_t len = data[0] >> 2;
            len = len < n - 1 ? len : n - 1;
            t = (struct di_str){(const char *)data + 1, len};
            data += len + 1;
            n -= len + 1;
        }
        size_t step = bytewise || t.n == 0 ? 1 : t.n;
        for (size_t i = 0; i < t.n; i += step)
            if (di_parser_feed(p, (struct di_str){t.p + i, step}, kind, NULL) != DI_OK)
                abort();
    }
    if (di_parser_finish(p, fin, NULL) != DI_OK || s.bad || !s.message.done || s.message.failed)
        abort();
    di_parser_destroy(p);
    di_message_write_json(out, &s.message);
    di_buf_addf(out, "%zu %u", s.message.stop_index, s.message.notes);
    di_message_fini(&s.message);
}

static bool even_length(void *arg, struct di_str name)
{
    (void)arg;
    return name.n % 2 == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 5)
        return 0;
    static const struct di_str sets[4][3] = {{{"END", 3}, {"\n\n\n", 3}, {"aab", 3}},
                                             {{"\n", 1}, {"a", 1}, {"b", 1}},
                                             {{"<", 1}, {"```", 3}, {"ab", 2}},
                                             {{"\n\n<", 3}, {"b", 1}, {"ab", 2}}};
    struct di_parser_settings s = {.start = (di_answer_start)(data[0] % 5),
                                   .tools_declared = data[1] & 1,
                                   .json_mode = data[1] & 2,
                                   .spelling = data[1] & 4,
                                   .hide_control = data[1] & 8,
                                   .include_stop = data[1] & 16,
                                   .recover_unclosed_reasoning = data[1] & 32,
                                   .offered = data[1] & 64 ? even_length : NULL,
                                   .refuse_not_offered = data[1] & 128,
                                   .stop = sets[data[2] % 4],
                                   .n_stop = data[2] / 4 % 4,
                                   .max_call_bytes = data[3]};
    struct di_buf a = {0}, b = {0};
    run(&s, data + 5, n - 5, false, (enum di_finish)(data[4] % 5), &a);
    run(&s, data + 5, n - 5, true, (enum di_finish)(data[4] % 5), &b);
    if (!di_str_eq(di_buf_str(&a), di_buf_str(&b)) || !di_utf8_valid(di_buf_str(&a), NULL))
        abort();
    di_buf_fini(&a);
    di_buf_fini(&b);
    return 0;
}
