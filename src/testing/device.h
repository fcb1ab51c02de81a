/* What tests of the model and of the engine compute on: the CPU, or, if the environment has DI_HOSTILE=SEED, the hostile device. */
#ifndef DI_TESTING_DEVICE_H
#define DI_TESTING_DEVICE_H

#include "engine/core.h"
#include "testing/hostile.h"

/* 0: the CPU. */
uint64_t di_test_seed(void);
/* From now on this, whatever the environment has; seed 0: the CPU. */
void di_test_set_device(const struct di_hostile_params *p);
/* Is this to be the short form of a test: built with sanitizers, or on the hostile device? */
#ifdef DI_TEST_QUICK
#define DI_TEST_SHORT true
#else
#define DI_TEST_SHORT (di_test_seed() != 0)
#endif

/* Is this instruction set to be tested? The hostile device stands on the best one alone. */
bool di_test_isa(const char *isa);

/* di_model_params.backend */
di_status di_test_backend(const struct di_backend_params *params, struct di_backend **out, di_error *err);
/* di_core_create_on it, for a null model: steps are computed there. One thread at a time. */
di_status di_test_core(const struct di_stepper *null, const struct di_core_config *config, struct di_core **out, di_error *err);

/* Memory without a network, to be closed when none of it is allocated. */
struct di_backend *di_test_memory(void);
void di_test_memory_close(struct di_backend *be);
/* The caches where a test can look, after all that was called has run. */
struct di_kv di_test_view_kv(const struct di_kv_store *s);

#endif
