//! Peers that must not get in: no token, another token, another job, no certificate, floods and nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ronde_core::Rank;
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_rpc::{
    CallTarget, CallValues, RpcConfig, RpcError, RpcLimits, RpcNode, RpcSecurity, RpcToken,
};

use crate::support::{ECHO, LIMIT, TOKEN, config, echo, functions, listen, peer};

/// Opens a node `two` as configured and one `one` that calls it; returns the outcome of a call.
fn attempt(callee: RpcConfig, caller: RpcConfig) -> Result<String, RpcError> {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let member = |rank| Some(Member::Rank(Rank(rank)));
    let mut one = peer("one", one);
    one.member = member(1);
    let mut two = peer("two", two);
    two.member = member(2);
    let _callee = RpcNode::open(callee, at_two, vec![one], functions())?;
    let caller = RpcNode::open(caller, at_one, vec![two], functions())?;
    echo(&caller, "two")
}

fn with(name: &str, security: RpcSecurity) -> RpcConfig {
    let mut config = RpcConfig::new("job", name, security);
    config.limits.reconnect = Duration::from_millis(500);
    config
}

fn token(text: &str) -> RpcSecurity {
    RpcSecurity::Token(RpcToken::new(text))
}

fn validity() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(600))
}

fn authority(job: &str) -> Authority {
    Authority::new(job, validity()).unwrap()
}

fn tls(authority: &Authority, rank: u32) -> RpcSecurity {
    let identity: Identity = authority
        .issue(&Member::Rank(Rank(rank)), validity())
        .unwrap();
    RpcSecurity::Tls(identity)
}

#[test]
fn only_members_of_the_job_can_call() {
    let job = authority("job");
    assert_eq!(
        attempt(with("two", tls(&job, 2)), with("one", tls(&job, 1))),
        Ok("text".to_owned())
    );
    let refused = |callee: RpcConfig, caller: RpcConfig, cause: &str| {
        let error = attempt(callee, caller).unwrap_err();
        assert!(
            error.to_string().contains(cause),
            "{error}, expected {cause}"
        );
        error
    };
    let own = || with("two", token(TOKEN));
    let error = refused(
        own(),
        with("one", token("a guess")),
        "you do not have the token of this job",
    );
    assert!(matches!(error, RpcError::Refused { .. }));
    let mut other = with("one", token(TOKEN));
    other.job = "another".to_owned();
    refused(own(), other, "this is a worker of job `job`");
    refused(
        own(),
        with("three", token(TOKEN)),
        "`three` is not in the list",
    );
    refused(
        with("six", token(TOKEN)),
        with("one", token(TOKEN)),
        "this is the worker `six`",
    );
    // TLS: another authority, another member, and a side without a certificate.
    let foreign = authority("job");
    refused(with("two", tls(&job, 2)), with("one", tls(&foreign, 1)), "");
    refused(with("two", tls(&job, 2)), with("one", tls(&job, 7)), "");
    refused(with("two", tls(&job, 7)), with("one", tls(&job, 1)), "");
    refused(with("two", tls(&job, 2)), with("one", token(TOKEN)), "");
    refused(own(), with("one", tls(&job, 1)), "");
}

#[test]
fn large_values_travel_over_tls_and_a_node_refuses_plain_connections_beyond_loopback() {
    let job = authority("job");
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let mut one = peer("one", one);
    one.member = Some(Member::Rank(Rank(1)));
    let mut two = peer("two", two);
    two.member = Some(Member::Rank(Rank(2)));
    let _callee = RpcNode::open(with("two", tls(&job, 2)), at_two, vec![one], functions()).unwrap();
    let caller = RpcNode::open(with("one", tls(&job, 1)), at_one, vec![two], functions()).unwrap();
    let values: Vec<f32> = (0..2_000_000).map(|value| value as f32).collect();
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let text = String::new();
            let target = CallTarget::Worker("two");
            caller
                .start(target, &ECHO, &text, values.clone(), LIMIT)
                .unwrap()
        })
        .collect();
    for call in calls {
        assert!(call.wait().unwrap().1[..] == values[..]);
    }
    let (listener, _) = listen();
    let far = peer("far", "192.0.2.1:9".parse().unwrap());
    let error = RpcNode::open(config("one"), listener, vec![far], functions())
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("which is not a loopback address; help: give the node an identity"),
        "{error}"
    );
}

#[test]
fn nonsense_floods_and_silence_do_not_disturb_a_node() {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let mut settings = config("two");
    settings.limits = RpcLimits {
        connections_max: 20,
        ..RpcLimits::default()
    };
    let _callee = RpcNode::open(settings, at_two, vec![peer("one", one)], functions()).unwrap();
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(two).unwrap()).collect();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"ronderpc\x02\0\0\0\xff\xff\xff\xff",
        b"ronderpc\x03\0\0\0\x02\0\0\0{}",
        b"ronderpc\x02\0\0\0\x02\0\0\0{}",
        &[0; 10_000],
    ] {
        let mut stream = TcpStream::connect(two).unwrap();
        let _closed = stream.write_all(bytes);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut end = Vec::new();
        // Closed without an answer.
        let _reset = stream.read_to_end(&mut end);
        assert!(end.is_empty(), "{end:?}");
    }
    let caller = RpcNode::open(config("one"), at_one, vec![peer("two", two)], functions()).unwrap();
    assert_eq!(echo(&caller, "two"), Ok("text".to_owned()));
    drop(silent);
}

