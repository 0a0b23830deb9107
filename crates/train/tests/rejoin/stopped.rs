//! Workers that are stopped while the others train, as by SIGSTOP, and return; and workers that leave.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::JoinHandle;

use ronde_core::Event;
use ronde_train::TrainError;

use crate::faulty_group::InjectedFault;
use crate::{Bits, Job, Members, RunSettings, STEPS, WIDE, alone, start, steps};

/// The number of steps that the remaining workers commit while one is stopped.
const STEPS_WITHOUT: usize = 5;

impl Job {
    /// Waits until workers have committed a number of steps.
    fn wait_for_steps(&self, number: usize) {
        let events = self.events.lock().unwrap();
        let is_early = |events: &mut Vec<Event>| steps(events).len() < number;
        drop(self.recorded.wait_while(events, is_early).unwrap());
    }

    /// Removes a worker from the job until the remaining ones have trained without it.
    fn leave_and_return(&self, id: u32) {
        let before = steps(&self.events.lock().unwrap()).len();
        let mut member = None;
        self.change(|members| {
            let at = members.present.iter().position(|(other, _)| *other == id);
            member = at.map(|at| members.present.remove(at));
        });
        self.wait_for_steps(before + STEPS_WITHOUT);
        self.change(|members| members.present.extend(member));
    }
}

impl Members {
    /// Returns whether a member of the previous generation is none of this one.
    pub(crate) fn drops_members(&self) -> bool {
        let is_present = |id: &u32| self.present.iter().any(|(other, _)| other == id);
        !self.before.iter().all(is_present)
    }
}

/// Returns the function that removes a worker from a job while it is stopped.
pub(crate) fn wait(job: &Arc<Job>, id: u32) -> Arc<dyn Fn() + Send + Sync> {
    let job = job.clone();
    Arc::new(move || job.leave_and_return(id))
}

#[test]
fn a_stopped_worker_copies_the_slices_that_the_others_have_trained_meanwhile() {
    let run = RunSettings {
        steps: 100,
        sets: &[WIDE, "parallel.zero=1", "parallel.copies=2"],
    };
    let undisturbed = alone(run);
    // Operations of one step, so that it is also stopped while the weights are gathered after a vote.
    for operation in 40..48 {
        let job = Job::of(run);
        let end = train_stopped(&job, 3, (1, operation));
        assert_eq!(end.len(), 3, "{operation}");
        assert!(
            end.iter().all(|bits| bits.agree_with(&undisturbed)),
            "{operation}"
        );
    }
}

/// Trains with `count` workers, one of them stopped at one of its operations, and returns their states.
fn train_stopped(job: &Arc<Job>, count: u32, (stopped, operation): (u32, u32)) -> Vec<Bits> {
    let fault = |id| (id == stopped).then_some(InjectedFault::Stops(operation));
    let workers = start_all(job, count, fault).into_iter();
    let ends = workers.map(|worker| worker.join().unwrap());
    ends.map(Result::unwrap).collect()
}

/// Starts `count` workers, each with its fault.
fn start_all(
    job: &Arc<Job>,
    count: u32,
    fault: impl Fn(u32) -> Option<InjectedFault>,
) -> Vec<JoinHandle<Result<Bits, TrainError>>> {
    let mut listeners = Vec::new();
    for id in 0..count {
        let (listener, address) = ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        listeners.push(listener);
        job.members.lock().unwrap().present.push((id, address));
    }
    let workers = listeners.into_iter().zip(0..);
    workers
        .map(|(listener, id)| start(job, id, listener, fault(id)))
        .collect()
}

#[test]
fn a_worker_that_leaves_saves_its_slices_with_the_others_first() {
    let run = RunSettings {
        steps: 200,
        sets: &[
            WIDE,
            "parallel.zero=1",
            "parallel.copies=1",
            "checkpoint.every_steps=1000",
        ],
    };
    let undisturbed = alone(run);
    let job = Job::of(run);
    let mut workers = start_all(&job, 3, |_| None);
    job.wait_for_steps(STEPS as usize);
    job.change(|members| members.present.truncate(2));
    let left = workers.pop().unwrap().join().unwrap();
    assert!(matches!(left, Err(TrainError::Membership(_))), "{left:?}");
    for worker in workers {
        let bits = worker.join().unwrap().unwrap();
        assert!(bits.agree_with(&undisturbed));
    }
    let events = job.events.lock().unwrap();
    let loaded = events.iter().filter_map(|event| match event {
        Event::CheckpointLoaded { step, .. } => Some(step.0),
        _ => None,
    });
    let saved = events.iter().filter_map(|event| match event {
        Event::CheckpointSaved { step, .. } => Some(step.0),
        _ => None,
    });
    // The state is saved after the last step of the generation, so no step is computed again.
    let (loaded, saved): (Vec<u64>, Vec<u64>) = (loaded.collect(), saved.collect());
    assert_eq!((loaded.len(), loaded.first()), (1, saved.first()));
    let committed = |event: &&Event| matches!(event, Event::StepCommitted { .. });
    assert_eq!(events.iter().filter(committed).count(), 200);
}
