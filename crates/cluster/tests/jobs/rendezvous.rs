//! The control socket: workers as threads, and peers that mean no good.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_cluster::{
    ClusterError, FailureCause, JobExit, LaunchSpec, Launcher, LogSink, ProcessExit, ProcessSpec,
    StartedProcess, StopSignal, WorkerLink, variables,
};
use ronde_core::{Event, Generation, Rank, Step, WorldSize};
use ronde_protocol::{Assignment, MembershipError};

use crate::support::*;

const LIMIT: Duration = Duration::from_secs(120);

/// The data of a rank in these tests.
struct Place {
    rank: Rank,
    control: SocketAddr,
    token: String,
    worker: u64,
}

impl Place {
    fn connect(&self) -> Result<WorkerLink, ClusterError> {
        WorkerLink::connect(self.control, &self.token, self.rank, self.worker, LIMIT)
    }

    /// Waits for the first assignment.
    fn join(&self, link: &WorkerLink) -> Result<Assignment, MembershipError> {
        link.member(self.data_address()).unwrap().next(None)
    }

    fn data_address(&self) -> SocketAddr {
        ([127, 0, 0, 1], 5000 + self.rank.0 as u16).into()
    }
}

type Body = Arc<dyn Fn(Place) -> i32 + Send + Sync>;

/// A launcher whose processes are threads, which receive no signals.
struct Threads {
    body: Body,
    ended: Sender<(Rank, ProcessExit)>,
    ends: Receiver<(Rank, ProcessExit)>,
    alive: BTreeMap<Rank, bool>,
}

impl Threads {
    fn new(body: impl Fn(Place) -> i32 + Send + Sync + 'static) -> Self {
        let (ended, ends) = channel();
        Self {
            body: Arc::new(body),
            ended,
            ends,
            alive: BTreeMap::new(),
        }
    }
}

impl Launcher for Threads {
    fn host(&self) -> String {
        "here".to_owned()
    }

    fn start(
        &mut self,
        process: &ProcessSpec,
        _: &Arc<dyn LogSink>,
    ) -> std::io::Result<StartedProcess> {
        let value = |name: &str| {
            let own = |(n, _): &&(OsString, OsString)| n == name;
            let found = process.environment.iter().find(own);
            found.unwrap().1.to_str().unwrap().to_owned()
        };
        let place = Place {
            rank: process.rank,
            control: value(variables::RONDE_CONTROL).parse().unwrap(),
            token: value(variables::RONDE_TOKEN),
            worker: value(variables::RONDE_WORKER).parse().unwrap(),
        };
        let (rank, body, ended) = (process.rank, self.body.clone(), self.ended.clone());
        self.alive.insert(rank, true);
        std::thread::spawn(move || {
            let code = body(place);
            ended.send((rank, ProcessExit::Code(code))).unwrap();
        });
        Ok(StartedProcess {
            pid: 1_000_000 + rank.0,
            host: "threads".into(),
        })
    }

    fn poll(&mut self, timeout: Duration) -> Vec<(Rank, ProcessExit)> {
        let ends: Vec<_> = match self.ends.recv_timeout(timeout) {
            Ok(end) => std::iter::once(end).chain(self.ends.try_iter()).collect(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        };
        for (rank, _) in &ends {
            self.alive.insert(*rank, false);
        }
        ends
    }

    fn signal(&mut self, _: Rank, _: StopSignal) {}

    fn alive(&mut self, rank: Rank) -> bool {
        self.alive[&rank]
    }

    fn logs(&mut self, _: Rank) -> Vec<String> {
        Vec::new()
    }

    fn close(&mut self, _: Duration) {}
}

fn job(ranks: u32) -> LaunchSpec {
    let mut spec = LaunchSpec::new("unused", Vec::new(), WorldSize::new(ranks).unwrap());
    spec.rendezvous_required = true;
    spec.settings.rendezvous = LIMIT;
    spec.job = "threads".into();
    spec.task = "x".repeat(100_000);
    spec
}

/// Runs bodies as ranks.
fn play(
    spec: &LaunchSpec,
    body: impl Fn(Place) -> i32 + Send + Sync + 'static,
) -> (ronde_cluster::JobOutcome, Arc<Recorder>) {
    run_with(spec, &mut Threads::new(body), |_, _| {})
}

/// Joins, waits for the end of the job, and returns the received reason.
fn wait_for_stop(place: &Place) -> String {
    let link = match place.connect() {
        Ok(link) => link,
        // It connected too late.
        Err(ClusterError::Lost { reason }) => return reason,
        Err(other) => panic!("{other}"),
    };
    let (lost, wait) = channel();
    link.on_loss(Box::new(move |end| lost.send(end.reason.clone()).unwrap()));
    // No answer may arrive: this rank waits for the stop.
    let _ = place.join(&link);
    wait.recv_timeout(LIMIT).unwrap()
}

#[test]
fn all_ranks_get_their_place_and_strange_numbers_arrive() {
    let (outcome, seen) = play(&job(5), |place| {
        let link = place.connect().unwrap();
        let assignment = place.join(&link).unwrap();
        assert_eq!(assignment.rank, place.rank);
        assert_eq!(assignment.world_size.get(), 5);
        assert_eq!(assignment.job, "threads");
        assert_eq!(assignment.task.len(), 100_000);
        let ports: Vec<u16> = assignment.peers.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [5000, 5001, 5002, 5003, 5004]);
        link.tracker().record(Event::Recovered {
            generation: Generation::FIRST,
            step: Step(place.rank.0.into()),
            duration_s: f64::NAN,
        });
        i32::from(!link.finish())
    });
    assert_eq!(outcome.exit, JobExit::Done, "{outcome:?}");
    let events = seen.events.lock().unwrap();
    let mut ranks: Vec<u64> = events
        .iter()
        .map(|event| match event {
            Event::Recovered {
                step, duration_s, ..
            } if duration_s.is_nan() => step.0,
            other => panic!("{other:?}"),
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3, 4]);
}

