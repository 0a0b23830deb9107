//! [`Coordination`]: the coordinator of a job, with its record in the memory of this process. Pure: time
//! is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ronde_core::{Event as RunEvent, Rank, Step};
use ronde_elastic::{
    Command, CoordinatorId, CoordinatorMachine, ElasticError, Ending, Event, LossCause, Place,
    PlaceState, Reason, Record, Report, Settings, Time, ToWorker, WorkerId,
};

use crate::narration::Narration;
use crate::outcome::End;

/// What the supervisor has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Say something to the worker at a place.
    Tell(Rank, ToWorker),
    /// Start a worker at a place, with this name, and a certificate where the job has an authority.
    Start(Rank, WorkerId, Option<String>),
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
    silence: Duration,
    places: BTreeMap<WorkerId, Rank>,
    current: BTreeMap<Rank, WorkerId>,
    wake: Option<Time>,
    narration: Narration,
    /// A checkpoint that was published and that the machine has not heard of.
    published: Option<Step>,
}

impl Coordination {
    /// A coordinator of `places` places on this host.
    pub(crate) fn new(settings: Settings) -> Result<Self, ElasticError> {
        Ok(Self {
            machine: CoordinatorMachine::new(CoordinatorId(1), settings)?,
            record: Record::default(),
            silence: settings.silence,
            places: BTreeMap::new(),
            current: BTreeMap::new(),
            wake: None,
            narration: Narration::default(),
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
        if let RunEvent::CheckpointSaved { step, .. } = event {
            self.published = self.published.max(Some(step));
        }
        self.narration.recorded(now, event, self.record.generation)
    }

    /// After how long a worker that is not heard counts as lost.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
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
                actions.push(Action::Start(rank, worker, None));
            }
            Command::Kill { place, .. } => actions.push(Action::Kill(Rank(place.0 as u32))),
            Command::Tell(Reason::Leads { .. }) => {}
            Command::Tell(reason) => {
                let told = self.narration.say(now, &reason, self.record.generation);
                actions.extend(told.map(Action::Say));
            }
            Command::End { ending, reason } => actions.push(Action::End(ending, reason)),
        }
    }
}
