//! A launcher in one file: `launch run N program arguments..` starts N ranks. Beside it the two other
//! parts of a job, `launch watchdog` and `launch work HOW`, a worker that ends as specified by HOW.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command talks to its user"
)]

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ronde_cluster::{
    LaunchSpec, LocalLauncher, LogSink, OutputStream, StopFlag, WorkerLink, supervise, variables,
    watchdog,
};
use ronde_core::event::PhaseTimes;
use ronde_core::{Event, NullTracker, Rank, Step, WorldSize};

const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let code = match mode.to_str() {
        Some("run") => run(arguments),
        Some("watchdog") => {
            watchdog::run(std::io::stdin());
            Some(0)
        }
        Some("work") => work(&arguments.next().unwrap_or_default().to_string_lossy()),
        _ => None,
    };
    ExitCode::from(code.unwrap_or(2))
}

fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let world_size = WorldSize::new(arguments.next()?.to_str()?.parse().ok()?)?;
    let mut spec = LaunchSpec::new(arguments.next()?, arguments.collect(), world_size);
    let own = std::env::current_exe().ok()?;
    spec.watchdog = Some((own.into(), vec!["watchdog".into()]));
    let log: Arc<dyn LogSink> = Arc::new(Labelled);
    let outcome = supervise(
        &spec,
        &mut LocalLauncher::new(),
        &NullTracker,
        &log,
        &StopFlag::new(),
    );
    if let Some(report) = outcome.report() {
        eprintln!("{report}");
    }
    u8::try_from(outcome.exit_code()).ok()
}

struct Labelled;

impl LogSink for Labelled {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        println!("[rank {rank}] {line}");
    }
}

/// A worker of three steps. HOW is `well`, or `primary:R`, `secondary:R`: rank R reports that kind
/// of failure, `dies:R`: it dies without a word, the others wait for their end.
fn work(how: &str) -> Option<u8> {
    let variable = |name| std::env::var_os(name)?.into_string().ok();
    let rank = Rank(variable(variables::RONDE_RANK)?.parse().ok()?);
    let control = variable(variables::RONDE_CONTROL)?.parse().ok()?;
    let token = variable(variables::RONDE_TOKEN)?;
    let worker = variable(variables::RONDE_WORKER)?.parse().ok()?;
    let link = WorkerLink::connect(control, &token, rank, worker, LIMIT).ok()?;
    let address = ([127, 0, 0, 1], 1000 + rank.0 as u16).into();
    let assignment = link.member(address).ok()?.next(None).ok()?;
    println!("task {} of {:?}", assignment.task, assignment.peers);
    let tracker = link.tracker();
    for step in (0..3).map(Step) {
        tracker.record(Event::StepTimes {
            rank,
            step,
            times: PhaseTimes::default(),
            arrived_s: None,
            bytes_sent: 0,
        });
    }
    let (kind, who) = how.split_once(':').unwrap_or((how, ""));
    if kind == "well" {
        return link.finish().then_some(0);
    }
    if who.parse() != Ok(rank.0) {
        let (lost, wait) = std::sync::mpsc::channel();
        link.on_loss(Box::new(move |end| drop(lost.send(end.reason.clone()))));
        // Only a broken supervisor lets this time out.
        return wait.recv_timeout(LIMIT).ok().map(|_| 1);
    }
    if kind == "dies" {
        link.finish();
        return Some(41);
    }
    tracker.record(Event::WorkerFailed {
        rank,
        message: format!("{kind} failure of rank {rank}\n  where: here"),
        last_step: None,
        secondary: kind == "secondary",
        user_error: false,
    });
    link.finish();
    Some(3)
}
