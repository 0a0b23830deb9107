//! Lost connections and lost peers: a proxy cuts connections at any byte, processes restart.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ronde_core::Recovery;
use ronde_rpc::{
    CallTarget, CallValues, FunctionRegistry, RemoteFunction, RpcError, RpcLimits, RpcNode,
};

use crate::support::{
    COUNT, ECHO, LIMIT, SLEEP, config, echo, functions, listen, peer, wait_until,
};

const TWO: CallTarget<'_> = CallTarget::Worker("two");

/// Forwards connections, and cuts each one after a number of bytes.
struct CuttingProxy {
    address: SocketAddr,
    is_cutting: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut bytes: usize, cuts: &AtomicUsize) {
    let mut piece = [0; 700];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let count = count.min(bytes);
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
        bytes -= count;
        if bytes == 0 {
            cuts.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    let _gone = from.shutdown(Shutdown::Both);
    let _gone = to.shutdown(Shutdown::Both);
}

impl CuttingProxy {
    fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            is_cutting: Arc::new(AtomicBool::new(true)),
            cuts: Arc::default(),
        };
        let (is_cutting, cuts) = (Arc::clone(&proxy.is_cutting), Arc::clone(&proxy.cuts));
        thread::spawn(move || {
            for (number, near) in listener.incoming().enumerate() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else {
                    return;
                };
                // Each connection ends elsewhere, in alternating directions.
                let at = 300 + 997 * number;
                let bytes = match (is_cutting.load(Ordering::SeqCst), number % 2) {
                    (false, _) => [usize::MAX; 2],
                    (true, 0) => [at, usize::MAX],
                    (true, _) => [usize::MAX, at],
                };
                for (from, to, bytes) in [(&near, &far, bytes[0]), (&far, &near, bytes[1])] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cuts = Arc::clone(&cuts);
                    thread::spawn(move || forward(from, to, bytes, &cuts));
                }
            }
        });
        proxy
    }
}

