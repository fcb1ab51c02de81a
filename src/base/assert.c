#include "base/assert.h"

#include <stdio.h>

#if DI_ASSERTS
#include <sanitizer/common_interface_defs.h>
#endif

_Noreturn void di_assert_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: must hold: %s\n", file, line, what);
#if DI_ASSERTS
    __sanitizer_print_stack_trace();
#endif
    __builtin_trap();
}
