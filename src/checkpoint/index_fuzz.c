/* Any bytes as model.safetensors.index.json beside the good shards of a small model; run from the root of the repository. */
#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MODEL "tests/data/vectors/tiny_b"

static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                    "model-00003-of-00003.safetensors"};
static char dir[] = "/tmp/di_index_fuzz_XXXXXX", path[256];

static void clean_up(void)
{
    unlink(path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    char cwd[1024], target[1400];
    if (!getcwd(cwd, sizeof cwd) || !mkdtemp(dir))
        return 1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(target, sizeof target, "%s/" MODEL "/%s", cwd, files[i]);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (symlink(target, path) != 0)
            abort();
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    return atexit(clean_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct di_checkpoint ck;
    di_error err = {0};
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    close(fd);
    if (di_checkpoint_open(dir, &ck, &err) == DI_OK) {
        if (ck.count < 400 || !di_checkpoint_find(&ck, "norm.weight"))
            abort();
        di_checkpoint_close(&ck);
    } else if (!err.message[0]) {
        abort();
    }
    return 0;
}
