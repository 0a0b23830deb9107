//! A table of invalid files and fragments of the messages about them.

use super::{rendered, with};

/// Checks that each fragment is in the message about a file.
fn check(text: &str, fragments: &[&str]) {
    let shown = rendered(text);
    for fragment in fragments {
        assert!(
            shown.contains(fragment),
            "{fragment:?} is not in the message about {text:?}:\n{shown}"
        );
    }
}

#[test]
fn an_error_is_rendered_completely() {
    let expected = "\
error: unknown key `epoch` in [train]
 --> run.toml:7:1
  |
7 | epoch = 5
  | ^^^^^
  |
  = help: did you mean `epochs`?";
    assert_eq!(rendered(&with("epoch = 5\n")), expected);
}

#[test]
fn an_unknown_key_of_a_table_with_a_kind_is_the_only_error() {
    let shown = rendered(
        "version = 1\n[data]\nsource = \"records\"\ntrain = \"*.npy\"\n\
         features = { decode = \"numbers\", field = \"a\", shape = [2], typo = 1 }\n\
         label = { field = \"b\", classes = 2 }\n[model]\nkind = \"mlp\"\nhidden = [8]\n\
         [train]\nepochs = 1\nglobal_batch_size = 8\nlearning_rate = 0.1\n",
    );
    assert_eq!(shown.matches("error: ").count(), 1, "{shown}");
    assert!(shown.contains("unknown key `typo` in [data"), "{shown}");
    assert!(shown.contains("run.toml:5:"), "{shown}");
}

#[test]
fn colour_adds_only_escapes() {
    let error = super::load(&with("epoch = 5\n")).unwrap_err();
    let coloured = error.render(true);
    assert!(coloured.contains('\u{1b}'));
    let mut plain = String::new();
    let mut parts = coloured.split('\u{1b}');
    plain.push_str(parts.next().unwrap());
    for part in parts {
        plain.push_str(part.split_once('m').unwrap().1);
    }
    assert_eq!(plain, error.render(false));
}

#[test]
fn syntax() {
    check("[run\nname = 1", &["invalid TOML", "run.toml:1:5"]);
    check(
        &with("epochs = 4\n"),
        &["invalid TOML: duplicate key", "run.toml:7:1"],
    );
    check(&with("steps = 0x\n"), &["invalid TOML", "run.toml:7:"]);
    let twice = rendered(&with("x = = 1\ny = 2 2\n"));
    assert_eq!(
        twice.matches("error: ").count(),
        2,
        "one for each line:\n{twice}"
    );
    check(
        &with("[run]\nseed = 18446744073709551615\n"),
        &["invalid TOML", "run.toml:8:8", "18446744073709551615"],
    );
    check(
        &" ".repeat(300_000),
        &["run.toml has 300000 bytes, but a run file may have at most 262144"],
    );
}

#[test]
fn unknown_keys_and_sections() {
    check(
        &with("[trian]\n"),
        &[
            "unknown section [trian]",
            "run.toml:7:2",
            "help: did you mean `train`?",
        ],
    );
    check(
        &format!("epochs = 3\n{}", with("")),
        &[
            "unknown key `epochs` outside of any section",
            "run.toml:1:1",
        ],
    );
    check(
        &with("[optimizer]\nkind = \"adamw\"\nbeta_1 = 0.9\n"),
        &[
            "unknown key `beta_1` in [optimizer]",
            "run.toml:9:1",
            "did you mean `beta1`?",
        ],
    );
    check(
        &with("[check]\nxyz = 1\n"),
        &["expected one of `weight_hash_parts`, `weight_hash_full_every`"],
    );
    check(
        &with("[comm]\ntimeout_s.kind = 1\nlimits.kind = 2\n"),
        &[
            "unknown key `limits` in [comm]",
            "run.toml:9:1",
            "`comm.timeout_s` must be a number",
        ],
    );
    check(
        &with("\"train.epochs\" = 3\n"),
        &["unknown key `train.epochs` in [train]", "run.toml:7:1"],
    );
}

#[test]
fn wrong_types_and_words() {
    let whole = "must be a whole number of 0 to 4294967295, found";
    check(
        &with("[workers]\ncount = \"two\"\n"),
        &[
            "`workers.count`",
            whole,
            "string \"two\"",
            "run.toml:8:9",
            "8 | count = \"two\"",
        ],
    );
    check(
        &with("[workers]\ncount = -1\n"),
        &[whole, "integer `-1`", "run.toml:8:9"],
    );
    check(
        &with("[workers]\ncount = 5000000000\n"),
        &[whole, "integer `5000000000`"],
    );
    check(
        &with("shuffle = 1\n"),
        &["`train.shuffle` must be true or false, found integer `1`"],
    );
    check(
        &with("[run]\nname = 3\n"),
        &["`run.name` must be text in quotes, found integer `3`"],
    );
}

