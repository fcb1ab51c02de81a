/* Character classes of the pre-tokenizer: Unicode 16.0, as a set of bits per code point (spec/encoding.md §1.4). */
#ifndef DI_TEXT_UNICODE_CLASSES_H
#define DI_TEXT_UNICODE_CLASSES_H

#include <stdint.h>

enum {
    DI_UC_LETTER = 1, /* general categories L, M, N, P, S */
    DI_UC_MARK = 2,
    DI_UC_NUMBER = 4,
    DI_UC_PUNCT = 8,
    DI_UC_SYMBOL = 16,
    DI_UC_SPACE = 32,   /* White_Space, the regex class \s */
    DI_UC_NEWLINE = 64, /* CR and LF */
    DI_UC_CJK = 128     /* U+4E00..9FA5, U+3040..309F, U+30A0..30FF */
};

extern const unsigned char di_unicode_index[0x110000 / 128];
extern const unsigned char di_unicode_block[][128]; /* block 0 is ASCII */

/* cp must be at most U+10FFFF. 0: a control, format, private-use or unassigned character, or a surrogate. */
static inline unsigned di_unicode_class(uint32_t cp)
{
    return di_unicode_block[di_unicode_index[cp >> 7]][cp & 127];
}

#endif
