//! Calls between nodes, their bounds and their errors.

use std::time::Duration;

use ronde_core::Recovery;
use ronde_rpc::{
    CallTarget, CallValues, FunctionRegistry, RemoteFunction, RpcError, RpcLimits, RpcNode,
};

use crate::support::{
    COUNT, ECHO, FAIL, LIMIT, SLEEP, config, echo, functions, listen, nodes, peer, wait_until,
};

const TWO: CallTarget<'_> = CallTarget::Worker("two");

#[test]
fn values_of_any_length_return_as_they_were_sent() {
    let nodes = nodes(&["one", "two"], &RpcLimits::default());
    for len in [0, 1, 1_023, 1_024, 1_025, 70_000, 3_000_001] {
        let values: Vec<f32> = (0..len).map(|value| value as f32).collect();
        let text = format!("{len} values");
        let shared = std::sync::Arc::new(values);
        let (same, returned) = nodes[0]
            .call(TWO, &ECHO, &text, shared.clone(), LIMIT)
            .unwrap();
        assert_eq!(same, text);
        assert!(returned[..] == shared[..], "{len}");
    }
}

#[test]
fn thousands_of_calls_are_in_flight_in_both_directions() {
    let nodes = nodes(&["one", "two"], &RpcLimits::default());
    let begin = |node: &RpcNode, to: &'static str| {
        let start = |number: usize| {
            let text = number.to_string();
            let values = vec![number as f32; number % 50];
            node.start(CallTarget::Worker(to), &ECHO, &text, values, LIMIT)
                .unwrap()
        };
        (0..4_000).map(start).collect::<Vec<_>>()
    };
    let (one, two) = (begin(&nodes[0], "two"), begin(&nodes[1], "one"));
    for (number, call) in one
        .into_iter()
        .enumerate()
        .chain(two.into_iter().enumerate())
    {
        let (text, values) = call.wait().unwrap();
        assert_eq!(text, number.to_string());
        assert_eq!(values[..], vec![number as f32; number % 50]);
    }
}

#[test]
fn errors_name_the_cause() {
    let nodes = nodes(&["one", "two"], &RpcLimits::default());
    let none = CallValues::none;
    let unknown: RemoteFunction<(), ()> = RemoteFunction::new("test.unknown", 1);
    let error = nodes[0]
        .call(TWO, &unknown, &(), none(), LIMIT)
        .unwrap_err();
    assert!(matches!(error, RpcError::UnknownFunction { .. }), "{error}");
    let newer: RemoteFunction<String, String> = RemoteFunction::new("test.echo", 2);
    let text = String::new();
    let error = nodes[0]
        .call(TWO, &newer, &text, none(), LIMIT)
        .unwrap_err();
    let message = "cannot call `test.echo` version 2 of two: it has version 1; help: register the same functions on all workers";
    assert_eq!(error.to_string(), message);
    let other: RemoteFunction<u32, String> = RemoteFunction::new("test.echo", 1);
    let error = nodes[0].call(TWO, &other, &1, none(), LIMIT).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot convert the arguments of `test.echo`: "),
        "{error}"
    );
    let other: RemoteFunction<String, u32> = RemoteFunction::new("test.echo", 1);
    let error = nodes[0]
        .call(TWO, &other, &text, none(), LIMIT)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot convert the result of `test.echo`: "),
        "{error}"
    );
    for (panics, message) in [
        (false, "`test.fail` of two failed: a failure of a test"),
        (
            true,
            "`test.fail` of two failed: it panicked: a panic of a test",
        ),
    ] {
        let error = nodes[0]
            .call(TWO, &FAIL, &panics, none(), LIMIT)
            .unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.recovery(), Recovery::Abort);
    }
    for target in [
        CallTarget::Worker("six"),
        CallTarget::Role("six"),
        CallTarget::Worker("one"),
    ] {
        let error = nodes[0]
            .call(target, &COUNT, &(), none(), LIMIT)
            .unwrap_err();
        assert!(matches!(error, RpcError::NoSuchWorker { .. }), "{error}");
    }
    // The node works as before.
    assert_eq!(echo(&nodes[0], "two"), Ok("text".to_owned()));
}

#[test]
fn a_deadline_ends_a_call_and_its_function_is_not_executed_later() {
    let limits = RpcLimits {
        threads: 1,
        ..RpcLimits::default()
    };
    let nodes = nodes(&["one", "two"], &limits);
    let none = CallValues::none;
    let slow = nodes[0].start(TWO, &SLEEP, &300, none(), LIMIT).unwrap();
    let short = Duration::from_millis(20);
    let error = nodes[0].call(TWO, &COUNT, &(), none(), short).unwrap_err();
    assert!(matches!(error, RpcError::DeadlinePassed { .. }), "{error}");
    drop(nodes[0].start(TWO, &COUNT, &(), none(), LIMIT).unwrap());
    assert_eq!(slow.wait().unwrap().0, 300);
    // The first count that is executed.
    assert_eq!(nodes[0].call(TWO, &COUNT, &(), none(), LIMIT).unwrap().0, 1);
}

#[test]
fn a_call_without_a_result_is_executed_once() {
    let nodes = nodes(&["one", "two"], &RpcLimits::default());
    for _ in 0..100 {
        let none = CallValues::none();
        nodes[0].send(TWO, &COUNT, &(), none, LIMIT).unwrap();
    }
    let count = || {
        let none = CallValues::none();
        nodes[0].call(TWO, &COUNT, &(), none, LIMIT).unwrap().0
    };
    let mut calls = 0;
    wait_until("all of them", || {
        calls += 1;
        let counted = count();
        assert!(counted <= 100 + calls);
        counted == 100 + calls
    });
}

