#include "text/parser.h"
#include "text/tokenizer.h"

#define MARK(name) "<\xEF\xBD\x9C" name "\xEF\xBD\x9C>"
static const char *const grounding_marks[] = {MARK("/polygon"), MARK("polygon"), MARK("/point"), MARK("point"),
                                              MARK("/box"),     MARK("box"),     MARK("/ref"),   MARK("ref")};

di_status di_parser_feed_id(struct di_parser *p, const struct di_tokenizer *t, int32_t id, di_error *err)
{
    if (!di_tokenizer_has(t, id))
        return di_fail(err, DI_ERR_INVALID, "", "the tokenizer has no id %d", (int)id);
    struct di_str bytes = di_tokenizer_token_bytes(t, id);
    enum di_parse_bytes kind = di_tokenizer_is_added(t, id) ? DI_PARSE_CONTROL : DI_PARSE_TEXT;
    for (size_t i = 0; kind == DI_PARSE_CONTROL && i < sizeof grounding_marks / sizeof *grounding_marks; i++)
        if (di_str_eqc(bytes, grounding_marks[i]))
            kind = DI_PARSE_TEXT;
    return di_parser_feed(p, bytes, kind, err);
}
