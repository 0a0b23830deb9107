//! `ronde __worker`: one worker process of `ronde train`.

use std::sync::Arc;

use ronde::{Error, Worker, environment};
use ronde_cluster::WorkerLink;
use ronde_train::TrainError;
use ronde_train::flights::Flights;

use super::{exit, signals};

/// Joins the run that the supervisor started this process for.
pub(crate) fn work() -> i32 {
    let flights = Arc::<Flights>::default();
    let Some(mut worker) = join(&flights) else {
        return exit::GAVE_UP;
    };
    let membership = worker.link().and_then(WorkerLink::membership);
    let surroundings = environment::surroundings();
    // Where the first failure ends all, SIGTERM is for the whole job: it comes from the supervisor.
    let handled = match membership.clone() {
        Some(membership) => signals::drain_on_request(membership),
        None => signals::stop_on_request(surroundings.stop.clone()),
    };
    if let Err(error) = handled {
        eprintln!("note: SIGTERM ends this worker at once, in the middle of a step: {error}");
    }
    if let Err(error) = signals::record_on_request(flights.clone()) {
        eprintln!("note: SIGUSR1 ends this worker instead of writing its flight record: {error}");
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
        // The supervisor knows why there is no place for this worker any more.
        Ok(_) | Err(TrainError::Membership(_) | TrainError::Stopped { .. }) => exit::DONE,
        Err(error) => {
            let user_error = error.is_user_error();
            let error = Error::Train(error);
            worker.report(&error, None);
            if worker.link().is_none() {
                eprintln!("error: {}", error.explain());
            }
            if user_error {
                exit::USER_ERROR
            } else {
                exit::GAVE_UP
            }
        }
    }
}

/// Joins the job that this process was started for, and ends with it; after a failure elsewhere, `flights`
/// are written first. `None` when joining fails, which has been told.
pub(crate) fn join(flights: &Arc<Flights>) -> Option<Worker> {
    let worker = match Worker::start() {
        Ok(worker) => worker,
        Err(error) => {
            eprintln!("error: this worker could not join its run: {error}");
            return None;
        }
    };
    if let Some(link) = worker.link() {
        let flights = Arc::clone(flights);
        link.on_loss(Box::new(move |end| {
            if end.has_failed {
                // The failure is told of in any case.
                drop(flights.write_last());
            }
            end_now();
        }));
    }
    Some(worker)
}

/// The supervisor is gone or wants this process gone: nothing that it does still counts.
#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
fn end_now() {
    std::process::exit(exit::GAVE_UP);
}