#[test]
fn a_missing_rank_is_named_and_the_others_are_notified() {
    let mut spec = job(3);
    // The other ranks have to be ready by then.
    spec.settings.rendezvous = Duration::from_secs(5);
    let received = Arc::new(Mutex::new(Vec::new()));
    let (gone, late) = channel::<()>();
    let (receives, late) = (received.clone(), Mutex::new(late));
    let gone = Mutex::new(Some(gone));
    let (outcome, _) = play(&spec, move |place| {
        if place.rank == Rank(1) {
            // Alive, but sends nothing until another rank receives a stop.
            let _ = late.lock().unwrap().recv_timeout(LIMIT);
            return 0;
        }
        let reason = wait_for_stop(&place);
        receives.lock().unwrap().push(reason);
        gone.lock().unwrap().take();
        0
    });
    let first = outcome.first_failure().unwrap();
    assert!(
        matches!(&first.cause, FailureCause::RendezvousTimeout { missing } if *missing == [Rank(1)]),
        "{first:?}"
    );
    let expected = "rank 1 failed: not ready at the rendezvous: rank 1";
    assert_eq!(*received.lock().unwrap(), [expected, expected]);
}

#[test]
fn a_rank_that_ends_before_it_is_ready_is_noticed_at_once() {
    let (outcome, _) = play(&job(2), |place| {
        if place.rank == Rank(1) {
            return 0;
        }
        let reason = wait_for_stop(&place);
        i32::from(reason != "rank 1 failed: not ready at the rendezvous: rank 1")
    });
    let first = outcome.first_failure().unwrap();
    assert!(
        matches!(&first.cause, FailureCause::RendezvousTimeout { missing } if *missing == [Rank(1)]),
        "{first:?}"
    );
    assert_eq!(outcome.failures.len(), 1, "{outcome:?}");
}

#[test]
fn a_client_without_the_token_is_refused_and_learns_nothing() {
    let (outcome, _) = play(&job(1), |place| {
        let refusal = |token: &str, rank| match WorkerLink::connect(
            place.control,
            token,
            rank,
            place.worker,
            LIMIT,
        ) {
            Err(ClusterError::Refused { reason }) => reason,
            other => panic!("{:?}", other.err()),
        };
        let wrong = "wrong token: this worker belongs to another job";
        assert_eq!(refusal("", Rank(0)), wrong);
        assert_eq!(refusal(&place.token[1..], Rank(7)), wrong);
        assert_eq!(
            refusal(&place.token, Rank(1)),
            "invalid rank 1: the world size is 1"
        );
        let link = place.connect().unwrap();
        place.join(&link).unwrap();
        i32::from(!link.finish())
    });
    assert_eq!(outcome.exit, JobExit::Done, "{outcome:?}");
}

#[test]
fn hostile_input_does_no_harm() {
    let (outcome, _) = play(&job(1), |place| {
        let hello = |token: &str| {
            format!(
                r#"{{"message":"hello","protocol":5,"token":"{token}","rank":0,"pid":1,"worker":{}}}"#,
                place.worker
            )
        };
        let endless = vec![b'x'; 1 << 20];
        let nested = "[".repeat(4000);
        let inputs: [&[u8]; 7] = [
            b"",
            b"\n\n\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"{\"message\":\"event\",\"body\":{}}\n",
            b"\xff\xfe\x00\n",
            &endless,
            nested.as_bytes(),
        ];
        for input in inputs {
            let mut stream = TcpStream::connect(place.control).unwrap();
            // The supervisor may close while this still writes.
            let _ = stream.write_all(input);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = String::new();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let _ = stream.read_to_string(&mut answer);
            assert!(!answer.contains("welcome"), "{answer}");
        }
        // More silent connections than allowed are opened and closed: the worker is still admitted.
        let silent: Vec<TcpStream> = (0..100)
            .map(|_| TcpStream::connect(place.control).unwrap())
            .collect();
        drop(silent);
        // A connection with the token that then sends invalid data is closed; its rank may connect again.
        let mut stream = TcpStream::connect(place.control).unwrap();
        let line = hello(&place.token);
        loop {
            stream
                .write_all(format!("{line}\nnonsense\n").as_bytes())
                .unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            if answer.contains("welcome") {
                break;
            }
            stream = TcpStream::connect(place.control).unwrap();
        }
        let link = loop {
            match place.connect() {
                Ok(link) => break link,
                Err(ClusterError::Refused { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        };
        place.join(&link).unwrap();
        i32::from(!link.finish())
    });
    assert_eq!(outcome.exit, JobExit::Done, "{outcome:?}");
}

#[test]
fn a_supervisor_that_does_not_listen_is_reported_with_its_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let error = WorkerLink::connect(address, "x", Rank(0), 1, Duration::from_millis(60))
        .err()
        .unwrap();
    assert!(matches!(&error, ClusterError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
