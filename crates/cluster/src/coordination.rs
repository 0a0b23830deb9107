//! [`Coordination`]: the coordinator of a job, with its record in the memory of this process. Pure: time
//! is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ronde_core::{Epoch, Event as RunEvent, Generation, Rank, Step};
use ronde_elastic::{
    Command, CoordinatorId, CoordinatorMachine, ElasticError, Ending, Event, LossCause, Place,
    PlaceState, Reason, Record, Report, Settings, Time, ToWorker, WorkerId,
};

use crate::outcome::End;

/// What the supervisor has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Say something to the worker at a place.
    Tell(Rank, ToWorker),
    /// Start a worker at a place, with this name.
    Start(Rank, WorkerId),
    /// End the worker at a place, which does not answer.
    Kill(Rank),
    /// Let people know.
    Say(RunEvent),
    /// The job is over.
    End(Ending, Reason),
}

/// The coordinator of a job whose places are numbered like ranks.
pub(crate) struct Coordination {
    machine: CoordinatorMachine,
    record: Record,
    places: BTreeMap<WorkerId, Rank>,
    current: BTreeMap<Rank, WorkerId>,
    /// When the loss was noticed that is not made good yet.
    recovering: Option<Duration>,
    wake: Option<Time>,
    seen: Seen,
    /// A checkpoint that was published and that the machine has not heard of.
    published: Option<Step>,
}

/// What was recorded already: a rank 0 that takes another one's place says some things again.
#[derive(Default)]
struct Seen {
    step: Option<Step>,
    epoch: Option<Epoch>,
    evaluated: Option<Step>,
    started: bool,
}

impl Seen {
    /// Whether an event tells something new.
    fn admits(&mut self, event: &RunEvent) -> bool {
        fn newer<T: PartialOrd + Copy>(last: &mut Option<T>, this: T) -> bool {
            let is_newer = last.is_none_or(|last| this > last);
            if is_newer {
                *last = Some(this);
            }
            is_newer
        }
        match event {
            RunEvent::RunStarted { .. } => !std::mem::replace(&mut self.started, true),
            RunEvent::StepCommitted { step, .. } => newer(&mut self.step, *step),
            RunEvent::EpochFinished { epoch, .. } => newer(&mut self.epoch, *epoch),
            RunEvent::Evaluated { step, .. } => newer(&mut self.evaluated, *step),
            _ => true,
        }
    }
}

impl Coordination {
    /// A coordinator of `places` places on this host.
    pub(crate) fn new(settings: Settings) -> Result<Self, ElasticError> {
        Ok(Self {
            machine: CoordinatorMachine::new(CoordinatorId(1), settings)?,
            record: Record::default(),
            places: BTreeMap::new(),
            current: BTreeMap::new(),
            recovering: None,
            wake: None,
            seen: Seen::default(),
            published: None,
        })
    }

    /// Offers the places of this host.
    pub(crate) fn begin(&mut self, now: Duration, host: &str, places: u32) -> Vec<Action> {
        let places = (0..places.into()).map(|place| PlaceState {
            place: Place(place),
            worker: None,
            ended: None,
        });
        let event = Event::HostUp {
            host: host.to_owned(),
            places: places.collect(),
        };
        self.handle(now, event)
    }

    /// A worker says how it is.
    pub(crate) fn reported(&mut self, now: Duration, report: Report) -> Vec<Action> {
        self.handle(now, Event::Report(report))
    }

    /// A worker's process has ended.
    pub(crate) fn ended(&mut self, now: Duration, rank: Rank, end: End) -> Vec<Action> {
        let Some(worker) = self.current.remove(&rank) else {
            return Vec::new();
        };
        let cause = match end {
            End::Code(code) => LossCause::ExitCode(code),
            End::Signal(signal) => LossCause::Signal(signal),
        };
        let place = Place(rank.0.into());
        self.handle(
            now,
            Event::Exited {
                worker,
                place,
                cause,
            },
        )
    }

    /// A worker's connection is gone although its process has not ended.
    pub(crate) fn unlinked(&mut self, now: Duration, worker: u64) -> Vec<Action> {
        let event = Event::Disconnected {
            worker: WorkerId(worker),
            cause: "its control connection was closed".to_owned(),
        };
        self.handle(now, event)
    }