#[test]
fn wrong_words_and_types_inside_kinds() {
    check(
        &with("[optimizer]\nkind = \"adamv\"\n"),
        &[
            "invalid `optimizer.kind` \"adamv\"",
            "run.toml:8:8",
            "did you mean `adam`?",
        ],
    );
    check(
        &with("[optimizer]\nkind = \"adamw\"\nbeta1 = \"x\"\nbeta2 = \"x\"\n"),
        &[
            "`optimizer.beta1` must be a number",
            "run.toml:9:9",
            "`optimizer.beta2` must be",
            "run.toml:10:9",
        ],
    );
    check(
        &with("[comm]\nalgorithm = \"ring\"\n"),
        &[
            "invalid `comm.algorithm` \"ring\"",
            "run.toml:8:13",
            "`direct`, `halving_doubling`",
        ],
    );
    check(
        "[data]\nsource = \"csv\"\ntrain = \"a\"\nshape = [1, \"x\"]\nclasses = 2\n[model]\nkind = \"linear\"\n",
        &["`data.shape` must be", "found string \"x\"", "run.toml:4:9"],
    );
    check(
        &with("shuffle = {a = 1}\n"),
        &["found a table", "run.toml:7:1"],
    );
    check(
        "run = 3\ndata = \"digits\"\n",
        &[
            "`run` must be a section, found 3",
            "run.toml:1:7",
            "write `[data]` on a separate line",
        ],
    );
}

#[test]
fn missing_keys_and_sections() {
    check(
        "",
        &[
            "the section [data] is missing",
            "the section [model] is missing",
        ],
    );
    check(
        "[data]\nsource = \"digits\"\n[model]\n",
        &["missing key `kind` in [model]", "run.toml:3:2"],
    );
    check(
        "[data]\nsource = \"csv\"\ntrain = \"x\"\n[model]\nkind = \"mlp\"\n",
        &[
            "missing key `shape` in [data]",
            "run.toml:1:2",
            "missing key `hidden` in [model]",
            "run.toml:4:2",
        ],
    );
    check(
        "version = 2\n",
        &[
            "unknown run file version 2",
            "run.toml:1:11",
            "reads version 1",
        ],
    );
    check("version = \"1\"\n", &["unknown run file version \"1\""]);
    let removed = rendered(&with("[data2]\n[workers]\ncount = \"x\"\n"));
    assert!(!removed.contains("missing key"), "{removed}");
}

#[test]
fn constraints_beyond_types() {
    let workers = "[workers]\ncount = 9\n";
    check(
        &with(workers),
        &[
            "8 logical shards are fewer than 9 workers",
            "run.toml:8:9",
            "to 9 or more",
        ],
    );
    check(
        &with("[workers]\ncount = 0\nlogical_shards = 0\n"),
        &["run.toml:8:9", "run.toml:9:18"],
    );
    check(
        &with("steps = 4\n"),
        &[
            "both `train.epochs` = 3 and `train.steps` = 4",
            "run.toml:7:9",
        ],
    );
    let neither = with("").replace("epochs = 3\n", "");
    check(
        &neither,
        &["neither `train.epochs` nor `train.steps`", "run.toml:5:2"],
    );
    let zero = with("").replace("epochs = 3", "epochs = 0");
    check(
        &zero,
        &["`train.epochs` must be at least 1", "run.toml:6:10"],
    );
    check(
        &with("global_batch_size = 0\n"),
        &["`train.global_batch_size` must be at least 1"],
    );
    check(
        &with("learning_rate = -0.1\n"),
        &["`train.learning_rate` is -0.1", "run.toml:7:17"],
    );
    check(
        &with("learning_rate = nan\n"),
        &["`train.learning_rate` is NaN"],
    );
    check(
        &with("learning_rate = inf\n"),
        &["`train.learning_rate` is inf"],
    );
    check(
        &with("clip_norm = 0\n"),
        &["`train.clip_norm` is 0, but must be above 0"],
    );
    check(&with("evaluate_every_epochs = 0\n"), &["run.toml:7:25"]);
}

