//! A caller and a callee with connections that break at any point, and a callee that restarts: every call ends, and is
//! executed at most once, exactly once if it succeeds.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::callee::{CallReceipt, CalleeSession};

const LIMIT: Duration = Duration::from_secs(100);
const RECONNECT: Duration = Duration::from_secs(5);

/// One event of the simulation.
#[derive(Debug, Clone)]
enum Fault {
    /// The caller begins a call, or a call without a result.
    Start { is_send: bool },
    /// A frame arrives at the callee, or at the caller.
    Arrive { at_caller: bool },
    /// The callee finishes its oldest call, or the newest.
    Execute { newest: bool },
    /// The connection breaks; frames on the way are lost.
    Break,
    /// A connection is established.
    Connect,
    /// The callee restarts.
    Restart,
    /// The caller gives up its oldest call.
    Cancel,
    /// Time passes.
    Pass { seconds: u64 },
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        8 => any::<bool>().prop_map(|is_send| Fault::Start { is_send }),
        20 => any::<bool>().prop_map(|at_caller| Fault::Arrive { at_caller }),
        8 => any::<bool>().prop_map(|newest| Fault::Execute { newest }),
        3 => Just(Fault::Break),
        5 => Just(Fault::Connect),
        1 => Just(Fault::Restart),
        1 => Just(Fault::Cancel),
        2 => (0_u64..4).prop_map(|seconds| Fault::Pass { seconds }),
    ];
    proptest::collection::vec(fault, 1..120)
}

#[derive(Default)]
struct Execution {
    times: u32,
    success: Option<bool>,
    is_send: bool,
}

struct Simulation {
    now: Duration,
    caller: CallerLink<u64>,
    session: CalleeSession,
    /// The callee knows the caller.
    has_session: bool,
    is_connected: bool,
    to_callee: VecDeque<Arc<FrameBody>>,
    to_caller: VecDeque<Arc<FrameBody>>,
    /// Calls that run at the callee.
    running: Vec<(u64, u64)>,
    calls: BTreeMap<u64, Execution>,
    limits: RpcLimits,
}

impl Simulation {
    fn new() -> Self {
        let limits = RpcLimits {
            calls_in_flight_max: 12,
            kept_answer_bytes_max: 200,
            ..RpcLimits::default()
        };
        Self {
            now: Duration::ZERO,
            caller: CallerLink::new(),
            session: CalleeSession::default(),
            has_session: false,
            is_connected: false,
            to_callee: VecDeque::new(),
            to_caller: VecDeque::new(),
            running: Vec::new(),
            calls: BTreeMap::new(),
            limits,
        }
    }

    fn carry_out(&mut self, actions: Vec<CallerAction<u64>>) {
        for action in actions {
            match action {
                CallerAction::Transmit(frame) => {
                    assert!(self.is_connected);
                    self.to_callee.push_back(frame);
                }
                CallerAction::Finish(ticket, end) => {
                    let success = matches!(end, CallEnd::Answer(..));
                    if let CallEnd::Answer(head, _) = &end
                        && !self.calls[&ticket].is_send
                    {
                        assert_eq!(head, &ticket.to_le_bytes(), "the answer of its own call");
                    }
                    let call = self.calls.get_mut(&ticket).unwrap();
                    assert_eq!(call.success, None, "a call ends once");
                    call.success = Some(success);
                }
            }
        }
    }

    fn step(&mut self, fault: &Fault) {
        let mut actions = Vec::new();
        match *fault {
            Fault::Start { is_send } => self.start(is_send, &mut actions),
            Fault::Arrive { at_caller: true } => {
                if let Some(frame) = self.to_caller.pop_front() {
                    self.caller.answered(copy(&frame), &mut actions);
                }
            }
            Fault::Arrive { at_caller: false } => self.arrive(),
            Fault::Execute { newest } => self.execute(newest),
            Fault::Break => {
                self.is_connected = false;
                self.to_callee.clear();
                self.to_caller.clear();
                self.caller.disconnected(self.now, "a test".to_owned());
            }
            Fault::Connect if !self.is_connected => {
                self.is_connected = true;
                self.caller.connected(self.has_session, &mut actions);
                self.has_session = true;
            }
            Fault::Connect => {}
            Fault::Restart => {
                self.step(&Fault::Break);
                self.session = CalleeSession::default();
                self.has_session = false;
                self.running.clear();
            }
            Fault::Cancel => {
                let oldest = self.caller.numbers().first().copied();
                let ticket = oldest.and_then(|call| self.caller.cancel(call, &mut actions));
                if let Some(ticket) = ticket {
                    self.calls.get_mut(&ticket).unwrap().success = Some(false);
                }
            }
            Fault::Pass { seconds } => {
                self.now += Duration::from_secs(seconds);
                self.caller.tick(self.now, RECONNECT, &mut actions);
            }
        }
        self.carry_out(actions);
    }

    fn start(&mut self, is_send: bool, actions: &mut Vec<CallerAction<u64>>) {
        if self.caller.check_room(100, &self.limits).is_err() {
            assert_eq!(self.caller.in_flight(), 12);
            return;
        }
        let ticket = self.calls.len() as u64;
        let kind = match is_send {
            true => RpcFrameKind::Send,
            false => RpcFrameKind::Call,
        };
        let call = Execution {
            is_send,
            ..Execution::default()
        };
        self.calls.insert(ticket, call);
        let call = NewCall {
            kind,
            head: ticket.to_le_bytes().to_vec(),
            values: CallValues::none(),
            deadline: self.now + LIMIT,
            ticket,
        };
        self.caller.start(self.now, call, actions);
    }

