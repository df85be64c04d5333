/* Made by tools/golden/make_rope_table.py with transformers 5.24.0. Frequencies 0, 1/8, 2/8 .. 7/8 of the
 * dimensions and the last. */
static const struct {
    const char *name, *fields;
    int32_t dims;
    double scale, inv_freq[9];
} rope_table[] = {
    {"default",
     "{\"head_dim\": 64, \"max_position_embeddings\": 2048, \"rope_theta\": 10000.0}",
     64,
     1.0,
     {1.0, 0.3162277638912201, 0.10000000149011612, 0.03162277862429619, 0.009999999776482582, 0.003162277862429619,
      0.0010000000474974513, 0.0003162277862429619, 0.0001333521504420787}},
    {"default with another theta",
     "{\"head_dim\": 128, \"max_position_embeddings\": 32768, \"rope_theta\": 1000000.0}",
     128,
     1.0,
     {1.0, 0.17782793939113617, 0.03162277862429619, 0.005623413249850273, 0.0010000000474974513,
      0.00017782794020604342, 3.162277425872162e-05, 5.62341347176698e-06, 1.2409377632138785e-06}},
    {"linear",
     "{\"head_dim\": 64, \"max_position_embeddings\": 8192, \"rope_theta\": 10000.0, \"rope_scaling\": {\"rope_type\": "
     "\"linear\", \"factor\": 4.0}}",
     64,
     1.0,
     {0.25, 0.07905694097280502, 0.02500000037252903, 0.007905694656074047, 0.0024999999441206455,
      0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05, 3.333803761051968e-05}},
    {"linear under its old name",
     "{\"head_dim\": 96, \"max_position_embeddings\": 8192, \"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": "
     "\"linear\", \"factor\": 2.5}}",
     96,
     1.0,
     {0.4000000059604645, 0.12649109959602356, 0.03999999910593033, 0.012649111449718475, 0.003999999724328518,
      0.0012649111449718475, 0.0004000000189989805, 0.0001264911115868017, 4.84611009596847e-05}},
    {"llama 3.1",
     "{\"head_dim\": 128, \"max_position_embeddings\": 131072, \"rope_theta\": 500000.0, \"rope_scaling\": "
     "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}}",
     128,
     1.0,
     {1.0, 0.193922758102417, 0.03760603070259094, 0.00729266507551074, 0.0005248460220173001, 3.428102354519069e-05,
      6.647869668086059e-06, 1.289173155782919e-06, 3.068925877869333e-07}},
    {"llama 3.2",
     "{\"head_dim\": 64, \"max_position_embeddings\": 131072, \"rope_theta\": 500000.0, \"rope_scaling\": "
     "{\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}}",
     64,
     1.0,
     {1.0, 0.193922758102417, 0.03760603070259094, 0.00729266507551074, 0.000429556705057621, 8.570255886297673e-06,
      1.6619674170215148e-06, 3.2229328894572973e-07, 9.418306490260875e-08}},
    {"llama3 with the context outside",
     "{\"head_dim\": 64, \"max_position_embeddings\": 131072, \"rope_theta\": 500000.0, "
     "\"original_max_position_embeddings\": 4096, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, "
     "\"low_freq_factor\": 2.0, \"high_freq_factor\": 8.0}}",
     64,
     1.0,
     {1.0, 0.193922758102417, 0.03760603070259094, 0.003470717230811715, 4.4194170186528936e-05, 8.570255886297673e-06,
      1.6619674170215148e-06, 3.2229328894572973e-07, 9.418306490260875e-08}},
    {"yarn as qwen3 has it",
     "{\"head_dim\": 128, \"max_position_embeddings\": 131072, \"rope_theta\": 1000000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768}}",
     128,
     1.138629436111989,
     {1.0, 0.17782793939113617, 0.03162277862429619, 0.005375321488827467, 0.0006029411451891065,
      4.4456985051510856e-05, 7.905693564680405e-06, 1.405853367941745e-06, 3.102344408034696e-07}},
    {"yarn with other betas and an attention factor",
     "{\"head_dim\": 64, \"max_position_embeddings\": 65536, \"rope_theta\": 10000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 16.0, \"original_max_position_embeddings\": 4096, \"beta_fast\": 24, "
     "\"beta_slow\": 2, \"attention_factor\": 0.75}}",
     64,
     0.75,
     {1.0, 0.3162277638912201, 0.10000000149011612, 0.028658142313361168, 0.0053125000558793545, 0.0004941059742122889,
      6.25000029685907e-05, 1.9764236640185118e-05, 8.33450940262992e-06}},
    {"yarn with mscale",
     "{\"head_dim\": 64, \"max_position_embeddings\": 163840, \"rope_theta\": 10000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 40.0, \"original_max_position_embeddings\": 4096, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 0.707}}",
     64,
     1.0857263992561355,
     {1.0, 0.3162277638912201, 0.10000000149011612, 0.026879360899329185, 0.005500000435858965, 0.0007905694073997438,
      2.499999936844688e-05, 7.905694474175107e-06, 3.3338035336782923e-06}},
    {"yarn with only one mscale",
     "{\"head_dim\": 64, \"max_position_embeddings\": 163840, \"rope_theta\": 10000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 40.0, \"original_max_position_embeddings\": 4096, \"mscale\": 0.707}}",
     64,
     1.3688879454113936,
     {1.0, 0.3162277638912201, 0.10000000149011612, 0.026879360899329185, 0.005500000435858965, 0.0007905694073997438,
      2.499999936844688e-05, 7.905694474175107e-06, 3.3338035336782923e-06}},
    {"yarn not truncated",
     "{\"head_dim\": 64, \"max_position_embeddings\": 131072, \"rope_theta\": 150000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"original_max_position_embeddings\": 4096, \"beta_fast\": 32.0, "
     "\"beta_slow\": 1.0, \"truncate\": false}}",
     64,
     1.3465735902799727,
     {1.0, 0.22541800141334534, 0.05081327259540558, 0.006794959306716919, 0.0004564839182421565, 1.818833698052913e-05,
      4.099978468730114e-06, 9.242089618055616e-07, 3.023511396804679e-07}},
    {"yarn without a factor",
     "{\"head_dim\": 64, \"max_position_embeddings\": 131072, \"rope_theta\": 10000.0, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": null, \"original_max_position_embeddings\": 4096}}",
     64,
     1.3465735902799727,
     {1.0, 0.3162277638912201, 0.10000000149011612, 0.02690976858139038, 0.00552884628996253, 0.0008057726663537323,
      3.125000148429535e-05, 9.882118320092559e-06, 4.16725470131496e-06}},
    {"yarn of a short context: both ends meet",
     "{\"head_dim\": 32, \"max_position_embeddings\": 512, \"rope_theta\": 10000.0, \"rope_scaling\": {\"rope_type\": "
     "\"yarn\", \"factor\": 2.0, \"original_max_position_embeddings\": 8}}",
     32,
     1.0693147180559945,
     {1.0, 0.15811388194561005, 0.05000000074505806, 0.015811389312148094, 0.004999999888241291, 0.0015811389312148094,
      0.0005000000237487257, 0.00015811389312148094, 8.891397010302171e-05}},
    {"parameters as transformers 5 writes them",
     "{\"head_dim\": 64, \"max_position_embeddings\": 65536, \"rope_theta\": 10000.0, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"rope_theta\": 250000.0, \"factor\": 8.0, \"original_max_position_embeddings\": "
     "8192}}",
     64,
     1.2079441541679836,
     {1.0, 0.2114742398262024, 0.04472136124968529, 0.006974844262003899, 0.0007750000222586095, 5.286856321617961e-05,
      1.1180340152350254e-05, 2.364354031669791e-06, 7.373193966486724e-07}},
};