#[test]
fn numbers_of_other_sections_and_names() {
    check(
        &with("[optimizer]\nkind = \"adamw\"\nbeta1 = 1.0\nweight_decay = -1.0\n"),
        &[
            "`optimizer.beta1` is 1, but must be in [0, 1)",
            "`optimizer.weight_decay` is -1",
        ],
    );
    let cnn = with("").replace("\"linear\"", "\"digits_cnn\"\ndropout = 1.5");
    check(
        &cnn,
        &[
            "`model.dropout` is 1.5, but must be in [0, 1)",
            "run.toml:5:11",
        ],
    );
    check(
        &with("[comm]\nbucket_bytes_max = 10\n"),
        &["is 10, but must be at least 1024"],
    );
    check(
        &with("[parallel]\nzero = 4\ncopies = 0\n"),
        &[
            "`parallel.zero` is 4, but must be 0, 1, 2 or 3",
            "`parallel.copies` is 0, but must be 1 or 2",
        ],
    );
    check(
        &with("[parallel]\nservers = 1\npipeline = 2\n[workers]\ncount = 3\n"),
        &["`parallel.servers` leaves the whole state to workers that compute nothing"],
    );
    check(
        &with("[parallel]\nservers = 2\n[workers]\ncount = 11\n"),
        &["8 logical shards are fewer than 9 computing workers"],
    );
    check(
        &with("[comm]\ntimeout_s = -1\n"),
        &["`comm.timeout_s` is -1, but must be above 0"],
    );
    check(
        &with("[comm]\ntimeout_s = 1e300\n"),
        &["must be above 0 and at most 86400"],
    );
    check(
        &with("[check]\nweight_hash_parts = 0\nweight_hash_full_every = 0\n"),
        &["8:21", "9:26"],
    );
    for name in ["", "../up", "a/b", ".hidden", "-flag"] {
        check(
            &with(&format!("[run]\nname = \"{name}\"\n")),
            &["it is also the name of a folder", "8:8"],
        );
    }
}

#[test]
fn all_problems_are_rendered_at_once_up_to_a_limit() {
    let text = with("epoch = 1\nshuffle = 3\n[workers]\ncount = \"x\"\n[trian]\n");
    let shown = rendered(&text);
    assert_eq!(shown.matches("error: ").count(), 4, "{shown}");
    let many: String = (0..50).map(|i| format!("[section{i}]\n")).collect();
    let shown = rendered(&with(&many));
    assert_eq!(shown.matches("error: ").count(), 20, "{shown}");
    assert!(shown.ends_with("... and 30 more"), "{shown}");
}

#[test]
fn problems_are_in_file_order_with_arguments_last() {
    let text = with("epoch = 1\n[run]\nnam = 1\n[model2]\n");
    let set = super::Override::Set("run.x=1".to_owned());
    let error = super::Document::load(&text, "run.toml", &[], &[set]).unwrap_err();
    let paths: Vec<&str> = error.problems().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, ["train.epoch", "run.nam", "model2", "run.x"]);
    assert!(
        error
            .to_string()
            .starts_with("unknown key `epoch` in [train]; unknown key")
    );
}

#[test]
fn scaled_rates_and_inconsistent_optimizers() {
    check(
        &with("learning_rate_scaling = \"linear\"\n"),
        &["needs `train.learning_rate_batch_size`"],
    );
    check(
        &with("learning_rate_batch_size = 256\n"),
        &["but the learning rate is not scaled"],
    );
    check(
        &with("learning_rate_scaling = \"cubic\"\n"),
        &["invalid `train.learning_rate_scaling` \"cubic\""],
    );
    check(
        &with("[schedule]\nkind = \"step\"\nevery_steps = 0\n"),
        &["schedule.every_steps"],
    );
    check(
        &with("[optimizer]\nkind = \"sgd\"\nnesterov = true\n"),
        &["nesterov needs momentum above 0"],
    );
}

