//! A program that always dies at the same step: it is restarted a few times with growing pauses, and then the run ends
//! and reports the first failure.

use std::path::Path;

use ronde::Worker;
use ronde::core::batch::BatchPlan;
use ronde::core::shards::ShardPlan;
use ronde::core::{Rank, ReduceOp, Shard};
use ronde::data::{DataConfig, OpenContext};
use ronde::protocol::transaction::ShardReport;
use ronde::train::JobGroup;
use ronde::{CollectivesExt, Session};

use crate::support;

/// The program: a test that is not run with the others.
const PROGRAM: &str = "dying::panics_at_step_5";

#[test]
#[ignore = "a program that another test starts"]
fn panics_at_step_5() {
    let mut worker = Worker::start().unwrap();
    let mut member = worker.join("dying").unwrap();
    let data =
        ronde::data::open(&DataConfig::Digits {}, &OpenContext::new(Path::new("."), 0)).unwrap();
    let batches = BatchPlan::new(data.train.len(), 100, false, true, 1).unwrap();
    let shards = |member: &JobGroup| ShardPlan::new(4, member.world_size().unwrap());
    let all = shards(&member).unwrap();
    let mut session = Session::new(member.group.clone(), member.generation, batches, all);
    loop {
        let shards = shards(&member).unwrap();
        member.rejoin(&mut session, shards.clone(), false).unwrap();
        while session.next_step().0 < 5 {
            step(&member, &mut session, &batches, &shards);
        }
        assert_ne!(member.rank, Rank(0), "sample 17 cannot be read");
        // The remaining ranks notice the loss and fail at the same sample.
        let lost = member.group.all_reduce(&mut [1.0_f32], ReduceOp::Sum);
        let cause = lost.unwrap_err().to_string();
        member.group.abort(&cause);
        member.join_next(&cause).unwrap();
    }
}

/// Commits a step without computing anything.
fn step(member: &JobGroup, session: &mut Session, batches: &BatchPlan, shards: &ShardPlan) {
    let mut open = session.begin_step();
    let positions = open.batch().positions.clone();
    let order = batches.order(open.batch().epoch);
    for shard in open.run() {
        let within = shards.samples(Shard(shard), positions.end - positions.start);
        let ids: Vec<u64> = within.map(|p| order.sample(positions.start + p)).collect();
        let report = ShardReport {
            shard: Shard(shard),
            samples: ids.len() as u64,
            targets: ids.len() as u64,
            ..ShardReport::empty(Shard(shard))
        };
        open.record(report, &ids);
    }
    member.commit(session, open).unwrap();
}

#[test]
fn a_program_that_dies_repeatedly_ends_the_run_with_the_latest_loss() {
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
    let ended = support::TestFolder::new()
        .start(support::RONDE, &arguments, &[])
        .wait();
    let ended = ended.expect(
        3,
        &[
            "error: worker ",
            " abandoned after 2 restarts: the last worker exited with code 101; then: waiting for workers: 0 of at least 1",
            "help: find out from the output above why the workers end; `elastic.max_restarts`",
            "    | assertion `left != right` failed: sample 17 cannot be read",
            "slot 0 abandoned after 2 restarts",
            "slot 1 abandoned after 2 restarts",
        ],
    );
    assert_eq!(ended.stderr.matches(" restarted (restart ").count(), 4);
    assert!(
        !ended.stderr.contains("; generation 1 has ended; slot"),
        "{}",
        ended.stderr
    );
}
