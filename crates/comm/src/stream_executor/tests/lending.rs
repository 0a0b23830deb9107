//! A member that lends and reads messages, with a bare peer that follows the protocol or does not.

use std::sync::atomic::{AtomicU64, Ordering};

use ronde_core::{Collectives, Work};
use ronde_peer_memory::{LendingMark, PeerMemory};

use super::*;
use crate::stream_executor::ExecutorCommand;

const LEN: usize = 3 << 20;
/// The length of the shortest message that is lent.
const LONG: usize = 128 << 10;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn message(len: usize) -> Call {
    Call {
        kind: CallKind::Message,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        algorithm: None,
        detail: 4,
        len: len as u64,
    }
}

/// A frame without bytes that follow.
fn bare(kind: FrameKind, sequence: u64, call: Call) -> [u8; HEADER_BYTES] {
    FrameHeader {
        kind,
        generation: Generation(0),
        sequence,
        call,
        bytes: 0,
    }
    .encode()
}

fn lent(values: &[u8]) -> [u8; HEADER_BYTES] {
    bare(
        FrameKind::Lent,
        values.as_ptr().expose_provenance() as u64,
        message(values.len()),
    )
}

fn read_frame(peer: &mut InProcess) -> FrameHeader {
    let mut head = [0; HEADER_BYTES];
    let mut done = 0;
    while done < HEADER_BYTES {
        match peer.read(0, &mut head[done..]) {
            Ok(count) => done += count,
            Err(_) => {
                let read = Interest {
                    read: true,
                    write: false,
                };
                peer.wait(&mut [read, Interest::default()], LIMIT).unwrap();
            }
        }
    }
    FrameHeader::decode(&head).unwrap()
}

/// A group of one member that reads the memory of its peer, which has `mark`.
fn pair(mark: &LendingMark) -> (ProcessGroup, InProcess) {
    let (mut groups, mut last) = with_bare_last(2);
    let group = groups.remove(0);
    let mine = LendingMark::new().unwrap();
    let memories = vec![None, PeerMemory::open(mark.offer())];
    let command = ExecutorCommand::Lend {
        mark: mine,
        memories,
    };
    group.post(command).unwrap();
    // The first long message shows that the peer has some to lend.
    for _ in 0..2 {
        let work = receive(&group, LONG);
        let head = header(FrameKind::Message, message(LONG), LONG as u64);
        write_all(&mut last, &head);
        write_all(&mut last, &[5; LONG]);
        assert_eq!(work.wait().unwrap().bytes(), [5; LONG]);
    }
    let ready = read_frame(&mut last);
    assert_eq!((ready.kind, ready.sequence), (FrameKind::LentRead, 0));
    (group, last)
}

fn receive(group: &ProcessGroup, len: usize) -> Box<dyn Work> {
    group
        .receive(GroupRank(1), Tag(4), Buffer::host(DType::U8, len))
        .unwrap()
}

#[test]
fn lent_messages_are_read_in_order_with_others_early_and_late() {
    let mark = LendingMark::new().unwrap();
    let (group, mut last) = pair(&mark);
    let values: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let first = receive(&group, LEN);
    let frames = [
        lent(&values).to_vec(),
        header(FrameKind::Message, message(3), 3).to_vec(),
        vec![1, 2, 3],
        lent(&values[7..LEN - 70_000]).to_vec(),
        lent(&values[9..9]).to_vec(),
    ];
    write_all(&mut last, &frames.concat());
    assert!(first.wait().unwrap().bytes() == values);
    for _ in 0..3 {
        let acknowledged = read_frame(&mut last);
        assert_eq!(acknowledged.kind, FrameKind::LentRead);
        assert_eq!(acknowledged.sequence, 1);
    }
    // The others were read before they were expected, so their sender may change its memory.
    drop(values);
    mark.end();
    assert_eq!(receive(&group, 3).wait().unwrap().bytes(), [1, 2, 3]);
    let third = receive(&group, LEN - 70_007).wait().unwrap();
    let expected = (7..LEN - 70_000).map(|at| (at % 251) as u8);
    assert!(third.bytes().iter().copied().eq(expected));
    assert!(receive(&group, 0).wait().unwrap().is_empty());
}