#[test]
fn rounds_that_cannot_work_are_refused() {
    let local = |more: &str| {
        with(&format!(
            "[sync]\nkind = \"local_sgd\"\ninner_steps = 4\nreplicas = 4\n{more}"
        ))
    };
    check(
        &with("[sync]\nkind = \"local_sgd\"\ninner_steps = 4\n"),
        &["`replicas`"],
    );
    check(
        &with("[sync]\nkind = \"gossips\"\n"),
        &["invalid `sync.kind` \"gossips\""],
    );
    check(
        &with("[sync]\nkind = \"local_sgd\"\ninner_steps = 0\nreplicas = 3\n"),
        &[
            "`sync.inner_steps` must be at least 1",
            "3 replicas cannot divide 8 logical shards equally",
            "set `workers.logical_shards` to 6",
        ],
    );
    check(
        &local("outer_momentum = 1.0\nouter_learning_rate = -1.0\n"),
        &[
            "`sync.outer_momentum` is 1",
            "`sync.outer_learning_rate` is -1",
        ],
    );
    check(
        &local("[parallel]\nzero = 1\n"),
        &["replicas of local SGD hold the whole state"],
    );
    check(
        &local("[workers]\ncount = 5\n"),
        &["5 workers cannot share 4 replicas"],
    );
    check(
        &local("[workers]\ncount = 2\n[elastic]\nmax_workers = 6\n"),
        &["between 2 (workers.count) and 4 (sync.replicas)"],
    );
}

#[test]
fn gossip_that_cannot_work_is_refused() {
    let gossip = |more: &str| {
        with(&format!(
            "[sync]\nkind = \"gossip\"\nround_updates = 40\n{more}"
        ))
    };
    check(&with("[sync]\nkind = \"gossip\"\n"), &["`round_updates`"]);
    check(
        &gossip("gossip_steps = 0\n[parallel]\nzero = 1\n"),
        &[
            "`sync.gossip_steps` must be at least 1",
            "workers that average in pairs have whole replicas",
        ],
    );
    check(
        &gossip("[workers]\ncount = 300\n"),
        &["has at most 256 workers"],
    );
}

#[test]
fn predicted_gradients_that_cannot_work_are_refused() {
    let predicted = |more: &str| {
        with(&format!(
            "[sync]\nkind = \"synthetic_gradients\"\nstages = 3\nround_steps = 40\n{more}"
        ))
    };
    check(
        &with("[sync]\nkind = \"synthetic_gradients\"\nround_steps = 40\n"),
        &["`stages`"],
    );
    check(
        &predicted("gradient_delay = 0\npredictor_learning_rate = -1.0\nborders = [\"top\"]\n"),
        &[
            "`sync.gradient_delay` must be at least 1",
            "`sync.predictor_learning_rate` is -1",
            "set `sync.stages` to 2",
        ],
    );
    check(
        &predicted("borders = 3\n[parallel]\nzero = 1\n"),
        &["list of names of layers"],
    );
    check(
        &predicted("hidden = 100000\n[parallel]\nzero = 1\n"),
        &[
            "`sync.hidden` is 100000, but must be at most 65536",
            "hold the whole state and divide the stages of [sync]",
        ],
    );
    check(
        &predicted("[compression]\ncodec = \"top_k\"\nsenders = 4\n"),
        &["stages with predicted gradients sum none"],
    );
    check(
        &predicted("[workers]\ncount = 2\n[elastic]\nmax_workers = 6\n"),
        &["between 2 (workers.count) and 3 (sync.stages)"],
    );
}

#[test]
fn compression_that_cannot_work_is_refused() {
    let compressed = |more: &str| {
        with(&format!(
            "[compression]\ncodec = \"top_k\"\nsenders = 4\n{more}"
        ))
    };
    check(&with("[compression]\ncodec = \"top_k\"\n"), &["`senders`"]);
    check(
        &with("[compression]\ncodec = \"top_l\"\nsenders = 4\n"),
        &["invalid `compression.codec` \"top_l\"", "top_k"],
    );
    check(
        &with("[compression]\ncodec = \"int8_blocks\"\nsenders = 3\n"),
        &[
            "3 senders cannot divide 8 logical shards equally",
            "set `workers.logical_shards` to 9",
        ],
    );
    check(
        &with("[compression]\ncodec = \"power_sgd\"\nsenders = 0\nrank = 0\n"),
        &[
            "`compression.senders` must be at least 1",
            "`compression.rank` is 0, but must be 1 to 1024",
        ],
    );
    check(
        &compressed("ratio = 1.5\n"),
        &["`compression.ratio` is 1.5, but must be above 0 and at most 1"],
    );
    check(
        &compressed("[workers]\ncount = 5\n"),
        &["5 workers cannot share 4 senders"],
    );
    check(
        &compressed("[workers]\ncount = 2\n[elastic]\nmax_workers = 6\n"),
        &["between 2 (workers.count) and 4 (compression.senders)"],
    );
    check(
        &compressed("[parallel]\nzero = 1\n"),
        &["senders of compressed gradients hold the whole model"],
    );
    check(
        &compressed(
            "[sync]\nkind = \"local_sgd\"\ninner_steps = 4\nreplicas = 8\nouter_format = \"bf16\"\n",
        ),
        &[
            "the 8 replicas are the senders",
            "set `compression.senders` to 8",
            "both choose the form of the displacements",
        ],
    );
    check(
        &compressed("[workers]\nbalance = \"measured\"\n"),
        &["workers compute whole senders"],
    );
    check(
        &compressed("[sync]\nkind = \"parameter_server\"\nround_updates = 9\n"),
        &["parameter servers sum none"],
    );
}

