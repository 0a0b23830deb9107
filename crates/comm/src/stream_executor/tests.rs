//! Tests with misbehaving members: killed ones, and ones that send arbitrary bytes.

mod lending;

use std::io::ErrorKind;
use std::time::Duration;

use proptest::prelude::*;
use ronde_core::{
    Buffer, CollectiveError, CollectivesExt, DType, Generation, GroupRank, PointToPoint, ReduceOp,
    Tag,
};
use ronde_wire::PREFIX_BYTES;

use crate::config::GroupConfig;
use crate::frame::{Call, CallKind, FrameHeader, FrameKind, HEADER_BYTES};
use crate::group::ProcessGroup;
use crate::hello::{HELLO, JoinHello};
use crate::notice::Notice;
use crate::transport::in_process::{self, InProcess};
use crate::transport::{Interest, Transport};

/// Returns all members but the last one, and the last one's bare streams.
fn with_bare_last(size: usize) -> (Vec<ProcessGroup>, InProcess) {
    with_bare_last_for(size, Duration::from_secs(20))
}

fn with_bare_last_for(size: usize, timeout: Duration) -> (Vec<ProcessGroup>, InProcess) {
    let mut transports = in_process::connect(size);
    let last = transports.pop().unwrap();
    let groups = transports.into_iter().enumerate().map(|(rank, transport)| {
        let mut config = GroupConfig::new("test", "test", GroupRank(rank as u32));
        config.timeout = timeout;
        config.algorithm = Some(ronde_schedule::Algorithm::HalvingDoubling);
        ProcessGroup::over(config, size, Box::new(transport)).unwrap()
    });
    (groups.collect(), last)
}

fn header(kind: FrameKind, call: Call, bytes: u64) -> [u8; HEADER_BYTES] {
    let generation = Generation(0);
    let sequence = 0;
    FrameHeader {
        kind,
        generation,
        sequence,
        call,
        bytes,
    }
    .encode()
}

fn all_reduce_of(len: u64) -> Call {
    Call {
        kind: CallKind::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        algorithm: Some(ronde_schedule::Algorithm::HalvingDoubling),
        detail: 0,
        len,
    }
}

#[test]
fn a_killed_member_is_named_by_all_others_and_in_later_calls() {
    let (groups, last) = with_bare_last(4);
    let threads: Vec<_> = groups
        .into_iter()
        .map(|group| {
            std::thread::spawn(move || {
                let first = group.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum);
                [first, group.barrier()]
            })
        })
        .collect();
    drop(last);
    for thread in threads {
        for outcome in thread.join().unwrap() {
            match outcome.unwrap_err() {
                CollectiveError::PeerLost { peer, .. } => assert_eq!(peer, GroupRank(3)),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_member_that_is_killed_in_the_middle_of_a_frame_is_named() {
    let (groups, mut last) = with_bare_last(2);
    let head = header(FrameKind::Collective, all_reduce_of(1000), 1792);
    assert_eq!(last.write(0, &head, &[7; 100]).unwrap(), HEADER_BYTES + 100);
    drop(last);
    let error = groups[0].all_reduce(&mut vec![1.0_f32; 1000], ReduceOp::Sum);
    assert!(
        matches!(error, Err(CollectiveError::PeerLost { .. })),
        "{error:?}"
    );
}

#[test]
fn frames_that_no_member_sends_are_reported_as_broken() {
    let call = all_reduce_of(10);
    let cases = [
        header(FrameKind::Collective, call, 99),
        header(FrameKind::Collective, call, u64::MAX),
        header(FrameKind::Notice, call, 1 << 20),
        header(FrameKind::Notice, call, 0),
        [0xff; HEADER_BYTES],
    ];
    for frame in cases {
        let (groups, mut last) = with_bare_last(2);
        // With its payload: the frame may arrive before the call and is then checked when it is complete.
        last.write(0, &frame, &[0; 99]).unwrap();
        let error = groups[0]
            .all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum)
            .unwrap_err();
        assert!(matches!(error, CollectiveError::Protocol { .. }), "{error}");
    }
}

#[test]
fn a_frame_that_announces_many_bytes_allocates_nothing_before_they_arrive() {
    let (groups, mut last) = with_bare_last(2);
    let mut call = all_reduce_of(1 << 35);
    call.kind = CallKind::Message;
    last.write(0, &header(FrameKind::Message, call, 1 << 37), &[1; 64])
        .unwrap();
    let work = groups[0]
        .receive(GroupRank(1), Tag(0), Buffer::host(DType::F32, 1))
        .unwrap();
    assert!(matches!(work.wait(), Err(CollectiveError::Mismatch { .. })));
}

/// Writes all bytes, even if the reader has gone.
fn write_all(transport: &mut dyn Transport, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match transport.write(0, bytes, &[]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let write = Interest {
                    read: false,
                    write: true,
                };
                let limit = Some(Duration::from_secs(20));
                transport
                    .wait(&mut [write, Interest::default()], limit)
                    .unwrap();
            }
            Err(_) => return,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn anything_that_arrives_is_an_error_and_no_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        flips in prop::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..3),
        kind in 1_u8..8,
    ) {
        // A frame that is too long to buffer is not read before it is expected: a timeout.
        let (groups, mut last) = with_bare_last_for(2, Duration::from_millis(100));
        let mut head = header(FrameKind::Collective, all_reduce_of(10), bytes.len() as u64);
        head[3] = kind;
        for (place, value) in flips {
            head[place] = value;
        }
        write_all(&mut last, &head);
        write_all(&mut last, &bytes);
        drop(last);
        let outcome = groups[0].all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum);
        let later = groups[0].barrier();
        prop_assert!(outcome.is_err() || later.is_err());
        let panicked = |error: &CollectiveError| error.to_string().contains("group ended before");
        prop_assert!(!outcome.err().as_ref().is_some_and(panicked));
        prop_assert!(!later.err().as_ref().is_some_and(panicked));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = JoinHello::decode(&bytes);
        let _ = Notice::decode(&bytes);
        if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() {
            prop_assert!(HELLO.body_bytes(prefix).is_err());
        }
        if let Some(head) = bytes.first_chunk::<HEADER_BYTES>() {
            let mut head = *head;
            head[..3].copy_from_slice(b"rnd");
            if let Ok(header) = FrameHeader::decode(&head) {
                prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
            }
        }
    }

    #[test]
    fn a_hello_is_the_same_after_decoding_and_every_truncation_is_refused(
        parts in prop::collection::btree_map("[a-z.]{1,9}", ".{0,20}", 0..6),
        generation in any::<u64>(),
    ) {
        let mut config = GroupConfig::new("dp", "job", GroupRank(3));
        config.generation = Generation(generation);
        for (name, value) in parts {
            config.plan.set(name, value);
        }
        let hello = JoinHello::new(&config, 8, 1);
        let wire = hello.encode().unwrap();
        let body = &wire[PREFIX_BYTES..];
        prop_assert_eq!(JoinHello::decode(body), Ok(hello));
        for end in 0..body.len() {
            prop_assert!(JoinHello::decode(&body[..end]).is_err());
        }
    }
}
