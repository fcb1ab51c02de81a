/* not run under TSan: no threads */
/* config.json: the released one, those of the test models, and one mutation for each rule of spec/model.md §1. */
#include "checkpoint/config.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void load(const char *dir, struct di_config *c)
{
    di_error err = {0};
    if (di_config_load(dir, c, &err) != DI_OK)
        fail_msg("%s: %s: %s", dir, err.where, err.message);
}

static void released(void **state)
{
    (void)state;
    struct di_config c;
    load("tests/data/full_size", &c);
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 5120);
    assert_int_equal(c.image_token_id, 129264);
    assert_int_equal(c.max_position_embeddings, 1048576);
    assert_true(c.rms_norm_eps == 1e-20 && c.swiglu_limit == 10 && c.rope_factor == 16 && c.hc_eps == 1e-6);
    assert_int_equal(c.n_kv_sources, 4);
    assert_int_equal(c.n_index_sources, 8);
    assert_int_equal(c.n_engram, 2);
    assert_int_equal(c.n_dspark_targets, 3);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_true(c.has_vision && c.vision.min_pixels == 295936 && c.vision.max_wh_ratio == 0);
    /* spec §1.1 and §6: who reads from whom */
    static const int kv[40] = {-1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                               3,  3,  3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
    static const int index[40] = {-1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                  3,  3,  3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7};
    assert_memory_equal(c.layer_kv_source, kv, sizeof kv);
    assert_memory_equal(c.layer_index_source, index, sizeof index);
    assert_int_equal(c.layer_kv_source[40], -1);
    for (int l = 0; l < 43; l++) {
        assert_int_equal(c.layer_is_kv_source[l], l == 2 || l == 8 || l == 14 || l == 20);
        assert_int_equal(c.layer_is_index_source[l], c.layer_is_kv_source[l] || l == 24 || l == 28 || l == 32 || l == 36);
        assert_int_equal(c.layer_engram[l], l == 1 ? 0 : l == 14 ? 1 : -1);
    }
}

static void test_models(void **state)
{
    (void)state;
    struct di_config c;
    load("models/nano", &c);
    assert_int_equal(c.engram_num_embeddings[0], 24562);
    load("tests/data/vectors/tiny_a", &c);
    load("tests/data/vectors/tiny_b", &c);
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.n_engram, 0);
    assert_int_equal(c.candidate_source_layer_id, -1);
    load("tests/data/vectors/tiny_c", &c);
    assert_int_equal(c.engram_max_ngram_size, 3);
    load("tests/data/vectors/tiny_d", &c);
}

/* Text of nano's config with white space removed and `from`, which must occur, replaced by `to`. */
static void mutate(struct di_buf *b, const char *from, const char *to)
{
    struct di_buf text = {0}, tight = {0};
    assert_int_equal(di_file_read("models/nano/config.json", 1 << 20, &text, NULL), DI_OK);
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] != ' ' && text.p[i] != '\n')
            di_buf_addc(&tight, text.p[i]);
    const char *hit = strstr(tight.p, from);
    if (!hit)
        fail_msg("no %s in the config", from);
    di_buf_add(b, tight.p, (size_t)(hit - tight.p));
    di_buf_adds(b, to);
    di_buf_adds(b, hit + strlen(from));
    di_buf_fini(&text);
    di_buf_fini(&tight);
}

struct mutation {
    const char *from, *to, *sentence; /* sentence NULL: still accepted */
};