    fn arrive(&mut self) {
        let Some(frame) = self.to_callee.pop_front() else {
            return;
        };
        match frame.kind {
            RpcFrameKind::Acknowledge => self.session.acknowledged(frame.listed()),
            RpcFrameKind::Waiting => self.session.resumed(frame.listed()),
            RpcFrameKind::Cancel => self.session.cancelled(frame.call),
            kind => match self.session.received(kind, frame.call, 20) {
                CallReceipt::Ignore => {}
                CallReceipt::Repeat(answer) | CallReceipt::Refuse(answer) => {
                    self.to_caller.push_back(answer);
                }
                CallReceipt::Execute(receipt) => {
                    self.to_caller.extend(receipt);
                    let mut ticket = [0; 8];
                    ticket.copy_from_slice(&frame.head);
                    self.running.push((frame.call, u64::from_le_bytes(ticket)));
                }
            },
        }
    }

    fn execute(&mut self, newest: bool) {
        if self.running.is_empty() {
            return;
        }
        let index = if newest { self.running.len() - 1 } else { 0 };
        let (call, ticket) = self.running.remove(index);
        let execution = self.calls.get_mut(&ticket).unwrap();
        execution.times += 1;
        assert_eq!(execution.times, 1, "a call is executed once");
        let answer = FrameBody {
            kind: RpcFrameKind::Answer,
            call,
            head: ticket.to_le_bytes().to_vec(),
            values: CallValues::none(),
        };
        let kept = self.limits.kept_answer_bytes_max;
        let answer = self.session.finished(answer, kept);
        if self.is_connected {
            self.to_caller.extend(answer);
        }
    }

    /// Delivers everything on a working connection.
    fn settle(&mut self) {
        self.step(&Fault::Connect);
        for _ in 0..2_000 {
            self.step(&Fault::Arrive { at_caller: false });
            self.step(&Fault::Execute { newest: false });
            self.step(&Fault::Arrive { at_caller: true });
        }
    }
}

fn copy(frame: &FrameBody) -> FrameBody {
    FrameBody {
        kind: frame.kind,
        call: frame.call,
        head: frame.head.clone(),
        values: CallValues::none(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_call_ends_and_is_executed_at_most_once(faults in faults()) {
        let mut simulation = Simulation::new();
        for fault in &faults {
            simulation.step(fault);
        }
        simulation.settle();
        for (ticket, call) in &simulation.calls {
            prop_assert!(call.success.is_some(), "call {ticket} has ended");
            if call.success == Some(true) {
                prop_assert!(call.times == 1 || call.is_send, "call {ticket}: {}", call.times);
            }
        }
        prop_assert_eq!(simulation.caller.in_flight(), 0);
        prop_assert_eq!(simulation.caller.bytes, 0);
        prop_assert!(simulation.caller.deadlines.is_empty());
        // Only answers that the caller has not acknowledged remain at the callee.
        simulation.step(&Fault::Break);
        simulation.settle();
        prop_assert!(simulation.session.is_empty());
    }

    #[test]
    fn without_a_connection_every_call_ends_by_itself(faults in faults()) {
        let mut simulation = Simulation::new();
        for fault in &faults {
            simulation.step(fault);
        }
        simulation.step(&Fault::Break);
        simulation.step(&Fault::Pass { seconds: 0 });
        simulation.step(&Fault::Pass { seconds: 5 });
        let open = simulation.calls.values().filter(|call| call.success.is_none());
        prop_assert_eq!(open.count(), 0);
    }
}

#[test]
fn bounds_are_reported_and_one_long_message_always_has_room() {
    let mut link = CallerLink::new();
    let limits = RpcLimits {
        calls_in_flight_max: 2,
        bytes_in_flight_max: 100,
        ..RpcLimits::default()
    };
    let mut actions = Vec::new();
    assert_eq!(link.check_room(1_000, &limits), Ok(()));
    let mut start = |link: &mut CallerLink<u8>, bytes: usize| {
        let call = NewCall {
            kind: RpcFrameKind::Call,
            head: vec![0; bytes],
            values: CallValues::none(),
            deadline: LIMIT,
            ticket: 0,
        };
        link.start(Duration::ZERO, call, &mut actions)
    };
    let first = start(&mut link, 50);
    assert_eq!(link.check_room(50, &limits), Err(LinkFull::Bytes(100)));
    assert_eq!(link.check_room(10, &limits), Ok(()));
    start(&mut link, 0);
    assert_eq!(link.check_room(0, &limits), Err(LinkFull::Calls(2)));
    let mut actions = Vec::new();
    assert_eq!(link.cancel(first, &mut actions), Some(0));
    assert_eq!(link.cancel(first, &mut actions), None);
    assert_eq!(link.check_room(10, &limits), Ok(()));
}

#[test]
fn a_call_long_after_a_loss_gets_a_full_period_to_connect() {
    let mut link = CallerLink::new();
    let at = Duration::from_secs;
    let mut actions = Vec::new();
    link.disconnected(at(1), "a test".to_owned());
    let call = NewCall {
        kind: RpcFrameKind::Call,
        head: Vec::new(),
        values: CallValues::none(),
        deadline: at(1_000),
        ticket: 7,
    };
    link.start(at(100), call, &mut actions);
    link.tick(at(104), RECONNECT, &mut actions);
    assert!(actions.is_empty());
    link.disconnected(at(104), "again".to_owned());
    link.tick(at(105), RECONNECT, &mut actions);
    let lost = |action: &CallerAction<i32>| {
        matches!(action, CallerAction::Finish(7, CallEnd::PeerLost(_)))
    };
    assert!(actions.iter().all(lost) && actions.len() == 1);
}
