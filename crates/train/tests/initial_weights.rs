//! Runs that start from the weights of a file: the same bits on any number of workers, and clear errors.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use ronde_core::{Generation, Rank, WorldSize};
use ronde_engine::LayerExt;
use ronde_protocol::{Assignment, GenerationPurpose, MembershipPolicy};
use ronde_saved_model::SavedModel;
use ronde_train::checkpoints::ProcessContext;
use ronde_train::config::{Document, Override};
use ronde_train::{TrainError, WorkerTask, worker};

const RUN: &str = r#"
[workers]
logical_shards = 4
[data]
source = "synthetic_images"
samples = 60
test_samples = 20
shape = [1, 4, 4]
classes = 3
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 5
global_batch_size = 16
"#;

/// Runs one worker per element of `sets` in threads, and returns their errors. Results are written to `output`.
fn train(sets: &[&[&str]], base: &Path, output: &Path) -> Vec<Option<TrainError>> {
    train_on_hosts(sets, |_| base, output)
}

/// Does [`train`] with workers whose relative paths start at separate folders, as on hosts with different files.
fn train_on_hosts<'a>(
    sets: &[&[&str]],
    base: impl Fn(usize) -> &'a Path,
    output: &Path,
) -> Vec<Option<TrainError>> {
    std::fs::create_dir_all(output).unwrap();
    let world_size = WorldSize::new(sets.len() as u32).unwrap();
    let bound: Vec<_> = sets
        .iter()
        .map(|_| ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap())
        .collect();
    let peers: Vec<_> = bound.iter().map(|(_, address)| *address).collect();
    let workers = bound.into_iter().zip(sets).enumerate();
    let threads: Vec<_> = workers
        .map(|(rank, ((listener, _), sets))| {
            let sets = sets.iter().map(|set| Override::Set((*set).to_owned()));
            let sets: Vec<Override> = sets.collect();
            let (config, _) = Document::load(RUN, "test", &[], &sets)
                .unwrap_or_else(|error| panic!("{}", error.render(false)));
            let task = WorkerTask::new(&config, base(rank).to_owned(), output.to_owned()).unwrap();
            let assignment = Assignment {
                job: "job".to_owned(),
                generation: Generation::FIRST,
                policy: MembershipPolicy::Fixed,
                rank: Rank(rank as u32),
                world_size,
                local_rank: rank as u32,
                local_world_size: world_size.get(),
                peers: peers.clone(),
                purpose: GenerationPurpose::Train,
                awaited: 0,
                task: task.encode().unwrap(),
            };
            std::thread::spawn(move || {
                let access = worker::JobAccess {
                    assignment,
                    listener: Some(listener),
                    ..worker::JobAccess::alone()
                };
                worker::run(access, &ProcessContext::default()).err()
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn hash(folder: &Path) -> String {
    let saved = SavedModel::open(folder).unwrap();
    saved.manifest().blake3.clone()
}

#[test]
fn a_run_from_saved_weights_has_the_same_bits_on_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(train(&[&[]], folder.path(), &path("first"))[0].is_none());
    let mut hashes = Vec::new();
    let more = ["model.init='first'", "run.seed=9"];
    for workers in 1..=3 {
        let output = path(&format!("on{workers}"));
        let errors = train(&vec![&more[..]; workers], folder.path(), &output);
        assert!(errors.iter().all(Option::is_none), "{errors:?}");
        hashes.push(hash(&output));
    }
    assert!(hashes.iter().all(|one| *one == hashes[0]), "{hashes:?}");
    // The weights matter, not the name of the file; and without them, the bits differ.
    std::fs::copy(path("first/model.safetensors"), path("w.safetensors")).unwrap();
    for (set, is_equal) in [("model.init='w.safetensors'", true), ("run.seed=9", false)] {
        let output = path("other");
        assert!(train(&[&[set, "run.seed=9"]], folder.path(), &output)[0].is_none());
        assert_eq!(hash(&output) == hashes[0], is_equal, "{set}");
    }
    let saved = SavedModel::open(path("on1")).unwrap();
    let expected = format!("blake3:{}", hash(&path("first")));
    assert_eq!(saved.manifest().setting("model.init"), Some(&*expected));
}

#[test]
fn rank_0_alone_reads_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(train(&[&[]], folder.path(), &path("first"))[0].is_none());
    // The copies of the model start from the weights too, and a divided state has them on every worker.
    for more in [&[][..], &["train.average_decay=0.9"], &["parallel.zero=2"]] {
        let sets = [&["model.init='first'", "run.seed=9"], more].concat();
        let mut hashes = Vec::new();
        for workers in 1..=3 {
            let output = path(&format!("on{workers}"));
            let base = |rank| match rank {
                0 => folder.path(),
                _ => empty.path(),
            };
            let errors = train_on_hosts(&vec![&sets[..]; workers], base, &output);
            assert!(errors.iter().all(Option::is_none), "{errors:?}");
            hashes.push(hash(&output));
        }
        assert!(hashes.iter().all(|one| *one == hashes[0]), "{hashes:?}");
    }
    // Rank 0 names the file that it lacks, and the remaining ranks end.
    let sets = ["model.init='first'"];
    let base = |rank| match rank {
        0 => empty.path(),
        _ => folder.path(),
    };
    let errors = train_on_hosts(&[&sets, &sets, &sets], base, &path("refused"));
    let messages: Vec<String> = errors.iter().flatten().map(TrainError::to_string).collect();
    let file = empty.path().join("first").display().to_string();
    assert!(messages[0].contains(&file), "{messages:?}");
    assert_eq!(messages[1..], ["rank 0 cannot read the initial weights"; 2]);
    assert!(errors[0].as_ref().unwrap().is_user_error());
    assert!(errors[1].as_ref().unwrap().is_secondary());
}

#[test]
fn a_new_head_is_drawn_and_frozen_layers_keep_the_weights_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(train(&[&[]], folder.path(), &path("first"))[0].is_none());
    let more = [
        "model.init='first'",
        "data.classes=5",
        "model.init_new=['output.*']",
        "train.parameter_groups=[{tensors='layer*', frozen=true}]",
    ];

    let errors = train(&[&more, &more], folder.path(), &path("tuned"));
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
    let [first, tuned] = ["first", "tuned"].map(|name| SavedModel::open(path(name)).unwrap());
    let chain = tuned.chain().unwrap();
    for entry in &chain.layout().tensors {
        let is_head = entry.name.starts_with("output");
        let of = |saved: &SavedModel| saved.weights().values_of(&entry.name).unwrap().to_vec();
        assert_eq!(of(&first) != of(&tuned), is_head, "{}", entry.name);
    }
}

#[test]
fn weights_that_do_not_fit_and_ranks_with_other_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, set) in [("first", "run.seed=1"), ("second", "run.seed=2")] {
        assert!(train(&[&[set]], folder.path(), &path(name))[0].is_none());
    }
    for (sets, expected) in [
        (
            &["model.init='first'", "data.classes=4"][..],
            "model.init_new",
        ),
        (&["model.init='absent.safetensors'"], "cannot read"),
        (&["model.init='first/model.json'"], "not a safetensors file"),
        (&["model.init='first'", "model.init_new=['tail']"], "`tail`"),
    ] {
        let errors = train(&[sets], folder.path(), &path("refused"));
        let error = errors[0].as_ref().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.is_user_error());
    }
    let manifest = path("second/model.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let init = ["model.init='second'"];
    let errors = train(&[&init], folder.path(), &path("refused"));
    let message = errors[0].as_ref().unwrap().to_string();
    let opened = SavedModel::open(path("second")).unwrap_err().to_string();
    assert!(
        message.contains("second/model.json: its format version is 2"),
        "{message}"
    );
    assert!(message.ends_with(&opened), "{message} is not {opened}");
    std::fs::write(&manifest, text).unwrap();
    let (first, second) = (["model.init='first'"], ["model.init='second'"]);
    let errors = train(&[&first, &second], folder.path(), &path("refused"));
    let messages: Vec<String> = errors.iter().flatten().map(TrainError::to_string).collect();
    let is_named = |text: &String| text.contains("model.init");
    assert!(messages.iter().any(is_named), "{messages:?}");
}
