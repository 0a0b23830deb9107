//! Jobs whose workers divide the model: another number of workers divides it in another way, with the same bits.

use rustix::process::Signal;

use crate::open_jobs::coordinators;
use crate::support::{RONDE, Running, TestFolder, events, of_kind, send};

const STEPS: u64 = 2500;

/// A small model of texts with layers in two parts.
const RUN_FILE: &str = r#"
[run]
name = "divided"
output = "out"

[workers]
logical_shards = 4

[data]
source = "text"
context = 8

[model]
kind = "gpt"
layers = 2
width = 16
heads = 4
tensor_parts = 2

[train]
global_batch_size = 8
learning_rate = 0.004

[optimizer]
kind = "adamw"

[elastic]
min_workers = 1
lease_s = 0.8
silence_s = 30                   # a busy machine is no lost worker
"#;

/// A job that ends when the value is dropped.
struct DividedJob {
    dir: TestFolder,
    running: Option<Running>,
}

fn run(dir: &TestFolder, arguments: &[&str], sets: &[&str]) -> Running {
    dir.write("run.toml", RUN_FILE);
    let steps = format!("train.steps={STEPS}");
    let mut words = vec!["train", "run.toml", "--json", "--set", &steps];
    words.extend(arguments);
    words.extend(sets.iter().flat_map(|set| ["--set", set]));
    dir.start(RONDE, &words, &[])
}

impl DividedJob {
    fn start(sets: &[&str]) -> Self {
        let dir = TestFolder::new();
        let running = Some(run(&dir, &["--listen", "--here", "5", "-n", "4"], sets));
        Self { dir, running }
    }

    /// Waits until the workers have reported a layout `times` times.
    #[track_caller]
    fn reports(&mut self, layout: &str, times: usize) {
        self.running.as_mut().unwrap().wait_stdout(layout, times);
    }

    #[track_caller]
    fn scale(&self, workers: &str) {
        let target = format!("the target is now {workers} worker");
        self.dir
            .run(&["scale", "out", workers])
            .expect(0, &[&target]);
    }

    /// Checks that the run committed each step once and recomputed none, and that its model is that of one worker.
    #[track_caller]
    fn whole(mut self) {
        let ended = self.running.take().unwrap().wait().expect(0, &[]);
        let found = events(&ended.stdout);
        let steps = of_kind(&found, "step_committed");
        let steps: Vec<u64> = steps.map(|event| event["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (0..STEPS).collect::<Vec<_>>());
        let recovered = of_kind(&found, "recovered").count();
        let changes: Vec<_> = of_kind(&found, "membership_changed").collect();
        assert_eq!(recovered, 0, "{changes:#?}\n{}", ended.stderr);
        let alone = TestFolder::new();
        let expected = run(&alone, &["-n", "1"], &[]).wait();
        assert_eq!(ended.blake3(), expected.expect(0, &[]).blake3());
    }
}

impl Drop for DividedJob {
    fn drop(&mut self) {
        drop(self.running.take());
        for pid in coordinators(&self.dir) {
            send(pid, Signal::KILL);
        }
    }
}

#[test]
fn a_pipeline_of_divided_layers_shrinks_to_one_worker_and_grows_again() {
    let sets = ["parallel.pipeline=2", "parallel.tensor=2"];
    let mut job = DividedJob::start(&sets);
    job.reports("2 workers divide the parts of each of these layers", 1);
    job.scale("2");
    job.reports("\"2 workers divide the parts of each layer\"", 1);
    job.scale("1");
    job.reports("each worker has the whole model", 1);
    job.scale("5");
    job.reports("1 of 5 workers are spares", 1);
    job.whole();
}

#[test]
fn a_divided_state_of_divided_layers_has_other_replicas_after_a_change_of_the_workers() {
    let sets = ["parallel.zero=3", "parallel.tensor=2"];
    let mut job = DividedJob::start(&sets);
    job.reports("in each of 2 groups, 2 workers divide", 1);
    job.scale("3");
    job.reports("1 of 3 workers are spares", 1);
    job.scale("4");
    job.reports("in each of 2 groups, 2 workers divide", 2);
    job.whole();
}
