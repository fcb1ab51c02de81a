#include "engine/replay.h"

#include "model/model.h"

static const char *const names[] = {[DI_REPLAY_EXACT] = "exact", [DI_REPLAY_BOUNDED] = "bounded", [DI_REPLAY_MASK] = "mask"};

bool di_replay_by_name(const char *name, enum di_replay_mode *out)
{
    for (int i = DI_REPLAY_EXACT; i <= DI_REPLAY_MASK; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum di_replay_mode)i;
            return true;
        }
    return false;
}

int di_replay_rollback(const struct di_config *c)
{
    return di_tail_layer(c) >= 0 ? c->dspark_block_size + 1 : 0;
}

di_status di_replay_rules_init(struct di_replay_rules *r, const struct di_config *c, enum di_replay_mode mode, int64_t rows, di_error *err)
{
    *r = (struct di_replay_rules){mode, rows, c->sliding_window, di_replay_rollback(c)};
    return di_replay_rules_check(r, err);
}

di_status di_replay_rules_check(const struct di_replay_rules *r, di_error *err)
{
    if (r->rows != 0 && r->rows < r->window + r->rollback)
        return di_fail(err, DI_ERR_INVALID, "replay_rows",
                       "%lld rows are too few: at least %d, the window of %d and %d that may be taken back", (long long)r->rows,
                       r->window + r->rollback, r->window, r->rollback);
    return di_replay_mode_check(r, DI_REPLAY_DEFAULT, false, err);
}

di_status di_replay_mode_check(const struct di_replay_rules *r, enum di_replay_mode request, bool forced, di_error *err)
{
    if (di_replay_mode_of(r, request) == DI_REPLAY_EXACT)
        return DI_OK;
    if (r->rollback == 0)
        return di_fail(err, DI_ERR_UNSUPPORTED, "replay",
                       "bounded replay needs layers behind all KV sources and engrams; this model has none");
    if (forced)
        return di_fail(err, DI_ERR_UNSUPPORTED, "replay", "forced tokens need exact replay: with bounded replay scores are approximate");
    return DI_OK;
}

enum di_replay_mode di_replay_mode_of(const struct di_replay_rules *r, enum di_replay_mode request)
{
    enum di_replay_mode mode = request != DI_REPLAY_DEFAULT ? request : r->mode;
    return mode == DI_REPLAY_DEFAULT ? DI_REPLAY_EXACT : mode;
}

int64_t di_replay_tail(const struct di_replay_rules *r, enum di_replay_mode request, int64_t n_prompt)
{
    int64_t rows = r->rows ? r->rows : r->window + 2 * r->rollback;
    bool bounded = di_replay_mode_of(r, request) != DI_REPLAY_EXACT;
    return bounded && n_prompt > rows ? n_prompt - rows : 0;
}