static const struct mutation mutations[] = {
    {"\"hidden_size\":256", "\"hidden_size\":256,\"unknown\":[1]", NULL},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"hc_shifted\":true", NULL},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"index_k_source_layer_ids\":[2,4,6]", NULL},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"dspark_target_attn_input\":true,\"use_fp4_sparse_kv\":true", NULL},
    {"\"pad_token_id\":2", "\"pad_token_id\":2,\"tokenizer_compatibility\":\"release\"", NULL},
    {"\"max_wh_ratio\":null", "\"max_wh_ratio\":4.0", NULL},
    {"\"vision_config\":{", "\"vision_config\":null,\"old\":{", NULL},
    {"\"rope_theta\":10000", "\"rope_theta\":1e4", NULL},

    {"{", "[", "not valid JSON"},
    {"\"model_type\":\"deepseek_v41\"", "\"model_type\":\"llama\"",
     "the field model_type is \"llama\"; only \"deepseek_v41\" is supported"},
    {"\"model_type\":\"deepseek_v41\",", "", "the field model_type is missing"},
    {"\"quantization_config\"", "\"quantisation_config\"", "quantization_config.quant_method is missing"},
    {"[32,32]", "[128,128]", "quantization_config.weight_block_size is [128,128]"},
    {"\"text_config\"", "\"text\"", "text_config must be an object, not nothing"},
    {"\"hidden_size\":256", "\"hidden_size\":256,\"hidden_size\":256", "\"hidden_size\" occurs twice"},
    {"\"hidden_size\":256,", "", "the field hidden_size is missing"},
    {"\"hidden_size\":256", "\"hidden_size\":\"256\"", "hidden_size must be an integer of at most 64 bits, not string"},
    {"\"hidden_size\":256", "\"hidden_size\":256.0", "hidden_size is 256.0 and must be an integer"},
    {"\"hidden_size\":256", "\"hidden_size\":99999999999999999999", "hidden_size is 99999999999999999999 and must be an integer"},
    {"\"hidden_size\":256", "\"hidden_size\":0", "hidden_size is 0 and must lie between 32 and 65536"},
    {"\"hidden_size\":256", "\"hidden_size\":250", "hidden_size is 250 and must be a multiple of 32"},
    {"\"num_attention_heads\":4", "\"num_attention_heads\":0", "num_attention_heads is 0"},
    {"\"num_attention_heads\":4", "\"num_attention_heads\":-4", "num_attention_heads is -4"},
    {"\"num_attention_heads\":4", "\"num_attention_heads\":5", "num_attention_heads 5 is no multiple of o_groups 2"},
    {"\"num_attention_heads\":4,\"intermediate", "\"num_attention_heads\":5,\"intermediate",
     "vision_config: hidden_size 128 is no multiple"},
    {"\"n_shared_experts\":1", "\"n_shared_experts\":2", "n_shared_experts is 2"},
    {"\"num_experts_per_tok\":4", "\"num_experts_per_tok\":25", "num_experts_per_tok 25 exceeds n_routed_experts 24"},
    {"\"dspark_num_experts_per_tok\":2", "\"dspark_num_experts_per_tok\":13", "dspark_num_experts_per_tok 13 exceeds"},
    {"\"qk_rope_head_dim\":32", "\"qk_rope_head_dim\":66", "qk_rope_head_dim 66 must be even and at most"},
    {"\"qk_rope_head_dim\":32", "\"qk_rope_head_dim\":31", "qk_rope_head_dim 31 must be even"},
    {"\"swiglu_limit\":10.0", "\"swiglu_limit\":1e999", "swiglu_limit is 1e999 and must be a finite number"},
    {"\"swiglu_limit\":10.0", "\"swiglu_limit\":-1", "swiglu_limit is -1 and must lie"},
    {"\"swiglu_limit\":10.0", "\"swiglu_limit\":null", "swiglu_limit must be a finite number, not null"},
    {"\"bos_token_id\":0", "\"bos_token_id\":5120", "bos_token_id is 5120, outside of the vocabulary of 5120"},
    {"\"rope_type\":\"yarn\"", "\"rope_type\":\"linear\"", "rope_scaling.rope_type must be \"yarn\""},
    {"\"rope_scaling\":{", "\"rope_scaling\":null,\"x\":{", "rope_scaling must be an object, not null"},
    {"\"factor\":16,", "", "the field factor is missing"},
    {"\"compress_ratios\":[0,", "\"compress_ratios\":[", "compress_ratios has 12 entries"},
    {"\"compress_ratios\":[0,0,2", "\"compress_ratios\":[0,0,4", "entry 2 of compress_ratios must be an integer between 0 and 2"},
    {"1,1,0,0,0]", "1,1,0,0,2]", "compress_ratios of draft layer 12 must be 0"},
    {"\"compress_ratios\":[0,0,2", "\"compress_ratios\":[0,2,2", "layer 1 has ratio 2, but kv_source_layer_ids has no source"},
    {"\"kv_source_layer_ids\":[2,4,6]", "\"kv_source_layer_ids\":[1,2,4,6]",
     "kv_source_layer_ids names layer 1, whose compress_ratios entry is 0"},
    {"\"kv_source_layer_ids\":[2,4,6]", "\"kv_source_layer_ids\":[2,4]",
     "layer 6 has ratio 1, but kv_source_layer_ids has no source with that ratio"},
    {"\"kv_source_layer_ids\":[2,4,6]", "\"kv_source_layer_ids\":[4,2,6]", "the entries of kv_source_layer_ids must ascend"},
    {"\"kv_source_layer_ids\":[2,4,6]", "\"kv_source_layer_ids\":[2,4,10]",
     "entry 2 of kv_source_layer_ids must be an integer between 0 and 9"},
    {"\"kv_source_layer_ids\":[2,4,6]", "\"kv_source_layer_ids\":7", "kv_source_layer_ids must be an array, not number"},
    {"\"index_source_layer_ids\":[2,4,6,8]", "\"index_source_layer_ids\":[4,6,8]",
     "layer 2 has ratio 2, but index_source_layer_ids has no source"},
    {"\"hc_mult\":4", "\"hc_mult\":9", "hc_mult is 9 and must lie between 1 and 8"},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"hc_shifted\":false", "text_config.hc_shifted is false; only true is supported"},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"use_fp4_sparse_kv\":false", "use_fp4_sparse_kv is false"},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"dspark_target_attn_input\":false", "dspark_target_attn_input is false"},
    {"\"hc_mult\":4", "\"hc_mult\":4,\"index_k_source_layer_ids\":[2,4]", "index_k_source_layer_ids differs from kv_source_layer_ids"},
    {"\"pad_token_id\":2", "\"pad_token_id\":2,\"tokenizer_compatibility\":\"beta\"", "tokenizer_compatibility is \"beta\""},
    {"\"candidate_source_layer_id\":6", "\"candidate_source_layer_id\":7",
     "candidate_source_layer_id is 7, which is not in index_source_layer_ids"},
    {"\"candidate_source_layer_id\":6", "\"candidate_source_layer_id\":2", "uses the candidates of layer 2 but has another compress ratio"},
    {"\"candidate_topk_blocks\":32", "\"candidate_topk_blocks\":8", "the candidate pool is too small"},
    {"\"engram_num_embeddings\":[24562,", "\"engram_num_embeddings\":[24563,",
     "of layer 1 is 24563, but its bucket primes add up to 24562"},
    {"\"engram_num_embeddings\":[24562,", "\"engram_num_embeddings\":[", "engram_num_embeddings has 1 entries and engram_layer_ids 2"},
    {"\"engram_vocab_size\":2000", "\"engram_vocab_size\":2100", "its bucket primes add up to"},
    {"\"engram_compressed_vocab_size\":4367", "\"engram_compressed_vocab_size\":0", "engram_compressed_vocab_size is 0"},
    {"\"engram_compressed_vocab_size\":4367", "\"engram_compressed_vocab_size\":5121", "5121 is larger than vocab_size 5120"},
    {"\"engram_max_ngram_size\":4", "\"engram_max_ngram_size\":9", "engram_max_ngram_size is 9"},
    {"\"num_hidden_layers\":10", "\"num_hidden_layers\":256", "together pass 256"},
    {"\"num_hidden_layers\":10", "\"num_hidden_layers\":257", "num_hidden_layers is 257"},
    {"\"dspark_target_layer_ids\":[7,8,9]", "\"dspark_target_layer_ids\":[7,8,10]", "entry 2 of dspark_target_layer_ids"},
    {"\"dspark_target_layer_ids\":[7,8,9]", "\"dspark_target_layer_ids\":[]", "dspark_target_layer_ids is missing or empty"},
    {"\"dspark_block_size\":5,", "", "the field dspark_block_size is missing"},
    {"\"vision_config\":{", "\"vision_config\":7,\"old\":{", "vision_config must be an object, not number"},
    {"\"patch_size\":14", "\"patch_size\":0", "patch_size is 0"},
    {"\"max_wh_ratio\":null", "\"max_wh_ratio\":0.5", "max_wh_ratio must be null or a number of at least 1"},
};