#[test]
fn calls_over_connections_that_break_everywhere_are_executed_exactly_once() {
    const RECORD: RemoteFunction<u32, u32> = RemoteFunction::new("test.record", 1);
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let proxy = CuttingProxy::start(two);
    let executed = Arc::new(Mutex::new(Vec::new()));
    let mut recording = FunctionRegistry::new();
    let record = Arc::clone(&executed);
    recording.register(&RECORD, move |_, number, values| {
        record.lock().unwrap().push(number);
        Ok((number, values))
    });
    let _callee = RpcNode::open(config("two"), at_two, vec![peer("one", one)], recording).unwrap();
    let peers = vec![peer("two", proxy.address)];
    let caller = RpcNode::open(config("one"), at_one, peers, functions()).unwrap();
    let calls: Vec<_> = (0..400_u32)
        .map(|number| {
            let values = vec![number as f32; (number as usize * 37) % 500];
            caller.start(TWO, &RECORD, &number, values, LIMIT).unwrap()
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let (same, values) = call.wait().unwrap();
        assert_eq!(same as usize, number);
        assert_eq!(values[..], vec![number as f32; (number * 37) % 500]);
    }
    let mut executed = executed.lock().unwrap().clone();
    executed.sort_unstable();
    assert_eq!(executed, (0..400).collect::<Vec<u32>>());
    assert!(proxy.cuts.load(Ordering::SeqCst) > 5);
}

fn short() -> RpcLimits {
    RpcLimits {
        reconnect: Duration::from_millis(300),
        ..RpcLimits::default()
    }
}

#[test]
fn calls_to_a_lost_peer_fail_and_work_again_with_its_successor() {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let open_two = |listener| {
        RpcNode::open(config("two"), listener, vec![peer("one", one)], functions()).unwrap()
    };
    let first = open_two(at_two);
    let mut settings = config("one");
    settings.limits = short();
    let caller = RpcNode::open(settings, at_one, vec![peer("two", two)], functions()).unwrap();
    assert_eq!(echo(&caller, "two"), Ok("text".to_owned()));
    let none = CallValues::none;
    let pending = caller.start(TWO, &SLEEP, &3_000, none(), LIMIT).unwrap();
    // A stopped process whose connections end: its function never answers.
    let closing = thread::spawn(move || drop(first));
    let error = caller.call(TWO, &COUNT, &(), none(), LIMIT);
    let _either = error;
    closing.join().unwrap();
    let ended = pending.wait();
    assert!(matches!(ended, Ok(_) | Err(RpcError::PeerLost { .. })));
    let error = caller
        .call(TWO, &ECHO, &String::new(), none(), LIMIT)
        .unwrap_err();
    assert!(matches!(error, RpcError::PeerLost { .. }), "{error}");
    assert_eq!(error.recovery(), Recovery::Rejoin);
    let (at_two, two) = listen();
    let _second = open_two(at_two);
    caller.add_peer(peer("two", two)).unwrap();
    assert_eq!(echo(&caller, "two"), Ok("text".to_owned()));
}

#[test]
fn a_call_that_a_restarted_peer_does_not_know_fails_and_is_not_executed_again() {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    // The first process accepts the call and is then replaced behind the same address.
    let backend = Arc::new(Mutex::new(two));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let front = listener.local_addr().unwrap();
    let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let (target, kept) = (Arc::clone(&backend), Arc::clone(&streams));
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(*target.lock().unwrap()) else {
                continue;
            };
            kept.lock()
                .unwrap()
                .extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || forward(from, to, usize::MAX, &AtomicUsize::new(0)));
            }
        }
    });
    let open = |listener| {
        RpcNode::open(config("two"), listener, vec![peer("one", one)], functions()).unwrap()
    };
    let _first = open(at_two);
    let caller =
        RpcNode::open(config("one"), at_one, vec![peer("two", front)], functions()).unwrap();
    let none = CallValues::none;
    assert_eq!(caller.call(TWO, &COUNT, &(), none(), LIMIT).unwrap().0, 1);
    let pending = caller.start(TWO, &SLEEP, &100_000, none(), LIMIT).unwrap();
    let (at_second, second) = listen();
    let _second = open(at_second);
    *backend.lock().unwrap() = second;
    for stream in streams.lock().unwrap().drain(..) {
        let _gone = stream.shutdown(Shutdown::Both);
    }
    let error = pending.wait().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it has restarted and does not know this call"),
        "{error}"
    );
    assert_eq!(caller.call(TWO, &COUNT, &(), none(), LIMIT).unwrap().0, 1);
    std::mem::forget(_first);
}

#[test]
fn a_role_does_without_a_lost_worker_and_finds_it_when_it_returns() {
    let ((at_client, client), (at_one, one), (at_two, two)) = (listen(), listen(), listen());
    let open = |name: &str, listener| {
        let peers = vec![peer("client", client)];
        RpcNode::open(config(name), listener, peers, functions()).unwrap()
    };
    let _first = open("server1", at_one);
    let second = open("server2", at_two);
    let mut settings = config("client");
    settings.limits = short();
    let peers = vec![peer("server1", one), peer("server2", two)];
    let caller = RpcNode::open(settings, at_client, peers, FunctionRegistry::new()).unwrap();
    let start = || {
        let none = CallValues::none();
        caller.start(CallTarget::Role("server"), &SLEEP, &20, none, LIMIT)
    };
    let served = || {
        let calls: Vec<_> = (0..10).map(|_| start().unwrap()).collect();
        let twos = calls.iter().filter(|call| call.peer() == "server2").count();
        calls.into_iter().for_each(|call| {
            call.wait().unwrap();
        });
        twos
    };
    assert!((1..10).contains(&served()));
    drop(second);
    wait_until("the loss of a server", || {
        let call = start().unwrap();
        let is_one = call.peer() == "server1";
        is_one && call.wait().is_ok() && start().unwrap().peer() == "server1"
    });
    assert_eq!(served(), 0);
    let _again = open("server2", TcpListener::bind(two).unwrap());
    wait_until("the return of the server", || served() > 0);
}
