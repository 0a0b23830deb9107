//! `ronde __worker`: one worker process of `ronde train`.

use std::sync::Arc;

use ronde::{Error, Worker, environment};
use ronde_protocol::MembershipPolicy;
use ronde_train::TrainError;

use crate::command::console::message;
use crate::command::{exit, signals};

/// Joins the run of the supervisor that started this process, and trains.
pub(crate) fn work() -> i32 {
    let Some(mut worker) = join() else {
        return exit::GAVE_UP;
    };
    let surroundings = environment::surroundings();
    // In a job with fixed members the supervisor sends SIGTERM to all workers, to end the whole job.
    let handled = match worker.assignment().policy {
        MembershipPolicy::Elastic => signals::drain_on_request(worker.member()),
        MembershipPolicy::Fixed => signals::stop_on_request(surroundings.stop.clone()),
    };
    if let Err(error) = handled {
        message!(
            "note: cannot install the SIGTERM handler, so SIGTERM ends this worker in the middle of a step: {error}"
        );
    }
    if let Err(error) = signals::record_on_request(worker.flights().clone()) {
        message!("note: cannot install the SIGUSR1 handler, so SIGUSR1 ends this worker: {error}");
    }
    match ronde_train::worker::run(worker.take_access(), &surroundings) {
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
/// another rank, the flight records are written first. Returns `None` after printing an error when joining fails.
pub(crate) fn join() -> Option<Worker> {
    let worker = match Worker::start() {
        Ok(worker) => worker,
        Err(error) => {
            message!("error: cannot join the run: {error}");
            return None;
        }
    };
    if let Some(link) = worker.link() {
        let flights = Arc::clone(worker.flights());
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