    /// The job has to end in good order.
    pub(crate) fn stop(&mut self, now: Duration, by: &str) -> Vec<Action> {
        let by = by.to_owned();
        self.handle(now, Event::Stop { by })
    }

    /// Looks at the time, and at what was recorded.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        let time = Time::default().after(now);
        if let Some(next) = self.published.take() {
            let generation = self.record.generation;
            return self.handle(now, Event::CheckpointWritten { generation, next });
        }
        match self.wake {
            Some(wake) if wake <= time => self.handle(now, Event::Tick),
            _ => Vec::new(),
        }
    }

    /// What an event of a worker comes to: itself unless it was told before, and the news that a
    /// loss is made good.
    pub(crate) fn recorded(&mut self, now: Duration, event: RunEvent) -> Vec<RunEvent> {
        if !self.seen.admits(&event) {
            return Vec::new();
        }
        if let RunEvent::CheckpointSaved { step, .. } = event {
            self.published = self.published.max(Some(step));
        }
        let RunEvent::StepCommitted {
            step, generation, ..
        } = event
        else {
            return vec![event];
        };
        let is_newest = generation == self.record.generation;
        let recovered = self
            .recovering
            .take_if(|_| is_newest)
            .map(|since| RunEvent::Recovered {
                generation,
                step,
                duration_s: now.saturating_sub(since).as_secs_f64(),
            });
        std::iter::once(event).chain(recovered).collect()
    }

    /// Which process has a place.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        self.current.get(&rank).copied()
    }

    fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let time = Time::default().after(now);
        let mut actions = Vec::new();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for command in self.machine.handle(time, event) {
                match command {
                    Command::Store(request) => {
                        events.push_back(Event::Store(self.record.execute(request)));
                    }
                    other => self.act(now, other, &mut actions),
                }
            }
        }
        self.wake = self.machine.wake_at(time);
        actions
    }

    fn act(&mut self, now: Duration, command: Command, actions: &mut Vec<Action>) {
        match command {
            Command::Store(_) => {}
            Command::Send { to, message } => {
                if let Some(&rank) = self.places.get(&to) {
                    actions.push(Action::Tell(rank, message));
                }
            }
            Command::Start { place, worker, .. } => {
                let rank = Rank(place.0 as u32);
                self.places.retain(|_, at| *at != rank);
                self.places.insert(worker, rank);
                self.current.insert(rank, worker);
                actions.push(Action::Start(rank, worker));
            }
            Command::Kill { place, .. } => actions.push(Action::Kill(Rank(place.0 as u32))),
            Command::Tell(reason) => actions.extend(self.say(now, &reason).map(Action::Say)),
            Command::End { ending, reason } => actions.push(Action::End(ending, reason)),
        }
    }

    /// What people hear of a decision.
    fn say(&mut self, now: Duration, reason: &Reason) -> Option<RunEvent> {
        let message = reason.to_string();
        match reason {
            Reason::Leads { .. } | Reason::Begun { .. } | Reason::Finished { .. } => None,
            Reason::Starts { after: None, .. } => None,
            // They are only just being started.
            Reason::TooFew { .. } if self.record.generation == Generation(0) => None,
            Reason::GivenUp { .. } => {
                self.recovering.get_or_insert(now);
                None
            }
            Reason::Lost {
                generation,
                workers,
                ..
            }
            | Reason::Reformed {
                generation,
                workers,
                ..
            }
            | Reason::Changed {
                generation,
                workers,
                ..
            }
            | Reason::StateLost {
                generation,
                workers,
                ..
            } => {
                if let Reason::StateLost { checkpoint, .. } = reason {
                    // Steps are committed again, from there.
                    self.seen.step = checkpoint.and_then(|next| next.0.checked_sub(1)).map(Step);
                    (self.seen.epoch, self.seen.evaluated) = (None, None);
                }
                Some(RunEvent::MembershipChanged {
                    generation: *generation,
                    world_size: *workers,
                    reason: message,
                })
            }
            _ => Some(RunEvent::Notice {
                rank: None,
                message,
            }),
        }
    }
}
