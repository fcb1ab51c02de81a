/* Decimals as JSON spells them. */
#include "grammar/json_schema.h"

#include <stdlib.h>

bool decimal_read(struct di_arena *arena, struct di_str s, struct decimal *out)
{
    *out = (struct decimal){0};
    size_t i = 0, n = 0;
    long exponent = -1; /* of the first digit of the literal */
    bool point = false;
    if (s.n > 4000)
        return false;
    char *digits = di_arena_alloc(arena, s.n + 1);
    if (!digits)
        return false;
    if (s.n && s.p[0] == '-') {
        out->negative = true;
        i++;
    }
    for (; i < s.n && ((s.p[i] >= '0' && s.p[i] <= '9') || s.p[i] == '.'); i++) {
        if (s.p[i] == '.') {
            point = true;
            continue;
        }
        exponent += !point;
        digits[n++] = (char)(s.p[i] - '0');
    }
    long shift = 0;
    if (i < s.n) {
        char number[12];
        size_t len = s.n - i - 1;
        if (len > 10)
            return false;
        memcpy(number, s.p + i + 1, len);
        number[len] = 0;
        shift = strtol(number, NULL, 10);
    }
    size_t zeros = 0;
    while (zeros < n && digits[zeros] == 0)
        zeros++;
    while (n > zeros && digits[n - 1] == 0)
        n--;
    out->digits = digits + zeros;
    out->n = (uint32_t)(n - zeros);
    exponent += shift - (long)zeros;
    if (out->n == 0) {
        out->negative = false;
        return true;
    }
    out->exponent = (int32_t)exponent;
    return exponent >= -900 && exponent <= 900;
}

int decimal_compare_digits(const struct decimal *a, const struct decimal *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->digits, b->digits, n) : 0;
    return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    int c;
    if (!a->n || !b->n)
        c = (a->n > 0) - (b->n > 0);
    else
        c = a->exponent != b->exponent ? (a->exponent > b->exponent ? 1 : -1) : decimal_compare_digits(a, b);
    return a->negative ? -c : c;
}
