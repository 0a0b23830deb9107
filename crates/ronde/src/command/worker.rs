//! `ronde __worker`: one worker process of `ronde train`.

use std::sync::Arc;

use ronde::{Error, Worker, environment};
use ronde_cluster::WorkerLink;
use ronde_train::TrainError;
use ronde_train::flight_records::FlightRecordWriter;

use super::{exit, signals};
use crate::command::console::message;

/// Joins the run of the supervisor that started this process, and trains.
pub(crate) fn work() -> i32 {
    let flights = Arc::<FlightRecordWriter>::default();
    let Some(mut worker) = join(&flights) else {
        return exit::GAVE_UP;
    };
    let membership = worker.link().and_then(WorkerLink::membership);
    let surroundings = environment::surroundings();
    // In a job that is not elastic the supervisor sends SIGTERM to all workers, to end the whole job.
    let handled = match membership.clone() {
        Some(membership) => signals::drain_on_request(membership),
        None => signals::stop_on_request(surroundings.stop.clone()),
    };
    if let Err(error) = handled {
        message!(
            "note: cannot install the SIGTERM handler, so SIGTERM ends this worker in the middle of a step: {error}"
        );
    }
    if let Err(error) = signals::record_on_request(flights.clone()) {
        message!("note: cannot install the SIGUSR1 handler, so SIGUSR1 ends this worker: {error}");
    }
    let (assignment, listener) = worker.take_parts();
    let (secure, tracker) = (worker.secure(), worker.tracker());
    match ronde_train::worker::run(
        &assignment,
        listener,
        membership,
        &secure,
        &tracker,
        &flights,
        &surroundings,
    ) {
        // The supervisor decided that this worker leaves, and reports why.
        Ok(_) | Err(TrainError::Membership(_) | TrainError::Stopped { .. }) => exit::DONE,
        Err(error) => {
            let user_error = error.is_user_error();
            let error = Error::Train(error);
            worker.report(&error, None);
            if worker.link().is_none() {
                message!("error: {}", error.explain());
            }
            if user_error {
                exit::USER_ERROR
            } else {
                exit::GAVE_UP
            }
        }
    }
}

/// Joins the job of the supervisor that started this process, and ends the process with the job. After a failure of
/// another rank, `flights` are written first. Returns `None` after printing an error when joining fails.
pub(crate) fn join(flights: &Arc<FlightRecordWriter>) -> Option<Worker> {
    let worker = match Worker::start() {
        Ok(worker) => worker,
        Err(error) => {
            message!("error: cannot join the run: {error}");
            return None;
        }
    };
    if let Some(link) = worker.link() {
        let flights = Arc::clone(flights);
        link.on_loss(Box::new(move |end| {
            if end.has_failed {
                // The failure is reported in any case.
                drop(flights.write_last());
            }
            end_now();
        }));
    }
    Some(worker)
}

/// Ends this process when the supervisor has ended or requests it.
#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
fn end_now() {
    std::process::exit(exit::GAVE_UP);
}
