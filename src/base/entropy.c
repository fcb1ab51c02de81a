#include "base/entropy.h"

#include <errno.h>
#include <sys/random.h>

bool di_entropy(void *ctx, void *bytes, size_t n)
{
    (void)ctx;
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *)bytes + done, n - done, 0);
        if (got < 0 && errno != EINTR)
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}
