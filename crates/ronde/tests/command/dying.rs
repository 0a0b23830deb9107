//! A program that always dies at the same step: it is started again a few times, later each time, and
//! then the run ends with what happened first.

use std::path::Path;

use ronde::Worker;
use ronde::core::batch::BatchPlan;
use ronde::core::session::ShardReport;
use ronde::core::shards::ShardPlan;
use ronde::core::{Rank, ReduceOp, Shard};
use ronde::data::{DataConfig, Opening};
use ronde::train::Place;
use ronde::{CollectivesExt, Session};

use crate::support;

/// The program: a test that is not run with the others.
const PROGRAM: &str = "dying::panics_at_step_5";

#[test]
#[ignore = "the program that another test starts"]
fn panics_at_step_5() {
    let mut worker = Worker::start().unwrap();
    let mut place = worker.place("dying").unwrap();
    let data = ronde::data::open(&DataConfig::Digits {}, &Opening::new(Path::new("."), 0)).unwrap();
    let batches = BatchPlan::new(data.train.len(), 100, false, true, 1).unwrap();
    let shards = |place: &Place| ShardPlan::new(4, place.world_size().unwrap());
    let all = shards(&place).unwrap();
    let mut session = Session::new(place.group.clone(), place.generation, batches, all);
    loop {
        let shards = shards(&place).unwrap();
        place.rejoin(&mut session, shards, false).unwrap();
        while session.next_step().0 < 5 {
            step(&place, &mut session, &batches, &shards);
        }
        assert_ne!(place.rank, Rank(0), "sample 17 cannot be read");
        // The others hear of it, and come to the same sample.
        let lost = place.group.all_reduce(&mut [1.0_f32], ReduceOp::Sum);
        let cause = lost.unwrap_err().to_string();
        place.group.abort(&cause);
        place.move_on(&cause).unwrap();
    }
}

/// A step in which nothing is computed.
fn step(place: &Place, session: &mut Session, batches: &BatchPlan, shards: &ShardPlan) {
    let mut open = session.begin_step();
    let positions = open.batch().positions.clone();
    let order = batches.order(open.batch().epoch);
    for shard in open.run() {
        let within = shards.samples(Shard(shard), positions.end - positions.start);
        let ids: Vec<u64> = within.map(|p| order.sample(positions.start + p)).collect();
        let report = ShardReport {
            shard: Shard(shard),
            samples: ids.len() as u64,
            skipped: 0,
            loss_sum: 0.0,
            correct: 0,
        };
        open.record(report, &ids);
    }
    place.commit(session, open).unwrap();
}

#[test]
fn a_program_that_dies_again_and_again_ends_the_run_with_the_first_cause() {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let arguments = [
        "run",
        "-n",
        "2",
        "--elastic",
        "--max-restarts",
        "2",
        "--",
        program,
        PROGRAM,
        "--exact",
        "--ignored",
        "--nocapture",
    ];
    let ended = support::Place::new()
        .start(support::RONDE, &arguments, &[])
        .wait();
    let ended = ended.expect(
        3,
        &[
            "error: rank 0 on ",
            "; generation 1 is given up; then: waiting: 0 workers of at least 1",
            "    | assertion `left != right` failed: sample 17 cannot be read",
            "place 0 is given up after 2 restarts",
            "place 1 is given up after 2 restarts",
        ],
    );
    assert_eq!(ended.stderr.matches(" started again ").count(), 4);
}
