/* Every compiler, and the steps and masks of what it made: the first byte chooses the kind, the first line break with a zero byte behind it
 * ends the grammar, the rest is text that is tried. A mask must agree with accepting, and what was allowed must be allowed again. */
#include "grammar/grammar.h"

static const char *const pieces[] = {"a",  "b1",  "\"",   "{\"",  "\":", ",",  "]}",   " ", "12",
                                     ".5", "\\u", "\xC3", "\xA9", "tr",  "ue", "null", "[", "x\"}"};
enum { N_PIECES = sizeof pieces / sizeof *pieces };
enum { N_WORDS = 30, N_TOKENS = N_PIECES + N_WORDS }; /* words behind one letter: masks look at many together */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_text(struct di_grammar *g, const struct di_vocabulary *v, struct di_str text)
{
    struct di_matcher *m, *fork;
    uint32_t mask[(N_TOKENS + 31) / 32];
    if (di_matcher_create(g, v, &m, NULL) != DI_OK)
        return;
    for (size_t i = 0; i < text.n && i < 200; i++) {
        if (i % 8 == 0 && di_matcher_mask(m, mask, NULL) == DI_OK && di_matcher_fork(m, &fork, NULL) == DI_OK) {
            for (int32_t id = 0; id < N_TOKENS; id++) {
                di_error err = {0};
                di_status status = di_matcher_accept_token(fork, id, &err);
                if (status == DI_ERR_LIMIT)
                    break;
                if ((status == DI_OK) != (mask[id / 32] >> id % 32 & 1))
                    __builtin_trap();
                if (status == DI_OK)
                    di_matcher_rollback(fork, 1);
            }
            di_matcher_destroy(fork);
        }
        di_matcher_distance(m);
        if (di_matcher_accept_bytes(m, (struct di_str){text.p + i, 1}, NULL) != DI_OK)
            break;
        di_matcher_is_accepting(m);
    }
    di_matcher_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct di_vocabulary *v;
    struct di_grammar *g;
    struct di_grammar_options options = {
        .limits = {.regex_nodes = 20000, .formula_nodes = 20000, .states = 20000, .schema_nodes = 2000, .depth = 40}};
    if (!v) {
        struct di_str tokens[N_TOKENS];
        char words[N_WORDS][8] = {0};
        for (size_t i = 0; i < N_PIECES; i++)
            tokens[i] = di_str_c(pieces[i]);
        for (unsigned i = 0; i < N_WORDS; i++) {
            size_t n = 0;
            words[i][n++] = 'a';
            for (unsigned bits = i + 2; bits > 1; bits /= 2)
                words[i][n++] = bits & 1 ? '1' : 'b';
            tokens[N_PIECES + i] = (struct di_str){words[i], n};
        }
        di_vocabulary_create(tokens, N_TOKENS, &v, NULL); /* it copies the words */
    }
    if (size < 2)
        return 0;
    struct di_str all = {(const char *)data + 1, size - 1}, grammar = all, text = {0};
    size_t end = di_str_find(all, (struct di_str){"\n", 2}, 0);
    if (end != SIZE_MAX) {
        grammar.n = end;
        text = (struct di_str){all.p + end + 2, all.n - end - 2};
    }
    options.compact = data[0] & 16;
    options.declared = data[0] & 32;
    options.strict = data[0] & 64;
    if (di_grammar_compile((enum di_grammar_kind)((data[0] & 15) % 7), grammar, &options, &g, NULL) != DI_OK)
        return 0;
    try_text(g, v, text.n ? text : grammar);
    di_grammar_unref(g);
    return 0;
}
