//! The requirements on every transport, tested with each implementation.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use ronde_core::Rank;
use ronde_identity::{Authority, Member, Validity};
use ronde_wire::TlsStream;

use super::striped::Striped;
use super::tcp::{self, Tcp};
use super::tls::Tls;
use super::{Interest, Transport, in_process};

type Pair = [Box<dyn Transport>; 2];

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const NONE: Interest = Interest {
    read: false,
    write: false,
};

fn in_process_pair() -> Pair {
    let mut ends = in_process::connect(2).into_iter();
    std::array::from_fn(|_| Box::new(ends.next().unwrap()) as Box<dyn Transport>)
}

/// Returns a socket that is set up for a transport.
fn ready(stream: TcpStream) -> Option<TcpStream> {
    tcp::set_up(&stream).unwrap();
    Some(stream)
}

fn tcp_pair() -> Pair {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    [
        Box::new(Tcp::new(vec![None, ready(dialled)]).unwrap()),
        Box::new(Tcp::new(vec![ready(accepted), None]).unwrap()),
    ]
}

fn tls_ends() -> [TlsStream; 2] {
    let now = SystemTime::now();
    let validity = Validity::from_now(now, Duration::from_secs(3600));
    let authority = Authority::new("job", validity).unwrap();
    let member = Member::Rank(Rank(0));
    let identity = authority.issue(&member, validity).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let end = ronde_clock::deadline(Duration::from_secs(20));
    let server = identity.server_config(b"test").unwrap();
    let accepting = thread::spawn(move || TlsStream::accept(accepted, server, end).unwrap());
    let client = identity.client_config(b"test").unwrap();
    let name = identity.name_of(&member).unwrap();
    let dialled = TlsStream::dial(dialled, client, name, end).unwrap();
    [dialled, accepting.join().unwrap()]
}

fn tls_pair_of([dialled, accepted]: [TlsStream; 2]) -> Pair {
    tcp::set_up(dialled.socket()).unwrap();
    tcp::set_up(accepted.socket()).unwrap();
    [
        Box::new(Tls::new(vec![None, Some(dialled)]).unwrap()),
        Box::new(Tls::new(vec![Some(accepted), None]).unwrap()),
    ]
}

fn tls_pair() -> Pair {
    tls_pair_of(tls_ends())
}

fn plain_pair_after_tls() -> Pair {
    let mut ends = tls_ends();
    for end in &mut ends {
        end.leave_tls();
    }
    tls_pair_of(ends)
}

fn striped_pair() -> Pair {
    const CONNECTIONS: usize = 3;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (mut dialled, mut accepted) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let address = listener.local_addr().unwrap();
        dialled.push(ready(TcpStream::connect(address).unwrap()));
        accepted.push(ready(listener.accept().unwrap().0));
    }
    let none = || (0..CONNECTIONS).map(|_| None::<TcpStream>);
    let one = Tcp::new(none().chain(dialled).collect()).unwrap();
    let other = Tcp::new(accepted.into_iter().chain(none()).collect()).unwrap();
    [one, other].map(|tcp| {
        let striped = Striped::new(Box::new(tcp), CONNECTIONS, vec![None, None]);
        Box::new(striped) as Box<dyn Transport>
    })
}

fn read_all(transport: &mut dyn Transport, peer: usize, count: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut buffer = vec![0; 10_000];
    while got.len() < count {
        let room = buffer.len().min(count - got.len());
        match transport.read(peer, &mut buffer[..room]) {
            Ok(0) => panic!("the stream ended after {} bytes", got.len()),
            Ok(count) => got.extend(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let mut interest = [NONE; 2];
                interest[peer].read = true;
                transport.wait(&mut interest, LIMIT).unwrap();
            }
        }
    }
    got
}

fn bytes_arrive_in_order_past_any_bound(pair: Pair) {
    let [mut one, mut other] = pair;
    let sent: Vec<u8> = (0..9_000_000_u32).map(|i| (i % 251) as u8).collect();
    let expected = sent.clone();
    // Reading starts when the transport is full, so that the writer is sure to reach the limit.
    let (full, wait_for_full) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        let _all_is_written = wait_for_full.recv_timeout(Duration::from_secs(20));
        (read_all(&mut *other, 0, expected.len()) == expected, other)
    });
    let (mut at, mut was_full) = (0, false);
    while at < sent.len() {
        let (head, body) = sent[at..].split_at(5.min(sent.len() - at));
        match one.write(1, head, body) {
            Ok(count) => at += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                was_full = true;
                let _reading = full.send(());
                let mut interest = [
                    NONE,
                    Interest {
                        read: false,
                        write: true,
                    },
                ];
                one.wait(&mut interest, LIMIT).unwrap();
            }
        }
    }
    drop(full);
    // Accepted bytes are sent as long as the writer waits for anything.
    while !reader.is_finished() {
        one.wait(&mut [NONE; 2], Some(Duration::from_millis(1)))
            .unwrap();
    }
    let (same, mut other) = reader.join().unwrap();
    assert!(same && was_full);
    one.finish(1);
    let mut interest = [
        Interest {
            read: true,
            write: false,
        },
        NONE,
    ];
    let end = loop {
        interest[0].read = true;
        other.wait(&mut interest, LIMIT).unwrap();
        // A stream over several connections may have received the end of only some of them.
        match other.read(0, &mut [0; 8]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            end => break end,
        }
    };
    assert_eq!(end.unwrap(), 0);
}

fn a_wait_ends_by_waking_and_by_its_limit(pair: Pair) {
    let [mut one, _other] = pair;
    let mut buffer = [0; 4];
    let nothing = one.read(1, &mut buffer).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    let waker = one.waker();
    let mut interest = [
        NONE,
        Interest {
            read: true,
            write: false,
        },
    ];
    waker.wake();
    waker.wake();
    one.wait(&mut interest, None).unwrap();
    assert_eq!(interest, [NONE; 2], "woken before the wait");
    let waking = thread::spawn(move || waker.wake());
    interest[1].read = true;
    one.wait(&mut interest, None).unwrap();
    waking.join().unwrap();
    interest[1].read = true;
    one.wait(&mut interest, Some(Duration::from_millis(1)))
        .unwrap();
    assert!(!interest[1].read);
}

fn a_member_that_is_gone_is_noticed(pair: Pair) {
    let [mut one, mut other] = pair;
    assert_eq!(other.write(0, b"last", b"words").unwrap(), 9);
    drop(other);
    assert_eq!(read_all(&mut *one, 1, 9), b"lastwords");
    let mut interest = [NONE; 2];
    while !interest[1].read {
        interest[1].read = true;
        one.wait(&mut interest, LIMIT).unwrap();
    }
    assert!(!matches!(one.read(1, &mut [0; 4]), Ok(1..)));
}

macro_rules! conformance {
    ($($suite:ident: $pair:expr;)*) => { $(
        mod $suite {
            #[test]
            fn bytes_arrive_in_order_past_any_bound() {
                super::bytes_arrive_in_order_past_any_bound($pair);
            }
            #[test]
            fn a_wait_ends_by_waking_and_by_its_limit() {
                super::a_wait_ends_by_waking_and_by_its_limit($pair);
            }
            #[test]
            fn a_member_that_is_gone_is_noticed() {
                super::a_member_that_is_gone_is_noticed($pair);
            }
        }
    )* };
}
conformance! {
    in_process_streams: super::in_process_pair();
    tcp_streams: super::tcp_pair();
    tls_streams: super::tls_pair();
    striped_streams: super::striped_pair();
    plain_streams_after_tls: super::plain_pair_after_tls();
}