#[test]
fn the_caller_sees_its_bounds_and_waits_or_is_refused() {
    let limits = RpcLimits {
        calls_in_flight_max: 3,
        ..RpcLimits::default()
    };
    let nodes = nodes(&["one", "two"], &limits);
    let start = || nodes[0].start(TWO, &SLEEP, &100, CallValues::none(), LIMIT);
    let running: Vec<_> = (0..3).map(|_| start().unwrap()).collect();
    let error = start().err().unwrap();
    let message = "cannot call `test.sleep` of two: 3 calls are in flight, which is the limit; \
                   help: wait for earlier calls, or raise the limit";
    assert_eq!(error.to_string(), message);
    assert_eq!(error.recovery(), Recovery::Retry);
    let short = Duration::from_millis(10);
    let error = nodes[0].call(TWO, &SLEEP, &0, CallValues::none(), short);
    assert!(matches!(error, Err(RpcError::Overloaded { .. })));
    assert_eq!(echo(&nodes[0], "two"), Ok("text".to_owned()));
    running.into_iter().for_each(|call| {
        call.wait().unwrap();
    });
}

#[test]
fn the_callee_refuses_calls_beyond_its_bound_and_reads_no_further_than_its_memory() {
    let limits = RpcLimits {
        threads: 1,
        queued_calls_max: 10,
        queued_bytes_max: 4 << 20,
        message_bytes_max: 2 << 20,
        ..RpcLimits::default()
    };
    let nodes = nodes(&["one", "two"], &limits);
    let start = |len| {
        nodes[0]
            .start(TWO, &SLEEP, &2, vec![0.0; len], LIMIT)
            .unwrap()
    };
    let calls: Vec<_> = (0..100).map(|_| start(0)).collect();
    let outcomes: Vec<_> = calls
        .into_iter()
        .map(|call| call.wait().map(|_| ()))
        .collect();
    let refused = outcomes
        .iter()
        .filter(|o| matches!(o, Err(RpcError::Overloaded { .. })));
    let refused = refused.count();
    assert!(refused > 0 && outcomes.iter().any(Result::is_ok));
    assert_eq!(refused + outcomes.iter().filter(|o| o.is_ok()).count(), 100);
    // 20 MiB wait for 4 MiB of room.
    let calls: Vec<_> = (0..10).map(|_| start(500_000)).collect();
    calls.into_iter().for_each(|call| {
        call.wait().unwrap();
    });
    let error = nodes[0]
        .call(TWO, &SLEEP, &0, vec![0.0; 524_289], LIMIT)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "cannot send 2097156 bytes to `test.sleep`: limit 2097152 bytes"
    );
}

#[test]
fn a_role_is_served_by_all_of_its_workers() {
    let nodes = nodes(&["client", "server1", "server2"], &RpcLimits::default());
    let role = CallTarget::Role("server");
    let none = CallValues::none;
    let calls: Vec<_> = (0..20)
        .map(|_| nodes[0].start(role, &SLEEP, &100, none(), LIMIT).unwrap())
        .collect();
    let served = calls.iter().filter(|call| call.peer() == "server2").count();
    assert!((1..20).contains(&served), "{served} of 20");
    calls.into_iter().for_each(|call| {
        call.wait().unwrap();
    });
}

#[test]
fn functions_call_other_workers() {
    const RELAY: RemoteFunction<String, String> = RemoteFunction::new("test.relay", 1);
    let sockets = [listen(), listen(), listen()];
    let names = ["one", "two", "three"];
    let mut relaying = functions();
    relaying.register(&RELAY, |context, text, values| {
        let target = CallTarget::Worker("three");
        let left = context.time_left();
        let from = context.caller().to_owned();
        let (text, values) = context.node().call(target, &ECHO, &text, values, left)?;
        Ok((format!("{from}: {text}"), values))
    });
    let addresses = sockets.each_ref().map(|(_, at)| *at);
    let open = |index: usize, listener, functions| {
        let others = (0..3).filter(|other| *other != index);
        let peers = others.map(|other| peer(names[other], addresses[other]));
        RpcNode::open(config(names[index]), listener, peers.collect(), functions).unwrap()
    };
    let [(one, _), (two, _), (three, _)] = sockets;
    let nodes = [
        open(0, one, FunctionRegistry::new()),
        open(1, two, relaying),
        open(2, three, functions()),
    ];
    let text = "text".to_owned();
    let (text, values) = nodes[0].call(TWO, &RELAY, &text, vec![1.5], LIMIT).unwrap();
    assert_eq!((text.as_str(), &values[..]), ("one: text", &[1.5][..]));
}

#[test]
fn calls_of_a_node_that_closes_fail() {
    let mut nodes = nodes(&["one", "two"], &RpcLimits::default());
    let one = nodes.remove(0);
    let pending = one
        .start(TWO, &SLEEP, &200, CallValues::none(), LIMIT)
        .unwrap();
    drop(nodes);
    let ended = pending.wait();
    // The function was running, so its answer may have been the callee's last one.
    assert!(matches!(ended, Ok(_) | Err(RpcError::PeerLost { .. })));
}