static void rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mutations / sizeof *mutations; i++) {
        const struct mutation *m = &mutations[i];
        struct di_buf b = {0};
        struct di_config c;
        di_error err = {0};
        mutate(&b, m->from, m->to);
        di_status status = di_config_parse(di_buf_str(&b), "config", &c, &err);
        if (m->sentence ? status == DI_OK || !strstr(err.message, m->sentence) : status != DI_OK)
            fail_msg("%s -> %s: %s", m->from, m->to, status == DI_OK ? "accepted" : err.message);
        if (m->sentence)
            assert_string_equal(err.where, "config");
        di_buf_fini(&b);
    }
}

static void without_draft_and_vision(void **state)
{
    (void)state;
    struct di_buf b = {0};
    struct di_config c;
    di_error err = {0};
    const char *json =
        "{\"model_type\":\"deepseek_v41\",\"bos_token_id\":0,\"eos_token_id\":1,\"pad_token_id\":2,\"image_token_id\":3,"
        "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[32,32],\"scale_fmt\":\"ue8m0\",\"expert_dtype\":\"fp4\"},"
        "\"text_config\":{\"vocab_size\":64,\"hidden_size\":32,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":1,\"head_dim\":32,\"qk_rope_head_dim\":16,\"q_lora_rank\":32,\"o_lora_rank\":32,\"o_groups\":1,"
        "\"swiglu_limit\":10,\"rms_norm_eps\":1e-20,\"max_position_embeddings\":100,\"rope_theta\":1e4,\"compress_rope_theta\":1e4,"
        "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":16,\"beta_fast\":32,\"beta_slow\":1,\"original_max_position_embeddings\":64},"
        "\"n_routed_experts\":1,\"n_shared_experts\":1,\"num_experts_per_tok\":1,\"routed_scaling_factor\":1.5,\"sliding_window\":8,"
        "\"compress_ratios\":[0],\"index_n_heads\":1,\"index_head_dim\":32,\"index_topk\":8,\"candidate_source_layer_id\":-1,"
        "\"candidate_topk_blocks\":8,\"candidate_block_size\":8,\"hc_mult\":1,\"hc_sinkhorn_iters\":1,\"hc_eps\":0,"
        "\"num_nextn_predict_layers\":0}}";
    di_buf_adds(&b, json);
    if (di_config_parse(di_buf_str(&b), "config", &c, &err) != DI_OK)
        fail_msg("%s", err.message);
    assert_true(!c.has_vision && c.n_engram == 0 && c.n_kv_sources == 0 && c.layer_engram[0] == -1);
    di_buf_fini(&b);
}

static void files(void **state)
{
    (void)state;
    struct di_config c;
    di_error err;
    assert_int_equal(di_config_load("/nonexistent", &c, &err), DI_ERR_NOT_FOUND);
    assert_string_equal(err.where, "/nonexistent/config.json");
    di_status status = DI_ERR_MEMORY;
    for (uint64_t n = 0; status != DI_OK; n++) {
        di_mem_fail_after(n);
        status = di_config_load("models/nano", &c, &err);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released), cmocka_unit_test(test_models), cmocka_unit_test(rules), cmocka_unit_test(without_draft_and_vision),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