/// Connects as the worker `one` with the token, and returns the stream after the first messages.
///
/// With a mark, it offers the memory of this process.
fn member_stream(two: SocketAddr, process: u64, mark: Option<&AtomicU64>) -> TcpStream {
    let lends = mark.map_or("null".to_owned(), |mark| {
        let (address, contents) = (mark.as_ptr() as u64, mark.load(Ordering::SeqCst));
        let process = std::process::id();
        format!(r#"{{"process":{process},"mark_address":{address},"mark":{contents}}}"#)
    });
    let hello = format!(
        r#"{{"job":"job","from":"one","process":{process},"to":"two","token":"{TOKEN}","lends":{lends}}}"#
    );
    let mut bytes = b"ronderpc\x02\0\0\0".to_vec();
    bytes.extend((hello.len() as u32).to_le_bytes());
    bytes.extend(hello.as_bytes());
    let mut stream = TcpStream::connect(two).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut prefix = [0; 16];
    stream.read_exact(&mut prefix).unwrap();
    let len = u32::from_le_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]);
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer).unwrap();
    if mark.is_some() {
        let mut returned = [0; 32];
        stream.read_exact(&mut returned).unwrap();
        assert_eq!(returned[3], 8);
    }
    stream
}

/// The header of call 1.
fn header(kind: u8, sequence: u32, head: u32, lent: u8, values: u64) -> Vec<u8> {
    let mut bytes = b"rrp".to_vec();
    bytes.push(kind);
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(head.to_le_bytes());
    bytes.extend([lent, 0, 0, 0]);
    bytes.extend(values.to_le_bytes());
    bytes
}

#[test]
fn a_member_that_breaks_the_protocol_loses_its_connection_only() {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let _callee =
        RpcNode::open(config("two"), at_two, vec![peer("one", one)], functions()).unwrap();
    for bytes in [
        header(9, 0, 0, 0, 0),
        header(1, 0, u32::MAX, 0, 0),
        header(1, 0, 0, 0, u64::MAX),
        header(1, 1, 0, 0, 0),
        header(3, 0, 0, 0, 0),
        header(5, 0, 1 << 30, 0, 0),
        // Values in the memory of a peer that has not offered it, and of values that were not lent to it.
        [&header(1, 0, 8, 1, 4)[..], &[0; 8]].concat(),
        header(8, 0, 0, 0, 0),
        vec![7; 64],
    ] {
        let mut stream = member_stream(two, 5, None);
        stream.write_all(&bytes).unwrap();
        let mut end = Vec::new();
        let _reset = stream.read_to_end(&mut end);
        assert!(end.is_empty(), "{bytes:?}: {end:?}");
    }
    // A call whose head is nonsense is answered with a failure.
    let mut stream = member_stream(two, 6, None);
    stream
        .write_all(&[&header(1, 0, 3, 0, 0)[..], b"abc"].concat())
        .unwrap();
    let mut answer = [0; 33];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[3], answer[32]), (4, 4));
    let caller = RpcNode::open(config("one"), at_one, vec![peer("two", two)], functions()).unwrap();
    assert_eq!(echo(&caller, "two"), Ok("text".to_owned()));
    drop(CallValues::none());
}

#[test]
fn values_that_a_peer_does_not_lend_end_its_connection_only() {
    let ((at_one, one), (at_two, two)) = (listen(), listen());
    let _callee =
        RpcNode::open(config("two"), at_two, vec![peer("one", one)], functions()).unwrap();
    let mark = AtomicU64::new(0x1234_5678_9abc_def1);
    let values = vec![1.5_f32; 40_000];
    let mut head = vec![1, 0, 0, 0, 0, 0, 1, 0, 9, 0];
    head.extend(b"test.echo\"text\"");
    let call = |address: u64| {
        let mut bytes = header(1, 0, head.len() as u32 + 8, 1, values.len() as u64);
        bytes.extend(&head);
        bytes.extend(address.to_le_bytes());
        bytes
    };
    let valid = values.as_ptr() as u64;
    for (address, is_lent) in [(16, true), (u64::MAX - 100, true), (valid, false)] {
        let mut stream = member_stream(two, 5, Some(&mark));
        let contents = mark.load(Ordering::SeqCst);
        if !is_lent {
            mark.store(0, Ordering::SeqCst);
        }
        stream.write_all(&call(address)).unwrap();
        let mut end = Vec::new();
        let _reset = stream.read_to_end(&mut end);
        assert!(end.is_empty(), "{address}: {end:?}");
        mark.store(contents, Ordering::SeqCst);
    }
    let mut stream = member_stream(two, 6, Some(&mark));
    stream.write_all(&call(valid)).unwrap();
    // It was notified that it may read, not that its values are read: they return through the socket.
    let mut answer = vec![0; 32 + 32 + 6 + 4 * values.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[3], answer[8], answer[35]), (8, 1, 3));
    assert!(answer[70..] == *bytemuck::cast_slice::<f32, u8>(&values));
    let caller = RpcNode::open(config("one"), at_one, vec![peer("two", two)], functions()).unwrap();
    assert_eq!(echo(&caller, "two"), Ok("text".to_owned()));
}