#[test]
fn clusters_are_refused_in_short_formats() {
    let text = "version = 1\n[data]\nsource = \"digits\"\n[model]\nkind = \"kmeans\"\nclusters = 10\n\
                [train]\nepochs = 1\nprecision = \"bf16\"\n";
    check(
        text,
        &[
            "the model `kmeans` computes in f32 only",
            "run.toml:9:",
            "leave `train.precision` out",
        ],
    );
}

#[test]
fn products_need_values_in_their_format_and_our_engine() {
    let with = |keys: &str| {
        format!(
            "version = 1\n[data]\nsource = \"digits\"\n[model]\nkind = \"mlp\"\nhidden = [8]\n\
             [train]\nepochs = 1\n{keys}\n"
        )
    };
    check(
        &with("products = \"f16\""),
        &[
            "`train.products` = \"f16\" needs values in f16",
            "run.toml:9:",
            "set `precision = \"f16\"` in [train]",
        ],
    );
    check(
        &with("products = \"split\"\nprecision = \"bf16\""),
        &["`train.products` = \"split\" needs values in f32"],
    );
    check(
        &with("products = \"f16\"\nprecision = \"f16\"\nengine = \"onednn\""),
        &["only the engine `ronde` has the products \"f16\""],
    );
}

#[test]
fn errors_in_lists_of_sections_name_the_entry() {
    let groups = |entries: &str| with(&entries.replace("[g]", "[[train.parameter_groups]]"));
    let shown = rendered(&groups("[g]\nmatch = \"*.bias\"\nfrozen = true\n"));
    assert!(
        shown.contains("unknown key `match` in [[train.parameter_groups]]"),
        "{shown}"
    );
    assert_eq!(shown.matches("error: ").count(), 1, "{shown}");
    check(
        &groups("[g]\ntensors = \"a\"\n[g]\ntensors = \"b\"\nweight_decay = \"no\"\n"),
        &[
            "`weight_decay` in `entry 2 of [[train.parameter_groups]]` must be a number, found string \"no\"",
        ],
    );
    check(
        &groups("[g]\nfrozen = true\n[g]\ntensor = \"b\"\n"),
        &[
            "missing key `tensors` in entry 1 of [[train.parameter_groups]]",
            "unknown key `tensor`",
            "did you mean `tensors`?",
        ],
    );
}

#[test]
fn hidden_letters_are_for_encoders_only() {
    let text = |model: &str, masked: &str| {
        format!(
            "[data]\nsource = \"text\"\ncontext = 8\n{masked}[model]\nkind = \"{model}\"\nlayers = 1\nwidth = 8\n\
             heads = 2\n[train]\nepochs = 1\n"
        )
    };
    let masked = "masked = 0.15\n";
    for (model, masked) in [("bert", masked), ("gpt", "")] {
        let text = text(model, masked);
        assert!(super::load(&text).is_ok(), "{}", rendered(&text));
    }
    check(
        &text("bert", ""),
        &["the model `bert` needs `data.masked`", "model gpt"],
    );
    check(
        &text("gpt", masked),
        &["`gpt` does not accept `data.masked`", "run.toml:4:"],
    );
}

#[test]
fn a_factorisation_has_the_users_and_items_of_the_ratings() {
    let text = |users: u32, items: u32| {
        format!(
            "[data]\nsource = \"synthetic_ratings\"\nsamples = 9\nusers = 20\nitems = 10\nfactors = 2\n[model]\n\
             kind = \"matrix_factorisation\"\nusers = {users}\nitems = {items}\nfactors = 2\n[train]\nepochs = 1\n"
        )
    };
    assert!(super::load(&text(20, 11)).is_ok());
    check(
        &text(19, 9),
        &[
            "`model.users` is 19, but the data has 20 users",
            "`model.items` is 9, but the data has 10 items",
            "set `model.items` to 10 or more",
        ],
    );
}
