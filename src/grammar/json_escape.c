/* Escapes in strings and keys: characters that are spelled in ASCII. A byte of one may come if a character that it can still become may. */
#include "grammar/impl.h"
#include "base/utf8.h"

enum { ESCAPE_NONE, ESCAPE_BEGIN, ESCAPE_HEX, ESCAPE_LOW = ESCAPE_HEX + 4, ESCAPE_LOW_U, ESCAPE_LOW_HEX };

static bool add_character(struct di_grammar *g, struct node *n, uint32_t cp)
{
    char bytes[4];
    size_t count = di_utf8_encode(cp, bytes);
    for (size_t i = 0; i < count; i++)
        if (!json_text_byte(g, n, (unsigned char)bytes[i]))
            return false;
    return true;
}

/* Is there a character from first to last that may come? */
static bool some_character(struct di_grammar *g, const struct node *n, uint32_t first, uint32_t last)
{
    bool strip = g->strip, verify = g->verify, found = false;
    g->strip = true; /* nothing of this is kept */
    for (uint32_t cp = first; cp <= last && !found; cp++) {
        struct node trial = *n;
        char bytes[4];
        if (cp >= 0xD800 && cp < 0xE000) {
            cp = 0xDFFF;
            continue;
        }
        size_t count = di_utf8_encode(cp, bytes), i = 0;
        while (i < count && json_text_byte(g, &trial, (unsigned char)bytes[i]))
            i++;
        found = i == count;
        if (!found && i + 1 < count) { /* all with these bytes in front are alike */
            uint32_t block = (uint32_t)1 << 6 * (count - 1 - i);
            cp |= block - 1;
        }
    }
    g->strip = strip;
    g->verify = verify;
    return found;
}

static bool some_after_hex(struct di_grammar *g, const struct node *n, uint32_t value, unsigned digits)
{
    unsigned shift = 4 * (4 - digits);
    uint32_t first = value << shift, last = first + ((uint32_t)1 << shift) - 1;
    if (some_character(g, n, first, last > 0xD7FF && first < 0xD800 ? 0xD7FF : last))
        return true;
    uint32_t low = first > 0xD800 ? first : 0xD800, high = last < 0xDBFF ? last : 0xDBFF; /* the first half of a pair */
    return low <= high && some_character(g, n, 0x10000 + ((low - 0xD800) << 10), 0x10000 + ((high - 0xD800) << 10) + 0x3FF);
}

static int hex_value(unsigned c)
{
    return c >= '0' && c <= '9' ? (int)c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (int)(c | 32) - 'a' + 10 : -1;
}

bool json_escape_begin(struct di_grammar *g, struct node *n, bool any)
{
    n->f[F_ESCAPE] = ESCAPE_BEGIN;
    return any || some_after_hex(g, n, 0, 0);
}

bool json_escape_byte(struct di_grammar *g, struct node *n, unsigned byte)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t phase = n->f[F_ESCAPE], code = n->f[F_CODE];
    if (phase == ESCAPE_BEGIN) {
        const char *known = byte ? strchr(from, (int)byte) : NULL;
        n->f[F_ESCAPE] = known ? ESCAPE_NONE : ESCAPE_HEX;
        return known ? add_character(g, n, (unsigned char)to[known - from]) : byte == 'u' && some_after_hex(g, n, 0, 0);
    }
    if (phase == ESCAPE_LOW || phase == ESCAPE_LOW_U) {
        n->f[F_ESCAPE]++;
        return byte == (phase == ESCAPE_LOW ? '\\' : 'u');
    }
    int digit = hex_value(byte);
    if (digit < 0)
        return false;
    if (phase < ESCAPE_LOW) {
        unsigned digits = phase - ESCAPE_HEX + 1;
        code = code * 16 + (uint32_t)digit;
        n->f[F_CODE] = code;
        if (digits < 4) {
            n->f[F_ESCAPE]++;
            return some_after_hex(g, n, code, digits);
        }
        if (code >= 0xD800 && code < 0xDC00) {
            n->f[F_ESCAPE] = ESCAPE_LOW;
            n->f[F_CODE] = code << 16;
            return some_after_hex(g, n, code, 4);
        }
        n->f[F_ESCAPE] = ESCAPE_NONE;
        n->f[F_CODE] = 0;
        return (code < 0xD800 || code > 0xDFFF) && add_character(g, n, code);
    }
    unsigned digits = phase - ESCAPE_LOW_HEX + 1, shift = 4 * (4 - digits);
    uint32_t high = code >> 16, low = (code & 0xFFFF) * 16 + (uint32_t)digit;
    uint32_t first = low << shift, last = first + ((uint32_t)1 << shift) - 1;
    first = first > 0xDC00 ? first : 0xDC00;
    last = last < 0xDFFF ? last : 0xDFFF;
    if (first > last)
        return false;
    uint32_t base = 0x10000 + ((high - 0xD800) << 10);
    n->f[F_CODE] = high << 16 | low;
    n->f[F_ESCAPE]++;
    if (digits < 4)
        return some_character(g, n, base + first - 0xDC00, base + last - 0xDC00);
    n->f[F_ESCAPE] = ESCAPE_NONE;
    n->f[F_CODE] = 0;
    return add_character(g, n, base + low - 0xDC00);
}
