/* What can only be untrue if this program is wrong, whatever its callers and its input do: said where it is relied on, and looked at in
 * sanitizer builds. What a caller can get wrong is an error (CHECK in error.h) in every build. */
#ifndef DI_BASE_ASSERT_H
#define DI_BASE_ASSERT_H

#include <stddef.h>

#ifdef DI_CHECKED /* by CMakeLists.txt, in sanitizer builds and fuzzers */
#define DI_ASSERTS 1
#else
#define DI_ASSERTS 0
#endif

/* Trap unless `cond` holds. Elsewhere it is not evaluated and costs nothing, but it must compile; so let it have no side effects. */
#define DI_ASSERT(cond) ((void)(!DI_ASSERTS || (cond) || (di_assert_fail(__FILE__, __LINE__, #cond), 0)))

/* The same with a function's verdict: `check` is NULL, or a sentence that says what contradicts. */
#define DI_ASSERT_SOUND(check)                              \
    do {                                                    \
        const char *verdict_ = DI_ASSERTS ? (check) : NULL; \
        if (verdict_)                                       \
            di_assert_fail(__FILE__, __LINE__, verdict_);   \
    } while (0)

/* Write "FILE:LINE: must hold: WHAT" and the stack to stderr, and trap. Any thread. */
_Noreturn void di_assert_fail(const char *file, int line, const char *what);

#endif