#[test]
fn a_withdrawn_message_is_never_taken_and_the_cause_of_its_sender_is_reported() {
    let mismatched = |error: CollectiveError| error.to_string();
    let notice = Notice::Aborted {
        reason: "enough of it".to_owned(),
    }
    .encode(1);
    for (ends, expected) in [
        (0, "enough of it"),
        (1, "connection closed"),
        (2, "it has left the group"),
        (3, "could not be read: it withdrew its values"),
    ] {
        let mark = LendingMark::new().unwrap();
        let (group, mut last) = pair(&mark);
        let work = receive(&group, LEN);
        let values = vec![7; LEN];
        mark.end();
        write_all(&mut last, &lent(&values));
        // Later errors do not replace it.
        write_all(&mut last, &header(FrameKind::Message, message(1), 1));
        write_all(&mut last, &[1]);
        write_all(&mut last, &lent(&values));
        match ends {
            0 => {
                let head = header(FrameKind::Notice, Call::NOTHING, notice.len() as u64);
                write_all(&mut last, &head);
                write_all(&mut last, &notice);
            }
            1 => drop(last),
            2 => write_all(&mut last, &bare(FrameKind::Goodbye, 0, Call::NOTHING)),
            _ => {}
        }
        let error = work.wait().map(drop).map_err(mismatched).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_buffer_is_returned_when_its_message_was_read_and_not_before() {
    let theirs = LendingMark::new().unwrap();
    let (group, mut last) = pair(&theirs);
    let send = |value: u8, len| {
        let buffer = Buffer::copy_of(&vec![value; len]);
        group.send(GroupRank(1), Tag(4), buffer).unwrap()
    };
    // The peer has not announced that it can read this memory.
    let before = send(9, LEN);
    assert_eq!(read_frame(&mut last).kind, FrameKind::Message);
    let mut rest = vec![0; LEN];
    let mut done = 0;
    while done < LEN {
        done += last.read(0, &mut rest[done..]).unwrap_or(0);
    }
    before.wait().unwrap();
    let streamed = group.bytes_sent();

    write_all(&mut last, &bare(FrameKind::LentRead, 0, Call::NOTHING));
    std::thread::yield_now();
    let mut work = send(8, LEN);
    let mut frame = read_frame(&mut last);
    if frame.kind == FrameKind::Message {
        // Sent before the announcement was processed.
        let mut done = 0;
        while done < LEN {
            done += last.read(0, &mut rest[done..]).unwrap_or(0);
        }
        work.wait().unwrap();
        work = send(8, LEN);
        frame = read_frame(&mut last);
    }
    assert_eq!((frame.kind, frame.call.len), (FrameKind::Lent, LEN as u64));
    assert_eq!(group.bytes_sent() % streamed, 0, "as if it were sent");
    let small = send(1, 10);
    small.wait().unwrap();
    assert!(!work.is_finished(), "the peer has not read it");
    write_all(&mut last, &bare(FrameKind::LentRead, 1, Call::NOTHING));
    assert!(work.wait().unwrap().bytes() == vec![8; LEN]);
    // An acknowledgement of a message that was not lent.
    write_all(&mut last, &bare(FrameKind::LentRead, 1, Call::NOTHING));
    let work = group.receive(GroupRank(1), Tag(4), Buffer::host(DType::U8, 1));
    let error = work.and_then(Work::wait).unwrap_err();
    assert!(matches!(error, CollectiveError::Protocol { .. }), "{error}");
}

/// Memory that records the mark at the time of its release.
struct RecordingMemory {
    bytes: Vec<u8>,
    mark: &'static AtomicU64,
    offer: PeerMemory,
}

impl ronde_core::Memory for RecordingMemory {
    fn kind(&self) -> ronde_core::MemoryKind {
        ronde_core::MemoryKind::Host
    }

    fn owner(&self) -> &'static str {
        "test"
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for RecordingMemory {
    fn drop(&mut self) {
        let address = self.bytes.as_ptr().expose_provenance() as u64;
        let is_lent = self.offer.read(address, &mut [0; 1]).is_ok();
        self.mark.store(1 + u64::from(is_lent), Ordering::SeqCst);
    }
}

#[test]
fn the_mark_ends_before_an_unread_message_is_released() {
    for ends in 0..3 {
        static RELEASED: AtomicU64 = AtomicU64::new(0);
        RELEASED.store(0, Ordering::SeqCst);
        let theirs = LendingMark::new().unwrap();
        let (mut groups, mut last) = with_bare_last(2);
        let group = groups.remove(0);
        let mine = LendingMark::new().unwrap();
        let offer = PeerMemory::open(mine.offer()).unwrap();
        let memories = vec![None, PeerMemory::open(theirs.offer())];
        group
            .post(ExecutorCommand::Lend {
                mark: mine,
                memories,
            })
            .unwrap();
        write_all(&mut last, &bare(FrameKind::LentRead, 0, Call::NOTHING));
        // A message from the peer shows that its announcement was processed.
        let work = receive(&group, 1);
        write_all(&mut last, &header(FrameKind::Message, message(1), 1));
        write_all(&mut last, &[1]);
        work.wait().unwrap();
        let memory = RecordingMemory {
            bytes: vec![5; LEN],
            mark: &RELEASED,
            offer,
        };
        let buffer = Buffer::from_memory(DType::U8, LEN, Box::new(memory));
        let work = group.send(GroupRank(1), Tag(4), buffer).unwrap();
        assert_eq!(read_frame(&mut last).kind, FrameKind::Lent);
        match ends {
            0 => {
                group.abort("enough");
                assert!(work.wait().is_err());
                drop(group);
            }
            1 => {
                drop(last);
                assert!(work.wait().is_err());
                drop(group);
            }
            // It waits for the reader, as long as it would flush a stream.
            _ => {
                drop(group);
                assert!(work.wait().is_err());
            }
        }
        assert_eq!(RELEASED.load(Ordering::SeqCst), 1, "case {ends}");
    }
}
